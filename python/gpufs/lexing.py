# SPDX-License-Identifier: Apache-2.0
"""The tokens of files, piece by piece, and files of tokens: the inside of `gpufs lex` and gpufs.par.lex()."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpufs import _lex
from gpufs.collage.interrupt import replacing
from gpufs.errors import GpufsError
from gpufs.mounts import device_of
from gpufs.paths import open_regular, path_of
from gpufs.text import printable
from gpufs.unchanged import check_unchanged, stamp_of
from gpufs.unfinished import State, unfinished

TOKEN = np.dtype([("offset", "<u8"), ("kind", "u1")])  # 9 bytes
Offsets = NDArray[np.uint64]
Kinds = NDArray[np.uint8]
Progress = Callable[[int, int], None]

ERROR = 1  # the kind's number
_HEADER_NBYTES = 128
_MOST_TABLE_NBYTES = 1 << 20


def table_of(table: str | os.PathLike[str]) -> _lex.Table:
    """The table of this name, or else in the file of this name. Raises GpufsError."""
    if isinstance(table, str) and table in _lex.Table.names():
        return _lex.Table.named(table)
    path = path_of(table, "table")
    name = printable(path)
    try:
        with open_regular(path) as stream:
            text = stream.read(_MOST_TABLE_NBYTES + 1)
    except FileNotFoundError:
        names = ", ".join(_lex.Table.names())
        raise GpufsError(f"there is no table '{name}' ({names}), nor a file of that name") from None
    except OSError as error:
        raise GpufsError(f"table '{name}': {error.strerror or error}") from error
    if len(text) > _MOST_TABLE_NBYTES:
        raise GpufsError(f"table '{name}': has more than 1 MiB, which is no table")
    try:
        of = _lex.Table.parse(text, name)
        of.kinds()
    except UnicodeDecodeError:
        raise GpufsError(f"table '{name}': the names of its kinds are no UTF-8") from None
    return of


def inputs_of_table(table: str | os.PathLike[str]) -> list[tuple[Path, str]]:
    """The file of a table that is not there by name, and what it is: no output may be it."""
    is_named = isinstance(table, str) and table in _lex.Table.names()
    return [] if is_named else [(path_of(table, "table"), "the table")]


def names_of(table: _lex.Table) -> list[str]:
    """Of kinds, by their numbers; 0 is none's."""
    return ["", *table.kinds()]


def each_piece(
    path: str | os.PathLike[str],
    table: _lex.Table,
    engine: str,
    *,
    device: int | None = None,
    piece_nbytes: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> Iterator[tuple[Offsets, Kinds]]:
    """The tokens that end in each piece of the file, one piece after the other.

    Raises GpufsError where the file cannot be read, or is not the same at its end.
    """
    path, number = path_of(path, "path"), device_of(engine, device)
    before = stamp_of(path)
    yield from _rest_of(_lex.Lexer(engine, path, table, piece_nbytes, number), on_progress)
    check_unchanged(path, before, "lexed")


def _rest_of(lexer: _lex.Lexer, on_progress: Progress) -> Iterator[tuple[Offsets, Kinds]]:
    """One piece at least: an empty file has one."""
    on_progress(lexer.ndone(), lexer.nbytes())
    is_last = False
    while not is_last:
        ntokens = lexer.next()
        offsets, kinds = np.empty(ntokens, np.uint64), np.empty(ntokens, np.uint8)
        lexer.copy(offsets.ctypes.data, kinds.ctypes.data)
        is_last = lexer.ndone() == lexer.nbytes()
        yield offsets, kinds
        on_progress(lexer.ndone(), lexer.nbytes())


class Found:
    """How many tokens of each kind there are in what was lexed of a file, and where the first error is."""

    _PLACE = struct.Struct("<QQIq")  # of the lexer; and of the first error, -1: there is none

    def __init__(self, table: _lex.Table) -> None:
        self.kinds: NDArray[np.int64] = np.zeros(len(names_of(table)), np.int64)  # by their numbers
        self.first_error: int | None = None
        self.nbytes = 0  # of the file
        self.share = 1.0  # of it that was lexed this time: 1, unless it went on after an interruption

    @property
    def ntokens(self) -> int:
        return int(self.kinds.sum())

    def add(self, offsets: Offsets, kinds: Kinds) -> None:
        self.kinds += np.bincount(kinds, minlength=len(self.kinds))
        if self.first_error is None and (errors := (kinds == ERROR).nonzero()[0]).size:
            self.first_error = int(offsets[errors[0]])

    def so_far(self, place: tuple[int, int, int]) -> bytes:
        """All that is found, and where the lexer is."""
        first_error = -1 if self.first_error is None else self.first_error
        return self._PLACE.pack(*place, first_error) + self.kinds.astype("<i8").tobytes()

    def go_on(self, so_far: bytes) -> tuple[int, int, int]:
        """The place. Raises ValueError: these are of another table, or of no lexer."""
        if len(so_far) != self._PLACE.size + 8 * len(self.kinds):
            raise ValueError
        *place, first_error = self._PLACE.unpack_from(so_far)
        self.kinds[:] = np.frombuffer(so_far, "<i8", offset=self._PLACE.size)
        self.first_error = None if first_error < 0 else first_error
        return place[0], place[1], place[2]


def find(
    path: Path,
    table: _lex.Table,
    engine: str,
    to: TokenFile | None,
    *,
    device: int | None = None,
    piece_nbytes: int = 0,
    on_progress: Progress = lambda done, total: None,
) -> Found:
    """What there is in the file, whose tokens go to a file if there is one. Raises as each_piece()."""
    found = Found(table)

    def show(done: int, total: int) -> None:
        found.nbytes = total
        on_progress(done, total)

    for offsets, kinds in each_piece(path, table, engine, device=device, piece_nbytes=piece_nbytes, on_progress=show):
        if to is not None:
            to.write(offsets, kinds)
        found.add(offsets, kinds)
    return found


def go_on(
    path: Path,
    out: Path,
    table: _lex.Table,
    engine: str,
    *,
    device: int | None = None,
    piece_nbytes: int = 0,
    publishes: bool = True,
    on_progress: Progress = lambda done, total: None,
) -> Found:
    """As find(), to a new file `out`; what is done is kept beside it until then, and the same work goes on from there.

    publishes: the file gets its name; else all stays, and a call that publishes finds it done. Raises GpufsError.
    """
    before = stamp_of(path)
    if before is None:  # who opens it says why
        with new_token_file(out) as tokens:
            return find(path, table, engine, tokens, device=device, piece_nbytes=piece_nbytes, on_progress=on_progress)
    found = Found(table)
    found.nbytes = before[2]
    facts = {"it is": "lexed", "the table's checksum": f"{table.checksum():08x}"}  # not the engine: all find the same
    with unfinished(out, facts, before) as kept:
        place = None
        if kept.state is not None:
            piece_nbytes = kept.state[0]
            try:
                place = found.go_on(kept.state[2])
            except ValueError:
                raise kept.damaged() from None
            found.share = 1 - place[0] / found.nbytes if found.nbytes else 0.0
        tokens = TokenFile(kept.out, out, found.ntokens)
        # What is to be saved, and how much of `out` that is: set at once, as an interruption may come anywhere.
        done: tuple[State, int] = (kept.state or (0, 0, b""), tokens.nbytes)
        try:
            if found.share != 0:
                lexer = _lex.Lexer(engine, path, table, piece_nbytes, device_of(engine, device))
                if place is not None:
                    lexer.go_on(*place)
                for offsets, kinds in _rest_of(lexer, on_progress):
                    tokens.write(offsets, kinds)
                    found.add(offsets, kinds)
                    state = (lexer.piece_nbytes(), done[0][1] + 1, found.so_far(lexer.so_far()))
                    done = (state, tokens.nbytes)
                    kept.note(state)
            tokens.write_header()
        except BaseException:
            with suppress(OSError):  # then the state of before stays
                kept.out.truncate(done[1])
                kept.save(done[0])
            raise
        if stamp_of(path) != before:
            kept.remove()
        check_unchanged(path, before, "lexed")
        if publishes:
            kept.publish(out, done[0])
        else:
            kept.save(done[0])
    return found


class TokenFile:
    """A .npy file of tokens, as TOKEN has them, that does not know how many they will be."""

    def __init__(self, to: BinaryIO, path: Path, ntokens: int = 0) -> None:
        """ntokens: are there already. The header comes at the end."""
        self._to, self._path, self._ntokens = to, path, ntokens
        to.seek(self.nbytes)

    @property
    def nbytes(self) -> int:
        return _HEADER_NBYTES + self._ntokens * TOKEN.itemsize

    def write(self, offsets: Offsets, kinds: Kinds) -> None:
        tokens = np.empty(len(offsets), TOKEN)
        tokens["offset"], tokens["kind"] = offsets, kinds
        self._write(tokens.tobytes())
        self._ntokens += len(tokens)

    def _write(self, text: bytes) -> None:
        left = memoryview(text)
        while left:  # a file without a buffer takes a part of them
            left = left[self._to.write(left) :]

    def write_header(self) -> None:
        """Behind all tokens; again does nothing more."""
        self._to.seek(0)
        self._write(_header(self._ntokens))

    def end(self) -> None:
        """All is on the disk then: what fails for room fails here, with a GpufsError. Again does nothing more."""
        try:
            self.write_header()
            self._to.flush()
            os.fsync(self._to.fileno())
        except OSError as error:
            raise GpufsError(f"{self._path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def new_token_file(path: Path) -> Iterator[TokenFile]:
    """Puts it in place whole where the block ends well; else nothing is left. Raises GpufsError."""
    with replacing(path) as to:
        tokens = TokenFile(to, path)
        yield tokens
        tokens.end()


def _header(ntokens: int) -> bytes:
    """NumPy's, of version 1.0, as long for any number of tokens."""
    text = repr({"descr": TOKEN.descr, "fortran_order": False, "shape": (ntokens,)}).encode()
    nbytes = _HEADER_NBYTES - 10
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", nbytes) + text.ljust(nbytes - 1) + b"\n"

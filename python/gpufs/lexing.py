# SPDX-License-Identifier: Apache-2.0
"""The tokens of files, piece by piece, and files of tokens: the inside of `gpufs lex` and gpufs.par.lex()."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

TOKEN = np.dtype([("offset", "<u8"), ("kind", "u1")])  # 9 bytes
Offsets = NDArray[np.uint64]
Kinds = NDArray[np.uint8]

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
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[Offsets, Kinds]]:
    """The tokens that end in each piece of the file, one piece after the other.

    Raises GpufsError where the file cannot be read, or is not the same at its end.
    """
    path, number = path_of(path, "path"), device_of(engine, device)
    before = stamp_of(path)
    lexer = _lex.Lexer(engine, path, table, piece_nbytes, number)
    while True:
        ntokens = lexer.next()
        offsets, kinds = np.empty(ntokens, np.uint64), np.empty(ntokens, np.uint8)
        lexer.copy(offsets.ctypes.data, kinds.ctypes.data)
        on_progress(lexer.ndone(), lexer.nbytes())
        is_last = lexer.ndone() == lexer.nbytes()
        if is_last:
            check_unchanged(path, before, "lexed")
        yield offsets, kinds
        if is_last:
            return


class TokenFile:
    """A .npy file of tokens, as TOKEN has them, that does not know how many they will be."""

    def __init__(self, to: BinaryIO, path: Path) -> None:
        self._to, self._path, self._ntokens = to, path, 0
        to.write(_header(0))

    def write(self, offsets: Offsets, kinds: Kinds) -> None:
        tokens = np.empty(len(offsets), TOKEN)
        tokens["offset"], tokens["kind"] = offsets, kinds
        self._to.write(tokens.tobytes())
        self._ntokens += len(tokens)

    def end(self) -> None:
        """All is on the disk then: what fails for room fails here, with a GpufsError. Again does nothing more."""
        try:
            self._to.seek(0)
            self._to.write(_header(self._ntokens))
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

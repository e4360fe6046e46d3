# SPDX-License-Identifier: Apache-2.0
"""What a long job on a file has done, kept beside its output until it is complete, so that the same job can go on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gpufs.errors import GpufsError
from gpufs.unchanged import Stamp

State = tuple[int, int, bytes]  # bytes of a piece, how many pieces are done, and what the job goes on by behind them
_FORMAT = 2
_MOST_STATE_NBYTES = 1 << 20
_SAVED_EVERY = 30.0  # seconds: a save waits until all that is done is on the disk
_NOTHING: State = (0, 0, bytes(8))


def checksum_of(told: dict[str, Any]) -> int:
    """Of what a file `state` says besides."""
    return zlib.crc32(json.dumps(told).encode())


class _Kept(NamedTuple):
    state: State
    sizes: tuple[int, int]  # of `out` and `runs`; what is behind was written after it


class Unfinished:
    """The folder OUT.unfinished, while one job works in it.

    Its files: `state`, JSON: what job of which input it is, how far it has come, and a checksum; `out`, which gets the
    output's name; `runs`, of sorts. `state` comes first, so that no other folder is taken for one of these, and is
    replaced as a whole, when all that it says is done is on the disk; so whatever ends the process, or the machine,
    what it says is there.
    """

    state: State | None  # of what was done before

    def __init__(self, folder: Path, facts: dict[str, Any], of: Stamp, files: ExitStack) -> None:
        self.folder, self._facts = folder, facts
        self._input = list(of[1:])  # a device may have another number after the machine's next start
        self._there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        files.callback(os.close, self._there)
        if os.fstat(self._there).st_uid != os.geteuid():
            raise GpufsError(f"{folder}: is another user's: rename it, or choose another name for the output")
        try:
            fcntl.flock(self._there, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GpufsError(f"{folder}: another process works on it") from None
        kept = self._load()
        if kept.state[1] == 0:
            self._write_state(_NOTHING, (0, 0))
        self.out = self._open("out", kept.state[1] == 0, files)
        self.runs = self._open("runs", kept.state[1] == 0, files)
        for written, nbytes, was in zip((self.out, self.runs), self._sizes(), kept.sizes, strict=True):
            if nbytes < was:
                raise self.damaged()
            if nbytes > was:
                written.truncate(was)
        self.state = kept.state if kept.state[1] != 0 else None
        self.is_anything_done = self.state is not None
        self._may_save = True
        self._saved_at = time.monotonic()

    def note(self, state: State) -> None:
        """How far the job has come: saved now and then."""
        if time.monotonic() - self._saved_at >= _SAVED_EVERY:
            self.save(state)

    def save(self, state: State) -> None:
        """Waits for the disk. After an error it saves nothing more: the kernel tells of it once, and bytes are lost."""
        if state[1] == 0 or not self._may_save:
            return
        self._may_save = False
        for written in (self.runs, self.out):
            os.fdatasync(written.fileno())
        self._write_state(state, self._sizes())
        self._may_save = self.is_anything_done = True
        self._saved_at = time.monotonic()

    def publish(self, path: Path, state: State) -> None:
        """Gives the output its name, and removes the folder. If that fails, all that is done stays.

        An interruption that comes when the output has its name is too late.
        """
        self.save(state)
        if not self._may_save:
            raise GpufsError(f"{path}: not all that was written came to the disk: start again")
        try:
            os.replace("out", path, src_dir_fd=self._there)
            self.remove()
        except OSError as error:
            raise GpufsError(f"{path}: cannot be written: {error.strerror}; it is {self.folder / 'out'} now") from error
        except KeyboardInterrupt:
            if "out" in self._names():
                raise
            self.remove()

    def remove(self) -> None:
        for name in ("out", "runs", "state.new", "state"):  # what makes it known as ours goes last
            with suppress(OSError):
                os.unlink(name, dir_fd=self._there)
        with suppress(OSError):
            self.folder.rmdir()

    def _names(self) -> set[str]:
        return set(os.listdir(self._there))  # noqa: PTH208

    def _sizes(self) -> tuple[int, int]:
        return os.fstat(self.out.fileno()).st_size, os.fstat(self.runs.fileno()).st_size

    def damaged(self) -> GpufsError:
        return GpufsError(f"{self.folder}: is damaged, or of another version of gpufs: remove it to begin anew")

    def _open_regular(self, name: str, flags: int) -> int:
        """Waits for nothing, as opening a FIFO does. Whatever else has the name, this was not made here."""
        always = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            number = os.open(name, flags | always, 0o666, dir_fd=self._there)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a FIFO or a socket, a folder
                raise self.damaged() from None
            raise
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise self.damaged()
        return number

    def _open(self, name: str, is_new: bool, files: ExitStack) -> BinaryIO:
        try:
            number = self._open_regular(name, os.O_RDWR | (os.O_CREAT if is_new else 0))
        except FileNotFoundError:
            raise self.damaged() from None
        return files.enter_context(os.fdopen(number, "r+b", buffering=0))

    def _write_state(self, state: State, sizes: tuple[int, int]) -> None:
        piece_nbytes, npieces, so_far = state
        all_of_it = {"format": _FORMAT, "job": self._facts, "input": self._input, "sizes": sizes}
        all_of_it |= {"piece_nbytes": piece_nbytes, "npieces": npieces, "so_far": so_far.hex()}
        all_of_it["checksum"] = checksum_of(all_of_it)
        number = self._open_regular("state.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(number, "w") as stream:
            json.dump(all_of_it, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace("state.new", "state", src_dir_fd=self._there, dst_dir_fd=self._there)
        os.fsync(self._there)

    def _load(self) -> _Kept:
        """What was done of the same job on the same input."""
        try:
            number = self._open_regular("state", os.O_RDONLY)
        except FileNotFoundError:
            others = sorted(self._names() - {"state.new"})
            if others:
                raise GpufsError(f"{self.folder}: is another folder, with {others[0]} in it: rename it") from None
            return _Kept(_NOTHING, (0, 0))
        with os.fdopen(number, "rb") as stream:
            text = stream.read(_MOST_STATE_NBYTES)
        try:
            told = json.loads(text)
            if told["format"] != _FORMAT:
                raise GpufsError(f"{self.folder}: is of another version of gpufs: remove it to begin anew")
            if told.pop("checksum") != checksum_of(told):
                raise ValueError
            facts, of = told["job"], told["input"]
            state = (int(told["piece_nbytes"]), int(told["npieces"]), bytes.fromhex(told["so_far"]))
            sizes = (int(told["sizes"][0]), int(told["sizes"][1]))
            ranges = 0 <= state[0] < 1 << 63 and 0 <= state[1] < 1 << 63
            kinds = isinstance(facts, dict) and isinstance(of, list)
            if not kinds or not ranges:
                raise ValueError
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
            raise self.damaged() from None
        if state[1] == 0 or "out" not in self._names():  # without `out` it was published
            return _Kept(_NOTHING, (0, 0))
        for name in (*self._facts, *facts):
            if facts.get(name) != self._facts.get(name):
                said = f"{name} {facts.get(name)}, not {self._facts.get(name)}"
                raise GpufsError(f"{self.folder}: is of another job ({said}): give the same options, or remove it")
        if of != self._input:
            what = "an input that has changed since" if of[:1] == self._input[:1] else "another input"
            raise GpufsError(f"{self.folder}: is of {what}: remove it to begin anew")
        return _Kept(state, sizes)


@contextmanager
def unfinished(out: Path, facts: dict[str, Any], of: Stamp) -> Iterator[Unfinished]:
    """What is kept of the job with these facts and an input with this stamp, whose output is to be `out`.

    Raises GpufsError: the folder is another job's, or cannot be made or written.
    """
    folder = out.with_name(f"{out.name}.unfinished")
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        with ExitStack() as files:
            kept = Unfinished(folder, facts, of, files)
            try:
                yield kept
            finally:
                if not kept.is_anything_done:
                    kept.remove()  # while nobody else may work in it
    except NotADirectoryError as error:
        raise GpufsError(f"{folder}: is there, and is no folder: rename it") from error
    except OSError as error:
        raise GpufsError(f"{folder}: cannot be written: {error.strerror or error}") from error

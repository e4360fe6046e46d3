# SPDX-License-Identifier: Apache-2.0
"""What a long job on a file has done, kept beside its output until it is complete, so that the same job can go on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gpufs.errors import GpufsError
from gpufs.unchanged import Stamp

State = tuple[int, int, bytes]  # of a gpufs._par.Job
_FORMAT = 1
_SAVED_EVERY = 30.0  # seconds: a save waits until all that is done is on the disk


class Unfinished:
    """The folder OUT.unfinished, while one job works in it.

    Its files: `out`, which gets the output's name; `runs`, of sorts; `state`, JSON: what job of which input it is, and
    how far it has come. `state` is replaced as a whole, when all that it says is done is on the disk; so whatever ends
    the process, or the machine, what it says is there.
    """

    state: State | None  # of what was done before

    def __init__(self, folder: Path, facts: dict[str, Any], of: Stamp | None, files: ExitStack) -> None:
        self.folder, self._facts = folder, facts
        self._input = list(of[1:]) if of else None  # a device may have another number after the machine's next start
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        files.callback(os.close, self._lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GpufsError(f"{folder}: another process works on it") from None
        self.state = self._load()
        self.out: BinaryIO = files.enter_context(self._open("out"))
        self.runs: BinaryIO = files.enter_context(self._open("runs"))
        if self.state is not None and of is not None and os.fstat(self.out.fileno()).st_size != of[2]:
            raise GpufsError(f"{folder}: is damaged: remove it to begin anew")
        self._saved_at = time.monotonic()

    def note(self, state: State) -> None:
        """How far the job has come: saved now and then."""
        if time.monotonic() - self._saved_at >= _SAVED_EVERY:
            self.save(state)

    def save(self, state: State) -> None:
        """Waits for the disk."""
        if state[1] == 0:
            return
        for written in (self.runs, self.out):
            os.fdatasync(written.fileno())
        piece_nbytes, npieces, so_far = state
        all_of_it = {"format": _FORMAT, "job": self._facts, "input": self._input}
        all_of_it |= {"piece_nbytes": piece_nbytes, "npieces": npieces, "so_far": so_far.hex()}
        new = self.folder / "state.new"
        with new.open("w") as stream:
            json.dump(all_of_it, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self.folder / "state")
        os.fsync(self._lock)
        self._saved_at = time.monotonic()

    def publish(self, path: Path) -> None:
        """Gives the output its name, and removes the folder."""
        os.fsync(self.out.fileno())
        (self.folder / "state").unlink(missing_ok=True)  # first: without `out` it would be wrong
        (self.folder / "out").replace(path)
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self, name: str) -> BinaryIO:
        anew = os.O_CREAT if self.state is None else 0
        number = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC | anew, 0o666)
        return os.fdopen(number, "r+b")

    def _load(self) -> State | None:
        """The state of the same job on the same input. None: nothing has been done."""
        try:
            text = (self.folder / "state").read_text()
        except FileNotFoundError:
            others = sorted({path.name for path in self.folder.iterdir()} - {"out", "runs", "state.new"})
            if others:
                raise GpufsError(f"{self.folder}: is another folder, with {others[0]} in it: rename it") from None
            return None
        try:
            kept = json.loads(text)
            facts, of = kept["job"], kept["input"]
            state = (int(kept["piece_nbytes"]), int(kept["npieces"]), bytes.fromhex(kept["so_far"]))
            if kept["format"] != _FORMAT or not isinstance(facts, dict):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise GpufsError(f"{self.folder}: is damaged, or of another version of gpufs: remove it") from None
        for name in (*self._facts, *facts):
            if facts.get(name) != self._facts.get(name):
                said = f"{name} {facts.get(name)}, not {self._facts.get(name)}"
                raise GpufsError(f"{self.folder}: is of another job ({said}): give the same options, or remove it")
        if of != self._input:
            raise GpufsError(f"{self.folder}: is of an input that has changed since: remove it to begin anew")
        return state


@contextmanager
def unfinished(out: Path, facts: dict[str, Any], of: Stamp | None) -> Iterator[Unfinished]:
    """What is kept of the job with these facts and an input with this stamp, whose output is to be `out`.

    Raises GpufsError: the folder is another job's, or cannot be made or written.
    """
    folder = out.with_name(f"{out.name}.unfinished")
    try:
        is_new = not folder.is_dir()
        folder.mkdir(exist_ok=True)
        with ExitStack() as files:
            kept = Unfinished(folder, facts, of, files)
            yield kept
    except OSError as error:
        raise GpufsError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        if is_new and not (folder / "state").exists():  # nothing is done: nothing is left
            shutil.rmtree(folder, ignore_errors=True)

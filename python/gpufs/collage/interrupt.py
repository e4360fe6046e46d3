# SPDX-License-Identifier: Apache-2.0
"""Ending early without leaving anything behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from types import FrameType

from gpufs import _native
from gpufs.errors import GpufsError


class TerminatedError(KeyboardInterrupt):
    """SIGTERM arrived. Derives from KeyboardInterrupt, so that it is cleaned up after in the same way."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within, SIGTERM raises TerminatedError in the main thread instead of ending the process on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        raise TerminatedError

    previous = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def check_writable(path: Path) -> None:
    """Raises GpufsError when a file of this name could not be made: found before the work, not after it."""
    folder = path.parent
    try:
        if not folder.is_dir():
            raise GpufsError(f"{path}: there is no folder {folder}")
        if path.is_dir():
            raise GpufsError(f"{path}: is a folder")
        if path.exists() and not path.is_file():
            raise GpufsError(f"{path}: is there already and is no regular file")
        is_link = path.is_symlink() and path.readlink().is_relative_to(
            "/proc"
        )  # as /dev/stdout: a name of the system's
        if is_link or folder.resolve().is_relative_to("/proc"):
            raise GpufsError(f"{path}: names what is open, and no file: name the file")
    except OSError as error:  # a name that is too long
        raise GpufsError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise GpufsError(f"{path}: no permission to write in {folder}")


def check_is_no_input(output: Path, inputs: Iterable[tuple[Path | str, str]]) -> None:
    """Raises GpufsError when the file that would be replaced is one of the inputs, by whatever name or link.

    inputs: (path, what it is).
    """
    for path, what in inputs:
        try:
            same = output.samefile(path)
        except OSError:  # one of them is not there
            continue
        if same:
            raise GpufsError(f"{output}: is {what}")


def check_new_library(output: Path, inputs: Iterable[Path | str]) -> None:
    """Raises GpufsError when a library of this name could not be made, or would replace anything but a library."""
    check_new_file(output, inputs, _native.MAGIC, "library")


def check_new_file(output: Path, inputs: Iterable[Path | str], magic: bytes, what: str) -> None:
    """Raises GpufsError when a file of this name could not be made, or would replace anything but one of its kind.

    So pictures that are found in folders are safe, too. An empty file may be replaced: it has nothing to lose.
    """
    check_writable(output)
    check_is_no_input(output, ((path, "one of the inputs") for path in inputs))
    if output.exists():
        with output.open("rb") as stream:
            begin = stream.read(len(magic))
        if begin not in (b"", magic):
            raise GpufsError(f"{output}: is there already and is no {what}; choose another name, or remove it first")


_numbers = itertools.count()  # names may be alike as far as they are taken over


@contextmanager
def replacing(path: Path) -> Iterator[BufferedRandom]:
    """Opens a temporary file beside `path`, and puts it in place when the block ends well; else removes it.

    Raises GpufsError where the file system refuses.
    """
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{next(_numbers)}.tmp")
    try:
        with temporary.open("x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise GpufsError(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

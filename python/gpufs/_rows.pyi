# SPDX-License-Identifier: Apache-2.0
"""Rows of arrays in files, for gpufs.open() (apps/arrays/python_module.cpp). Memory is named by its address."""

import os
from typing import Any

def engine_missing(engine: str) -> str:
    """Why the engine (cpu, simt, gpu) cannot run here; empty when it can."""

def current_device(engine: str) -> int:
    """The number of the calling thread's device."""

def sizes(paths: list[bytes]) -> list[int]:
    """The sizes of these regular files."""

class Mount:
    """A folder with the page cache of the files in it."""

    def __init__(
        self,
        engine: str,
        root: str | bytes | os.PathLike[str],
        device: int,
        cache_nbytes: int,
        page_nbytes: int,
        writable: bool,
        pin_nbytes: int,
    ) -> None: ...
    def read_files(self, paths: list[bytes], sizes: list[int], at: list[int], out: int, on_device: bool) -> None:
        """All bytes of files below the root, each to its place at[i] of memory of the host, or the device, at `out`."""

    def way(self) -> str: ...
    def device(self) -> int: ...
    def cache_nbytes(self) -> int: ...
    def counters(self) -> dict[str, int]:
        """Zeros where the engine has no page cache."""

    def files(self) -> list[dict[str, Any]]:
        """The open files."""

class Rows:
    """An open file with rows of equal size.

    pieces: of each piece of the file the number of its first row, and where it begins, as int64.
    """

    def __init__(
        self,
        mount: Mount,
        path: str | bytes | os.PathLike[str],
        pieces: int,
        npieces: int,
        row_nbytes: int,
        nrows: int,
        writable: bool,
    ) -> None: ...
    def read(self, ids: int, first: int, n: int, out: int) -> None:
        """Copies the rows with the n numbers (int64) at `ids`, or where that is 0 those from `first` on, to `out`.

        All is in the host's memory. Waits for them.
        """

    def write(self, ids: int, first: int, n: int, src: int) -> None:
        """The other way; the numbers are all different."""

    def prefetch(self, ids: int, first: int, n: int) -> None:
        """Begins to bring the rows in, and returns at once."""

    def prefetched(self) -> bool:
        """Whether all that prefetch was asked for has been begun."""

    def read_on(self, stream: int, ids: int, n: int, out: int) -> None:
        """As read, in a stream, without waiting. All is in the device's memory."""

    def write_on(self, stream: int, ids: int, n: int, src: int) -> None: ...
    def prefetch_on(self, stream: int, ids: int, n: int) -> None: ...
    def ended(self) -> bool:
        """Whether all that was put into streams has ended."""

    def check(self) -> None:
        """Raises what went wrong there, once."""

    def prepare(self) -> None:
        """Registers all of the file with the device, and waits."""

    def flush(self, durable: bool) -> None:
        """Brings what was written to the file."""

    def close(self) -> None:
        """Flushes, and ends the use of the file. Twice does nothing."""

class TestStream:
    """A stream of the CPU machine, in which a test can hold what comes behind."""

    def __init__(self) -> None: ...
    def handle(self) -> int: ...
    def hold(self) -> None: ...
    def go(self) -> None: ...
    def wait(self) -> None: ...

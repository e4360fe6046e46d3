# SPDX-License-Identifier: Apache-2.0
"""The files that are measured, which rows of them, and what NumPy says that these are."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]

_CHUNK = 1 << 20  # elements that a thread writes or compares at once
_HEADER_NBYTES = 128
_ZIPF = 0.99


def in_parallel(pool: ThreadPoolExecutor, n: int, step: int, work: Callable[[int, int], None]) -> None:
    """work(begin, end) of all parts of n. NumPy leaves the interpreter's lock meanwhile."""
    list(pool.map(lambda begin: work(begin, min(n, begin + step)), range(0, n, step)))


@dataclass(frozen=True)
class Table:
    """An array of float32 in a .npy file, whose elements differ from each other nearly always."""

    path: Path
    nrows: int
    ncolumns: int

    @property
    def row_nbytes(self) -> int:
        return 4 * self.ncolumns

    @property
    def nbytes(self) -> int:
        return self.nrows * self.row_nbytes

    @property
    def begin(self) -> int:
        """Of its rows, in the file."""
        return _HEADER_NBYTES

    def mapped(self, mode: Any = "r") -> Rows:
        return np.memmap(self.path, np.float32, mode, _HEADER_NBYTES, (self.nrows, self.ncolumns))

    def with_columns(self, ncolumns: int) -> Table:
        """The same bytes in other rows: who opens the file from now on finds those."""
        other = Table(self.path, self.nrows * self.ncolumns // ncolumns, ncolumns)
        other._write_header("r+b")
        return other

    def _write_header(self, mode: str) -> None:
        with self.path.open(mode) as file:
            shape = {"descr": "<f4", "fortran_order": False, "shape": (self.nrows, self.ncolumns)}
            np.lib.format.write_array_header_1_0(file, shape)
            assert file.tell() == _HEADER_NBYTES


def make_table(path: Path, nbytes: float, row_nbytes: int, nthreads: int) -> Table:
    ncolumns = row_nbytes // 4
    table = Table(path, max(8, int(nbytes) // row_nbytes), ncolumns)
    table._write_header("wb")
    with path.open("r+b") as file:
        file.truncate(table.begin + table.nbytes)
    elements = table.mapped("r+").reshape(-1)

    def fill(begin: int, end: int) -> None:
        words = np.arange(begin, end, dtype=np.uint64)
        elements[begin:end] = (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)  # 24 bits, as a float32 has

    with ThreadPoolExecutor(nthreads) as pool:
        in_parallel(pool, elements.size, _CHUNK, fill)
    return table


class Picks:
    """Rows at random, no two of which are the same in all runs together."""

    def __init__(self, nrows: int, n: int, nruns: int, seed: int) -> None:
        self.n = min(n, nrows // nruns)
        if self.n == 0:
            raise ValueError(f"a table of {nrows} rows is too small for {nruns} runs")
        self._order: Ids = np.random.default_rng(seed).permutation(nrows)[: self.n * nruns]

    def __getitem__(self, run: int) -> Ids:
        return self._order[run * self.n : (run + 1) * self.n]


class Zipf:
    """Rows by Zipf's law, scattered over the table: row number i of its order with a probability as 1 / (i + 1)^0.99.

    By the formula of YCSB, which is that of Gray et al., "Quickly generating billion-record synthetic databases"
    (SIGMOD'94), section 3.3.
    """

    def __init__(self, nrows: int, n: int, seed: int) -> None:
        self._rng, self._n, self._nrows = np.random.default_rng(seed), n, nrows
        self._order: Ids = self._rng.permutation(nrows)
        step = 1 << 22
        self._zeta = sum(
            float((np.arange(begin, min(nrows, begin + step), dtype=np.float64) + 1).__pow__(-_ZIPF).sum())
            for begin in range(0, nrows, step)
        )
        self._eta = (1 - (2 / nrows) ** (1 - _ZIPF)) / (1 - (1 + 0.5**_ZIPF) / self._zeta)

    def draw(self) -> Ids:
        u = self._rng.random(self._n)
        ranks = (self._nrows * (self._eta * u - self._eta + 1) ** (1 / (1 - _ZIPF))).astype(np.int64)
        ranks[u * self._zeta < 1 + 0.5**_ZIPF] = 1
        ranks[u * self._zeta < 1] = 0
        rows: Ids = self._order[np.clip(ranks, 0, self._nrows - 1)]
        return rows


class Answers:
    """What NumPy's rows of a run are, for all ways to get them; and whether all ways got these."""

    def __init__(self, table: Table, ids: Callable[[int], Ids], nthreads: int, to: Callable[[Any], Any]) -> None:
        self.right = True
        self._mapped, self._ids, self._nthreads, self._to = table.mapped(), ids, nthreads, to
        self._run, self._wanted = -1, None

    def wanted(self, run: int) -> Any:
        """Where they are compared."""
        if run != self._run:
            self._wanted = None  # before as much memory is taken again
            self._run, self._wanted = run, self._to(take(self._mapped, self._ids(run), self._nthreads))
        return self._wanted

    def check(self, way: str, run: int, rows: Any) -> None:
        wanted = self.wanted(run)
        if tuple(rows.shape) != tuple(wanted.shape) or not bool((rows == wanted).all()):
            print(f"{way} gave other rows than NumPy did", flush=True)
            self.right = False


def take(mapped: Rows, ids: Ids, nthreads: int) -> Rows:
    """mapped[ids], by several threads."""
    rows = np.empty((ids.size, mapped.shape[1]), np.float32)

    def some(begin: int, end: int) -> None:
        np.take(mapped, ids[begin:end], axis=0, out=rows[begin:end], mode="clip")  # "raise" would copy them once more

    with ThreadPoolExecutor(nthreads) as pool:
        in_parallel(pool, ids.size, max(1, _CHUNK // mapped.shape[1]), some)
    return rows


class Mapping:
    """A file's bytes at an address, which who registers memory with a device can have."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            # Populated by reading: pages that registering them had to make writable would change the file's time, and
            # end the version that others have open.
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address, self.nbytes = int(self._bytes.ctypes.data), self._bytes.size

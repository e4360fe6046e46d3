# SPDX-License-Identifier: Apache-2.0
"""Vectors in files and arrays, a part at a time: what gpufs.vectors reads."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpufs import _vectors
from gpufs.errors import GpufsError
from gpufs.formats import find_layout
from gpufs.formats.layout import Layout, read_at
from gpufs.text import printable
from gpufs.unchanged import check_unchanged, stamp_of

Floats = NDArray[np.float32]

_AT_ONCE_NBYTES = 64 << 20

# Of data sets of nearest neighbours: each row has its number of elements before it (int32), or all of them have one
# head with the numbers of rows and of elements (uint32).
_WITH_DIM = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
_WITH_HEAD = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}


class Rows(Protocol):
    """Vectors that are read twice, in parts."""

    @property
    def shape(self) -> tuple[int, int]:
        """How many vectors there are, and how many elements each has."""

    @property
    def name(self) -> str:
        """For what is said of them."""

    def read(self, begin: int, end: int) -> Floats:
        """These vectors, one behind the other. Raises GpufsError."""

    def check_unchanged(self) -> None:
        """Raises GpufsError where they are others by now."""


def rows_of(of: Rows | ArrayLike | str | os.PathLike[str], what: str, name: str | None = None) -> Rows:
    """Of a file, an array, or what is Rows already. what: they are, for errors. name: of a file's array.

    Raises GpufsError.
    """
    if isinstance(of, (_RowsInFile, _RowsInMemory, _RowsOfCaller)):
        return of
    if isinstance(of, (str, os.PathLike)):
        return _RowsInFile(of, name)
    if hasattr(of, "read") and hasattr(of, "check_unchanged"):
        return _RowsOfCaller(cast(Rows, of), what)
    return _RowsInMemory(of, what)


def parts_of(rows: Rows, begin: int = 0) -> list[tuple[int, int]]:
    """The first vector and the end of parts that are read at once."""
    n, dim = rows.shape
    step = max(1, _AT_ONCE_NBYTES // (4 * dim))
    return [(at, min(at + step, n)) for at in range(begin, n, step)]


def _checked(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> tuple[int, int]:
    if dtype.kind not in "biuf" or len(shape) != 2:
        raise GpufsError(
            f"{name}: has shape {list(shape)} of {dtype}, and vectors are [how many, elements of each], of numbers"
        )
    if not 1 <= shape[1] <= _vectors.MOST_DIM:
        raise GpufsError(f"{name}: has vectors of {shape[1]} elements, and an index takes 1 to {_vectors.MOST_DIM}")
    return shape[0], shape[1]


def _floats(of: NDArray[Any]) -> Floats:
    with np.errstate(
        over="ignore"
    ):  # what is too large for a float32 becomes infinite, which is refused with its number
        return np.ascontiguousarray(of, np.float32)


class _RowsInMemory:
    def __init__(self, of: ArrayLike, name: str) -> None:
        self._array = np.asarray(of)
        self.name = name
        self.shape = _checked(self._array.shape, self._array.dtype, name)

    def read(self, begin: int, end: int) -> Floats:
        return _floats(self._array[begin:end])

    def check_unchanged(self) -> None:
        """The caller keeps it."""


class _RowsOfCaller:
    """Rows of any class: what it gives is checked, as C++ reads as many bytes as the shape says."""

    def __init__(self, of: Rows, what: str) -> None:
        self._of = of
        self.name = str(getattr(of, "name", what))
        try:
            shape = tuple(operator.index(each) for each in of.shape)
        except (AttributeError, TypeError):
            raise GpufsError(f"{self.name}: has no shape of two whole numbers: how many, elements of each") from None
        self.shape = _checked(shape, np.dtype(np.float32), self.name)
        if self.shape[0] < 0:
            raise GpufsError(f"{self.name}: has {self.shape[0]} vectors")

    def read(self, begin: int, end: int) -> Floats:
        rows = np.asarray(self._of.read(begin, end))
        wanted = (end - begin, self.shape[1])
        if rows.shape != wanted or rows.dtype.kind not in "biuf":
            raise GpufsError(
                f"{self.name}: vectors {begin} to {end} were read as {list(rows.shape)} of {rows.dtype}, and "
                f"{list(wanted)} of numbers were asked for"
            )
        return _floats(rows)

    def check_unchanged(self) -> None:
        self._of.check_unchanged()


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GpufsError(f"{name}: {error.strerror or error}") from error


class _RowsInFile:
    def __init__(self, path: str | os.PathLike[str], name: str | None) -> None:
        self._path = Path(path)
        self.name = printable(self._path)
        with _errors_of(self.name):
            self._open(name)

    def _open(self, name: str | None) -> None:
        self._stamp = stamp_of(self._path)
        self._before = 0  # bytes before each row
        suffix = self._path.suffix
        if name is not None and suffix in (*_WITH_DIM, *_WITH_HEAD):
            raise GpufsError(f"{self.name}: has one array, and none of the name '{printable(name)}'")
        if suffix in _WITH_DIM:
            self._layout = self._with_dims(np.dtype(_WITH_DIM[suffix]))
        elif suffix in _WITH_HEAD:
            self._layout = self._with_head(np.dtype(_WITH_HEAD[suffix]))
        else:
            self._layout = find_layout(str(self._path), name=name, dtype=None, shape=None, offset=0)
        self.shape = _checked(self._layout.shape, self._layout.dtype, self.name)

    def _front(self, nbytes: int) -> tuple[bytes, int]:
        """The file's first bytes, and its size."""
        if self._path.exists() and not self._path.is_file():
            raise GpufsError(f"{self.name}: is no regular file")
        with self._path.open("rb") as file:
            front = read_at(file, 0, nbytes)
            size = os.fstat(file.fileno()).st_size
        if len(front) < nbytes:
            raise GpufsError(f"{self.name}: is too short to have a vector: it has {size} bytes")
        return front, size

    def _with_dims(self, dtype: np.dtype[Any]) -> Layout:
        front, size = self._front(4)
        dim = int.from_bytes(front, "little", signed=True)
        self._before = 4
        row_nbytes = 4 + dim * dtype.itemsize
        if dim < 1 or size % row_nbytes:
            raise GpufsError(f"{self.name}: {size} bytes are no rows of {dim} elements with their number before each")
        return Layout(0, (size // row_nbytes, dim), dtype)

    def _with_head(self, dtype: np.dtype[Any]) -> Layout:
        front, size = self._front(8)
        n, dim = (int(each) for each in np.frombuffer(front, "<u4"))
        if 8 + n * dim * dtype.itemsize != size:
            raise GpufsError(
                f"{self.name}: its head says {n} vectors of {dim} elements, which are {8 + n * dim * dtype.itemsize} "
                f"bytes, and it has {size}: it was cut, or is of another format"
            )
        return Layout(8, (n, dim), dtype)

    def read(self, begin: int, end: int) -> Floats:
        with _errors_of(self.name):
            return self._read(begin, end)

    def _read(self, begin: int, end: int) -> Floats:
        row_nbytes = self._before + self._layout.row_nbytes
        raw = np.empty((end - begin, row_nbytes), np.uint8)
        done = 0
        with self._path.open("rb", buffering=0) as file:
            places = [*self._layout.places.tolist(), [self.shape[0], 0]]
            for (first, at), (past, _) in pairwise(places):
                low, high = max(first, begin), min(past, end)
                if low < high:
                    self._read_all(file.fileno(), raw[low - begin : high - begin], at + (low - first) * row_nbytes)
                    done += high - low
        if done != end - begin:
            raise GpufsError(f"{self.name}: has fewer vectors than it says")
        dim = self.shape[1]
        if self._before:
            dims = raw[:, : self._before].copy().view("<i4")
            if not (dims == dim).all():
                wrong = begin + int(np.argmax(dims[:, 0] != dim))
                raise GpufsError(f"{self.name}: vector {wrong} has another number of elements than the first, {dim}")
            raw = np.ascontiguousarray(raw[:, self._before :])
        return _floats(raw.reshape(-1).view(self._layout.dtype).reshape(-1, dim))

    def _read_all(self, descriptor: int, to: NDArray[np.uint8], at: int) -> None:
        left = memoryview(to.reshape(-1).data)
        while left.nbytes:
            got = os.preadv(descriptor, [left], at)
            if got == 0:
                raise GpufsError(f"{self.name}: was truncated while it was read: try again")
            left, at = left[got:], at + got

    def check_unchanged(self) -> None:
        check_unchanged(self._path, self._stamp, "read")

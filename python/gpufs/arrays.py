# SPDX-License-Identifier: Apache-2.0
"""Arrays in files that are larger than memory: ``gpufs.open("features.npy")[idx]`` reads the rows that idx names."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpufs import _rows
from gpufs.errors import GpufsError
from gpufs.formats import Layout, find_layout

ENGINES = ("auto", "gpu", "cpu", "simt")
_LEAST_PAGE_NBYTES, _MOST_PAGE_NBYTES = 512, 2 << 20
_MOST_CACHE_NBYTES = 1 << 62
_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "t": 1000**4,
    "ti": 1 << 40,
}


def open(  # the module is used as gpufs, where it hides nothing
    path: str | bytes | os.PathLike[str],
    *,
    name: str | None = None,
    dtype: DTypeLike | None = None,
    shape: int | Sequence[int] | None = None,
    offset: int = 0,
    engine: str = "auto",
    cache: int | str = 0,
    page: int | str = "auto",
) -> Array:
    """Opens the array in a file. Of its rows nothing is read yet.

    path: a .npy file; a .npz file, of whose stored members `name` is one (checksums are of whole members, and are not
    looked at); a .safetensors file, of whose tensors `name` is one; or, where `dtype` is given, raw bytes from `offset`
    on in C order, with this `shape` (its first axis may be -1: as many rows as there are).
    engine: gpu, a kernel reads through gpufs's page cache on the GPU; cpu, threads copy from a mapping of the file;
    simt, the GPU's kernel on the CPU machine, slow and for tests; auto, gpu where there is one, else cpu. All give
    equal bytes.
    cache: the page cache's bytes, as a number or text ("8GiB"); 0: a quarter of the GPU's free memory, 16 GiB at most.
    page: bytes of a page, a power of two from 512 to 2 MiB; auto: the next one that holds a row, at most 64 KiB.

    Raises OSError where the file does not open, GpufsError where it holds no such array or the engine cannot run.
    """
    return Array(
        str(Path(os.fsdecode(path)).absolute()),
        name=name,
        dtype=None if dtype is None else np.dtype(dtype),
        shape=shape,
        offset=offset,
        engine=engine,
        cache=cache,
        page=page,
    )


class Array:
    """An array in a file, opened by :func:`gpufs.open`; read only.

    Indexing along the first axis reads rows into a new NumPy array (or a number, of one axis): integers, slices with
    steps, arrays of integers (negative and repeated ones, of any number of dimensions, empty ones) and of booleans, as
    in NumPy; a tuple's other axes are slices. IndexError comes before anything is read. Many threads may read at once;
    the interpreter's lock is free meanwhile. An Array pickles: it is opened anew where it lands.
    """

    def __init__(self, path: str, **how: Any) -> None:
        self._how = how
        self._path = path
        layout = find_layout(path, name=how["name"], dtype=how["dtype"], shape=how["shape"], offset=how["offset"])
        self._layout = layout
        cache, page = to_nbytes(how["cache"]), _page_nbytes(how["page"], layout.row_nbytes)
        if cache > _MOST_CACHE_NBYTES:
            raise GpufsError(f"cache is {cache} bytes, more than any memory has")
        if how["engine"] not in ENGINES:
            raise GpufsError(f"there is no engine '{how['engine']}'; there are {', '.join(ENGINES)}")
        engine: str = how["engine"]
        if engine == "auto":
            engine = "cpu" if _rows.engine_missing("gpu") else "gpu"
        self._engine = engine
        self._rows: _rows.Rows | None = _rows.Rows(
            engine,
            path,
            layout.begin,
            layout.row_nbytes,
            layout.shape[0],
            cache,
            page,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    @property
    def path(self) -> str:
        return self._path

    @property
    def engine(self) -> str:
        """gpu, cpu or simt."""
        return self._engine

    @property
    def path_in_use(self) -> str:
        """Which way the bytes take, and why."""
        return self._open_rows().way()

    @property
    def stats(self) -> dict[str, int]:
        """The page cache's counters: hits, faults, bytes_filled, ... Zeros of the engine cpu, which has none."""
        return self._open_rows().stats()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        state = "" if self._rows is not None else ", closed"
        return f"<gpufs.Array {self._path!r} {self.shape} {self.dtype} by {self._engine}{state}>"

    def __getitem__(self, key: Any) -> Any:
        first, others = _split(key, self.ndim)
        if isinstance(first, slice):
            ids = np.arange(*first.indices(len(self)), dtype=np.int64)
        else:
            ids = _row_numbers(first, len(self))
        rows = self._read(ids, None)
        return rows[(slice(None),) * ids.ndim + others] if others else rows[()]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def take(self, indices: Any, out: NDArray[Any] | None = None) -> Any:
        """The rows that an array of integers or booleans names, as ``x[indices]``.

        out: where they go, in place of a new array: of the same dtype, of shape ``indices.shape + x.shape[1:]``, in
        C order and writable; else ValueError.
        """
        rows = self._read(_row_numbers(indices, len(self)), out)
        return rows[()] if out is None else out

    def close(self) -> None:
        """Ends the use of the file, and frees the page cache, after reads that are under way. Twice does nothing."""
        self._rows = None

    def __enter__(self) -> Array:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array in a file is always copied")
        rows: NDArray[Any] = self[:]
        return rows if dtype is None else rows.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path, self._how, self._layout)

    def _open_rows(self) -> _rows.Rows:
        rows = self._rows
        if rows is None:
            raise ValueError(f"{self!r} is closed")
        return rows

    def _read(self, ids: NDArray[np.int64], out: NDArray[Any] | None) -> NDArray[Any]:
        rows = self._open_rows()
        shape = ids.shape + self.shape[1:]
        if out is None:
            out = np.empty(shape, self.dtype)
        elif (
            not isinstance(out, np.ndarray)
            or out.shape != shape
            or out.dtype != self.dtype
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            raise ValueError(f"out must be a writable array of shape {shape} and dtype {self.dtype}, in C order")
        if out.nbytes != 0:
            rows.read(np.ascontiguousarray(ids.reshape(-1)), out.reshape(-1).view(np.uint8))
        return out


def _reopen(path: str, how: dict[str, Any], layout: Layout) -> Array:
    array = Array(path, **how)
    if array._layout != layout:
        array.close()
        raise GpufsError(f"'{path}' holds another array than the one that was pickled: {array._layout}, not {layout}")
    return array


def _split(key: Any, ndim: int) -> tuple[Any, tuple[slice, ...]]:
    """What is taken along the first axis, and the slices of the others."""
    keys = key if isinstance(key, tuple) else (key,)
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if len(keys) - len(dots) > ndim:
        raise IndexError(f"too many indices: the array has {ndim} axes, and {len(keys) - len(dots)} were given")
    if dots:
        missing = ndim - (len(keys) - 1)
        keys = keys[: dots[0]] + (slice(None),) * missing + keys[dots[0] + 1 :]
    if not keys:
        keys = (slice(None),)
    others = keys[1:]
    if not all(isinstance(k, slice) for k in others):
        raise IndexError("axes other than the first take slices only")
    return keys[0], others


def _row_numbers(index: Any, nrows: int) -> NDArray[np.int64]:
    """The rows that an integer, or an array of integers or booleans, names: int64, each at least 0."""
    if index is None or isinstance(index, (bool, np.bool_)):
        raise IndexError(f"{index!r} names no rows")
    of_list = not isinstance(index, np.ndarray)
    try:
        index = np.asarray(operator.index(index))
    except TypeError:
        index = np.asarray(index)  # also of a matrix, whose parts would be matrices
        if of_list and index.size == 0 and index.dtype == np.float64:  # of an empty list
            index = index.astype(np.int64)
    if index.dtype == np.bool_:
        if index.ndim != 1 or index.shape[0] != nrows:
            raise IndexError(f"a boolean index of shape {index.shape} does not fit {nrows} rows")
        return np.flatnonzero(index).astype(np.int64, copy=False)
    if index.dtype.kind not in "iu":
        raise IndexError("rows are named by integers or booleans")
    if index.size != 0 and (int(index.min()) < -nrows or int(index.max()) >= nrows):
        wrong = int(index.max()) if int(index.max()) >= nrows else int(index.min())
        raise IndexError(f"index {wrong} is out of bounds: there are {nrows} rows")
    ids: NDArray[np.int64] = index.astype(np.int64)
    ids[ids < 0] += nrows
    return ids


def to_nbytes(amount: int | str) -> int:
    """A number of bytes, from one or from text as "8GiB", "512 MB" or "4096"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(amount).lower())
    if isinstance(amount, (bool, float)) or match is None or (match[2] or "") not in _UNITS:
        raise GpufsError(f"{amount!r} is no number of bytes, as 4096 or 8GiB are")
    return int(Fraction(match[1]) * _UNITS[match[2] or ""])


def _page_nbytes(page: int | str, row_nbytes: int) -> int:
    if page == "auto":
        return min(max(_LEAST_PAGE_NBYTES, 1 << max(0, row_nbytes - 1).bit_length()), 64 << 10)
    nbytes = to_nbytes(page)
    if nbytes & (nbytes - 1) != 0 or not _LEAST_PAGE_NBYTES <= nbytes <= _MOST_PAGE_NBYTES:
        raise GpufsError(f"page is {nbytes} bytes; it can be a power of two from 512 to 2 MiB")
    return nbytes

# SPDX-License-Identifier: Apache-2.0
"""Which rows an index names, as NumPy has it."""

from __future__ import annotations

import operator
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Selected:
    """Rows in an order: those with these numbers, each at least 0; or, without numbers, `n` from `first` on."""

    shape: tuple[int, ...]  # of the index
    n: int
    first: int
    ids: NDArray[np.int64] | None  # [n], in C order

    def numbers(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.first + self.n, dtype=np.int64) if self.ids is None else self.ids


def split(key: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[slice | int, ...]]:
    """What is taken along the first axis, and the slices and integers of the others. IndexError: they are others."""
    if not isinstance(key, tuple) and key is not Ellipsis:
        return key, ()
    ndim = len(shape)
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
    return keys[0], tuple(_of_axis(axis, k, shape[axis]) for axis, k in enumerate(keys[1:], 1))


def _of_axis(axis: int, key: Any, length: int) -> slice | int:
    if isinstance(key, slice):
        return key
    try:
        if isinstance(key, (bool, np.bool_, np.ndarray)):
            raise TypeError
        number = operator.index(key)
    except TypeError:
        raise IndexError("axes other than the first take slices and integers only") from None
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of bounds: axis {axis} has {length}")
    return number


def narrowed(shape: tuple[int, ...], others: tuple[slice | int, ...]) -> tuple[int, ...]:
    """What slices and integers leave of the axes behind the first."""
    taken = [len(range(*k.indices(n))) for k, n in zip(others, shape, strict=False) if isinstance(k, slice)]
    return (*taken, *shape[len(others) :])


def select(index: Any, nrows: int) -> Selected:
    """The rows that a slice, an integer, or an array of integers or booleans, names. IndexError: there are not all."""
    if isinstance(index, slice):
        begin, end, step = index.indices(nrows)
        n = len(range(begin, end, step))
        if step == 1:
            return Selected((n,), n, begin if n else 0, None)
        return Selected((n,), n, 0, np.arange(begin, end, step, dtype=np.int64))
    if type(index) is int:
        if not -nrows <= index < nrows:
            raise IndexError(f"index {index} is out of bounds: there are {nrows} rows")
        return Selected((), 1, index if index >= 0 else index + nrows, None)
    ids = row_numbers(index, nrows)
    if ids.ndim == 0:
        return Selected((), 1, int(ids), None)
    return Selected(ids.shape, ids.size, 0, np.ascontiguousarray(ids.reshape(-1)))


def row_numbers(index: Any, nrows: int) -> NDArray[np.int64]:
    """The rows that an integer, or an array of integers or booleans, names: int64, each at least 0."""
    if index is None or isinstance(index, (bool, np.bool_)):
        raise IndexError(f"{index!r} names no rows")
    given = index
    of_list = not isinstance(index, np.ndarray)
    try:
        index = np.asarray(operator.index(index))
    except TypeError:
        index = np.asarray(index)  # also of a matrix, whose parts would be matrices
        if of_list and index.size == 0 and index.dtype == np.float64:  # of an empty list
            index = index.astype(np.int64)
    if index.dtype == np.bool_:
        check_mask(index.shape, nrows)
        return np.flatnonzero(index).astype(np.int64, copy=False)
    if index.dtype.kind not in "iu":
        if of_list:
            raise IndexError(f"rows are named by integers of 64 bits or booleans, not by {reprlib.repr(given)}")
        raise IndexError(
            f"rows are named by integers or booleans, not by {index.dtype}: index.astype(int) makes integers"
        )
    least, most = (int(index.min()), int(index.max())) if index.size else (0, -1)
    if least < -nrows or most >= nrows:
        raise IndexError(f"index {most if most >= nrows else least} is out of bounds: there are {nrows} rows")
    ids: NDArray[np.int64] = index.astype(np.int64)
    if least < 0:
        ids[ids < 0] += nrows
    return ids


def check_mask(shape: tuple[int, ...], nrows: int) -> None:
    """IndexError: booleans of this shape do not say of each row whether it is named."""
    if shape != (nrows,):
        raise IndexError(f"a boolean index of shape {shape} does not fit {nrows} rows")


def last_of_each(ids: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Where the last one of each number is, in the order of the numbers; None: they ascend, and none is repeated."""
    if ids.size < 2 or bool(np.all(ids[1:] > ids[:-1])):
        return None
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    last: NDArray[np.intp] = order[np.append(ascending[1:] != ascending[:-1], True)]
    return last

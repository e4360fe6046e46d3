# SPDX-License-Identifier: Apache-2.0
"""gpufs::gather, the operation by which compiled code reads rows."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from gpufs.arrays import Array
from gpufs.torch.sources import Path, array_of, dtype_of

# What operations have of an array: a text, which stays as it is in a graph (torch.compile may make a variable of an
# integer). It has dtype and shape, because compiled code is kept from run to run, and is found again by it.
_arrays: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()
_count = itertools.count(1)


def _handle_of(array: Array) -> str:
    handle = f"{next(_count)}: {dtype_of(array)}{list(array.shape[1:])} of {array.path}"
    _arrays[handle] = array
    return handle


def _array_of(handle: str) -> Array:
    array = _arrays.get(handle)
    if array is None:
        raise ValueError(f"the array '{handle}' is gone: keep its gpufs.torch.Gather while compiled code uses it")
    return array


# A gather waits for slots and buffers of its mount, which no CUDA graph can: torch.compile makes graphs around it.
_unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)


@torch.library.custom_op(
    "gpufs::gather",
    mutates_args=(),
    schema="(str handle, Tensor index) -> Tensor",
    **({} if _unsafe is None else {"tags": (_unsafe,)}),
)
def gather(handle: str, index: torch.Tensor) -> torch.Tensor:
    _check(index)
    rows: torch.Tensor = _array_of(handle)[index]
    return rows


@gather.register_fake
def _(handle: str, index: torch.Tensor) -> torch.Tensor:
    _check(index)
    array = _array_of(handle)
    return index.new_empty((*index.shape, *array.shape[1:]), dtype=dtype_of(array))


def _check(index: torch.Tensor) -> None:
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        raise IndexError(f"compiled code names rows by integers, and not by {index.dtype}")


class Gather(torch.nn.Module):
    """``x[index]`` for torch.compile: one operation of its graph, ``gpufs::gather``, where ``x[index]`` breaks it.

    array: an open :class:`gpufs.Array`, or a path, which is opened by :func:`gpufs.open` with these options.

    ``gather(index)``: index, a tensor of integers of any shape; rows of shape ``index.shape + x.shape[1:]``, on the
    index's device, which have no gradient. Sizes of index may vary without a new compilation (dynamic=True, or marked
    so). Errors are those of ``x[index]``, and ValueError, once the array is closed. As a module it may be a part of a
    model; it has no parameters, and pickles as its array.
    """

    def __init__(self, array: Array | Path, **options: Any) -> None:
        super().__init__()
        self.array = array_of(array, options)
        self._handle = _handle_of(self.array)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = gather(self._handle, index)
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Gather, (self.array,)

    def extra_repr(self) -> str:
        return repr(self.array)

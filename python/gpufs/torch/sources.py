# SPDX-License-Identifier: Apache-2.0
"""Where rows come from: an array in a file, or a tensor that is in memory as it is."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np
import torch

from gpufs.arrays import Array
from gpufs.arrays import open as open_array
from gpufs.tensors import HOST, TORCH

Path: TypeAlias = str | bytes | os.PathLike[str]
Given: TypeAlias = Path | Array | torch.Tensor | np.ndarray[Any, Any]


def array_of(given: Path | Array, options: dict[str, Any]) -> Array:
    """The array; a path is opened, as gpufs.open opens it with these options. TypeError: torch has no such dtype."""
    array = given if isinstance(given, Array) else open_array(given, **options)
    dtype_of(array)
    return array


def source_of(given: Given, options: dict[str, Any]) -> Array | torch.Tensor:
    """As array_of(); or a tensor."""
    return torch.as_tensor(given) if isinstance(given, (torch.Tensor, np.ndarray)) else array_of(given, options)


def rows_of(source: Array | torch.Tensor, index: Any, device: Any) -> Any:
    """A tensor on the device, of the rows that an integer, a slice, or an array of integers or booleans names."""
    if isinstance(source, torch.Tensor):
        return source[index].to(device)
    if not isinstance(index, slice):
        return source[torch.as_tensor(index, device=device)]
    nrows = len(range(*index.indices(len(source))))
    return source.take(index, out=torch.empty((nrows, *source.shape[1:]), dtype=dtype_of(source), device=device))


def dtype_of(array: Array) -> Any:
    """torch's, of its elements."""
    return TORCH.empty((0,), array._dtype, HOST).dtype

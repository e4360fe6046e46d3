# SPDX-License-Identifier: Apache-2.0
"""Rows of files for torch.utils.data.DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpufs.torch.sources import Given, rows_of, source_of

_HOST = torch.device("cpu")


class Dataset(torch.utils.data.Dataset[Any]):
    """Rows of one or several arrays of equal length, by number: ``Dataset("features.npy", "labels.npy")``.

    arrays: each a path, an open :class:`gpufs.Array`, or a tensor or NumPy array that is in memory as it is.
    options: as of :func:`gpufs.open`, for all paths. The engine is "cpu" if it is not given: rows go to the host, as
    those of any data set do, and DataLoader's workers may be forked.

    ``dataset[i]`` is the row i of the array; of several arrays, a tuple with the row of each. i: an integer; or
    integers (a list, a tensor) or a slice, then the rows are along the first axis, as one batch: a single gather of
    each array. ``DataLoader(dataset, batch_size=..., shuffle=True)`` gathers each batch at once, too, and copies its
    rows together afterwards; a sampler of batches, with ``batch_size=None``, has no such copy.

    It pickles as paths and options, and is opened anew in each worker that is spawned; tensors travel as torch sends
    them. What an engine other than "cpu" has open, a forked worker has not: GpufsError, which says so.

    Raises ValueError, if there are no arrays or their lengths differ; TypeError, of elements that torch has no dtype
    for; and what gpufs.open does. Rows that there are not are an IndexError.
    """

    def __init__(self, *arrays: Given, **options: Any) -> None:
        if not arrays:
            raise ValueError("a Dataset needs an array")
        options = {"engine": "cpu"} | options
        self.arrays = [source_of(given, options) for given in arrays]
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise ValueError(f"the arrays of a Dataset have one length, and these have {lengths}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int | slice | Sequence[int] | torch.Tensor) -> Any:
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
            if index.numel() == 0:  # of an empty list, whose elements have no kind
                index = index.to(torch.int64)
        rows = tuple(rows_of(array, index, _HOST) for array in self.arrays)
        return rows if len(rows) > 1 else rows[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples with these numbers, by one gather. DataLoader calls it, with a batch's."""
        rows = self[indices]
        return list(zip(*rows, strict=True)) if len(self.arrays) > 1 else list(rows)

    def __repr__(self) -> str:
        return f"<gpufs.torch.Dataset of {len(self)}: {self.arrays}>"

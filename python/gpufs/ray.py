# SPDX-License-Identifier: Apache-2.0
"""Arrays in files as datasets of Ray Data: ``gpufs.ray.read_array("features.npy").map_batches(...)``.

Tasks and actors need nothing of this: an Array, and what ``x.shard(i, n)`` gives, are passed to them as they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import ray.data
from numpy.typing import NDArray
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.context import DataContext
from ray.data.datasource import Datasource, ReadTask

from gpufs.arrays import Array, open

_Source = Array | str | bytes | os.PathLike[str]


def read_array(source: _Source | Mapping[str, _Source], *, column: str = "data", **how: Any) -> ray.data.Dataset:
    """The rows as a dataset, whose blocks are read by the workers that need them.

    source: an array, or a file's path; or several of as many rows each, by their columns' names. Those that were opened
    with the engine auto are read by cpu, as blocks are in the host's memory.
    column: the name of the column, of one array. Of structured elements each field is a column of its own.
    how: what ray.data.read_datasource takes: override_num_blocks, concurrency, num_cpus, ...

    Each worker opens the arrays anew, with their modes and options; a file that was replaced meanwhile fails there.
    Blocks come as they are done; ray.data.DataContext's execution_options.preserve_order keeps the file's order.
    Raises ValueError: the columns do not fit together; TypeError: Arrow has no such elements; what gpufs.open raises.
    """
    sources = source if isinstance(source, Mapping) else {column: source}
    arrays = {name: x._for_host() if isinstance(x, Array) else open(x, engine="cpu") for name, x in sources.items()}
    return ray.data.read_datasource(GpufsDatasource(arrays), **how)


class GpufsDatasource(Datasource):  # type: ignore[misc]
    """What Ray Data asks for rows."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        super().__init__()
        lengths = {name: len(x) for name, x in arrays.items()}
        if not arrays:
            raise ValueError("a dataset of no column has no rows")
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of a dataset are arrays of as many rows each, not of {lengths}")
        fields = [field for name, x in arrays.items() for field in _fields(name, x.dtype, x.shape)]
        if len(set(fields)) != len(fields):
            raise ValueError(f"columns have names of their own; these are {fields}")
        self._arrays, self._nrows = arrays, next(iter(lengths.values()))

    def estimate_inmemory_data_size(self) -> int:
        return sum(x.nbytes for x in self._arrays.values())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        most_nbytes = (data_context or DataContext.get_current()).target_max_block_size or self._nbytes(self._nrows)
        most_rows = max(1, most_nbytes // max(1, self._nbytes(1)))
        n, paths = min(parallelism, self._nrows), [x.path for x in self._arrays.values()]
        tasks = []
        for i in range(n):
            nrows = len(next(iter(self._arrays.values())).shard(i, n))
            metadata = BlockMetadata(num_rows=nrows, size_bytes=self._nbytes(nrows), input_files=paths, exec_stats=None)
            read = functools.partial(_blocks, self._arrays, i, n, most_rows)
            tasks.append(ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return tasks

    def _nbytes(self, nrows: int) -> int:
        return self.estimate_inmemory_data_size() * nrows // self._nrows if self._nrows else 0


def _blocks(arrays: dict[str, Array], i: int, n: int, most_rows: int) -> Iterator[Any]:
    """In a worker: the blocks of the arrays' i-th shards of n."""
    with ExitStack() as stack:
        shards = {name: stack.enter_context(x.shard(i, n)) for name, x in arrays.items()}
        for begin in range(0, len(next(iter(shards.values()))), most_rows):
            columns: dict[str, NDArray[Any]] = {}
            for name, shard in shards.items():
                columns |= _columns(name, shard[begin : begin + most_rows])
            yield BlockAccessor.batch_to_block(columns)


def _columns(name: str, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """In the machine's byte order, which is all that Arrow has."""
    fields = rows.dtype.names
    parts = {name: rows} if fields is None else {field: rows[field] for field in fields}
    return {key: np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for key, part in parts.items()}


def _fields(name: str, dtype: Any, shape: tuple[int, ...]) -> list[str]:
    """The columns that an array becomes."""
    if not isinstance(dtype, np.dtype):
        raise TypeError(f"Arrow has no type for elements of {dtype}: open the array with as_bits=True")
    if dtype.fields is not None:
        return [field for key, (kind, *_) in dtype.fields.items() for field in _fields_of(key, kind, shape)]
    known = dtype.kind in "biuMm" or (dtype.kind == "f" and dtype.itemsize <= 8)
    if not known and not (dtype.kind in "SU" and len(shape) == 1):
        raise TypeError(f"Arrow has no type for column {name!r}, of elements of {dtype} and shape {shape}")
    return [name]


def _fields_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[str]:
    if dtype.fields is not None:
        raise TypeError(f"field {name!r} has fields of its own, which no column has")
    return _fields(name, dtype.base, shape + dtype.shape)

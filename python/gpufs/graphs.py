# SPDX-License-Identifier: Apache-2.0
"""Graphs that are imported: the inside of `gpufs graph import`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufs import _graph
from gpufs.errors import GpufsError

Stages = Callable[[str, int, int], None]


def import_graph(path: Path, source: Path, *, weights: bool, progress: Stages, **options: Any) -> _graph.BuildReport:
    """Writes the graph of a list of edges, a Matrix Market file, or an .npz file of a CSR matrix. Raises GpufsError."""
    if source.suffix != ".npz":
        return _graph.import_text(path, source, weights=weights, progress=progress, **options)
    indptr, indices, values = _read_csr(source, weights)
    address = 0 if values is None else values.ctypes.data
    return _graph.import_csr(
        path,
        indptr.ctypes.data,
        len(indptr),
        indices.ctypes.data,
        len(indices),
        address,
        str(source),
        progress=progress,
        **options,
    )


def _read_csr(source: Path, weights: bool) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]:
    """What scipy.sparse.save_npz has written."""
    try:
        with np.load(source, allow_pickle=False) as file:
            if not {"indptr", "indices", "shape"} <= set(file.files):
                raise GpufsError(f"{source}: has no arrays 'indptr', 'indices' and 'shape': save a CSR matrix by scipy")
            kind = file["format"].item() if "format" in file.files else b"csr"
            if kind not in (b"csr", "csr"):
                raise GpufsError(f"{source}: is a matrix of another format than CSR: save matrix.tocsr()")
            shape = file["shape"].tolist()
            if len(shape) != 2 or shape[0] != shape[1]:
                raise GpufsError(f"{source}: its shape is {shape}, and a graph's matrix is square")
            indptr, indices = (_whole(source, name, file[name]) for name in ("indptr", "indices"))
            if len(indptr) != shape[0] + 1:
                raise GpufsError(f"{source}: 'indptr' has {len(indptr)} elements for {shape[0]} rows")
            values = None
            if weights and "data" in file.files and file["data"].dtype != np.bool_:
                values = _whole(
                    source, "data", file["data"], "multiply and round weights, or leave them out by --no-weights"
                )
                if len(values) != len(indices):
                    raise GpufsError(f"{source}: has {len(values)} weights for {len(indices)} indices")
            return indptr, indices, values
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise GpufsError(f"{source}: cannot be read as .npz: {error}") from error


def _whole(
    source: Path, name: str, array: NDArray[Any], remedy: str = "save a CSR matrix by scipy"
) -> NDArray[np.int64]:
    if array.ndim == 1 and array.dtype.kind in "iuf":
        whole = array.astype(np.int64)
        if np.array_equal(whole, array):
            return np.ascontiguousarray(whole)
    raise GpufsError(f"{source}: '{name}' is no array of whole numbers: {remedy}")

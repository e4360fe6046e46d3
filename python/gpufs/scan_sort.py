# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of files and of arrays of the host: the inside of `gpufs scan`, `gpufs sort` and gpufs.par."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpufs import _par, _rows
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing
from gpufs.errors import GpufsError
from gpufs.unchanged import check_unchanged, stamp_of

OPERATORS = ("add", "mul", "max", "min", "and", "or", "xor")
TYPES = ("u32", "i32", "u64", "i64", "f32", "f64")
Progress = Callable[[int, int], None]
Begin = Callable[[_par.Ends], _par.Job]
_NPY = b"\x93NUMPY"


def device_number(engine: str, device: int | None) -> int:
    return _rows.current_device(engine) if device is None else device


def type_of(dtype: DTypeLike | str) -> str:
    """The type's name, of a name or of what NumPy takes for a dtype. Raises GpufsError."""
    if isinstance(dtype, str) and dtype in TYPES:
        return dtype
    try:
        of = np.dtype(dtype)
    except TypeError as error:
        raise GpufsError(f"dtype: {error}; there are {', '.join(TYPES)}") from None
    name = f"{of.kind}{8 * of.itemsize}"
    if name not in TYPES or not of.isnative:
        raise GpufsError(f"elements of {of.name} are not scanned or sorted; there are {', '.join(TYPES)}")
    return name


def finish(job: _par.Job, on_progress: Progress) -> None:
    """Does all of it. Ctrl-C is noticed between pieces."""
    with closing(job):
        on_progress(0, job.nbytes())
        while job.next():
            on_progress(job.ndone(), job.nbytes())


def of_file(
    path: Path, out: Path, begin: Begin, verb: str, *, overwrite: bool, on_progress: Progress = lambda done, total: None
) -> int:
    """Makes `out` of the file at `path`, by the job that begin() begins. How many bytes it has. Raises GpufsError.

    overwrite: `out` is there, of the same size, and is written as it is; else it is made anew, and appears when it is
    complete.
    """
    check_writable(out)
    check_is_no_input(out, [(path, "the input")])
    before = stamp_of(path)
    _refuse_npy(path)
    with _overwriting(out, before[2] if before else 0) if overwrite else replacing(out) as to:
        job = begin(_par.Ends.of_files(path, verb, out, to.fileno()))
        try:
            finish(job, on_progress)
            check_unchanged(path, before, verb)
        except (GpufsError, OSError, MemoryError) as error:
            if not overwrite:
                raise
            raise GpufsError(f"{error or 'there is not enough memory'}; {out} is written in part now") from error
        return os.fstat(to.fileno()).st_size


def _refuse_npy(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            is_npy = stream.read(len(_NPY)) == _NPY
    except OSError:  # the job says why
        return
    if is_npy:
        raise GpufsError(f'{path}: has a header of NumPy\'s: use gpufs.par on numpy.load(..., mmap_mode="r")')


@contextmanager
def _overwriting(path: Path, nbytes: int) -> Iterator[BinaryIO]:
    try:
        with path.open("r+b") as stream:
            there = os.fstat(stream.fileno()).st_size
            if there != nbytes:
                raise GpufsError(
                    f"{path}: has {there} bytes, not the {nbytes} of the input: it cannot be overwritten in place"
                )
            yield stream
            os.fsync(stream.fileno())
    except OSError as error:
        raise GpufsError(f"{path}: cannot be written: {error.strerror or error}") from error


def of_array(x: Any, out: Any, begin: Callable[[_par.Ends, str], _par.Job], keep_shape: bool) -> Any:
    """Makes `out`, or a new array like x, of the array. Raises GpufsError."""
    given, result_like = _on_host(x, "x")
    elements = np.ascontiguousarray(given)
    type_name = type_of(elements.dtype)
    shape = elements.shape if keep_shape else (elements.size,)
    if out is None:
        result = np.empty(shape, elements.dtype)
    else:
        result, _ = _on_host(out, "out")
        if (
            result.dtype != elements.dtype
            or result.shape != shape
            or not result.flags.c_contiguous
            or not result.flags.writeable
        ):
            raise GpufsError(f"out: must be writable, in C order, of the shape {shape} and of {elements.dtype.name}")
        if np.may_share_memory(result, elements):
            raise GpufsError("out: shares memory with x")
    ends = _par.Ends.of_memory(elements.ctypes.data, result.ctypes.data, elements.nbytes)
    finish(begin(ends, type_name), lambda done, total: None)
    return out if out is not None else result_like(result)


def _on_host(array: Any, name: str) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Any]]:
    """The array as NumPy has it, the same memory where it can be; and what makes one of its library of NumPy's."""
    if isinstance(array, np.ndarray):
        return array, lambda result: result
    if type(array).__module__.partition(".")[0] == "torch":
        import torch

        if isinstance(array, torch.Tensor):
            if array.device.type != "cpu":
                raise GpufsError(
                    f"{name}: is on {array.device}; of what is in GPU memory torch.cumsum and torch.sort are faster"
                )
            return array.detach().numpy(), torch.from_numpy
    raise GpufsError(f"{name}: is no NumPy array, torch tensor or path, but {type(array).__name__}")

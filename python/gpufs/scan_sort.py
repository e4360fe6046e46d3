# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of files and of arrays: the inside of `gpufs scan`, `gpufs sort` and gpufs.par."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpufs import _par, tensors
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing
from gpufs.errors import GpufsError
from gpufs.mounts import device_of
from gpufs.paths import open_regular
from gpufs.text import printable
from gpufs.unchanged import Stamp, check_unchanged, stamp_of
from gpufs.unfinished import State, Unfinished, unfinished

OPERATORS = ("add", "mul", "max", "min", "and", "or", "xor")
TYPES = ("u32", "i32", "u64", "i64", "f32", "f64")
Progress = Callable[[int, int], None]
_NPY = b"\x93NUMPY"
_ALIGNMENT = 256  # of a space on a device


class There(NamedTuple):
    """The same work on an array that is on a GPU."""

    engine: str
    device: int | None  # that the caller has named
    space: Callable[[int, int], int]  # on a device: how many bytes it takes besides for so many
    run: Callable[[int, int, int, int, int, int], None]  # from an address to another, so many bytes; the space
    copies: bool  # whether what is at the other address is a copy before, and is changed in its place


class Work(NamedTuple):
    """A scan or a sort of whatever it is given."""

    verb: str  # what is done with its input
    facts: dict[str, Any]  # what its result depends on
    begin: Callable[[_par.Ends, Unfinished | None], _par.Job]
    there: There | None = None


class Done(NamedTuple):
    """What has become of a file."""

    nbytes: int
    share: float  # of the work that was done this time: 1, unless it went on after an interruption


def scan_work(engine: str, device: int | None, op: str, type_name: str, exclusive: bool, piece_nbytes: int = 0) -> Work:
    """Raises GpufsError: there is no such operator."""
    if not isinstance(op, str) or op not in OPERATORS:
        shown = f"'{printable(op)}'" if isinstance(op, str) else f"that is a {type(op).__name__}"
        raise GpufsError(f"there is no operator {shown} ({', '.join(OPERATORS)})")

    def begin(of: _par.Ends, kept: Unfinished | None) -> _par.Job:
        number, state = device_of(engine, device), kept.state if kept else None
        return _par.scan(engine, number, of, op, type_name, exclusive, piece_nbytes, state)

    def space(number: int, nbytes: int) -> int:
        return _par.space_to_scan(engine, number, nbytes, op, type_name)

    def there(number: int, address: int, out_address: int, nbytes: int, space: int, space_nbytes: int) -> None:
        how = (op, type_name, exclusive, space, space_nbytes)
        _par.scan_there(engine, number, address, out_address, nbytes, *how)

    facts = {"op": op, "type": type_name, "exclusive": exclusive, "engine": engine}
    return Work("scanned", facts, begin, There(engine, device, space, there, copies=False))


def sort_work(
    engine: str,
    device: int | None,
    type_name: str,
    record_nbytes: int | None,
    key_offset: int,
    descending: bool,
    memory_nbytes: int,
    scratch: Path | None,
    *,
    prefers_memory: bool = False,
) -> Work:
    """record_nbytes: None: a record is a key.

    scratch: a folder for runs; None: memory of the host. prefers_memory: there all the same, if they fit; else the
    folder was named, and GpufsError says if it is none, whether it will be needed or not.
    """
    if scratch is not None and not prefers_memory:
        if not os.path.isdir(scratch):  # noqa: PTH112 - where it may not be asked, too
            raise GpufsError(f"{scratch}: is no folder, where a sort could keep what waits: make it, or name another")
        if not os.access(scratch, os.W_OK | os.X_OK):
            raise GpufsError(f"{scratch}: no permission to write in it")
    size = int(type_name[1:]) // 8 if record_nbytes is None else record_nbytes

    def begin(of: _par.Ends, kept: Unfinished | None) -> _par.Job:
        number = device_of(engine, device)
        how = (engine, number, of, type_name, size, key_offset, descending, memory_nbytes)
        if kept is None:
            return _par.sort(*how, scratch, prefers_memory)
        return _par.sort(*how, kept.folder, False, kept.runs.fileno(), kept.state)

    def space(number: int, nbytes: int) -> int:
        if memory_nbytes != 0 or scratch is not None:
            name = "scratch" if memory_nbytes == 0 else "memory"
            raise GpufsError(f"{name}: is for files, and arrays of the host: x is sorted on the GPU as a whole")
        return _par.space_to_sort(engine, number, nbytes, type_name)

    def there(number: int, address: int, out_address: int, nbytes: int, space: int, space_nbytes: int) -> None:
        _par.sort_there(engine, number, out_address, nbytes, type_name, descending, space, space_nbytes)

    facts = {"key": type_name, "record_nbytes": size, "key_offset": key_offset, "descending": descending}
    return Work("sorted", facts | {"engine": engine}, begin, There(engine, device, space, there, copies=True))


def type_of(dtype: DTypeLike | str) -> str:
    """The type's name, of a name or of what NumPy takes for a dtype. Raises GpufsError."""
    if isinstance(dtype, str) and dtype in TYPES:
        return dtype
    try:
        of = np.dtype(dtype)
    except TypeError as error:
        raise GpufsError(f"dtype: {error}; there are {', '.join(TYPES)}") from None
    name, there = f"{of.kind}{8 * of.itemsize}", ", ".join(TYPES)
    if name not in TYPES:
        raise GpufsError(f"elements of {of.name} are not scanned or sorted; there are {there}")
    if not of.isnative:
        raise GpufsError(
            f"big-endian elements ({of.str}) are not scanned or sorted; there are {there}, all of them little-endian"
        )
    return name


def _finish(job: _par.Job, on_progress: Progress, note: Callable[[State], None] = lambda state: None) -> None:
    """Does all of it, or what is left of it. Ctrl-C is noticed between pieces."""
    on_progress(job.ndone(), job.nbytes())
    while job.next():
        note(job.state())
        on_progress(job.ndone(), job.nbytes())


def of_file(
    path: Path,
    out: Path,
    work: Work,
    *,
    overwrite: bool = False,
    resume: bool = False,
    on_progress: Progress = lambda done, total: None,
) -> Done:
    """Makes `out` of the file at `path`. Raises GpufsError.

    overwrite: `out` is there, of the same size, and is written as it is; else it is made anew, and appears when it is
    complete. resume: what is done is kept beside `out` until then, and the same work goes on from there.
    """
    if resume and overwrite:
        raise GpufsError("a file that is overwritten in place cannot be gone on with (resume)")
    check_writable(out)
    check_is_no_input(out, [(path, "the input")])
    before = stamp_of(path)
    _check_input(path)
    if resume and before is not None:
        return _going_on(path, out, work, before, on_progress)
    with _overwriting(out, before[2] if before else 0) if overwrite else replacing(out) as to:
        try:
            with closing(work.begin(_par.Ends.of_files(path, work.verb, out, to.fileno()), None)) as job:
                _finish(job, on_progress)
            check_unchanged(path, before, work.verb)
        except (GpufsError, OSError, MemoryError) as error:
            if not overwrite:
                raise
            raise GpufsError(f"{error or 'there is not enough memory'}; {out} is written in part now") from error
        return Done(os.fstat(to.fileno()).st_size, 1.0)


def _going_on(path: Path, out: Path, work: Work, before: Stamp, on_progress: Progress) -> Done:
    with unfinished(out, {"it is": work.verb, **work.facts}, before) as kept:
        with closing(work.begin(_par.Ends.of_files(path, work.verb, out, kept.out.fileno()), kept)) as job:
            was_done = job.ndone()
            try:
                _finish(job, on_progress, kept.note)
            except BaseException:
                with suppress(OSError):  # then the state of before stays
                    kept.save(job.state())
                raise
            state = job.state()
            done = Done(before[2], 1 - was_done / max(1, job.nbytes()))
        if stamp_of(path) != before:
            kept.remove()
        check_unchanged(path, before, work.verb)
        kept.publish(out, state)
    return done


def _check_input(path: Path) -> None:
    """Raises GpufsError: it is no regular file, or has a header."""
    try:
        with open_regular(path) as stream:
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


def of_array(x: Any, out: Any, work_of: Callable[[str], Work], keep_shape: bool) -> Any:
    """Makes `out`, or a new array like x, of the array; work_of: a type's name. Raises GpufsError."""
    library = next((each for each in tensors.LIBRARIES if each.owns(x)), None)
    place = _place_of(library, x, "x")
    if library is not None and place is not tensors.HOST:
        return _of_array_there(library, place, x, out, work_of, keep_shape)
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
    with closing(work_of(type_name).begin(ends, None)) as job:
        _finish(job, lambda done, total: None)
    return out if out is not None else result_like(result)


def _place_of(library: tensors.Library | None, array: Any, name: str) -> tensors.Place:
    try:
        return tensors.HOST if library is None else library.place(array)
    except TypeError as error:
        raise GpufsError(f"{name}: {error}") from None


def _of_array_there(
    library: tensors.Library, place: tensors.Place, x: Any, out: Any, work_of: Callable[[str], Work], keep_shape: bool
) -> Any:
    """The same of an array that is on a GPU, and stays there: in the caller's stream, for which this waits."""
    try:
        dtype = tensors.dtype_of(x.dtype)
    except TypeError:  # that only torch has
        raise GpufsError(f"elements of {x.dtype} are not scanned or sorted; there are {', '.join(TYPES)}") from None
    if element := tensors.element_of(dtype):
        raise GpufsError(f"elements of {element} are not scanned or sorted; there are {', '.join(TYPES)}")
    work = work_of(type_of(dtype)).there
    assert work is not None
    if work.engine != place.machine:
        raise GpufsError(f"x: is on {place}, where engine {work.engine} does not work: copy x to the host for that")
    if work.device is not None and device_of(work.engine, work.device) != place.device:
        raise GpufsError(f"device: x is on {place}, not on {work.device}")
    n, shape = math.prod(x.shape), tuple(x.shape)
    out_shape = shape if keep_shape else (n,)
    result = library.empty(out_shape, dtype, place) if out is None else out
    if (
        not library.owns(result)
        or _place_of(library, result, "out") != place
        or library.why_not(result, out_shape, dtype)
    ):
        raise GpufsError(f"out: must be writable, in C order, of the shape {out_shape} and of {dtype.name}, on {place}")
    elements = library.in_order(x)
    nbytes, begin, out_begin = n * dtype.itemsize, library.address(elements), library.address(result)
    if begin < out_begin + nbytes and out_begin < begin + nbytes:
        raise GpufsError("out: shares memory with x")
    space_nbytes = work.space(place.device, nbytes)
    space = library.empty((space_nbytes + _ALIGNMENT,), np.dtype(np.uint8), place)
    space_begin = -(-library.address(space) // _ALIGNMENT) * _ALIGNMENT
    if work.copies:
        library.copy(result, elements)
    library.synchronize(place)
    work.run(place.device, begin, out_begin, nbytes, space_begin, space_nbytes)
    return result


def _on_host(array: Any, name: str) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Any]]:
    """The array as NumPy has it, the same memory where it can be; and what makes one of its library of NumPy's."""
    if isinstance(array, np.ndarray):
        return array, lambda result: result
    if type(array).__module__.partition(".")[0] == "torch":
        import torch

        if isinstance(array, torch.Tensor):
            if array.device.type != "cpu":
                raise GpufsError(f"{name}: is on {array.device}, and x is not")
            return array.detach().numpy(), torch.from_numpy
    if hasattr(array, "__cuda_array_interface__"):
        raise GpufsError(
            f"{name}: is a {type(array).__name__} on a GPU: torch.as_tensor makes a tensor of it without a copy"
        )
    raise GpufsError(f"{name}: is no NumPy array, torch tensor, CuPy array or path, but {type(array).__name__}")

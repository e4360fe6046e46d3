# SPDX-License-Identifier: Apache-2.0
"""Tables of drawn taxi trips: the inside of `gpufs query synth`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from gpufs import _query
from gpufs.collage.interrupt import check_writable, replacing
from gpufs.errors import GpufsError

COLUMNS = dict(_query.TRIP_COLUMNS)  # their dtypes
_ARROW = (".arrow", ".feather")
_BATCH_ROWS = 1 << 20  # of an Arrow file

Progress = Callable[[int, int], None]


def chosen_columns(names: Sequence[str]) -> list[str]:
    """Those of these names, once each; all where none is named. Raises GpufsError."""
    for name in names:
        if name not in COLUMNS:
            raise GpufsError(f"trips have no column '{name}': there are {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names)) or list(COLUMNS)


def synthesize(path: Path, nrows: int, names: list[str], seed: int, threads: int, on_progress: Progress) -> int:
    """Makes an Arrow file, or else a folder of .npy files. How many bytes it has. Raises GpufsError."""
    if path.exists():
        raise GpufsError(f"{path}: is there already: choose another name, or remove it first")
    check_writable(path)
    kind = path.suffix.lower()
    nbytes, free = nrows * sum(np.dtype(COLUMNS[name]).itemsize for name in names), shutil.disk_usage(path.parent).free
    if nbytes > free:
        raise GpufsError(
            f"{path}: would have {nbytes:,} bytes, and {free:,} are free there: make fewer rows or columns"
        )
    if kind in (".parquet", ".csv"):
        raise GpufsError(f"{path}: tables are made as Arrow files (name it .arrow), or as folders of .npy files")
    if kind in _ARROW:
        _write_arrow(path, nrows, names, seed, threads, on_progress)
        return path.stat().st_size
    with _new_folder(path) as folder, ExitStack() as opened:
        outputs, streams = [], []
        for name in names:
            stream = opened.enter_context((folder / f"{name}.npy").open("xb"))
            np.lib.format.write_array_header_1_0(
                stream, {"descr": COLUMNS[name], "fortran_order": False, "shape": (nrows,)}
            )
            stream.flush()
            streams.append(stream)
            outputs.append((name, stream.fileno(), stream.tell(), path / f"{name}.npy"))
        _query.write_trips(outputs, seed, nrows, threads, on_progress)
        for stream in streams:
            os.fsync(stream.fileno())
    return sum((path / f"{name}.npy").stat().st_size for name in names)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A folder that gets its name when the block ends well; else it goes."""
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
    except OSError as error:
        raise GpufsError(f"{path}: cannot be written: {error.strerror or error}") from error
    try:
        yield temporary
        temporary.rename(path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise GpufsError(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_arrow(path: Path, nrows: int, names: list[str], seed: int, threads: int, on_progress: Progress) -> None:
    try:
        import pyarrow as pa
    except ImportError:
        raise GpufsError(
            f"{path}: Arrow files are written by pyarrow: install it, or name a folder, for .npy files"
        ) from None
    arrays = {name: np.empty(min(nrows, _BATCH_ROWS), COLUMNS[name]) for name in names}
    schema = pa.schema([(name, pa.from_numpy_dtype(array.dtype)) for name, array in arrays.items()])
    with replacing(path) as stream, pa.ipc.new_file(stream, schema) as to:
        for first in range(0, nrows, _BATCH_ROWS):
            on_progress(first, nrows)
            n = min(_BATCH_ROWS, nrows - first)
            _query.fill_trips(names, [array.ctypes.data for array in arrays.values()], seed, first, n, threads)
            to.write_batch(pa.record_batch([pa.array(array[:n]) for array in arrays.values()], schema=schema))
    on_progress(nrows, nrows)

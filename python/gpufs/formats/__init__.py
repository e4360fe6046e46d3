# SPDX-License-Identifier: Apache-2.0
"""Where the array lies in a file: .npy, stored members of .npz, safetensors, Arrow and Parquet columns, raw bytes."""

from __future__ import annotations

import io
import json
import math
import operator
import os
import stat
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from gpufs.errors import GpufsError
from gpufs.formats import arrow, parquet
from gpufs.formats.layout import MOST_HEADER_NBYTES, Layout, NotOneArrayError, chosen
from gpufs.tensors import dtype_of
from gpufs.text import printable

__all__ = ["Layout", "NotOneArrayError", "find_layout", "format_of"]

_SAFETENSORS_DTYPES: dict[str, DTypeLike] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "C64": "<c8",
    "BF16": dtype_of("bfloat16"),
    "F8_E4M3": dtype_of("float8_e4m3fn"),
    "F8_E5M2": dtype_of("float8_e5m2"),
    "F8_E8M0": dtype_of("float8_e8m0fnu"),
}
# Whose exceptions readers raise of damaged files.
_READERS = {"ast", "builtins", "json", "numpy", "pyarrow", "struct", "tokenize", "zipfile", "zlib"}
_MOST_ROWS = 2**63 - 1
_MOST_AXES = 64  # NumPy's
_MAGIC = {
    b"\x93NUMPY": "npy",
    b"PK\x03\x04": "npz",
    arrow.MAGIC: "Arrow",
    arrow.FEATHER_1_MAGIC: "Feather version 1",
    parquet.MAGIC: "Parquet",
    parquet.ENCRYPTED_MAGIC: "Parquet",
}


def find_layout(
    path: str, *, name: str | None, dtype: DTypeLike | None, shape: int | Sequence[int] | None, offset: int
) -> Layout:
    """What the file says of its array, or the caller where it is raw. GpufsError says what is wrong with either."""
    kind = Path(path).stat().st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # the open of a FIFO would wait for its writer
        raise GpufsError(f"'{printable(path)}' is no regular file")
    try:
        with Path(path).open("rb") as file:
            layout, end = _of_file(file, path, name, dtype, shape, offset)
    except OSError as error:
        if error.errno is not None:  # else it is no system call's, but a signal handler's, say
            error.filename = error.filename or path  # reads of a file that is open name none
        raise
    if layout.dtype.subdtype is not None:
        base, inner = layout.dtype.subdtype
        layout = replace(layout, shape=layout.shape + inner, dtype=base)
    if layout.dtype.hasobject:
        raise GpufsError(
            f"'{printable(path)}' holds Python objects, which are not of one size: save an array of numbers, or of "
            "texts of a fixed width"
        )
    if not layout.shape:
        raise GpufsError(f"'{printable(path)}' holds a single number, and no axis to take rows along")
    if not all(0 <= n <= _MOST_ROWS for n in layout.shape) or layout.row_nbytes > _MOST_ROWS:
        raise GpufsError(f"'{printable(path)}': there are no arrays of shape {layout.shape}")
    if layout.end > end:
        raise GpufsError(
            f"'{printable(path)}' is truncated, or the shape is of another array: there are bytes up to {end}, and the "
            f"array would end at {layout.end}"
        )
    return layout


def _of_file(
    file: BinaryIO,
    path: str,
    name: str | None,
    dtype: DTypeLike | None,
    shape: int | Sequence[int] | None,
    offset: int,
) -> tuple[Layout, int]:
    """And where what may belong to the array ends."""
    end = os.fstat(file.fileno()).st_size
    if dtype is not None:
        if name is not None:
            raise GpufsError("a raw file has no arrays by name: give either dtype or name")
        kind = format_of(file, path)
        if kind != "raw" and offset == 0 and np.dtype(dtype).itemsize != 1:  # its header would be numbers
            raise GpufsError(
                f"'{printable(path)}' is a {kind} file, which says its dtype and shape itself: leave dtype out; for "
                "its raw bytes give dtype='u1', or an offset"
            )
        return _raw(end, np.dtype(dtype), shape, offset), end
    if shape is not None or offset != 0:
        raise GpufsError("shape and offset are for raw files, which need a dtype, too")
    kind = format_of(file, path)
    try:
        if kind == "npy":
            if name is not None:
                raise GpufsError(f"'{printable(path)}' is a .npy file, which has one array, without a name")
            return _npy(file, path), end
        if kind == "npz":
            return _npz(file, path, name)
        if kind == "Arrow":
            return arrow.find_column(file, path, name), end
        if kind == "Parquet":
            return parquet.find_column(file, path, name), end
        if kind == "safetensors":
            return _safetensors(file, path, name), end
    except GpufsError:
        raise
    except OSError:
        raise
    except Exception as error:  # of files that are damaged, their readers in the libraries raise whatever comes
        if type(error).__module__.partition(".")[0] not in _READERS:  # what a signal handler of the caller's has raised
            raise
        raise GpufsError(
            f"'{printable(path)}' has a header that does not read; it is damaged, or was not written in full: {error}"
        ) from error
    if kind == "Feather version 1":
        raise GpufsError(f"'{printable(path)}' is Feather version 1: write it anew by pyarrow.feather.write_feather")
    raise GpufsError(
        f"'{printable(path)}' is no .npy, .npz, safetensors, Arrow or Parquet file: one that is raw needs dtype=, "
        "and an Arrow stream is to be written as a file (pyarrow.ipc.new_file)"
    )


def format_of(file: BinaryIO, path: str) -> str:
    """What a file's first bytes and its name say: npy, npz, safetensors, Arrow, Parquet, Feather version 1, or raw."""
    file.seek(0)
    magic = file.read(8)
    file.seek(0)
    for begin, kind in _MAGIC.items():
        if magic.startswith(begin):
            return kind
    return "safetensors" if path.lower().endswith(".safetensors") else "raw"


def _raw(file_nbytes: int, dtype: np.dtype[Any], shape: int | Sequence[int] | None, offset: int) -> Layout:
    if dtype.itemsize == 0 or dtype.hasobject:
        raise GpufsError(f"elements of dtype {dtype} have no size of their own")
    try:
        begin = operator.index(offset)
        wanted = (-1,) if shape is None else tuple(operator.index(n) for n in np.atleast_1d(np.array(shape, object)))
    except TypeError as error:
        raise GpufsError(f"shape {shape!r} and offset {offset!r}: {error}") from error
    if begin < 0:
        raise GpufsError(f"offset is {begin}")
    left = file_nbytes - begin
    if left < 0:
        raise GpufsError(f"offset is {begin}, and the file has {file_nbytes} bytes")
    if any(n < -1 for n in wanted) or -1 in wanted[1:]:
        raise GpufsError(f"shape is {wanted}; only its first axis may be -1, as many as there are")
    if wanted and wanted[0] == -1:
        row_nbytes = dtype.itemsize * math.prod(wanted[1:])
        if row_nbytes == 0 or left % row_nbytes != 0:
            raise GpufsError(f"the {left} bytes behind offset {begin} are not rows of {row_nbytes} bytes")
        wanted = (left // row_nbytes, *wanted[1:])
    return Layout(begin, wanted, dtype)


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of the array, which begins where this leaves the file.

    What a damaged one raises can be anything.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    if version == (3, 0):  # as 2.0, but in UTF-8, for the names of fields
        text = file.read(struct.unpack("<I", file.read(4))[0]).decode().encode("ascii", "backslashreplace")
        return np.lib.format.read_array_header_2_0(io.BytesIO(struct.pack("<I", len(text)) + text))
    raise ValueError(f"format version {version} is none of 1.0, 2.0, 3.0")


def _npy(file: IO[bytes], path: str) -> Layout:
    shape, fortran, dtype = npy_header(file)
    if fortran and len(shape) > 1:
        raise GpufsError(
            f"'{printable(path)}' has its array in Fortran order, so that rows do not lie together: save "
            "numpy.ascontiguousarray(array)"
        )
    return Layout(file.tell(), tuple(shape), dtype)


def _npz(file: BinaryIO, path: str, name: str | None) -> tuple[Layout, int]:
    with zipfile.ZipFile(file) as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy")]
        member = archive.getinfo(chosen(names, name, path) + ".npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise GpufsError(
                f"'{member.filename}' in '{printable(path)}' is compressed: use np.savez, not savez_compressed"
            )
        if not 0 <= member.header_offset <= file.seek(0, os.SEEK_END):  # seek fails there as if the disk did
            raise zipfile.BadZipFile(f"'{member.filename}' does not begin within the file")
        with archive.open(member) as stored:  # refuses what is encrypted, and what is another member in its own header
            layout = _npy(stored, path)
        file.seek(member.header_offset)
        name_nbytes, extra_nbytes = struct.unpack("<26xHH", file.read(30))
    begin = member.header_offset + 30 + name_nbytes + extra_nbytes
    read_only = "has checksums of its arrays, which writing would leave wrong: use .npy"
    return replace(layout, begin=begin + layout.begin, read_only=read_only), begin + member.file_size


def _safetensors(file: BinaryIO, path: str, name: str | None) -> Layout:
    (header_nbytes,) = struct.unpack("<Q", file.read(8))
    if header_nbytes > MOST_HEADER_NBYTES:
        raise GpufsError(f"'{printable(path)}' is no safetensors file: its header would have {header_nbytes} bytes")
    header = json.loads(file.read(header_nbytes))
    if not isinstance(header, dict):
        raise TypeError("it is no safetensors header")
    tensors = {key: value for key, value in header.items() if key != "__metadata__"}
    tensor = tensors[chosen(list(tensors), name, path)]
    kind, shape = tensor["dtype"], tuple(operator.index(n) for n in tensor["shape"])
    begin, end = (operator.index(place) for place in tensor["data_offsets"])
    if kind not in _SAFETENSORS_DTYPES:
        raise GpufsError(f"'{printable(path)}' has elements of {kind}, which NumPy has no dtype for")
    dtype = np.dtype(_SAFETENSORS_DTYPES[kind])
    if len(shape) > _MOST_AXES or not all(0 <= n <= _MOST_ROWS for n in shape):  # their product would take long
        raise GpufsError(f"'{printable(path)}': there are no arrays of the tensor's shape")
    if begin < 0 or end - begin != dtype.itemsize * math.prod(shape):
        raise GpufsError(f"'{printable(path)}': the tensor's shape and its place do not fit")
    return Layout(8 + header_nbytes + begin, shape, dtype)

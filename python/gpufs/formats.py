# SPDX-License-Identifier: Apache-2.0
"""Where the array lies in a file: .npy, stored members of .npz, safetensors, raw bytes."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from gpufs.errors import GpufsError
from gpufs.text import printable

_SAFETENSORS_DTYPES = {
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
}
_MOST_HEADER_NBYTES = 100 << 20  # as safetensors has it


@dataclass(frozen=True)
class Layout:
    """Of an array in C order: element i of the first axis is at begin + i * its bytes."""

    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def find_layout(
    path: str, *, name: str | None, dtype: DTypeLike | None, shape: tuple[int, ...] | None, offset: int
) -> Layout:
    """What the file says of its array, or the caller where it is raw. GpufsError says what is wrong with either."""
    try:
        with Path(path).open("rb") as file:
            layout = _of_file(file, path, name, dtype, shape, offset)
            file_nbytes = os.fstat(file.fileno()).st_size
    except (OSError, zipfile.BadZipFile, struct.error) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise GpufsError(f"'{printable(path)}': {error}") from error
    if layout.dtype.hasobject:
        raise GpufsError(f"'{printable(path)}' holds Python objects, which are not of one size")
    if not layout.shape:
        raise GpufsError(f"'{printable(path)}' holds a single number, and no axis to take rows along")
    nbytes = layout.dtype.itemsize * int(np.prod(layout.shape, dtype=object))
    if layout.begin + nbytes > file_nbytes:
        raise GpufsError(
            f"'{printable(path)}' has {file_nbytes} bytes, and its array would end at {layout.begin + nbytes}"
        )
    return layout


def _of_file(
    file: BinaryIO,
    path: str,
    name: str | None,
    dtype: DTypeLike | None,
    shape: tuple[int, ...] | None,
    offset: int,
) -> Layout:
    if dtype is not None:
        if name is not None:
            raise GpufsError("a raw file has no arrays by name: give either dtype or name")
        return _raw(file, np.dtype(dtype), shape, offset)
    if shape is not None or offset != 0:
        raise GpufsError("shape and offset are for raw files, which need a dtype, too")
    magic = file.read(8)
    file.seek(0)
    if magic[:6] == b"\x93NUMPY":
        if name is not None:
            raise GpufsError(f"'{printable(path)}' is a .npy file, which has one array, without a name")
        return _npy(file, path)
    if magic[:4] == b"PK\x03\x04":
        return _npz(file, path, name)
    if os.fspath(path).endswith(".safetensors"):
        return _safetensors(file, path, name)
    if magic[:4] == b"PAR1" or magic[:6] == b"ARROW1":
        raise GpufsError(f"'{printable(path)}' is a Parquet or Arrow file, which gpufs.open does not read yet")
    raise GpufsError(f"'{printable(path)}' is no .npy, .npz or .safetensors file: a raw one needs dtype=")


def _raw(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...] | None, offset: int) -> Layout:
    if dtype.itemsize == 0 or dtype.hasobject:
        raise GpufsError(f"elements of dtype {dtype} have no size of their own")
    if offset < 0:
        raise GpufsError(f"offset is {offset}")
    left = os.fstat(file.fileno()).st_size - offset
    if shape is None:
        shape = (-1,)
    shape = tuple(int(n) for n in shape)
    if any(n < -1 for n in shape) or -1 in shape[1:]:
        raise GpufsError(f"shape is {shape}; only its first axis may be -1, as many as there are")
    if shape and shape[0] == -1:
        row_nbytes = dtype.itemsize * int(np.prod(shape[1:], dtype=object))
        if row_nbytes == 0 or left < 0 or left % row_nbytes != 0:
            raise GpufsError(f"the {left} bytes behind offset {offset} are not rows of {row_nbytes} bytes")
        shape = (left // row_nbytes, *shape[1:])
    return Layout(offset, shape, dtype)


def _npy(file: BinaryIO, path: str) -> Layout:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:  # 2.0, and 3.0, whose header differs in the encoding of field names
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    except ValueError as error:
        raise GpufsError(f"'{printable(path)}': {error}") from error
    if fortran and len(shape) > 1:
        raise GpufsError(f"'{printable(path)}' is in Fortran order, so that its rows do not lie together")
    return Layout(file.tell(), tuple(shape), dtype)


def _npz(file: BinaryIO, path: str, name: str | None) -> Layout:
    with zipfile.ZipFile(file) as archive:
        names = [member.removesuffix(".npy") for member in archive.namelist()]
        member = archive.getinfo(_chosen(names, name, path) + ".npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise GpufsError(
                f"'{member.filename}' in '{printable(path)}' is compressed: use np.savez, not savez_compressed"
            )
    file.seek(member.header_offset)
    local = file.read(30)
    if local[:4] != b"PK\x03\x04":
        raise GpufsError(f"'{printable(path)}' is damaged: '{member.filename}' is not where it should be")
    name_nbytes, extra_nbytes = struct.unpack("<HH", local[26:30])
    file.seek(member.header_offset + 30 + name_nbytes + extra_nbytes)
    return _npy(file, path)


def _safetensors(file: BinaryIO, path: str, name: str | None) -> Layout:
    (header_nbytes,) = struct.unpack("<Q", file.read(8))
    if header_nbytes > _MOST_HEADER_NBYTES:
        raise GpufsError(f"'{printable(path)}' is no safetensors file: its header would have {header_nbytes} bytes")
    try:
        header = json.loads(file.read(header_nbytes))
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        tensor = tensors[_chosen(list(tensors), name, path)]
        kind, shape, (begin, end) = tensor["dtype"], tuple(int(n) for n in tensor["shape"]), tensor["data_offsets"]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise GpufsError(f"'{printable(path)}' has a header that is no safetensors header: {error}") from error
    if kind not in _SAFETENSORS_DTYPES:
        raise GpufsError(f"'{printable(path)}' has elements of {kind}, which NumPy has no dtype for")
    dtype = np.dtype(_SAFETENSORS_DTYPES[kind])
    if begin < 0 or min(shape, default=0) < 0 or end - begin != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise GpufsError(f"'{printable(path)}': the tensor's shape and its place do not fit")
    return Layout(8 + header_nbytes + begin, shape, dtype)


def _chosen(names: list[str], name: str | None, path: str) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    known = ", ".join(names) if names else "none"
    wanted = "has several arrays: give one's name" if name is None else f"has no array '{name}'"
    raise GpufsError(f"'{printable(path)}' {wanted} ({known})")

# SPDX-License-Identifier: Apache-2.0
"""Parquet files: where a column of fixed width lies.

A file ends with metadata that says where each column's pages are, each behind a header; both are in Thrift's compact
protocol (https://parquet.apache.org/docs). A column is one run of bytes where it has one page, uncompressed and
with the values as they are (PLAIN).
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from gpufs.errors import GpufsError
from gpufs.formats.layout import MOST_HEADER_NBYTES, Layout, chosen
from gpufs.text import printable

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
_REMEDY = (
    'write it by pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, '
    "row_group_size=len(table), data_page_size=2**30, max_rows_per_page=len(table)); as a Feather file, where a column "
    "has 1 GiB or more"
)
_MOST_PAGE_HEADER_NBYTES = 1 << 20
_MOST_DEPTH = 64

# parquet.thrift's numbers.
_PLAIN, _DICTIONARIES, _RLE = 0, (2, 8), 3
_DATA_PAGE, _DATA_PAGE_2 = 0, 3
_REQUIRED, _REPEATED = 0, 2
_INT32, _INT64, _FLOAT, _DOUBLE, _FIXED = 1, 2, 4, 5, 7
_PHYSICAL = (
    "booleans (eight to a byte)", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY",
)  # fmt: skip
_CODECS = ("none", "Snappy", "gzip", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4")


class _Thrift:
    """Reads structs as {field's number: value}; struct.error and IndexError where the text ends first."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def _byte(self) -> int:
        self.at += 1
        return self._text[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")
        return number | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _bytes(self, nbytes: int) -> bytes:
        if self.at + nbytes > len(self._text):
            raise ValueError("a text is longer than the header")
        self.at += nbytes
        return self._text[self.at - nbytes : self.at]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_DEPTH:
            raise ValueError("its structs are too deep")
        fields: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) & 0x0F:
            field = field + (head >> 4) if head >> 4 else self._integer()
            kind = head & 0x0F
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # within a list
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            head = self._byte()
            n = head >> 4 if head >> 4 != 15 else self._varint()
            return [self._value(head & 0x0F, depth + 1) for _ in range(n)]
        if kind == 11:
            n = self._varint()
            kinds = self._byte() if n != 0 else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(n)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"a value is of unknown kind {kind}")


def find_column(file: BinaryIO, path: str, name: str | None) -> tuple[Layout, int]:
    """Where the column of that name lies, and where its bytes end."""
    metadata = _metadata(file, path)
    root, *elements = metadata[2]
    columns = _top_level(elements, root[5])
    names = [element[4].decode(errors="surrogateescape") for _, element in columns]
    wanted = chosen(names, name, path)
    if names.count(wanted) > 1:
        raise GpufsError(f"'{printable(path)}' has {names.count(wanted)} columns named '{printable(wanted)}'")
    leaf, element = columns[names.index(wanted)]

    def refuse(why: str) -> GpufsError:
        return GpufsError(f"'{printable(path)}': the column '{printable(wanted)}' {why}")

    dtype = _dtype_of(element, refuse)
    groups = [group for group in metadata[4] if group[3] != 0]
    if not groups:
        return Layout(0, (0,), dtype), 0
    if len(groups) > 1:
        raise refuse(f"lies in {len(groups)} row groups, and gpufs reads one: {_REMEDY}")
    nrows, chunk = int(operator.index(groups[0][3])), groups[0][1][leaf]
    if 8 in chunk or chunk.get(1):
        raise refuse("is encrypted" if 8 in chunk else "lies in another file")
    about = chunk[3]
    if (codec := about[4]) != 0:
        raise refuse(f"is compressed ({_CODECS[codec] if 0 <= codec < len(_CODECS) else codec}): {_REMEDY}")
    if 11 in about:
        raise refuse(f"is encoded by a dictionary: {_REMEDY}")
    begin, nbytes = _values(file, about[9], element.get(3, _REQUIRED) != _REQUIRED, nrows, refuse)
    if nbytes != nrows * dtype.itemsize:
        if nbytes % dtype.itemsize == 0 and nbytes < nrows * dtype.itemsize:
            raise refuse("has nulls, which arrays have not: fill them (pyarrow.compute.fill_null), and write it anew")
        raise ValueError(
            f"the page of '{printable(wanted)}' has {nbytes} bytes of values, which {nrows} rows do not fit"
        )
    return Layout(begin, (nrows,), dtype), begin + nbytes


def _metadata(file: BinaryIO, path: str) -> dict[int, Any]:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 8))
    nbytes, magic = struct.unpack("<I4s", file.read(8))
    if magic == ENCRYPTED_MAGIC:
        raise GpufsError(f"'{printable(path)}' is encrypted")
    if magic != MAGIC:
        raise ValueError("it does not end as a Parquet file does: was it written to its end?")
    if not 0 < nbytes <= min(end - 8, MOST_HEADER_NBYTES):
        raise ValueError(f"its metadata would have {nbytes} bytes")
    file.seek(end - 8 - nbytes)
    return _Thrift(file.read(nbytes)).struct()


def _top_level(elements: list[dict[int, Any]], n: int) -> list[tuple[int, dict[int, Any]]]:
    """The columns of the table, each with the number of its first leaf: the schema is a tree, laid down depth first."""
    columns = []
    at = leaf = 0
    for _ in range(n):
        columns.append((leaf, elements[at]))
        left = 1
        while left > 0:
            parts = elements[at].get(5, 0)
            if parts < 0:
                raise ValueError(f"a column has {parts} parts")
            left += parts - 1
            leaf += parts == 0
            at += 1
    return columns


def _dtype_of(element: dict[int, Any], refuse: Callable[[str], GpufsError]) -> np.dtype[Any]:
    if element.get(5, 0) != 0 or element.get(3, _REQUIRED) == _REPEATED:
        raise refuse("is nested: write a column of numbers, or lists of one size as an Arrow file or .npy")
    kind, converted, logical = element[1], element.get(6), element.get(10, {})
    if converted == 5 or 5 in logical:
        raise refuse("is of decimals, which NumPy has no dtype for: cast it to float64 or int64, and write it anew")
    integer, unit = logical.get(10, {}), ""
    unsigned = converted in (13, 14) or (integer.get(2) is False and integer.get(1) in (32, 64))
    if converted == 9:
        unit = "ms"
    elif converted == 10:
        unit = "us"
    if 8 in logical:
        unit = {1: "ms", 2: "us", 3: "ns"}[next(iter(logical[8][2]))]
    number = ""
    if kind in (_INT32, _INT64):
        number = f"{'u' if unsigned else 'i'}{4 if kind == _INT32 else 8}"
        if unit and kind == _INT64:
            number = f"M8[{unit}]"
    elif kind in (_FLOAT, _DOUBLE):
        number = "f4" if kind == _FLOAT else "f8"
    elif kind == _FIXED and element[2] > 0:
        number = "f2" if 15 in logical and element[2] == 2 else f"V{element[2]}"
    if not number:
        what = _PHYSICAL[kind] if 0 <= kind < len(_PHYSICAL) else f"type {kind}"
        raise refuse(f"is of {what}, which are not of a fixed width that NumPy has")
    return np.dtype("<" + number)


def _values(
    file: BinaryIO, at: int, has_levels: bool, nrows: int, refuse: Callable[[str], GpufsError]
) -> tuple[int, int]:
    """Where the values of the page at `at` begin, behind its header and levels, and how many bytes they have."""
    if at < 0:
        raise ValueError(f"a page would be at {at}")
    file.seek(at)
    thrift = _Thrift(file.read(_MOST_PAGE_HEADER_NBYTES))
    page = thrift.struct()
    begin, nbytes = at + thrift.at, page[3]
    if page[1] == _DATA_PAGE:
        about, encoding = page[5], page[5][2]
    elif page[1] == _DATA_PAGE_2:
        about, encoding = page[8], page[8][4]
    else:
        raise ValueError(f"its first page is of kind {page[1]}, and no data")
    if encoding != _PLAIN:
        how = "by a dictionary" if encoding in _DICTIONARIES else "otherwise than PLAIN"
        raise refuse(f"is encoded {how}: {_REMEDY}")
    if about[1] != nrows:
        raise refuse(f"lies in several pages, and gpufs reads one: {_REMEDY}")
    levels_nbytes = 0
    if page[1] == _DATA_PAGE_2:
        levels_nbytes = about[5] + about[6]
    elif (
        has_levels
    ):  # which rows are null: their length comes first, if they are run-length encoded, as all but old ones are
        if about[3] != _RLE:
            raise ValueError("a page's levels are of an encoding that is no longer in use")
        file.seek(begin)
        levels_nbytes = 4 + struct.unpack("<I", file.read(4))[0]
    if not 0 <= levels_nbytes <= nbytes:
        raise ValueError("a page's levels are longer than the page")
    return begin + levels_nbytes, nbytes - levels_nbytes

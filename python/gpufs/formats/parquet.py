# SPDX-License-Identifier: Apache-2.0
"""Parquet files: where a column of fixed width lies.

A file ends with metadata that says where each column's pages are, each behind a header; both are in Thrift's compact
protocol (https://parquet.apache.org/docs). A column has a chunk in each row group, and a chunk pages, one behind the
other. Uncompressed and with the values as they are (PLAIN), a page ends with a run of bytes of the column. How long
headers are, they say themselves, so all are read: a page's length is in its header.
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gpufs.errors import GpufsError
from gpufs.formats.layout import MOST_HEADER_NBYTES, Layout, chosen, read_at
from gpufs.text import printable

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
_REMEDY = (
    'write it by pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, '
    "data_page_size=2**30, max_rows_per_page=len(table))"
)
_PAGE_HEADER_NBYTES, _MOST_PAGE_HEADER_NBYTES = 512, 1 << 20  # few are longer, for the sake of statistics
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
    """Reads structs as {field's number: value}; struct.error and IndexError where the text ends first.

    A table's metadata are some thousand structs, so that what is most frequent comes first.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.at = 0

    def _varint(self) -> int:
        number = self._text[self.at]
        self.at += 1
        if number < 0x80:
            return number
        number &= 0x7F
        for shift in range(7, 64, 7):
            byte = self._text[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a number is too long")

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
        while True:
            head = self._text[self.at]
            self.at += 1
            kind = head & 0x0F
            if kind == 0:
                return fields
            field = field + (head >> 4) if head >> 4 else self._value(4, depth)
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            number = self._varint()
            return number >> 1 ^ -(number & 1)
        if kind == 8:
            return self._bytes(self._varint())
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (9, 10):
            head = self._bytes(1)[0]
            n = head >> 4 if head >> 4 != 15 else self._varint()
            return [self._value(head & 0x0F, depth + 1) for _ in range(n)]
        if kind in (1, 2):  # within a list
            return self._bytes(1)[0] == 1
        if kind == 3:
            return self._bytes(1)[0]
        if kind == 7:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == 11:
            n = self._varint()
            kinds = self._bytes(1)[0] if n != 0 else 0
            return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(n)]
        raise ValueError(f"a value is of unknown kind {kind}")


def find_column(file: BinaryIO, path: str, name: str | None) -> Layout:
    """Where the column of that name lies: a piece in each page. Reads the pages' headers, one after the other."""
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
    is_optional = element.get(3, _REQUIRED) != _REQUIRED
    end = file.seek(0, os.SEEK_END)
    pieces: list[tuple[int, int]] = []
    left_wrong = ""  # what is in the file that writing would leave wrong
    for group in metadata[4]:
        chunk = group[1][leaf]
        if group[3] == 0:
            continue
        if 8 in chunk or chunk.get(1):
            raise refuse("is encrypted" if 8 in chunk else "lies in another file")
        about = chunk[3]
        if (codec := about[4]) != 0:
            raise refuse(f"is compressed ({_CODECS[codec] if 0 <= codec < len(_CODECS) else codec}): {_REMEDY}")
        if 11 in about:
            raise refuse(f"is encoded by a dictionary: {_REMEDY}")
        left_wrong = left_wrong or _left_wrong(group, chunk, leaf)
        left = int(operator.index(group[3]))
        for at, page in _pages(file, about[9], min(end, about[9] + about[7]), _Reader(is_optional, dtype, refuse)):
            left -= page.nrows
            left_wrong = left_wrong or page.left_wrong
            if page.nrows != 0:
                pieces.append((page.nrows, at + page.values))
            if left <= 0:
                break
        if left != 0:
            raise ValueError(f"the pages of '{printable(wanted)}' have not as many rows as its row group")
    read_only = f"has {left_wrong}, which writing would leave wrong: write it anew without" if left_wrong else ""
    if not read_only and _is_narrow(element):
        read_only = (
            "keeps integers of 8 or 16 bits in 32, which writing might leave out of their range: write int32 anew"
        )
    return Layout.of_pieces(pieces, (), dtype, read_only)


def _left_wrong(group: dict[int, Any], chunk: dict[int, Any], leaf: int) -> str:
    """What the metadata says of a column's values, besides where they are."""
    about = chunk[3]
    if 12 in about and set(about[12]) - {3}:  # how many nulls there are stays right
        return "statistics of the column (write_statistics)"
    if 6 in chunk:
        return "an index of the column's pages (write_page_index)"
    if 14 in about:
        return "a Bloom filter of the column"
    if any(sorted_by[1] == leaf for sorted_by in group.get(4, [])):
        return "its rows sorted by the column, as it says (sorting_columns)"
    return ""


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


def _is_narrow(element: dict[int, Any]) -> bool:
    """Whether the column's integers have 8 or 16 bits: the file has them in 32."""
    of_8_or_16 = (11, 12, 15, 16)  # of the format's older annotation
    return element.get(6) in of_8_or_16 or element.get(10, {}).get(10, {}).get(1) in (8, 16)


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


@dataclass
class _Page:
    """What a data page's header says. Places are counted from where it begins."""

    header: bytes  # as far as it was looked at
    nrows: int
    values: int  # where they begin
    end: int  # of the page, which is that of the values
    left_wrong: str


@dataclass
class _Reader:
    """Of headers of a column's pages."""

    is_optional: bool
    dtype: np.dtype[Any]
    refuse: Callable[[str], GpufsError]

    def page(self, text: bytes) -> _Page:
        thrift = _Thrift(text)
        page = thrift.struct()
        header_nbytes, nbytes = thrift.at, page[3]
        if page[1] == _DATA_PAGE:
            about, encoding, statistics = page[5], page[5][2], 5
        elif page[1] == _DATA_PAGE_2:
            about, encoding, statistics = page[8], page[8][4], 8
        else:
            raise ValueError(f"a page is of kind {page[1]}, and no data")
        if encoding != _PLAIN:
            how = "by a dictionary" if encoding in _DICTIONARIES else "otherwise than PLAIN"
            raise self.refuse(f"is encoded {how}: {_REMEDY}")
        levels_nbytes, looked_at = 0, header_nbytes
        if page[1] == _DATA_PAGE_2:
            levels_nbytes = about[5] + about[6]
        elif self.is_optional:
            # Which rows are null: their length comes first, if they are run-length encoded, as all but old ones are.
            if about[3] != _RLE:
                raise ValueError("a page's levels are of an encoding that is no longer in use")
            looked_at += 4
            levels_nbytes = 4 + struct.unpack_from("<I", text, header_nbytes)[0]
        nrows, values_nbytes = about[1], nbytes - levels_nbytes
        if nrows < 0 or not 0 <= levels_nbytes <= nbytes:
            raise ValueError("a page's levels are longer than the page, or it has less than no rows")
        if values_nbytes != nrows * self.dtype.itemsize:
            if values_nbytes % self.dtype.itemsize == 0 and values_nbytes < nrows * self.dtype.itemsize:
                raise self.refuse(
                    "has nulls, which arrays have not: fill them (pyarrow.compute.fill_null), and write it anew"
                )
            raise ValueError(f"a page has {values_nbytes} bytes of values, which {nrows} rows do not fit")
        left_wrong = "checksums of the column's pages (write_page_checksum)" if 4 in page else ""
        if set(about.get(statistics, {})) - {3}:
            left_wrong = "statistics of the column (write_statistics)"
        return _Page(text[:looked_at], nrows, header_nbytes + levels_nbytes, header_nbytes + nbytes, left_wrong)


def _pages(file: BinaryIO, at: int, end: int, reader: _Reader) -> Iterator[tuple[int, _Page]]:
    """The pages from `at` to `end`, each with where it begins."""
    page = None
    while at < end:
        text = read_at(file, at, _PAGE_HEADER_NBYTES)
        if page is None or not text.startswith(page.header):  # those of full pages are often the same
            try:
                page = reader.page(text)
            except (IndexError, ValueError, struct.error):
                page = reader.page(read_at(file, at, _MOST_PAGE_HEADER_NBYTES))
        if page.end > end - at:
            raise ValueError("a page ends behind the column")
        yield at, page
        at += page.end

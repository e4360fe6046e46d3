# SPDX-License-Identifier: Apache-2.0
"""Arrow IPC files, which Feather version 2 is: where a column of fixed width lies.

A file is messages, and a footer that says where they are (https://arrow.apache.org/docs/format/Columnar.html, "IPC File
Format"). Uncompressed, a column is a run of bytes in each record batch.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gpufs.errors import GpufsError
from gpufs.formats.layout import MOST_HEADER_NBYTES, Layout, chosen, read_at
from gpufs.text import printable

MAGIC = b"ARROW1"
FEATHER_1_MAGIC = b"FEA1"
_REMEDY = 'write it by pyarrow.feather.write_feather(table, path, compression="uncompressed")'
_MOST_DEPTH = 64  # of types within types, as FlatBuffers' own reader has it

# Type.fbs: the kinds of types, and how many buffers a field of each has in a record batch. Views have more, each its
# own number, and so have unions.
_INT, _FLOAT, _BOOL, _DATE, _TIME, _TIMESTAMP, _FIXED_BINARY, _FIXED_LIST, _DURATION = 2, 3, 6, 8, 9, 10, 15, 16, 18
_BINARY_VIEW, _TEXT_VIEW = 23, 24
_KINDS = {
    1: ("null", 0), _INT: ("int", 2), _FLOAT: ("float", 2), 4: ("binary", 3), 5: ("utf8", 3), _BOOL: ("bool", 2),
    7: ("decimal", 2), _DATE: ("date", 2), _TIME: ("time", 2), _TIMESTAMP: ("timestamp", 2), 11: ("interval", 2),
    12: ("list", 2), 13: ("struct", 1), 14: ("union", 0), _FIXED_BINARY: ("fixed-size binary", 2),
    _FIXED_LIST: ("fixed-size list", 1), 17: ("map", 2), _DURATION: ("duration", 2), 19: ("large binary", 3),
    20: ("large utf8", 3), 21: ("large list", 2), 22: ("run-end encoded", 0), _BINARY_VIEW: ("binary view", 2),
    _TEXT_VIEW: ("utf8 view", 2), 25: ("list view", 3), 26: ("large list view", 3),
}  # fmt: skip
_UNION, _DENSE = 14, 1
_VERSION_5 = 4  # of the metadata: before, unions had bits that say what is null
_UNITS = ("s", "ms", "us", "ns")


class _Table:
    """A table of FlatBuffers: fields by number, with defaults. struct.error for a place outside of the text."""

    def __init__(self, text: bytes, at: int) -> None:
        self.text = text
        self._at = at

    @classmethod
    def root(cls, text: bytes) -> _Table:
        return cls(text, _number(text, "<I", 0))

    def _place(self, field: int) -> int | None:
        fields = self._at - _number(self.text, "<i", self._at)
        if 4 + 2 * field >= _number(self.text, "<H", fields):
            return None
        offset = _number(self.text, "<H", fields + 4 + 2 * field)
        return self._at + offset if offset != 0 else None

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self._place(field)
        return default if place is None else _number(self.text, form, place)

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self.text, place + _number(self.text, "<I", place))

    def vector(self, field: int) -> tuple[int, int]:
        """Where its items begin, and how many there are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        place += _number(self.text, "<I", place)
        return place + 4, _number(self.text, "<I", place)

    def tables(self, field: int) -> Iterator[_Table]:
        begin, n = self.vector(field)
        for at in range(begin, begin + 4 * n, 4):
            yield _Table(self.text, at + _number(self.text, "<I", at))

    def structs(self, field: int, form: str, first: int = 0, n: int | None = None) -> list[tuple[Any, ...]]:
        """Those of a list from `first` on: `n`, or all."""
        begin, has = self.vector(field)
        if has * struct.calcsize(form) > len(self.text):
            raise ValueError(f"a list of {has} is longer than the header")
        end = has if n is None else first + n
        if end > has:
            raise ValueError(f"a list has {has}, and not {end}")
        return [struct.unpack_from(form, self.text, begin + i * struct.calcsize(form)) for i in range(first, end)]

    def string(self, field: int) -> str:
        begin, n = self.vector(field)
        return self.text[begin : begin + n].decode(errors="surrogateescape")


def _number(text: bytes, form: str, at: int) -> int:
    if at < 0:
        raise ValueError("a place before the header")
    (number,) = struct.unpack_from(form, text, at)
    return int(number)


@dataclass
class _Field:
    """Of a schema; `parts` are the fields that are laid down behind it."""

    name: str
    kind: int
    type: _Table | None
    in_dictionary: bool
    parts: list[_Field]

    @property
    def kind_name(self) -> str:
        return _KINDS[self.kind][0]


def _field(table: _Table, left: list[int], depth: int = 0) -> _Field:
    left[0] -= 1
    if depth > _MOST_DEPTH or left[0] < 0:
        raise ValueError("its types are too many, or too deep")
    kind, in_dictionary = table.number(2, "<B"), table.table(4) is not None
    if kind not in _KINDS:
        raise ValueError(f"it has a type of unknown kind {kind}")
    parts = [] if in_dictionary else [_field(part, left, depth + 1) for part in table.tables(5)]
    return _Field(table.string(0), kind, table.table(3), in_dictionary, parts)


@dataclass
class _Cursor:
    """How many nodes, buffers and views the fields before have had."""

    node: int = 0
    buffer: int = 0
    view: int = 0

    def skip(self, field: _Field, views: tuple[tuple[int], ...], version: int) -> None:
        self.node += 1
        self.buffer += 2 if field.in_dictionary else _KINDS[field.kind][1]
        if field.in_dictionary:
            return
        if field.kind == _UNION:
            is_dense = field.type is not None and field.type.number(0, "<h") == _DENSE
            self.buffer += 1 + is_dense + (version < _VERSION_5)
        if field.kind in (_BINARY_VIEW, _TEXT_VIEW):
            self.buffer += views[self.view][0]
            self.view += 1
        for part in field.parts:
            self.skip(part, views, version)


def find_column(file: BinaryIO, path: str, name: str | None) -> Layout:
    """Where the column of that name lies: a piece in each record batch that has rows."""
    footer = _footer(file)
    schema = footer.table(1)
    if schema is None:
        raise ValueError("it has no schema")
    left = [len(footer.text)]
    fields = [_field(table, left) for table in schema.tables(1)]
    names = [field.name for field in fields]
    wanted = chosen(names, name, path)
    if names.count(wanted) > 1:
        raise GpufsError(f"'{printable(path)}' has {names.count(wanted)} columns named '{printable(wanted)}'")
    column = fields[names.index(wanted)]

    def refuse(why: str) -> GpufsError:
        return GpufsError(f"'{printable(path)}': the column '{printable(wanted)}' {why}")

    dtype, inner, nested = _dtype_of(column, "<>"[schema.number(0, "<h") != 0], refuse)
    row_nbytes = dtype.itemsize * math.prod(inner)

    @functools.cache  # most batches have the same
    def before(version: int, views: tuple[tuple[int], ...]) -> _Cursor:
        cursor = _Cursor()
        for field in fields[: names.index(wanted)]:
            cursor.skip(field, views, version)
        return cursor

    def piece(batch: _Batch) -> tuple[int, int]:
        if batch.table.table(3) is not None:
            raise refuse(f"is compressed: {_REMEDY}")
        cursor = before(batch.version, tuple(batch.table.structs(4, "<q")))
        if any(nnulls != 0 for _, nnulls in batch.table.structs(1, "<qq", cursor.node, nested + 1)):
            raise refuse("has nulls, which arrays have not: fill them (pyarrow.compute.fill_null), and write it anew")
        # Behind each list's bits, and its own.
        begin, nbytes = batch.table.structs(2, "<qq", cursor.buffer + nested + 1, 1)[0]
        if begin < 0 or nbytes < 0 or begin + nbytes > batch.body_nbytes:
            raise ValueError("a column lies outside of its record batch")
        if batch.nrows * row_nbytes > nbytes:
            raise ValueError(f"a column has {nbytes} bytes, which {batch.nrows} rows of {row_nbytes} do not fit")
        return batch.nrows, batch.body + begin

    end = file.seek(0, os.SEEK_END)
    batches = (_batch(file, end, *block) for block in footer.structs(3, "<qi4xq"))
    return Layout.of_pieces((piece(batch) for batch in batches if batch.nrows != 0), inner, dtype)


def _footer(file: BinaryIO) -> _Table:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 10))
    nbytes, magic = struct.unpack("<i6s", file.read(10))
    if magic != MAGIC:
        raise ValueError("it does not end as an Arrow file does: was it written to its end?")
    if not 0 < nbytes <= min(end - 10, MOST_HEADER_NBYTES):
        raise ValueError(f"its footer would have {nbytes} bytes")
    file.seek(end - 10 - nbytes)
    return _Table.root(file.read(nbytes))


@dataclass
class _Batch:
    """A record batch; its body, where the columns are, begins at `body`."""

    table: _Table
    version: int
    nrows: int
    body: int
    body_nbytes: int


def _batch(file: BinaryIO, end: int, at: int, header_nbytes: int, body_nbytes: int) -> _Batch:
    if at < 0 or not 8 <= header_nbytes <= MOST_HEADER_NBYTES or not 0 <= body_nbytes <= end - at - header_nbytes:
        raise ValueError("a record batch lies outside of the file")
    text = read_at(file, at, header_nbytes)
    message = _Table.root(text[8 if text[:4] == b"\xff\xff\xff\xff" else 4 :])  # files of before 0.15 have no mark
    batch = message.table(2)
    if message.number(1, "<B") != 3 or batch is None:
        raise ValueError("what should be a record batch is none")
    if (nrows := batch.number(0, "<q")) < 0:
        raise ValueError(f"a record batch has {nrows} rows")
    return _Batch(batch, message.number(0, "<h"), nrows, at + header_nbytes, body_nbytes)


def _dtype_of(
    column: _Field, order: str, refuse: Callable[[str], GpufsError]
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Its elements' dtype, the shape of each row, and how many lists are within each other."""
    field, inner = column, []
    while field.kind == _FIXED_LIST and not field.in_dictionary and field.type is not None and len(field.parts) == 1:
        inner.append(field.type.number(0, "<i"))
        field = field.parts[0]
    if field.in_dictionary:
        raise refuse("is encoded by a dictionary: decode it (column.cast(column.type.value_type)), and write it anew")
    if field.type is None:
        raise ValueError("a type has no parameters")
    of, number = field.type, ""
    if field.kind == _INT and (nbits := of.number(0, "<i")) in (8, 16, 32, 64):
        number = f"{'i' if of.number(1, '<B') else 'u'}{nbits // 8}"
    elif field.kind == _FLOAT and (precision := of.number(0, "<h")) in (0, 1, 2):
        number = ("f2", "f4", "f8")[precision]
    elif field.kind == _FIXED_BINARY and (nbytes := of.number(0, "<i")) > 0:
        number = f"V{nbytes}"
    elif field.kind == _DATE:  # days are 4 bytes, and NumPy's are 8
        number = "M8[ms]" if of.number(0, "<h", 1) == 1 else "i4"
    elif field.kind == _TIME and (nbits := of.number(1, "<i", 32)) in (32, 64):
        number = f"i{nbits // 8}"
    elif field.kind == _TIMESTAMP:
        number = f"M8[{_UNITS[of.number(0, '<H')]}]"
    elif field.kind == _DURATION:
        number = f"m8[{_UNITS[of.number(0, '<H', 1)]}]"
    elif field.kind == _BOOL:
        raise refuse("is of bits, eight to a byte: cast it to int8 (column.cast(pyarrow.int8())), and write it anew")
    if not number:
        raise refuse(f"has elements of type {field.kind_name}, which are not of a fixed width that NumPy has")
    if any(n < 0 for n in inner):
        raise ValueError(f"it has lists of {min(inner)}")
    return np.dtype(order + number), tuple(inner), len(inner)

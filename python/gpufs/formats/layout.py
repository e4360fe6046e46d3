# SPDX-License-Identifier: Apache-2.0
"""What each format says of an array: where it lies."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpufs.errors import GpufsError
from gpufs.text import printable

MOST_HEADER_NBYTES = 100 << 20  # as safetensors has it


@dataclass(frozen=True)
class Layout:
    """Of an array in C order: element i of the first axis, a row, is at begin + i * its bytes, or in one of the pieces.

    pieces: empty, where all rows lie together; else of each, in the order of the rows, the number of its first row, and
    where that is: int64, two a piece. Bytes, so that layouts compare and pickle.
    read_only: why the file would be wrong if the array was written; empty: it would not.
    """

    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: bytes = field(default=b"", repr=False)
    read_only: str = ""

    @classmethod
    def of_pieces(
        cls, pieces: Iterable[tuple[int, int]], inner: tuple[int, ...], dtype: np.dtype[Any], read_only: str = ""
    ) -> Layout:
        """Of rows of the shape `inner`. pieces: of each how many rows it has, one at least, and where they begin."""
        each = np.array(list(pieces), np.int64).reshape(-1, 2)
        ends = np.cumsum(each[:, 0])
        if len(each) < 2 or 0 in inner:
            begin = int(each[0, 1]) if len(each) else 0
            return cls(begin, (int(ends[-1]) if len(each) else 0, *inner), dtype, read_only=read_only)
        places = np.stack([ends - each[:, 0], each[:, 1]], axis=1)
        return cls(int(each[0, 1]), (int(ends[-1]), *inner), dtype, places.tobytes(), read_only)

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def part(self, begin: int, end: int) -> Layout:
        """Of these rows."""
        first, at = self.places.T
        low, high = np.maximum(first, begin), np.minimum(np.append(first[1:], self.shape[0]), end)
        there = low < high
        pieces = np.stack([high - low, at + (low - first) * self.row_nbytes], axis=1)[there]
        return Layout.of_pieces(pieces.tolist(), self.shape[1:], self.dtype, self.read_only)

    @property
    def places(self) -> NDArray[np.int64]:
        """[n, 2]: of each piece, also the only one, the number of its first row, and where that is."""
        return np.frombuffer(self.pieces or np.array([0, self.begin]).tobytes(), np.int64).reshape(-1, 2)

    @property
    def end(self) -> int:
        """Where the last of its bytes ends."""
        if not self.pieces:
            return self.begin + self.nbytes
        first, begin = self.places.T
        return int(np.max(begin + np.diff(first, append=self.shape[0]) * self.row_nbytes))

    def offsets(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the rows with these numbers, each at least 0, are."""
        places = self.places
        first, begin = places[np.searchsorted(places[:, 0], ids, "right") - 1].T
        offsets: NDArray[np.int64] = begin + (ids - first) * self.row_nbytes
        return offsets


class NotOneArrayError(GpufsError):
    """A file has several arrays, and none was named, or one that it has not."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.names)


def read_at(file: BinaryIO, at: int, nbytes: int) -> bytes:
    """What the file has from there on, up to so many bytes, without what a buffered file would read besides."""
    if at < 0:
        raise ValueError(f"a place would be at {at}")
    return os.pread(file.fileno(), nbytes, at)


def chosen(names: list[str], name: str | None, path: str) -> str:
    """The array that is meant: the one of that name, or the only one."""
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    if not names:
        raise GpufsError(f"'{printable(path)}' has no arrays")
    known = ", ".join(printable(n) for n in names[:20]) + (", ..." if len(names) > 20 else "")
    wanted = "has several arrays: give one's name" if name is None else f"has no array '{printable(name)}'"
    raise NotOneArrayError(f"'{printable(path)}' {wanted} ({known})", names)

# SPDX-License-Identifier: Apache-2.0
"""Queries of columns in files, for `gpufs query` (apps/query/python_module.cpp)."""

import os
from collections.abc import Callable, Sequence
from typing import TypedDict

MOST_COLUMNS: int
TRIP_COLUMNS: tuple[tuple[str, str], ...]

Path = str | bytes | os.PathLike[str]
Progress = Callable[[int, int], None] | None
Column = tuple[Path, int, int, bytes]

class Sums(TypedDict):
    sum: bytes
    min: int | float | None
    max: int | float | None
    nnan: int
    ninf: int
    nminus_inf: int

class Found(TypedDict):
    nrows: int
    npassed: int
    sums: list[Sums]
    seconds: float
    bytes_read: int
    bytes_filled: int

class Engine:
    """What runs a query."""

    def __init__(
        self,
        name: str,
        where: Column,
        comparison: int,
        value: bytes,
        columns: Sequence[Column],
        *,
        threads: int,
        cache_nbytes: int,
        page_nbytes: int,
        device: int,
    ) -> None:
        """Columns: (path, type, rows, pieces): of each piece the number of its first row and where it begins, as int64.

        comparison: a number of < <= == != >= >; value: of the column's type, as bytes.
        """

    def run(self, progress: Progress) -> Found:
        """What it finds; a sum counts 2^-1074, in two's complement. progress(rows, all rows)."""

def fill_trips(names: Sequence[str], addresses: Sequence[int], seed: int, first: int, n: int, threads: int) -> None:
    """Puts columns of n drawn trips into memory."""

def write_trips(
    outputs: Sequence[tuple[str, int, int, Path]], seed: int, nrows: int, threads: int, progress: Progress
) -> None:
    """Writes columns of drawn trips, each (name, open file, offset, path). progress(rows, all rows)."""

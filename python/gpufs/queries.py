# SPDX-License-Identifier: Apache-2.0
"""Queries of columns in files: gpufs.query(), and the inside of `gpufs query`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from gpufs import _query
from gpufs.errors import GpufsError
from gpufs.formats import Layout, NotOneArrayError, find_layout
from gpufs.mounts import device_of, engine_of, page_nbytes, to_nbytes
from gpufs.text import printable
from gpufs.unchanged import check_unchanged, stamp_of

_TYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")  # as value_type of apps/query/values.hpp
_COMPARISONS = ("<", "<=", "==", "!=", ">=", ">")  # as its comparison
_MOST_THREADS = 1024
_UNIT = 2**1074  # of the sums: one is so many of what they count
_CONDITION = re.compile(r"\s*([^<>=!]*[^\s<>=!])\s*(<=|>=|==|!=|=|<|>)\s*([^\s<>=!]+)\s*")

# The queries of BaM (Qureshi et al., ASPLOS 2023, section 5.3) on taxi trips: each wants a column more.
TAXI_WHERE = "trip_distance >= 30"
TAXI_COLUMNS = ("trip_distance", "total_amount", "extra", "improvement_surcharge", "tolls_amount", "mta_tax")


@dataclass(frozen=True)
class ColumnSums:
    """Of a column's values in the rows that pass; mean, min and max are None where none does."""

    sum: int | float
    mean: float | None
    min: int | float | None
    max: int | float | None


@dataclass(frozen=True)
class QueryResult:
    """What a query has found.

    bytes_read: of the columns; bytes_filled: in pages that came into the GPU's cache, None by host threads.
    """

    rows: int
    passed: int
    columns: dict[str, ColumnSums]
    engine: str
    seconds: float
    bytes_read: int
    bytes_filled: int | None


class OpenQuery:
    """A query whose files are open: run() may be called again and again."""

    def __init__(
        self,
        table: str | os.PathLike[str],
        where: str,
        of: Sequence[str],
        *,
        engine: str = "auto",
        device: int | None = None,
        threads: int = 0,
        cache: int | str = 0,
        page: int | str = 4096,
    ) -> None:
        name, comparison, text = _parsed(where)
        self.names = list(dict.fromkeys([of] if isinstance(of, str) else of))
        if len(self.names) > _query.MOST_COLUMNS:
            raise GpufsError(
                f"{len(self.names)} columns are more than the {_query.MOST_COLUMNS} of a query: ask for some of them "
                "at a time"
            )
        if not 0 <= threads <= _MOST_THREADS:
            raise GpufsError(f"threads is {threads}: there can be 1 to {_MOST_THREADS}, and 0 is one a core")
        self.engine = engine_of(engine)
        found = {each: _Column(Path(table), each) for each in dict.fromkeys([name, *self.names])}
        self._stamps = {column.path: column.stamp for column in found.values()}
        scanned = found[name]
        for column in found.values():
            if column.nrows != scanned.nrows:
                raise GpufsError(
                    f"{column.path}: has {column.nrows} rows, and {scanned.path} has {scanned.nrows}: columns of a "
                    "table have the same number"
                )
        self._summed = [found[each] for each in self.names]
        self._by = _query.Engine(
            self.engine,
            scanned.words,
            _COMPARISONS.index(comparison),
            scanned.value_of(text),
            [column.words for column in self._summed],
            threads=threads,
            cache_nbytes=to_nbytes(cache),
            page_nbytes=page_nbytes(page, 8),
            device=device_of(self.engine, device),
        )

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> tuple[QueryResult, dict[str, Fraction]]:
        """And the sums of the columns that have finite values only, exactly."""
        got = self._by.run(on_progress)
        for path, stamp in self._stamps.items():
            check_unchanged(path, stamp, "queried")
        columns, exact = {}, {}
        for column, sums in zip(self._summed, got["sums"], strict=True):
            columns[column.name] = _sums_of(column, sums, got["npassed"])
            if not (sums["nnan"] or sums["ninf"] or sums["nminus_inf"]):
                exact[column.name] = Fraction(_units(sums), _UNIT)
        return (
            QueryResult(
                rows=got["nrows"],
                passed=got["npassed"],
                columns=columns,
                engine=self.engine,
                seconds=got["seconds"],
                bytes_read=got["bytes_read"],
                bytes_filled=None if self.engine == "cpu" else got["bytes_filled"],
            ),
            exact,
        )


def query(
    table: str | os.PathLike[str],
    where: str,
    of: Sequence[str] = (),
    *,
    engine: str = "auto",
    device: int | None = None,
    threads: int = 0,
    cache: int | str = 0,
    page: int | str = 4096,
    on_progress: Callable[[int, int], None] | None = None,
) -> QueryResult:
    """How many rows of a table pass, and of each column in `of` the sum, mean, least and greatest of their values.

    table: an Arrow or Parquet file, uncompressed, or a folder with COLUMN.npy for each. where: "COLUMN >= NUMBER",
    or < <= == != >. The column in `where` is read whole; of the others only what belongs to rows that pass. Sums are
    exact, and rounded once, so that all engines give the same, to the bit. Raises GpufsError.
    """
    how = OpenQuery(table, where, of, engine=engine, device=device, threads=threads, cache=cache, page=page)
    return how.run(on_progress)[0]


def dollars_per_mile(exact: dict[str, Fraction]) -> float | None:
    """What the driver of a taxi makes: the total less what is paid on, over the distance; None: it is not known."""
    total, distance = exact.get("total_amount"), exact.get("trip_distance")
    if total is None or not distance:
        return None
    return float((total - sum(exact.get(name, Fraction(0)) for name in TAXI_COLUMNS[2:])) / distance)


def _parsed(where: str) -> tuple[str, str, str]:
    """The column, the comparison, the number."""
    match = _CONDITION.fullmatch(where)
    if match is None:
        raise GpufsError(
            f"'{printable(where)}' is no condition, as \"trip_distance >= 30\" is: a column, one "
            f"of {' '.join(_COMPARISONS)}, and a number"
        )
    name, comparison, text = match.groups()
    return name, "==" if comparison == "=" else comparison, text


class _Column:
    """Where a column of a table lies."""

    def __init__(self, table: Path, name: str) -> None:
        self.name = name
        self.path = table
        if table.is_dir():
            names = sorted(path.stem for path in table.glob("*.npy"))
            if not names:
                raise GpufsError(f"{printable(str(table))}: has no columns: a table's folder has COLUMN.npy for each")
            if name not in names:
                raise _no_column(table, name, names)
            self.path = table / f"{name}.npy"
        self.stamp = stamp_of(self.path)
        try:
            layout = find_layout(
                str(self.path), name=None if table.is_dir() else name, dtype=None, shape=None, offset=0
            )
        except NotOneArrayError as error:
            raise _no_column(table, name, error.names) from None
        self.dtype, self.nrows = layout.dtype, layout.shape[0]
        what = f"{printable(str(table))}: the column '{printable(name)}'"
        if len(layout.shape) != 1:
            raise GpufsError(f"{what} has rows of the shape {layout.shape[1:]}: queries take a number a row")
        if not layout.dtype.isnative or layout.dtype.str[1:] not in _TYPES:
            raise GpufsError(
                f"{what} has elements of {layout.dtype}, and queries take numbers of {', '.join(_TYPES)}, little "
                "endian: write it as one of these"
            )
        self.words = (str(self.path), _TYPES.index(layout.dtype.str[1:]), self.nrows, _pieces_of(layout))

    def value_of(self, text: str) -> bytes:
        """The number that the column is compared with, as one of its own: rounded to it, as NumPy would."""

        def refuse(why: str) -> GpufsError:
            return GpufsError(
                f"'{printable(text)}' {why}: the column '{printable(self.name)}' has elements of {self.dtype}"
            )

        try:
            value: int | float = int(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                raise refuse("is no number") from None
        if value != value:
            raise refuse("is unequal to all")
        if self.dtype.kind != "f":
            if value not in (-math.inf, math.inf) and int(value) == value:
                value = int(value)
            bounds = np.iinfo(self.dtype)
            if not isinstance(value, int) or not bounds.min <= value <= bounds.max:
                raise refuse("is none of its values")
            return np.array(value, self.dtype).tobytes()
        try:
            with np.errstate(over="ignore"):
                rounded = np.array(float(value), self.dtype)
        except OverflowError:
            raise refuse("is too large") from None
        if np.isinf(rounded) and not math.isinf(value):
            raise refuse("is too large")
        return rounded.tobytes()


def _no_column(table: Path, name: str, names: list[str]) -> GpufsError:
    known = ", ".join(printable(each) for each in names[:20]) + (", ..." if len(names) > 20 else "")
    return GpufsError(f"{printable(str(table))}: has no column '{printable(name)}': there are {known}")


def _pieces_of(layout: Layout) -> bytes:
    return layout.places.tobytes()


def _units(sums: _query.Sums) -> int:
    return int.from_bytes(sums["sum"], "little", signed=True)


def _ratio(numerator: int, denominator: int) -> float:
    """The nearest double."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def _sums_of(column: _Column, sums: _query.Sums, npassed: int) -> ColumnSums:
    units, least, greatest = _units(sums), sums["min"], sums["max"]
    if column.dtype.kind != "f":
        return ColumnSums(units // _UNIT, _ratio(units, _UNIT * npassed) if npassed else None, least, greatest)
    if sums["nnan"]:
        return ColumnSums(math.nan, math.nan, math.nan, math.nan)
    if sums["ninf"] or sums["nminus_inf"]:
        infinite = math.nan if sums["ninf"] and sums["nminus_inf"] else math.inf if sums["ninf"] else -math.inf
        return ColumnSums(infinite, infinite, least, greatest)
    return ColumnSums(_ratio(units, _UNIT), _ratio(units, _UNIT * npassed) if npassed else None, least, greatest)

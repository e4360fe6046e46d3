#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gpufs query` against programs that look at tables by all cores: pyarrow, Polars, DuckDB, where they are installed.

The table is of drawn taxi trips, an Arrow file in memory, which all of them map. Ways take turns, and what they find is
compared with gpufs's engine cpu.

query_q0_vs_cpu16 to query_q5_vs_cpu16: the fastest of them, over gpufs.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from gpufs import _rows
from gpufs.doctor import gpus_from_driver
from gpufs.queries import TAXI_COLUMNS, TAXI_WHERE, OpenQuery, QueryResult
from gpufs.trips import synthesize
from harness import Options, Results, Size, parse, spread_of

NAMES = (
    "query_q0_vs_cpu16",
    "query_q1_vs_cpu16",
    "query_q2_vs_cpu16",
    "query_q3_vs_cpu16",
    "query_q4_vs_cpu16",
    "query_q5_vs_cpu16",
)
SIZES = {
    "rows": Size(1_000_000_000, 50_000_000, 20_000, "trips of the table; each takes 48 bytes"),
    "runs": Size(5, 3, 1, "of each way, by turns, after one that is not counted"),
    "threads": Size(16, 16, 2, "of the rivals"),
}
_DISTANCE, _LEAST = TAXI_COLUMNS[0], 30.0

Found = tuple[int, list[float]]  # how many pass, and the columns' sums
Way = Callable[[Sequence[str]], Found]


def by_pyarrow(path: Path, threads: int) -> Way:
    """Acero, over the mapped file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import acero

    pa.set_cpu_count(threads)
    with pa.memory_map(str(path)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()

    def run(names: Sequence[str]) -> Found:
        sums = [(name, "sum", None, f"{name} sum") for name in names]
        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table.select(list(names)))),
                acero.Declaration("filter", acero.FilterNodeOptions(pc.field(_DISTANCE) >= _LEAST)),
                acero.Declaration(
                    "aggregate", acero.AggregateNodeOptions([*sums, (_DISTANCE, "count", None, "passed")])
                ),
            ]
        )
        (row,) = plan.to_table(use_threads=True).to_pylist()
        return row["passed"], [row[f"{name} sum"] or 0.0 for name in names]

    return run


def by_polars(path: Path, threads: int) -> Way:
    os.environ["POLARS_MAX_THREADS"] = str(threads)  # before it is imported
    import polars as pl

    table = pl.scan_ipc(path)

    def run(names: Sequence[str]) -> Found:
        asked = [pl.len().alias("passed"), *(pl.col(name).sum() for name in names)]
        (row,) = table.filter(pl.col(_DISTANCE) >= _LEAST).select(asked).collect().rows(named=True)
        return row["passed"], [row[name] for name in names]

    return run


def by_duckdb(path: Path, threads: int) -> Way:
    """Over the mapped file, as pyarrow's table."""
    import duckdb
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
    base = duckdb.connect(config={"threads": threads})
    base.register("trips", table)

    def run(names: Sequence[str]) -> Found:
        asked = ", ".join(["count(*)", *(f"coalesce(sum({name}), 0)" for name in names)])
        row = base.execute(f"select {asked} from trips where {_DISTANCE} >= {_LEAST}").fetchone()
        assert row is not None
        return row[0], list(row[1:])

    return run


RIVALS: dict[str, tuple[tuple[str, ...], Callable[[Path, int], Way]]] = {
    "pyarrow": (("pyarrow",), by_pyarrow),
    "polars": (("polars",), by_polars),
    "duckdb": (("duckdb", "pyarrow"), by_duckdb),
}


def is_right(found: Found, wanted: QueryResult) -> bool:
    """Sums of theirs are added in any order, and so differ in their last digits."""
    passed, sums = found
    exact = [each.sum for each in wanted.columns.values()]
    return passed == wanted.passed and all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(sums, exact, strict=True))


def compare(number: int, table: Path, engine: str, ways: dict[str, Way], results: Results, options: Options) -> None:
    names = TAXI_COLUMNS[: number + 1]
    ours = OpenQuery(table, TAXI_WHERE, names, engine=engine)
    wanted, _ = OpenQuery(table, TAXI_WHERE, names, engine="cpu").run()
    seconds: dict[str, list[float]] = {name: [] for name in ("gpufs", *ways)}
    right, nbytes = True, 0
    for turn in range(options["runs"] + 1):
        found, _ = ours.run()
        right = right and found.columns == wanted.columns and found.passed == wanted.passed
        nbytes = found.bytes_read
        took = {"gpufs": found.seconds}
        for name, way in ways.items():
            begin = time.perf_counter()
            theirs = way(names)
            took[name] = time.perf_counter() - begin
            right = right and is_right(theirs, wanted)
        if turn:  # the first one warms up
            for name, each in took.items():
                seconds[name].append(each)
    medians = {name: spread_of(samples)[0] for name, samples in seconds.items()}
    best = min(ways, key=lambda name: medians[name])
    results.add(
        NAMES[number],
        f"Q{number}, {options['rows']} rows",
        [medians[best] / each for each in seconds["gpufs"]],
        f"times as fast as {best}",
        share=False,
        verified=right,
        details={"GB read": nbytes * 1e-9, **{f"{name} s": each for name, each in medians.items()}},
    )


def main(arguments: list[str]) -> int:
    no_gpu = _rows.engine_missing("gpu")

    def choose(choice: str) -> str:
        return "host" if choice == "host" or no_gpu else "gpu"

    options = parse(arguments, __doc__ or "", NAMES, choose, "query.py", SIZES)
    names, _ = gpus_from_driver()
    results = Results(options, names[0] if names else None, 0, "query_python")
    wanted = [number for number, name in enumerate(NAMES) if options.wants(name)]
    there = {name: make for name, (modules, make) in RIVALS.items() if all(map(find_spec, modules))}
    for name in RIVALS.keys() - there.keys():
        results.note(f"{name} is left out: it is not installed")
    if find_spec("pyarrow") is None or not there:
        results.skip([NAMES[number] for number in wanted], "pyarrow, which writes the table, is not installed")
        return results.finish()
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir=options.dir) as folder:
        table = Path(folder) / "trips.arrow"
        begin = time.perf_counter()
        synthesize(table, options["rows"], list(TAXI_COLUMNS), 1, 0, lambda done, total: None)
        results.note(f"the table of {options['rows']} trips was made in {time.perf_counter() - begin:.1f} s")
        ways = {name: make(table, options["threads"]) for name, make in there.items()}
        for number in wanted:
            compare(number, table, "simt" if options.device == "host" else "gpu", ways, results, options)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs query synth` and `run`."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from gpufs.collage.cli import Engine, Threads, parse_size, reports_errors
from gpufs.collage.interrupt import sigterm_interrupts
from gpufs.errors import GpufsError
from gpufs.files_cli import Json, out, page_of, tell
from gpufs.graph_cli import Cache, Page
from gpufs.text import printable

_MOST_ROWS = 2**40

app = typer.Typer(
    no_args_is_help=True,
    help="Add up columns of tables in files, for the rows that pass a condition.\n\n"
    "Take a table of yours, or `gpufs query synth --rows 10000000 -o TRIPS`; then `gpufs query run TRIPS --query q5`.",
)


class Preset(str, Enum):
    q0 = "q0"
    q1 = "q1"
    q2 = "q2"
    q3 = "q3"
    q4 = "q4"
    q5 = "q5"


@app.command("synth")
@reports_errors
def synth(
    rows: Annotated[int, typer.Option(min=0, max=_MOST_ROWS, help="How many trips.")],
    to: Annotated[
        Path, typer.Option("--out", "-o", metavar="TABLE", help="A file NAME.arrow, or a folder for .npy files.")
    ],
    columns: Annotated[
        str, typer.Option(metavar="NAME,...", help="Which columns. Default: all 18; q5: those of the query q5.")
    ] = "",
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="Other seeds give other trips; the same gives the same bytes.")
    ] = 0,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Draw taxi trips: columns with the names, types and about the distributions of New York's yellow taxis."""
    from gpufs.collage import console
    from gpufs.doctor import size_text
    from gpufs.queries import TAXI_COLUMNS
    from gpufs.trips import chosen_columns, synthesize

    names = chosen_columns(TAXI_COLUMNS if columns == "q5" else _listed(columns))
    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:
        nbytes = synthesize(to, rows, names, seed, threads, lambda done, total: bar.show("drawing trips", done, total))
    seconds = time.monotonic() - begin
    tell(
        f"table {to}",
        {"rows": rows, "columns": ", ".join(names), "size": size_text(nbytes), "time": f"{seconds:.1f} s"},
        as_json,
        {"path": str(to), "rows": rows, "columns": names, "nbytes": nbytes, "seconds": seconds},
    )


@app.command("run")
@reports_errors
def run(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="An Arrow or Parquet file, uncompressed, or a folder of .npy files.")
    ],
    preset: Annotated[
        Preset | None, typer.Option("--query", "-q", help="Of taxi trips, those of 30 miles and more: q5 has all sums.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", "-w", metavar="CONDITION", help='Which rows: "COLUMN >= NUMBER", or < <= == != >.'),
    ] = None,
    of: Annotated[
        str,
        typer.Option("--sum", "-s", metavar="NAME,...", help="The columns whose sum, mean, min and max are wanted."),
    ] = "",
    engine: Annotated[
        Engine, typer.Option(help="auto: gpu, or cpu without one. All find the same, to the bit.")
    ] = Engine.auto,
    cache: Cache = "0",
    page: Page = "4K",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Count the rows that pass, and add up columns of theirs; of these columns only what is wanted is read."""
    from gpufs.collage import console
    from gpufs.queries import TAXI_COLUMNS, TAXI_WHERE, OpenQuery, dollars_per_mile

    if where and len(where) > 1:
        raise typer.BadParameter("one condition is understood, and there are several", param_hint="--where")
    if (preset is None) == (not where):
        raise GpufsError('which rows? give either --query q0 to q5, or --where "COLUMN >= NUMBER"')
    if preset is not None and of:
        raise GpufsError(f"--query {preset.value} says which columns: leave out --sum, or give --where")
    names = _listed(of) if preset is None else list(TAXI_COLUMNS[: int(preset.value[1]) + 1])
    condition = where[0] if where else TAXI_WHERE
    cache_nbytes, page_nbytes = parse_size(cache), page_of(page)
    with sigterm_interrupts(), console.progress() as bar:
        how = OpenQuery(
            table, condition, names, engine=engine.value, threads=threads, cache=cache_nbytes, page=page_nbytes
        )
        result, exact = how.run(lambda done, total: bar.show("looking at rows", done, total))
    facts: dict[str, Any] = {"path": str(table), "where": condition, **dataclasses.asdict(result)}
    facts["columns"] = {
        name: {key: _for_json(value) for key, value in sums.items()} for name, sums in facts["columns"].items()
    }
    if preset not in (None, Preset.q0):
        facts["dollars_per_mile"] = dollars_per_mile(exact)
    if as_json:
        print(json.dumps(facts))
        return
    _print(table, facts)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _for_json(value: float | None) -> float | str | None:
    """JSON has no numbers that are infinite, or none."""
    return value if value is None or math.isfinite(value) else str(value)


def _print(table: Path, facts: dict[str, Any]) -> None:
    from rich.table import Table

    from gpufs.doctor import size_text

    def shown(value: float | str | None) -> str:
        return "-" if value is None else value if isinstance(value, str) else f"{value:,}"

    if facts["columns"]:
        sums = Table(title=printable(f"{table} where {facts['where']}"), title_justify="left", title_style="bold")
        sums.add_column("column", overflow="fold")
        for name in ("sum", "mean", "min", "max"):
            sums.add_column(name, justify="right", overflow="fold")
        for name, each in facts["columns"].items():
            sums.add_row(printable(name), *(shown(each[key]) for key in ("sum", "mean", "min", "max")))
        out.print(sums)
    rows: dict[str, Any] = {"rows": facts["rows"], "that pass": facts["passed"]}
    if "dollars_per_mile" in facts:
        per_mile = facts["dollars_per_mile"]
        rows["dollars a mile"] = "-" if per_mile is None else f"{per_mile:,.4f}"
    rows["read"] = size_text(facts["bytes_read"])
    if facts["bytes_filled"] is not None:
        rows["into the cache"] = size_text(facts["bytes_filled"])
    rows["time"] = f"{facts['seconds']:.3f} s, by {facts['engine']}"
    tell("" if facts["columns"] else f"{table} where {facts['where']}", rows, False, {})

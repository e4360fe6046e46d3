# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs scan` and `gpufs sort`: raw files of numbers and of records."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpufs.collage.cli import Engine, interrupt_status, parse_size, reports_errors, say_error
from gpufs.collage.interrupt import sigterm_interrupts
from gpufs.files_cli import Json, out
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs.scan_sort import Begin


class Operator(str, Enum):
    add = "add"
    mul = "mul"
    max = "max"
    min = "min"
    bit_and = "and"
    bit_or = "or"
    bit_xor = "xor"


class NumberType(str, Enum):
    u32 = "u32"
    i32 = "i32"
    u64 = "u64"
    i64 = "i64"
    f32 = "f32"
    f64 = "f64"


In = Annotated[Path, typer.Argument(metavar="IN", help="A regular file, of any size.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write. It appears when it is complete.")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite-in-place",
        help="OUT is there, has IN's size, and is written as it is: faster; a failure leaves a part of it written.",
    ),
]
AnyEngine = Annotated[Engine, typer.Option(help="auto: gpu, or cpu without one.")]


def scan(
    source: In,
    to: Out,
    op: Annotated[Operator, typer.Option(help="What elements are combined by.")],
    number_type: Annotated[NumberType, typer.Option("--type", help="Of the elements.")],
    exclusive: Annotated[bool, typer.Option("--exclusive", help="Of all elements before each, not up to it.")] = False,
    engine: AnyEngine = Engine.auto,
    piece: Annotated[str, typer.Option(metavar="SIZE", help="Bytes that go at a time. 0: gpufs decides.")] = "0",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Combine, at each place of a file of numbers, all of them up to there (a prefix sum, a running maximum, ...).

    Where anything fails, nothing is written.
    """
    from gpufs import _par
    from gpufs.mounts import engine_of
    from gpufs.scan_sort import device_number

    chosen, piece_nbytes = engine_of(engine.value), parse_size(piece)

    def begin(of: _par.Ends) -> _par.Job:
        return _par.scan(chosen, device_number(chosen, None), of, op.value, number_type.value, exclusive, piece_nbytes)

    facts = {"op": op.value, "type": number_type.value, "exclusive": exclusive, "engine": chosen}
    _run(source, to, begin, "scan", "scanned", overwrite, facts, int(number_type.value[1:]) // 8, as_json)


def sort(
    source: In,
    to: Out,
    key: Annotated[NumberType, typer.Option(help="The type of the keys.")],
    record_bytes: Annotated[int, typer.Option(min=0, help="Of a record. 0: it is a key.")] = 0,
    key_offset: Annotated[int, typer.Option(min=0, help="Where in a record its key begins.")] = 0,
    descending: Annotated[bool, typer.Option("--descending", help="The largest key first.")] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the GPU's memory, at most. 0: gpufs decides.")] = "0",
    scratch: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where pieces go that wait to be merged. Default: OUT's folder."),
    ] = None,
    engine: AnyEngine = Engine.auto,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Sort a file of records by a key in each. Equal keys stay in their order.

    Where anything fails, nothing is written.
    """
    from gpufs import _par
    from gpufs.mounts import engine_of
    from gpufs.scan_sort import device_number

    chosen, memory_nbytes = engine_of(engine.value), parse_size(memory)
    size = record_bytes or int(key.value[1:]) // 8

    def begin(of: _par.Ends) -> _par.Job:
        number = device_number(chosen, None)
        folder = to.parent if scratch is None else scratch
        return _par.sort(chosen, number, of, key.value, size, key_offset, descending, memory_nbytes, folder)

    facts = {
        "key": key.value,
        "record_nbytes": size,
        "key_offset": key_offset,
        "descending": descending,
        "engine": chosen,
    }
    _run(source, to, begin, "sort", "sorted", overwrite, facts, size, as_json)


def _run(
    source: Path,
    to: Path,
    begin: Begin,
    command: str,
    verb: str,
    overwrite: bool,
    facts: dict[str, Any],
    size: int,
    as_json: bool,
) -> None:
    from gpufs.collage import console
    from gpufs.scan_sort import of_file

    started = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:

        def show(done: int, total: int) -> None:
            bar.show(f"{command} of {printable(source)}", done, total)

        try:
            nbytes = of_file(source, to, begin, verb, overwrite=overwrite, on_progress=show)
        except KeyboardInterrupt as interrupt:
            if not overwrite:
                raise
            say_error(f"interrupted; {to} is written in part")
            raise typer.Exit(interrupt_status(interrupt)) from None
    seconds = time.monotonic() - started
    rate = nbytes / max(seconds, 1e-9) / 1e9
    if as_json:
        measured = {"nelements": nbytes // size, "nbytes": nbytes, "seconds": seconds, "gb_per_s": rate}
        print(json.dumps({"path": str(source), "out": str(to), **facts, **measured}))
        return
    what = "elements" if command == "scan" else "records"
    line = f"{to}: {nbytes // size} {what} {verb} in {seconds:.2f} s ({rate:.2f} GB/s)"
    out.print(printable(line), markup=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(scan))
    app.command()(reports_errors(sort))

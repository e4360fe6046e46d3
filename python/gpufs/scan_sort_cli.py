# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs scan` and `gpufs sort`: raw files of numbers and of records."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufs.collage.cli import Engine, interrupt_status, parse_size, reports_errors, say_error
from gpufs.collage.interrupt import sigterm_interrupts
from gpufs.files_cli import Json, out
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs.scan_sort import Work


_MOST_NBYTES = (1 << 62) - 1


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


# readable=False: what cannot be read is no wrong usage, and who opens it says why.
In = Annotated[Path, typer.Argument(metavar="IN", readable=False, help="A regular file, of any size.")]
Out = Annotated[
    Path, typer.Argument(metavar="OUT", readable=False, help="The file to write. It appears when it is complete.")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite-in-place",
        help="OUT is there, has IN's size, and is written as it is: faster; a failure leaves a part of it written.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Keep what is done in the folder OUT.unfinished; after an interruption the same command goes on.",
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
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Combine, at each place of a file of numbers, all of them up to there (a prefix sum, a running maximum, ...).

    Where anything fails, nothing is written.
    """
    from gpufs.mounts import engine_of
    from gpufs.scan_sort import scan_work

    piece_nbytes = parse_size(piece)
    work = scan_work(engine_of(engine.value), None, op.value, number_type.value, exclusive, piece_nbytes)
    _run("scan", source, to, work, int(number_type.value[1:]) // 8, overwrite, resume, as_json)


def sort(
    source: In,
    to: Out,
    key: Annotated[NumberType, typer.Option(help="The type of the keys.")],
    record_bytes: Annotated[int, typer.Option(min=0, max=_MOST_NBYTES, help="Of a record. 0: it is a key.")] = 0,
    key_offset: Annotated[int, typer.Option(min=0, max=_MOST_NBYTES, help="Where in a record its key begins.")] = 0,
    descending: Annotated[bool, typer.Option("--descending", help="The largest key first.")] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the GPU's memory, at most. 0: gpufs decides.")] = "0",
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            readable=False,
            help="Where pieces go that wait to be merged. Default: the host's memory, if half of what is free has room,"
            " else OUT's folder.",
        ),
    ] = None,
    engine: AnyEngine = Engine.auto,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Sort a file of records by a key in each. Equal keys stay in their order.

    Where anything fails, nothing is written.
    """
    from gpufs.mounts import engine_of
    from gpufs.scan_sort import sort_work

    if resume and scratch is not None:
        raise typer.BadParameter("--scratch: what a sort goes on with (--resume) is beside OUT: leave it out")
    memory_nbytes = parse_size(memory)
    work = sort_work(
        engine_of(engine.value),
        None,
        key.value,
        record_bytes or None,
        key_offset,
        descending,
        memory_nbytes,
        scratch or to.parent,
        prefers_memory=scratch is None,
    )
    _run("sort", source, to, work, work.facts["record_nbytes"], overwrite, resume, as_json)


def _run(
    command: str, source: Path, to: Path, work: Work, size: int, overwrite: bool, resume: bool, as_json: bool
) -> None:
    from gpufs.collage import console
    from gpufs.scan_sort import of_file

    if resume and overwrite:
        raise typer.BadParameter("--resume: a file that is overwritten in place cannot be gone on with")
    started = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:

        def show(done: int, total: int) -> None:
            bar.show(f"{command} of {printable(source)}", done, total)

        try:
            nbytes, share = of_file(source, to, work, overwrite=overwrite, resume=resume, on_progress=show)
        except KeyboardInterrupt as interrupt:
            if resume:
                say_error(f"interrupted; {to} is not written: the same command goes on with what is done")
            elif overwrite:
                say_error(f"interrupted; {to} is written in part")
            else:
                raise
            raise typer.Exit(interrupt_status(interrupt)) from None
    seconds = time.monotonic() - started
    rate = share * nbytes / max(seconds, 1e-9) / 1e9
    if as_json:
        measured = {"nelements": nbytes // size, "nbytes": nbytes, "seconds": seconds, "gb_per_s": rate}
        measured |= {"share": share}
        print(json.dumps({"path": str(source), "out": str(to), **work.facts, **measured}))
        return
    what = "elements" if command == "scan" else "records"
    rest = "" if share == 1 else f"the last {100 * share:.0f} % of "
    line = f"{to}: {rest}{nbytes // size} {what} {work.verb} in {seconds:.2f} s ({rate:.2f} GB/s)"
    out.print(printable(line), markup=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(scan))
    app.command()(reports_errors(sort))

# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs collage PHOTO`, `gpufs collage index`, `synth`, `verify` and `info`."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from gpufs.collage.interrupt import TerminatedError
from gpufs.errors import GpufsError
from gpufs.text import printable

P = ParamSpec("P")
R = TypeVar("R")

errors = Console(stderr=True, highlight=False, emoji=False)

MOST_NBYTES = 8192 << 40
MOST_BLOCKS = (1 << 31) - 1  # of threads, in a launch


class PhotoGroup(TyperGroup):
    """A group whose command may be left out: `gpufs collage PHOTO ...` is `gpufs collage make PHOTO ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PhotoGroup,
    no_args_is_help=True,
    help="Rebuild a photograph from many small pictures.\n\n"
    "First `gpufs collage index FOLDER... -o LIBRARY`, then `gpufs collage PHOTO --library LIBRARY -o OUT.png`, "
    "which is short for `gpufs collage make PHOTO ...`. `gpufs collage synth` makes large libraries for trials.",
)


class Engine(str, Enum):
    auto = "auto"
    gpu = "gpu"
    simt = "simt"
    cpu = "cpu"


class Order(str, Enum):
    in_order = "in-order"
    reversed = "reversed"
    random = "random"


class Store(str, Enum):
    auto = "auto"
    posix = "posix"
    mapped = "mapped"


class Check(str, Enum):
    auto = "auto"
    full = "full"
    quick = "quick"


def say_error(message: str) -> None:
    """One line on stderr, whatever the message holds (a file's name may hold anything)."""
    errors.print(f"gpufs: {printable(message)}", markup=False, soft_wrap=True)


def interrupt_status(interrupt: KeyboardInterrupt) -> int:
    """The exit status after SIGTERM, or Ctrl-C."""
    return 143 if isinstance(interrupt, TerminatedError) else 130


def reports_errors(command: Callable[P, R], status: int = 1) -> Callable[P, R]:
    """Turns exceptions that a user can cause into one line and an exit status: this one, or an interruption's."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GpufsError as error:
            say_error(str(error))
            raise typer.Exit(status) from None
        except KeyboardInterrupt as interrupt:
            say_error("interrupted; nothing was written")
            raise typer.Exit(interrupt_status(interrupt)) from None
        except MemoryError:
            say_error("there is not enough memory for this")
            raise typer.Exit(status) from None
        except OSError as error:
            say_error(f"{error.filename or 'input or output'}: {error.strerror or error}")
            raise typer.Exit(status) from None

    return run


def parse_size(text: str) -> int:
    """Bytes of '64M', '1.5G', '4096', '512KiB'. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise typer.BadParameter(f"'{printable(text)}' is no size; write for example 4096, 64K, 256M or 1.5G")
    nbytes = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if nbytes > MOST_NBYTES:
        raise typer.BadParameter(f"'{text}' is more than any machine has; at most 8192T are understood")
    return int(nbytes)


def parse_scales(text: str) -> tuple[int, ...]:
    """'1,2,4' as numbers. Raises typer.BadParameter."""
    try:
        scales = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        scales = ()
    if not scales or scales[0] < 1 or scales[-1] > 1024:
        raise typer.BadParameter(f"'{printable(text)}' are no scales; write for example 1,2,4,8")
    return scales


Library = Annotated[Path, typer.Option("--library", "-l", help="Made by `gpufs collage index` or `synth`.")]
NewLibrary = Annotated[Path, typer.Option("--output", "-o", help="The library to write.")]
Threads = Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")]
Packed = Annotated[bool, typer.Option("--packed", help="Histograms 3 KiB apart, not 4: a smaller file.")]
KeyBits = Annotated[int, typer.Option(min=0, max=30, help="Length of the hash keys, 4 to 30. 0: measured.")]
ShortlistGoal = Annotated[
    int, typer.Option(min=1, max=256, help="Shortlists below this are filled up from neighbouring buckets.")
]


@app.command("make")
@reports_errors
def make(
    photos: Annotated[list[Path], typer.Argument(metavar="PHOTO...", help="Pictures of 32 x 32 pixels or more.")],
    library: Library,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The picture to write: .png, .jpg, ...; or a folder, for PHOTO.png each."),
    ],
    engine: Annotated[
        Engine, typer.Option(help="auto: the one that will be done first. All give the same picture.")
    ] = Engine.auto,
    enlarge: Annotated[int, typer.Option(min=1, max=64, help="First make the photograph so many times larger.")] = 1,
    threads: Threads = 0,
    sample: Annotated[
        int | None,
        typer.Option(min=0, help="Blocks compared with exhaustive search. Default: 32; none for libraries over 2 GiB."),
    ] = None,
    check: Annotated[
        Check, typer.Option(help="full: compare the library with its checksums first. auto: up to 1 GiB.")
    ] = Check.auto,
    cache_size: Annotated[str, typer.Option(metavar="SIZE", help="gpu, simt: page cache. 0: gpufs decides.")] = "0",
    page_size: Annotated[str, typer.Option(metavar="SIZE", help="gpu, simt: 512 to 2M, a power of two.")] = "4K",
    store: Annotated[Store, typer.Option(help="gpu, simt: how pages come in.")] = Store.auto,
    grid: Annotated[
        int, typer.Option(min=0, max=MOST_BLOCKS, help="gpu, simt: blocks of threads. 0: gpufs decides.")
    ] = 0,
    block_threads: Annotated[int, typer.Option(min=32, max=1024, help="gpu, simt: threads a block.")] = 256,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="simt: of the schedule. 0: another one each time.")
    ] = 0,
    order: Annotated[Order, typer.Option(help="simt: in which order blocks of threads start.")] = Order.in_order,
    resident_blocks: Annotated[
        int, typer.Option(min=0, max=MOST_BLOCKS, help="simt: blocks of threads at once. 0: a few.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a line for each photograph.")] = False,
) -> None:
    """Rebuild each PHOTO from a library's images."""
    from gpufs.collage import console
    from gpufs.collage.making import CollageOptions, make_collages

    page_nbytes = parse_size(page_size)
    if page_nbytes & (page_nbytes - 1) or not 512 <= page_nbytes <= 2 << 20:
        raise typer.BadParameter("a page has 512 bytes to 2 MiB, a power of two", param_hint="--page-size")
    options = CollageOptions(
        engine=cast(Any, engine.value),
        threads=threads,
        cache_nbytes=parse_size(cache_size),
        page_nbytes=page_nbytes,
        store=cast(Any, store.value),
        grid=grid,
        block_threads=block_threads,
        seed=seed,
        order=cast(Any, order.value),
        resident_blocks=resident_blocks,
        check=cast(Any, check.value),
        enlarge=enlarge,
        sample=sample,
    )
    if len(photos) > 1 and not output.is_dir():
        raise GpufsError(f"{output}: is no folder; the pictures of several photographs want one")
    outputs = [output / f"{photo.stem}.png" for photo in photos] if output.is_dir() else [output]
    with console.progress() as bar:
        reports = make_collages(list(zip(photos, outputs, strict=True)), library, options, on_progress=bar.show)
        nwritten = 0
        try:
            for written, report in zip(outputs, reports, strict=True):
                nwritten += 1
                if as_json:
                    console.print_collage_as_json(written, report)
                else:
                    console.print_collage(written, report)
        except KeyboardInterrupt as interrupt:
            if nwritten == 0:
                raise
            say_error(f"interrupted; {nwritten} of {len(photos)} pictures are written")
            raise typer.Exit(interrupt_status(interrupt)) from None


@app.command("index")
@reports_errors
def index(
    inputs: Annotated[list[Path], typer.Argument(metavar="PICTURES...", help="Picture files, and folders of them.")],
    output: NewLibrary,
    tiles: Annotated[bool, typer.Option("--tiles", help="Cut photographs into many overlapping tiles.")] = False,
    scales: Annotated[str, typer.Option(help="With --tiles: sides of the tiles, in units of 32 pixels.")] = "1,2,4,8",
    stride: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="With --tiles: from tile to tile, in 32nds of one.")
    ] = 16,
    max_tiles: Annotated[int, typer.Option(min=1, help="With --tiles: of one photograph.")] = 20_000,
    packed: Packed = False,
    key_bits: KeyBits = 0,
    shortlist_goal: ShortlistGoal = 32,
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes that decode. 0: one a core.")] = 0,
) -> None:
    """Build a library of small images from picture files."""
    from gpufs.collage import console
    from gpufs.collage.indexing import IndexOptions, build_library
    from gpufs.collage.tiles import TileOptions

    cut = TileOptions(parse_scales(scales), stride, max_tiles)
    options = IndexOptions(
        tiles=cut if tiles else None,
        packed=packed,
        key_nbits=key_bits,
        shortlist_goal=shortlist_goal,
        workers=workers,
    )
    with console.progress() as bar:
        report = build_library(
            inputs,
            output,
            options,
            on_file=bar.count_files,
            on_unreadable=lambda path, why: say_error(f"skipped: {path}: {why}"),
            on_finish=lambda done, total: bar.show("building tables", done, total),
        )
    console.print_index(output, report)


@app.command("synth")
@reports_errors
def synth(
    number: Annotated[int, typer.Argument(metavar="N", help="Images to make, 1 to 2,147,483,648.")],
    output: NewLibrary,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PICTURES...", help="Photographs, and folders of them. Default: scikit-image's."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="Other seeds give other images; the same gives the same library.")
    ] = 0,
    packed: Packed = False,
    key_bits: KeyBits = 0,
    shortlist_goal: ShortlistGoal = 32,
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Threads, and processes that decode. 0: one a core.")
    ] = 0,
) -> None:
    """Build a library of N synthetic images: random squares of photographs, mirrored or not, with shifted colours."""
    from gpufs.collage import console
    from gpufs.collage.synth import SynthOptions, synthesize_library

    options = SynthOptions(seed=seed, packed=packed, key_nbits=key_bits, shortlist_goal=shortlist_goal, workers=workers)
    with console.progress() as bar:
        report = synthesize_library(
            number,
            output,
            inputs or (),
            options,
            on_file=bar.count_files,
            on_unreadable=lambda path, why: say_error(f"skipped: {path}: {why}"),
            on_cut=lambda done, total: bar.show("cutting images", done, total),
            on_finish=lambda done, total: bar.show("building tables", done, total),
        )
    console.print_synth(output, report)


@app.command("verify")
@reports_errors
def verify(library: Annotated[Path, typer.Argument(help="The library to check.")]) -> None:
    """Check a library thoroughly: checksums, and that its tables and histograms are sound."""
    from gpufs import _native
    from gpufs.collage import console

    opened = _native.Library(library)
    with console.progress() as bar:
        opened.check_sums(lambda done, total: bar.show("checksums", done, total))
        opened.check_contents(lambda done, total: bar.show("contents", done, total))
    console.print_line(f"{library}: sound, {opened.info()['nimages']:,} images")


@app.command("info")
@reports_errors
def info(
    library: Annotated[Path, typer.Argument(help="The library to describe.")],
    image: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Say where this image comes from.")] = None,
) -> None:
    """Say what a library holds."""
    from gpufs import _native
    from gpufs.collage import console

    opened = _native.Library(library)
    if image is None:
        console.print_info(library, opened.info())
        return
    source, x, y, side = opened.origin(image)
    name = os.fsdecode(opened.source_name(source))
    console.print_line(f"{name}: the square of {side} pixels at column {x}, row {y}")

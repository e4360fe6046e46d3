# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs label`: the regions of images."""

from __future__ import annotations

import json
import re
import time
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufs.collage.cli import Engine, parse_size, reports_errors
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing, sigterm_interrupts
from gpufs.files_cli import Json, out
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs.labelling import Background


def _parse_background(text: str) -> Background:
    """'0', '-3', '#ff0000', 'none'. Raises typer.BadParameter."""
    if text == "none":
        return None
    if re.fullmatch(r"-?\d{1,20}", text):
        return int(text)
    if re.fullmatch(r"#([0-9a-fA-F]{2}){1,4}", text):
        return tuple(bytes.fromhex(text[1:]))
    raise typer.BadParameter(f"'{printable(text)}' is no background; write for example 0, 255, #ff0000 or none")


def _parse_threshold(text: str) -> Decimal:
    """'128', '-0.5', '1e3', 'inf', with all digits. Raises typer.BadParameter."""
    try:
        value = Decimal(text)
    except ArithmeticError:
        value = Decimal("nan")
    if value.is_nan():
        raise typer.BadParameter(f"'{printable(text)}' is no number", param_hint="--threshold")
    return value


def label(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", readable=False, help="A picture, or a .npy file with one.")],
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="LABELS", readable=False, help="A .npy file of each pixel's region."),
    ] = None,
    corners: Annotated[bool, typer.Option("--corners", help="Pixels that meet at a corner touch, too.")] = False,
    background: Annotated[
        str,
        typer.Option(metavar="VALUE|#rrggbb|none", help="Pixels of this value are of no region: label 0."),
    ] = "0",
    threshold: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Of a grey image: what is as bright is 1, the rest is 0.")
    ] = None,
    memory: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Of the GPU's memory (else the host's), at most. 0: gpufs decides."),
    ] = "0",
    engine: Annotated[
        Engine, typer.Option(help="auto: gpu, or cpu without one. All find the same regions.")
    ] = Engine.auto,
    as_json: Json = False,
) -> None:
    """Find the regions of an image: pixels that are equal, and touch each other.

    Says how many there are, and writes of each pixel the number of its region, from 1 on in the order of the regions'
    first pixels, row by row. Where anything fails, nothing is written.
    """
    from gpufs.collage import console
    from gpufs.labelling import FileOfLabels, How, above, label_regions, opened_image
    from gpufs.mounts import engine_of

    of_background, chosen = _parse_background(background), engine_of(engine.value)
    least = None if threshold is None else _parse_threshold(threshold)
    how = How(corners, of_background, chosen, None, parse_size(memory))
    if to is not None:
        check_writable(to)
        check_is_no_input(to, [(image, "the image")])
    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:

        def show(done: int, total: int) -> None:
            bar.show(f"labelling {printable(image)}", done, total)

        bar.show(f"reading {printable(image)}", 0, 1)
        with nullcontext() if to is None else replacing(to) as stream, opened_image(image) as stored:
            pixels = stored if least is None else above(stored, least)
            found = label_regions(pixels, how, None if stream is None else FileOfLabels(stream), show)
    seconds = time.monotonic() - begin
    if as_json:
        result = {
            "path": str(image),
            "out": None if to is None else str(to),
            "height": found.height,
            "width": found.width,
            "nregions": found.nregions,
            "background_pixels": found.nbackground,
            "engine": chosen,
            "seconds": seconds,
        }
        print(json.dumps(result))
        return
    said = f"{image}: {found.nregions} regions in {found.width} x {found.height} pixels"
    out.print(printable(said), markup=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(label))

# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpufs.collage.cli import app as collage_app

app = typer.Typer(
    name="gpufs",
    help="Files for code that runs inside a GPU kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(collage_app, name="collage")


@app.callback()
def _root() -> None:
    """Keeps `gpufs` a group of commands."""


@app.command()
def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files: how would gpufs read them, and why?")] = None,
) -> None:
    """Say what this machine offers: GPU, driver, limits, and which way files take."""
    from gpufs import doctor as module

    raise typer.Exit(module.main([str(path) for path in paths or []]))


def main() -> None:
    """Runs the command; exit status 0, 1 (it failed, one line says why), 2 (wrong usage), 130 or 143 (interrupted)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold what the terminal cannot show
    sys.exit(app(prog_name="gpufs"))

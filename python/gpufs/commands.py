# SPDX-License-Identifier: Apache-2.0
"""The commands of `gpufs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpufs import files_cli, label_cli, lex_cli, scan_sort_cli, top, words_cli
from gpufs.collage.cli import app as collage_app
from gpufs.collage.cli import reports_errors
from gpufs.graph_cli import app as graph_app
from gpufs.query_cli import app as query_app
from gpufs.vectors_cli import app as vectors_app

app = typer.Typer(
    name="gpufs",
    help="Files for code that runs inside a GPU kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(collage_app, name="collage")
app.add_typer(graph_app, name="graph")
app.add_typer(query_app, name="query")
app.add_typer(vectors_app, name="vectors")


def _say_version(wanted: bool) -> None:
    if wanted:
        import gpufs

        print(gpufs.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Keeps `gpufs` a group of commands."""


@app.command()
@reports_errors
def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files: how would gpufs read them, and why?")] = None,
    as_json: files_cli.Json = False,
) -> None:
    """Say what this machine offers: GPU, driver, limits, and which way files take."""
    from gpufs import doctor as module

    raise typer.Exit(module.main([str(path) for path in paths or []], as_json=as_json))


files_cli.register(app)
label_cli.register(app)
lex_cli.register(app)
scan_sort_cli.register(app)
words_cli.register(app)
top.register(app)

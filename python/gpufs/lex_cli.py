# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs lex`: the tokens of files."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from gpufs.collage.cli import Engine, parse_size, reports_errors
from gpufs.collage.interrupt import check_is_no_input, check_writable, sigterm_interrupts
from gpufs.errors import GpufsError
from gpufs.files_cli import Json, out
from gpufs.text import printable

_ERROR = 1  # the kind's number


def _outputs(files: list[Path], to: Path | None, inputs: list[tuple[Path | str, str]]) -> list[Path | None]:
    """Where the tokens of each file go. Raises GpufsError before anything is done."""
    if to is None:
        return [None] * len(files)
    paths = [to]
    if len(files) > 1:
        if not to.is_dir():
            raise GpufsError(f"{to}: is no folder, where the tokens of {len(files)} files could go: make it first")
        paths = [to / f"{file.name}.tokens.npy" for file in files]
        for i, path in enumerate(paths):
            if path in paths[:i]:
                raise GpufsError(f"{path}: would have the tokens of two files: lex one of them by itself")
    for path in paths:
        check_writable(path)
        check_is_no_input(path, inputs)
    return [*paths]


def lex(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", readable=False, help="Regular files, of any size.")],
    table: Annotated[str, typer.Option("--table", "-t", metavar="c|csv|json|FILE", help="What tokens there are.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="TOKENS", readable=False, help="A .npy file; of several FILEs, a folder for them."
        ),
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="auto: gpu, or cpu without one. All find the same tokens.")
    ] = Engine.auto,
    piece: Annotated[str, typer.Option(metavar="SIZE", help="Bytes that are lexed at a time. 0: gpufs decides.")] = "0",
    as_json: Json = False,
) -> None:
    """Find the tokens of files, by a finite automaton on many threads at once.

    Writes of each its offset and its kind, and says how many there are of each kind. What the table has no place for is
    a token of kind "error". Where anything fails, nothing is written.
    """
    import numpy as np

    from gpufs.collage import console
    from gpufs.lexing import each_piece, names_of, new_token_file, table_of
    from gpufs.mounts import engine_of

    piece_nbytes = parse_size(piece)
    by, chosen = table_of(table), engine_of(engine.value)
    outputs = _outputs(files, to, [*((file, "one of the inputs") for file in files), (table, "the table")])
    names = names_of(by)
    results: list[dict[str, Any]] = []
    with sigterm_interrupts(), ExitStack() as all_or_none, console.progress() as bar:
        made = []
        for file, output in zip(files, outputs, strict=True):
            tokens = None if output is None else all_or_none.enter_context(new_token_file(output))
            made += [] if tokens is None else [tokens]
            counts, first_error, nbytes = np.zeros(len(names), np.int64), None, 0
            begin = time.monotonic()

            def show(done: int, total: int, of: Path = file) -> None:
                nonlocal nbytes
                nbytes = total
                bar.show(f"lexing {printable(of)}", done, total)

            for offsets, kinds in each_piece(file, by, chosen, piece_nbytes=piece_nbytes, on_progress=show):
                if tokens is not None:
                    tokens.write(offsets, kinds)
                counts += np.bincount(kinds, minlength=len(names))
                if first_error is None and (errors := (kinds == _ERROR).nonzero()[0]).size:
                    first_error = int(offsets[errors[0]])
            seconds = time.monotonic() - begin
            results.append(
                {
                    "path": str(file),
                    "out": None if output is None else str(output),
                    "nbytes": nbytes,
                    "ntokens": int(counts.sum()),
                    "kinds": dict(zip(names[1:], counts[1:].tolist(), strict=True)),
                    "first_error": first_error,
                    "seconds": seconds,
                    "gb_per_s": nbytes / max(seconds, 1e-9) / 1e9,
                }
            )
        for tokens in made:  # all of them, before the first one gets its name
            tokens.end()
    if as_json:
        print(json.dumps({"table": table, "engine": chosen, "files": results}))
        return
    for result in results:
        kinds_text = ", ".join(f"{n} {_quoted(name)}" for name, n in result["kinds"].items() if n)
        where = "" if result["first_error"] is None else f"; the first error is at byte {result['first_error']}"
        line = f"{result['path']}: {result['ntokens']} tokens ({kinds_text}){where}"
        out.print(printable(line), markup=False, soft_wrap=True)


def _quoted(kind: str) -> str:
    return kind if kind.isidentifier() else f"'{kind}'"


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(lex))

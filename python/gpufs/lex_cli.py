# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs lex`: the tokens of files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gpufs.collage.cli import Engine, interrupt_status, parse_size, reports_errors, say_error
from gpufs.collage.interrupt import check_is_no_input, check_writable, sigterm_interrupts
from gpufs.errors import GpufsError
from gpufs.files_cli import Json, out
from gpufs.text import printable


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
    table: Annotated[
        str, typer.Option("--table", "-t", metavar="c|csv|json|paper|FILE", help="What tokens there are.")
    ],
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
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep what is done in the folder TOKENS.unfinished; after an interruption the same command goes on.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find the tokens of files, by a finite automaton on many threads at once.

    Writes of each its offset and its kind, and says how many there are of each kind. What the table has no place for is
    a token of kind "error". Where anything fails, nothing is written.
    """
    from gpufs.collage import console
    from gpufs.lexing import find, go_on, inputs_of_table, names_of, new_token_file, table_of
    from gpufs.mounts import engine_of

    if resume and to is None:
        raise typer.BadParameter("--resume: keeps tokens beside those of --out: name it, too")
    piece_nbytes = parse_size(piece)
    by, chosen = table_of(table), engine_of(engine.value)
    outputs = _outputs(files, to, [*((file, "one of the inputs") for file in files), *inputs_of_table(table)])
    names = names_of(by)
    results: list[dict[str, Any]] = []
    with sigterm_interrupts(), _what_stays_is_said(resume), ExitStack() as all_or_none, console.progress() as bar:
        made = []
        for file, output in zip(files, outputs, strict=True):

            def show(done: int, total: int, of: Path = file) -> None:
                bar.show(f"lexing {printable(of)}", done, total)

            begin = time.monotonic()
            if resume and output is not None:
                found = go_on(file, output, by, chosen, piece_nbytes=piece_nbytes, publishes=False, on_progress=show)
            else:
                tokens = None if output is None else all_or_none.enter_context(new_token_file(output))
                made += [] if tokens is None else [tokens]
                found = find(file, by, chosen, tokens, piece_nbytes=piece_nbytes, on_progress=show)
            seconds = time.monotonic() - begin
            results.append(
                {
                    "path": str(file),
                    "out": None if output is None else str(output),
                    "nbytes": found.nbytes,
                    "ntokens": found.ntokens,
                    "kinds": dict(zip(names[1:], found.kinds[1:].tolist(), strict=True)),
                    "first_error": found.first_error,
                    "seconds": seconds,
                    "gb_per_s": found.share * found.nbytes / max(seconds, 1e-9) / 1e9,
                    "share": found.share,
                }
            )
        for tokens in made:  # all of them, before the first one gets its name
            tokens.end()
        # All that is left is to give them their names; of several each is looked at once more before.
        for publishes in (False, True) if len(files) > 1 else (True,):
            for file, output in zip(files, outputs, strict=True):
                if resume and output is not None:
                    go_on(file, output, by, chosen, piece_nbytes=piece_nbytes, publishes=publishes)
    if as_json:
        print(json.dumps({"table": table, "engine": chosen, "files": results}))
        return
    for result in results:
        kinds_text = ", ".join(f"{n} {_quoted(name)}" for name, n in result["kinds"].items() if n)
        where = "" if result["first_error"] is None else f"; the first error is at byte {result['first_error']}"
        line = f"{result['path']}: {result['ntokens']} tokens ({kinds_text}){where}"
        out.print(printable(line), markup=False, soft_wrap=True)


@contextmanager
def _what_stays_is_said(resume: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not resume:
            raise
        say_error("interrupted; not all is written: the same command goes on with what is done")
        raise typer.Exit(interrupt_status(interrupt)) from None


def _quoted(kind: str) -> str:
    return kind if kind.isidentifier() else f"'{kind}'"


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(lex))

# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs words` and `gpufs grep`: words and strings in trees of files."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from gpufs.collage.cli import Engine, Threads, reports_errors, say_error
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing, sigterm_interrupts
from gpufs.doctor import size_text
from gpufs.errors import GpufsError
from gpufs.files_cli import BROKEN_PIPE, Json
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs import _words

# Exit statuses, as those of grep.
_NOTHING, _FAILED = 1, 2
_LINES_AT_ONCE = 1 << 20  # bytes of lines that are kept before they are written

# What `auto` estimates by, of an H200 and 16 threads of its host (bench/words), the order of what was found included. A
# core opens and closes a file, and counts a byte's share of words, in so many seconds; a process's first use of a GPU
# takes so many; then the host opens files for it, and a kernel finds their words.
_OPEN_S, _BYTE_S = 20e-6, 6e-9
_START_S, _GPU_BYTE_S = 0.4, 1 / 6e9

Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, and folders with all that is below them.")]
Scratch = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="gpu, simt: for what kernels find. Default: /dev/shm, or what TMPDIR says."),
]
Piece = Annotated[
    int, typer.Option(min=0, max=1 << 30, help="Bytes of a file that are searched by one thread. 0: gpufs decides.")
]
Chosen = Annotated[Engine, typer.Option(help="auto: the one that is estimated to be faster. All find the same.")]


def choose_engine(
    engine: str, nfiles: int, nbytes: int, ncores: int, gpu_missing: Callable[[], str]
) -> tuple[str, str]:
    """The engine, and why. gpu_missing: says why there is no GPU, or nothing; the answer takes a part of its start."""
    if engine != "auto":
        return engine, "as asked for"
    cpu = (nfiles * _OPEN_S + nbytes * _BYTE_S) / ncores
    gpu = _START_S + max(nfiles * _OPEN_S / ncores, nbytes * _GPU_BYTE_S)
    why = f"estimated: cpu {cpu:.2g} s by {ncores} cores, gpu {gpu:.2g} s, {_START_S:g} of it to start"
    if cpu <= gpu:
        return "cpu", why
    missing = gpu_missing()
    return ("cpu", f"there is no GPU: {missing}") if missing else ("gpu", why)


class _Search:
    """What both commands do around a search: the tree, the engine, files that fail."""

    def __init__(self, paths: list[str], engine: Engine, threads: int, scratch: Path | None) -> None:
        from gpufs import _rows, _words
        from gpufs.mounts import engine_of

        if engine is not Engine.auto:
            engine_of(engine.value)
        begin = time.monotonic()
        self.tree = _words.Tree(paths, threads)
        self.walk_seconds = time.monotonic() - begin
        self.threads = threads
        ncores = threads or len(os.sched_getaffinity(0))
        self.engine, self.why = choose_engine(
            engine.value, self.tree.nfiles(), self.tree.nbytes(), ncores, lambda: _rows.engine_missing("gpu")
        )
        self.device = _rows.current_device(self.engine)
        self.scratch = _scratch(scratch)
        self.unreadable: list[dict[str, str]] = []
        for path, error in self.tree.failures():
            self.fail(os.fsdecode(path), error)

    def fail(self, path: str, error: int) -> None:
        """Says so, and goes on."""
        why = _reason(error)
        self.unreadable.append({"path": path, "error": why})
        say_error(f"{path}: {why}")

    def fail_files(self, errors: list[tuple[int, int]]) -> None:
        for number, error in errors:
            self.fail(self.path(number), error)

    def path(self, number: int) -> str:
        return os.fsdecode(self.tree.path(number))

    def arguments(self, piece: int, show: Callable[[int, int], None]) -> tuple[int, int, int, Path, Any]:
        return self.threads, piece, self.device, self.scratch, show

    def status(self, nfound: int) -> int:
        return _FAILED if self.unreadable else 0 if nfound else _NOTHING


def _scratch(folder: Path | None) -> Path:
    if folder is None:
        memory = Path("/dev/shm")
        return memory if os.access(memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    if not folder.is_dir():
        raise GpufsError(f"{folder}: is no folder: make it, or name another by --scratch")
    return folder


def _reason(error: int) -> str:
    import errno

    if error == errno.EINVAL:
        return "is no regular file: copy it to one first"
    if error == errno.ESTALE:
        return "was changed while it was searched: try again"
    return os.strerror(error)


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    try:
        with open(1, "wb", closefd=False) as to:  # sys.stdout's may write a part only, where it has no buffer
            yield to
    except BrokenPipeError:  # who reads it has had enough
        raise typer.Exit(BROKEN_PIPE) from None


def _dictionary(path: Path, folds: bool) -> _words.Dictionary:
    from gpufs import _words

    try:
        text = path.read_bytes()
    except OSError as error:
        raise GpufsError(f"dictionary '{path}': {error.strerror or error}") from error
    return _words.Dictionary(text, folds, os.fspath(path))


def words(
    paths: Paths,
    dictionary: Annotated[Path, typer.Option("--dict", "-d", metavar="WORDS", help="A text with a word in each line.")],
    ignore_case: Annotated[bool, typer.Option("--ignore-case", "-i", help="Large letters are small ones.")] = False,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A file for what each file has of each word.")
    ] = None,
    engine: Chosen = Engine.auto,
    threads: Threads = 0,
    scratch: Scratch = None,
    piece: Piece = 0,
    as_json: Json = False,
) -> None:
    """Count how often, and in how many files, each word of a dictionary occurs.

    Prints a line for each word that occurs, in the dictionary's order: the word, how often, in how many files. --out
    writes lines of word, count and path. Exit status: 0 if a word occurs, 1 if none does, 2 if anything failed.
    """
    from gpufs import _words
    from gpufs.collage import console

    with sigterm_interrupts():
        known = _dictionary(dictionary, ignore_case)
        if to is not None:
            check_writable(to)
            check_is_no_input(to, [(dictionary, "the dictionary"), *((path, "one of the inputs") for path in paths)])
            if any(to.resolve().is_relative_to(Path(path).resolve()) for path in paths):
                raise GpufsError(f"{to}: lies in a folder that is searched, and would be searched itself: name another")
        search = _Search(paths, engine, threads, scratch)
        with console.progress() as bar:
            found = _words.CountedWords(
                search.engine,
                search.tree,
                known,
                *search.arguments(piece, lambda done, total: bar.show("counting words in bytes", done, total)),
            )
        search.fail_files(found.errors())
        totals = [(os.fsdecode(known.word(i)), count, nfiles) for i, count, nfiles in found.totals()]
        if to is not None:
            with replacing(to) as stream:
                error = found.write(stream.fileno())
                if error:
                    raise OSError(error, os.strerror(error))
        noccurrences = sum(count for _, count, _ in totals)
        nrefused, line, text = known.no_words()
        with _standard_output() as out:
            if as_json:
                start, find, order = found.seconds()
                out.write(
                    json.dumps(
                        {
                            "engine": search.engine,
                            "why": search.why,
                            "dictionary": {
                                "words": known.nwords(),
                                "repeated": known.nrepeated(),
                                "not_words": nrefused,
                            },
                            "files": search.tree.nfiles(),
                            "nbytes": found.nbytes(),
                            "occurrences": noccurrences,
                            "words": [{"word": word, "count": n, "files": nfiles} for word, n, nfiles in totals],
                            "unreadable": search.unreadable,
                            "out": None if to is None else str(to),
                            "seconds": {"walk": search.walk_seconds, "start": start, "find": find, "order": order},
                        }
                    ).encode()
                    + b"\n"
                )
            else:
                out.writelines(f"{word}\t{n}\t{nfiles}\n".encode() for word, n, nfiles in totals)
        if not as_json:
            if nrefused:
                shown = printable(text.decode(errors="surrogateescape"))
                lines = "a line that is" if nrefused == 1 else f"{nrefused} lines that are"
                say_error(f"{dictionary}: has {lines} no word, and not looked for: line {line} is '{shown}'")
            size = size_text(found.nbytes())
            say_error(
                f"{len(totals)} of {known.nwords()} words occur, {noccurrences} times in {search.tree.nfiles()} files "
                f"({size}); by {search.engine} ({search.why})"
            )
    raise typer.Exit(search.status(len(totals)))


def grep(
    string: Annotated[str, typer.Argument(metavar="STRING", help="What lines are to have, as it stands.")],
    paths: Paths,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr which engine, and why.")] = False,
    engine: Chosen = Engine.auto,
    threads: Threads = 0,
    scratch: Scratch = None,
    piece: Piece = 0,
    as_json: Json = False,
) -> None:
    """Print the lines of files that have a string, with their numbers, as `grep -rnF` does.

    Exit status: 0 if a line has it, 1 if none does, 2 if anything failed.
    """
    from gpufs import _words
    from gpufs.collage import console

    with sigterm_interrupts():
        wanted = _words.WantedString(os.fsencode(string))
        search = _Search(paths, engine, threads, scratch)
        with console.progress() as bar:
            lines = _words.LinesWith(
                search.engine,
                search.tree,
                wanted,
                *search.arguments(piece, lambda done, total: bar.show("searching bytes", done, total)),
            )
        search.fail_files(lines.errors())
        nfound, matches = 0, []
        with _standard_output() as out:
            kept = bytearray()
            while some := lines.next():
                for number, error, is_binary, of_file in some:
                    if error:
                        search.fail(search.path(number), error)
                        continue
                    nfound += 1
                    path = search.path(number)
                    if as_json:
                        matches.append(
                            {
                                "path": path,
                                "binary": is_binary,
                                "lines": [[n, text.decode(errors="backslashreplace")] for n, text in of_file],
                            }
                        )
                        continue
                    if is_binary:
                        kept += b"Binary file " + os.fsencode(path) + b" matches\n"
                    head = b"" if search.tree.is_one_file() else os.fsencode(path) + b":"
                    for n, text in of_file:
                        kept += b"%b%d:%b\n" % (head, n, text)
                    if len(kept) >= _LINES_AT_ONCE:
                        out.write(kept)
                        kept.clear()
            out.write(kept)
            if as_json:
                result = {
                    "engine": search.engine,
                    "why": search.why,
                    "files": search.tree.nfiles(),
                    "nbytes": lines.nbytes(),
                    "matches": matches,
                    "unreadable": search.unreadable,
                }
                out.write(json.dumps(result).encode() + b"\n")
        if verbose:
            say_error(f"{nfound} of {search.tree.nfiles()} files have it; by {search.engine} ({search.why})")
    raise typer.Exit(search.status(nfound))


def register(app: typer.Typer) -> None:
    for command in (words, grep):
        app.command()(reports_errors(command, _FAILED))

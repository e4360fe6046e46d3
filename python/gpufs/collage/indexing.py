# SPDX-License-Identifier: Apache-2.0
"""Building a library from picture files."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gpufs import _native
from gpufs.collage.images import Pixels, UnreadableImageError, readable_extensions
from gpufs.collage.interrupt import check_new_library, sigterm_interrupts
from gpufs.collage.tiles import Squares, TileOptions, load
from gpufs.collage.workers import in_order
from gpufs.errors import GpufsError

FILES_A_TASK = 32  # whole pictures; one photograph that is cut into tiles is enough for a task


@dataclass(frozen=True)
class IndexOptions:
    """How a library is built. The bytes of the library do not depend on workers."""

    tiles: TileOptions | None = None  # None: one thumbnail a picture
    packed: bool = False  # histograms 3 KiB apart instead of 4 KiB
    key_nbits: int = 0  # 0: chosen by measuring
    shortlist_goal: int = _native.DEFAULT_SHORTLIST_GOAL
    seed: int = _native.DEFAULT_SEED
    workers: int = 0  # processes that decode, and threads; 0: one a core


@dataclass
class IndexReport:
    """What became of the files. `unreadable` holds (path, why)."""

    nfiles: int = 0  # pictures that were used
    nignored: int = 0  # files whose name is no picture's
    nthumbnails: int = 0  # of all pictures, before equal ones were dropped
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    info: _native.LibraryInfo | None = None  # what the library's header says
    seconds: float = 0.0


@dataclass
class _Loaded:
    """What a worker made of a few files."""

    paths: list[str]
    errors: list[str]  # beside paths: why it cannot be used, or empty
    counts: list[int]  # beside paths: thumbnails
    pixels: Pixels
    squares: Squares


def build_library(
    inputs: Sequence[Path | str],
    output: Path | str,
    options: IndexOptions | None = None,
    *,
    on_file: Callable[[int], None] = lambda nfiles: None,
    on_unreadable: Callable[[str, str], None] = lambda path, why: None,
    on_finish: Callable[[int, int], None] | None = None,
) -> IndexReport:
    """Builds a library from picture files and folders of them, and puts it in place of `output` when it is whole.

    inputs: folders are searched in the order of their entries' names, without following links to folders; in them only
        files with a picture's extension count. Files named here are always tried.
    on_file: called with the number of files that have been read; on_unreadable: with a file that is left out, and
        why; on_finish: with steps done and steps in all while the tables are made.
    Raises GpufsError when there is not one usable picture, an input is missing, or the library cannot be written. On
    any exception, KeyboardInterrupt too, nothing is left behind.
    """
    options = options or IndexOptions()
    begin = time.monotonic()
    output = Path(output)
    report = IndexReport()
    for path in inputs:
        if not os.path.lexists(path):
            raise GpufsError(f"{path}: there is no such file or folder")
    check_new_library(output, inputs)
    with sigterm_interrupts():
        builder = _native.LibraryBuilder(
            output,
            packed=options.packed,
            tiles=options.tiles is not None,
            seed=options.seed,
            shortlist_goal=options.shortlist_goal,
            key_nbits=options.key_nbits,
            nthreads=options.workers,
        )
        nread = 0
        files = find_pictures(inputs, report)
        with closing(_load_all(files, options)) as results:
            for loaded in results:
                _take(builder, loaded, report, on_unreadable)
                nread += len(loaded.paths)
                on_file(nread)
        if builder.nimages == 0:
            raise GpufsError(why_nothing(inputs, report))
        report.info = builder.finish(on_finish)
    report.seconds = time.monotonic() - begin
    return report


def find_pictures(inputs: Iterable[Path | str], report: IndexReport) -> Iterator[str]:
    """Yields the files to try, in an order that depends on names only; counts the others in report.nignored."""
    extensions = readable_extensions()
    for path in inputs:
        if not Path(path).is_dir():
            yield os.fspath(path)
            continue
        for found in _walk(os.fspath(path)):
            if Path(found).suffix.lower() in extensions:
                yield found
            else:
                report.nignored += 1


def _walk(folder: str) -> Iterator[str]:
    """Files below the folder: entries in the order of their names' bytes, folders in their place."""
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise GpufsError(f"{folder}: cannot be searched: {error.strerror}") from error
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def _take(
    builder: _native.LibraryBuilder,
    loaded: _Loaded,
    report: IndexReport,
    on_unreadable: Callable[[str, str], None],
) -> None:
    sources = np.zeros(sum(loaded.counts), np.uint32)
    first = 0
    for path, error, count in zip(loaded.paths, loaded.errors, loaded.counts, strict=True):
        if error:
            report.unreadable.append((path, error))
            on_unreadable(path, error)
            continue
        sources[first : first + count] = builder.add_source(os.fsencode(path))
        first += count
        report.nfiles += 1
    report.nthumbnails += len(sources)
    if len(sources):
        builder.add(loaded.pixels, np.concatenate([sources[:, np.newaxis], loaded.squares], axis=1))


def why_nothing(inputs: Sequence[Path | str], report: IndexReport) -> str:
    """The message when not one of the inputs could be used."""
    where = ", ".join(os.fspath(path) for path in inputs[:3]) + (", ..." if len(inputs) > 3 else "")
    tried = f"{len(report.unreadable)} could not be used, {report.nignored} have no picture's extension"
    return f"{where}: there are no usable pictures ({tried})"


def _load_some(paths: list[str], tiles: TileOptions | None) -> _Loaded:
    """Runs in a worker."""
    errors, counts = [], []
    pixels: list[Pixels] = [np.empty((0, 32, 32, 3), np.uint8)]
    squares: list[Squares] = [np.empty((0, 3), np.uint32)]
    for path in paths:
        try:
            some, places = load(path, tiles)
        except UnreadableImageError as error:
            errors.append(str(error))
            counts.append(0)
            continue
        errors.append("")
        counts.append(len(some))
        pixels.append(some)
        squares.append(places)
    return _Loaded(paths, errors, counts, np.concatenate(pixels), np.concatenate(squares))


def _crashed(paths: list[str], tiles: TileOptions | None, how: str) -> _Loaded:
    """The result of files whose worker died: each is tried again in a worker of its own."""
    if len(paths) == 1:
        nothing = _load_some([], tiles)
        return replace(nothing, paths=paths, errors=[f"the process that decoded it died ({how})"], counts=[0])
    single = ([path] for path in paths)
    work = functools.partial(_load_some, tiles=tiles)
    with closing(in_order(single, work, lambda task, how: _crashed(task, tiles, how), 1)) as results:
        parts = list(results)
    return _Loaded(
        paths=paths,
        errors=[error for part in parts for error in part.errors],
        counts=[count for part in parts for count in part.counts],
        pixels=np.concatenate([part.pixels for part in parts]),
        squares=np.concatenate([part.squares for part in parts]),
    )


def _load_all(files: Iterator[str], options: IndexOptions) -> Generator[_Loaded, None, None]:
    """Loads files in several processes; gives their results in the files' order."""
    size = FILES_A_TASK if options.tiles is None else 1
    tasks = iter(lambda: list(itertools.islice(files, size)), [])
    work = functools.partial(_load_some, tiles=options.tiles)
    nworkers = options.workers or os.cpu_count() or 1
    if nworkers == 1:
        return (work(paths) for paths in tasks)
    return in_order(tasks, work, lambda paths, how: _crashed(paths, options.tiles, how), nworkers)

# SPDX-License-Identifier: Apache-2.0
"""What the collage's commands print."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpufs.collage.indexing import IndexReport
from gpufs.collage.making import CollageReport
from gpufs.collage.synth import SynthReport
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs._native import LibraryInfo

out = Console(highlight=False, emoji=False)

SECONDS_A_FRAME = 0.1  # of the bar


class Bar:
    """One line of progress on stderr, when that is a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._stage = ""
        self._drawn = 0.0  # when

    def show(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage is; a new stage begins anew."""
        if stage != self._stage:
            self._progress.reset(self._task, description=stage)
            self._stage = stage
        self._update(done, total)

    def count_files(self, nfiles: int) -> None:
        """Shows how many files have been read, of a number that is not known."""
        if self._stage != "reading pictures":
            self._progress.reset(self._task, description="reading pictures", total=None)
            self._stage = "reading pictures"
        self._update(nfiles, None)

    def _update(self, done: int, total: int | None) -> None:
        # Drawn from here, not from a thread of rich's: processes are forked meanwhile.
        now = time.monotonic()
        refresh = now - self._drawn >= SECONDS_A_FRAME
        self._drawn = now if refresh else self._drawn
        self._progress.update(self._task, completed=done, total=total, refresh=refresh)


@contextmanager
def progress() -> Iterator[Bar]:
    """A bar that is gone when the block ends."""
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, emoji=False)
    shown = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)
    with shown:
        yield Bar(shown)


def print_line(text: str) -> None:
    """A line on stdout as it is, however long."""
    out.print(printable(text), markup=False, soft_wrap=True)


def print_index(output: Path, report: IndexReport) -> None:
    """What `gpufs collage index` did."""
    assert report.info is not None  # it was finished
    nimages = report.info["nimages"]
    table = _table(f"library {output}")
    table.add_row("pictures read", f"{report.nfiles:,}")
    table.add_row("skipped as unreadable", f"{len(report.unreadable):,}")
    table.add_row("ignored (no picture's extension)", f"{report.nignored:,}")
    table.add_row("images in the library", f"{nimages:,}")
    table.add_row("duplicates dropped", f"{report.nthumbnails - nimages:,}")
    _add_library_rows(table, report.info)
    table.add_row("time", f"{report.seconds:.1f} s")
    out.print(table)


def print_synth(output: Path, report: SynthReport) -> None:
    """What `gpufs collage synth` did."""
    assert report.info is not None  # it was finished
    table = _table(f"library {output}")
    reduced = f" ({report.nreduced:,} made smaller, to fit into memory)" if report.nreduced else ""
    table.add_row("photographs read", f"{report.nfiles:,}{reduced}")
    table.add_row("skipped as unreadable or too small", f"{len(report.unreadable):,}")
    table.add_row("ignored (no picture's extension)", f"{report.nignored:,}")
    table.add_row("images in the library", f"{report.info['nimages']:,}")
    _add_library_rows(table, report.info)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report.stages.items())
    table.add_row("time", f"{report.seconds:.1f} s ({stages})")
    table.add_row("images a second", f"{report.info['nimages'] / max(report.seconds, 1e-9):,.0f}")
    out.print(table)


def print_info(library: Path, info: LibraryInfo) -> None:
    """What `gpufs collage info` says."""
    table = _table(f"library {library}")
    table.add_row("format version", str(info["version"]))
    table.add_row("images", f"{info['nimages']:,}")
    table.add_row("pictures they come from", f"{info['nsources']:,}" + (", cut into tiles" if info["tiles"] else ""))
    _add_library_rows(table, info)
    table.add_row("cells of a table", f"{1 << info['cell_nbits']:,}")
    table.add_row("shortlists are filled up to", str(info["shortlist_goal"]))
    table.add_row("projections' seed", f"{info['seed']:#x}")
    out.print(table)


def print_collage(output: Path, report: CollageReport) -> None:
    """What `gpufs collage` made, and how good it is."""
    quality = report.quality
    table = _table(f"collage {output}")
    table.add_row("size", f"{report.size[0]} x {report.size[1]} pixels, {quality.nblocks:,} blocks")
    table.add_row("different images used", f"{quality.ndistinct:,}")
    table.add_row("engine", f"{report.engine} ({report.why})")
    table.add_row("library's bytes", report.source)
    table.add_row("mean distance", f"{quality.mean_distance:.1f}")
    own = f"{quality.mean_from_buckets:.1f} from its own buckets"
    table.add_row("images compared a block", f"{quality.mean_compared:.1f} ({own})")
    table.add_row("blocks with short lists", f"{quality.nextended:,} (filled up from neighbouring buckets)")
    if quality.ratio is not None and quality.nearest_found is not None:
        table.add_row(
            f"against exhaustive search ({quality.nsampled} blocks)",
            f"{quality.ratio:.3f} times its distance; the nearest found in {quality.nearest_found:.0%}",
        )
    else:
        table.add_row("against exhaustive search", "not done; --sample 32 does it")
    table.add_row("time", ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.seconds.items()))
    if report.counters is not None:
        counters = report.counters
        looked_up = counters["hits"] + counters["faults"] + counters["waits"]
        table.add_row("pages looked up", f"{looked_up:,} ({counters['hits'] / max(1, looked_up):.1%} hits)")
        table.add_row("pages brought in", f"{counters['faults']:,} ({counters['bytes_filled'] / 2**20:,.1f} MiB)")
        table.add_row("pages evicted", f"{counters['evictions']:,}")
        table.add_row("waits for another's fault", f"{counters['waits']:,}")
        table.add_row("reads by the host", f"{counters['host_reads']:,} in {counters['host_batches']:,} batches")
        table.add_row("errors", f"{counters['errors']:,}")
    out.print(table)


def print_collage_as_json(output: Path, report: CollageReport) -> None:
    """The same, as a line of JSON."""
    result = {"output": os.fsdecode(output), "width": report.size[0], "height": report.size[1]}
    names = ("engine", "why", "source", "seconds", "counters")
    result |= {name: getattr(report, name) for name in names} | {"quality": dataclasses.asdict(report.quality)}
    print(json.dumps(result), flush=True)


def _table(title: str) -> Table:
    table = Table(title=printable(title), show_header=False, title_justify="left", title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _add_library_rows(table: Table, info: LibraryInfo) -> None:
    nbytes, stride = info["file_nbytes"], info["histogram_stride"]
    table.add_row("size", f"{nbytes / 2**20:,.1f} MiB, histograms {stride} bytes apart")
    table.add_row("keys", f"{info['key_nbits']} bits; buckets give {info['mean_shortlist']} images on average")

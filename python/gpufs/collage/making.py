# SPDX-License-Identifier: Apache-2.0
"""Making a collage of a photograph."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpufs import _native
from gpufs.collage.images import Pixels, UnreadableImageError, picture_size, read_rgb, to_pixels
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing, sigterm_interrupts
from gpufs.collage.png import Rows, write_png
from gpufs.errors import GpufsError

SIDE = 32  # of a block, in pixels
CHECK_WHOLE_NBYTES = 1 << 30  # libraries up to this size are compared with their checksums before use
SAMPLE_WHOLE_NBYTES = 2 << 30  # ... up to this size exhaustive search is done unasked
SIMT_BLOCKS_A_LAUNCH = 128  # so that Control-C and progress work; the kernel is the same

# What matching takes, in seconds: of a block, and of an image that it is compared with; by a thread, and by a GPU,
# whose start is CUDA's and the page cache's. Of an H200 and its host (bench/python/collage.py), some 40 images a block.
CPU_BLOCK_S, CPU_IMAGE_S = 90e-6, 1e-6
GPU_START_S, GPU_BLOCK_S, GPU_IMAGE_S = 0.36, 1e-6, 3e-8

Matches = npt.NDArray[np.uint32]
Engine = Literal["auto", "gpu", "simt", "cpu"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CollageOptions:
    """How a collage is made. Of these only `enlarge` changes the picture; a check may refuse the library."""

    engine: Engine = "auto"
    threads: int = 0  # cpu, simt; 0: one a core
    cache_nbytes: int = 0  # gpu, simt: gpufs's page cache; 0: the mount's default
    page_nbytes: int = 4096
    store: Literal["auto", "posix", "mapped"] = "auto"
    grid: int = 0  # gpu, simt: thread blocks; 0: one a block of the photograph, up to a limit
    block_threads: int = 256
    seed: int = 0  # simt: of the schedule; 0: another one each time
    order: Literal["in-order", "reversed", "random"] = "in-order"
    resident_blocks: int = 0
    check: Literal["auto", "full", "quick"] = "auto"  # of the library, before use
    enlarge: int = 1  # the photograph is made so many times larger first, and so gets more blocks
    sample: int | None = None  # blocks compared with exhaustive search; None: 32, and none for large libraries


@dataclass(frozen=True)
class Quality:
    """How good the matches are. Distances are Euclidean, between histograms of 3 x 256 counts (1024 pixels)."""

    nblocks: int
    mean_distance: float
    mean_from_buckets: float  # images that a block's own 32 buckets gave
    mean_compared: float  # images compared with a block
    nextended: int  # blocks whose own buckets held too few images
    ndistinct: int  # images used
    nsampled: int = 0  # blocks that exhaustive search was done for
    ratio: float | None = None  # their distance, in that of the nearest image there is
    nearest_found: float | None = None  # share of them that got the nearest


@dataclass(frozen=True)
class CollageReport:
    """What was made, by what, and how well."""

    size: tuple[int, int]  # pixels
    engine: str
    why: str  # this engine
    source: str  # how the library's bytes came
    quality: Quality
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    counters: dict[str, int] | None = None  # gpufs's; None for engine cpu
    matches: Matches | None = None


def make_collage(
    photo: Path | str,
    library: Path | str,
    output: Path | str,
    options: CollageOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> CollageReport:
    """Rebuilds a photograph from the images of a library and writes it to `output` (format by its extension).

    photo: any picture of at least 32 x 32 pixels; blocks at its right and lower edge repeat its last pixels.
    on_progress: called with a stage's name, steps done, steps in all; may raise to end the work.
    Raises GpufsError: nothing is written then, and what `output` named before stays.
    """
    (report,) = make_collages([(photo, output)], library, options, on_progress=on_progress)
    return report


def make_collages(
    jobs: Sequence[tuple[Path | str, Path | str]],
    library: Path | str,
    options: CollageOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> Iterator[CollageReport]:
    """Rebuilds many photographs, one after the other: gives a report of each, once its picture is written.

    jobs: (photo, output), as make_collage takes them. The engine starts once, and its page cache serves all.
    Raises GpufsError: by the call, where an output cannot be written or is named twice; else the pictures of the
    photographs before stay, and nothing is written of the one that failed.
    """
    todo = [(Path(photo), Path(output)) for photo, output in jobs]
    _check_outputs(todo, Path(library))
    return _make_each(todo, Path(library), options or CollageOptions(), on_progress)


def _make_each(
    todo: Sequence[tuple[Path, Path]], library: Path, options: CollageOptions, on_progress: Progress | None
) -> Iterator[CollageReport]:
    clock = _Clock()
    opened = _native.Library(library)
    nblocks = sum(count_blocks(photo, options.enlarge) for photo, _ in todo)
    engine, why = choose_engine(options, opened.info(), nblocks)
    matcher: _native.Matcher | None = None
    counted: dict[str, int] = {}
    for number, (photo, output) in enumerate(todo):
        with sigterm_interrupts():  # for each anew: between two the caller's own handler is in place
            picture = read_photo(photo, options.enlarge)
            clock.stage("photo")
            if number == 0:
                _check_library(opened, options, on_progress)
                clock.stage("check")
            size = (picture.shape[1], picture.shape[0])
            blocks = whole_blocks(picture)
            del picture  # a large photograph is in memory as few times as can be
            matcher = matcher or start_engine(opened, engine, options)
            result = matcher.find(blocks, progress=_stage(on_progress, "matching"))
            clock.stage("match")
            quality = measure_quality(opened, blocks, result["matches"], options, on_progress)
            clock.stage("quality")
            del blocks
            save_collage(rows_of(opened, result["matches"], size), size, output, options.threads)
            clock.stage("picture")
        counters = result["counters"]
        yield CollageReport(
            size=size,
            engine=engine,
            why=why,
            source=result["source"],
            quality=quality,
            seconds=clock.take(),
            counters=None if counters is None else {k: n - counted.get(k, 0) for k, n in counters.items()},
            matches=result["matches"],
        )
        counted = counters or {}


def read_photo(path: Path, enlarge: int = 1) -> Pixels:
    """The photograph, made `enlarge` times larger, as uint8 [height, width, 3]. Raises GpufsError."""
    try:
        image, (width, height) = read_rgb(path)
    except UnreadableImageError as error:
        raise GpufsError(f"{path}: {error}") from error
    if min(width, height) < SIDE:
        raise GpufsError(f"{path}: has {width} x {height} pixels; a collage needs at least {SIDE} x {SIDE}")
    if enlarge != 1:
        image = image.resize((width * enlarge, height * enlarge), Image.Resampling.BICUBIC)
    return to_pixels(image)


def whole_blocks(picture: Pixels) -> Pixels:
    """The picture with its right and lower edge repeated up to the next multiple of 32 pixels."""
    height, width = picture.shape[:2]
    if height % SIDE == width % SIDE == 0:
        return picture
    return np.pad(picture, ((0, -height % SIDE), (0, -width % SIDE), (0, 0)), mode="edge")


def count_blocks(path: Path, enlarge: int = 1) -> int:
    """How many blocks the photograph will have; 0 of what cannot be read, which read_photo says."""
    try:
        width, height = picture_size(path)
    except UnreadableImageError:
        return 0
    return -(-width * enlarge // SIDE) * -(-height * enlarge // SIDE)


def estimate_seconds(engine: str, nblocks: int, mean_shortlist: float, nthreads: int, gpu_is_up: bool) -> float:
    """How long the engine, "cpu" or "gpu", takes to match so many blocks, its start included.

    mean_shortlist: images compared with a block. Rough: the machine on which it was measured had an H200.
    """
    images = nblocks * mean_shortlist
    if engine == "cpu":
        return (nblocks * CPU_BLOCK_S + images * CPU_IMAGE_S) / nthreads
    return (0.0 if gpu_is_up else GPU_START_S) + nblocks * GPU_BLOCK_S + images * GPU_IMAGE_S


def choose_engine(options: CollageOptions, info: _native.LibraryInfo, nblocks: int) -> tuple[str, str]:
    """The engine to use and why it is that one. Raises GpufsError when one is asked for that is not there."""
    wanted = options.engine
    if wanted != "auto":
        why_not = _native.engine_missing(wanted)
        if why_not:
            raise GpufsError(f"engine {wanted}: {why_not}")
        return wanted, "asked for"
    nthreads, is_up = options.threads or len(os.sched_getaffinity(0)), is_gpu_up()
    by_cpu, by_gpu = (
        estimate_seconds(engine, nblocks, info["mean_shortlist"], nthreads, is_up) for engine in ("cpu", "gpu")
    )
    why = f"{nblocks:,} blocks take about {by_cpu:.2g} s by {nthreads} threads, {by_gpu:.2g} s by a GPU"
    if not is_up:
        why += f", {GPU_START_S:.2g} s of them its start"
    if by_cpu <= by_gpu:
        return "cpu", why  # and nobody has asked for a GPU, since the answer takes a good part of the start
    why_not = _native.engine_missing("gpu")
    return ("cpu", f"no gpu: {why_not}") if why_not else ("gpu", why)


def is_gpu_up() -> bool:
    """Whether this process has used the GPU already, by this engine or by torch, so that it starts at once."""
    torch = sys.modules.get("torch")
    return _started_gpu or (torch is not None and bool(torch.cuda.is_initialized()))


_started_gpu = False


def start_engine(opened: _native.Library, engine: str, options: CollageOptions) -> _native.Matcher:
    """The engine, for one photograph after the other. Raises GpufsError."""
    global _started_gpu
    matcher = opened.matcher(
        engine,
        nthreads=options.threads,
        cache_nbytes=options.cache_nbytes,
        page_nbytes=options.page_nbytes,
        store=options.store,
        grid=options.grid,
        block_threads=options.block_threads,
        blocks_per_launch=SIMT_BLOCKS_A_LAUNCH if engine == "simt" else 0,
        seed=options.seed,
        order=options.order,
        resident_blocks=options.resident_blocks,
    )
    _started_gpu |= engine == "gpu"
    return matcher


def rows_of(opened: _native.Library, matches: Matches, size: tuple[int, int]) -> Rows:
    """The rows of a collage of size (width, height), as `write_png` takes them; what is beyond the size is cut off."""
    nblocks_x = -(-size[0] // SIDE)
    ids = np.ascontiguousarray(matches[:, 0]).reshape(-1, nblocks_x)

    def rows(first: int, n: int) -> Pixels:
        of_strip = ids[first // SIDE : -(-(first + n) // SIDE)]
        tiles = opened.thumbnails(of_strip.reshape(-1)).reshape(-1, nblocks_x, SIDE, SIDE, 3)
        picture: Pixels = tiles.swapaxes(1, 2).reshape(-1, nblocks_x * SIDE, 3)
        return picture[:n, : size[0]]

    return rows


def compose(rows: Rows, size: tuple[int, int]) -> Image.Image:
    """The whole picture of these rows."""
    collage = Image.new("RGB", size)
    for first in range(0, size[1], SIDE):
        collage.paste(Image.fromarray(rows(first, min(SIDE, size[1] - first))), (0, first))
    return collage


def measure_quality(
    opened: _native.Library,
    blocks: Pixels,
    matches: Matches,
    options: CollageOptions,
    on_progress: Progress | None = None,
) -> Quality:
    """Sums up the matches, and compares a sample of them, evenly spread, with exhaustive search."""
    info = opened.info()
    distances = np.sqrt(matches[:, 1].astype(np.float64))
    wanted = options.sample
    if wanted is None:
        wanted = 32 if info["file_nbytes"] <= SAMPLE_WHOLE_NBYTES else 0
    nsampled = min(wanted, len(matches))
    ratio = nearest_found = None
    if nsampled:
        sample = np.arange(nsampled) * len(matches) // nsampled
        best = opened.match_exhaustive(
            blocks, sample.tolist(), nthreads=options.threads, progress=_stage(on_progress, "exhaustive search")
        )
        nearest = np.sqrt(best[:, 1].astype(np.float64)).sum()
        found = distances[sample].sum()
        ratio = float(found / nearest) if nearest else (1.0 if not found else float("inf"))
        nearest_found = float(np.mean(matches[sample, 1] == best[:, 1]))
    return Quality(
        nblocks=len(matches),
        mean_distance=float(distances.mean()),
        mean_from_buckets=float(matches[:, 2].mean()),
        mean_compared=float(matches[:, 3].mean()),
        nextended=int((matches[:, 2] < info["shortlist_goal"]).sum()),
        ndistinct=len(np.unique(matches[:, 0])),
        nsampled=nsampled,
        ratio=ratio,
        nearest_found=nearest_found,
    )


class _Clock:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def stage(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name] = now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """The stages since the last call."""
        seconds, self._seconds = self._seconds, {}
        self._last = time.monotonic()
        return seconds


def _stage(on_progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(name, done, total)


def _check_outputs(jobs: Sequence[tuple[Path, Path]], library: Path) -> None:
    """Found before the work, not after it."""
    written: dict[Path, Path] = {}
    for photo, output in jobs:
        check_writable(output)
        check_is_no_input(output, ((photo, "the photograph itself"), (library, "the library itself")))
        check_is_no_input(output, ((other, f"a photograph, {other}") for other, _ in jobs))
        if _format_of(output) is None:
            raise GpufsError(f"{output}: '{output.suffix}' is no picture's extension; try .png or .jpg")
        name = output.resolve()
        if name in written:
            raise GpufsError(f"{output}: would be written for {written[name]}, and again for {photo}")
        written[name] = photo


def _format_of(output: Path) -> str | None:
    Image.init()
    name = Image.registered_extensions().get(output.suffix.lower())
    return name if name in Image.SAVE else None


def _check_library(opened: _native.Library, options: CollageOptions, on_progress: Progress | None) -> None:
    small = opened.info()["file_nbytes"] <= CHECK_WHOLE_NBYTES
    if options.check == "full" or (options.check == "auto" and small):
        opened.check_sums(_stage(on_progress, "checking the library"))


def save_collage(rows: Rows, size: tuple[int, int], output: Path, threads: int = 0) -> None:
    """Writes the picture in the format of the output's extension; PNG by as many threads (0: one a core).

    Raises GpufsError: then what `output` named before stays.
    """
    picture_format = _format_of(output)
    extra: dict[str, Any] = {"JPEG": {"quality": 92}, "WEBP": {"quality": 92}}.get(picture_format or "", {})
    with replacing(output) as stream:
        if picture_format == "PNG":
            write_png(stream, size, rows, nthreads=threads or len(os.sched_getaffinity(0)), unit=SIDE)
            return
        try:
            compose(rows, size).save(stream, picture_format, **extra)
        except (ValueError, KeyError, SystemError) as error:
            raise GpufsError(f"{output}: cannot be written as {picture_format}: {error}") from error

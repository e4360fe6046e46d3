# SPDX-License-Identifier: Apache-2.0
"""Making a collage of a photograph."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpufs import _native
from gpufs.collage.images import Pixels, UnreadableImageError, read_rgb, to_pixels
from gpufs.collage.interrupt import check_is_no_input, check_writable, replacing, sigterm_interrupts
from gpufs.collage.png import Rows, write_png
from gpufs.errors import GpufsError

SIDE = 32  # of a block, in pixels
CHECK_WHOLE_NBYTES = 1 << 30  # libraries up to this size are compared with their checksums before use
SAMPLE_WHOLE_NBYTES = 2 << 30  # ... up to this size exhaustive search is done unasked
SIMT_BLOCKS_A_LAUNCH = 128  # so that Control-C and progress work; the kernel is the same

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
    options = options or CollageOptions()
    clock = _Clock()
    photo, library, output = Path(photo), Path(library), Path(output)
    with sigterm_interrupts():
        _check_output(output, photo, library)
        opened = _native.Library(library)
        picture = read_photo(photo, options.enlarge)
        clock.stage("photo")
        _check_library(opened, options, on_progress)
        clock.stage("check")
        engine, why = choose_engine(options.engine)
        size = (picture.shape[1], picture.shape[0])
        blocks = whole_blocks(picture)
        del picture  # a large photograph is in memory as few times as can be
        result = match_blocks(opened, blocks, engine, options, on_progress)
        clock.stage("match")
        quality = measure_quality(opened, blocks, result["matches"], options, on_progress)
        clock.stage("quality")
        del blocks
        save_collage(rows_of(opened, result["matches"], size), size, output, options.threads)
        clock.stage("picture")
    return CollageReport(
        size=size,
        engine=engine,
        why=why,
        source=result["source"],
        quality=quality,
        seconds=clock.seconds,
        counters=result["counters"],
        matches=result["matches"],
    )


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


def choose_engine(wanted: Engine) -> tuple[str, str]:
    """The engine to use and why it is that one. Raises GpufsError when one is asked for that is not there."""
    if wanted != "auto":
        why_not = _native.engine_missing(wanted)
        if why_not:
            raise GpufsError(f"engine {wanted}: {why_not}")
        return wanted, "asked for"
    why_not = _native.engine_missing("gpu")
    return ("cpu", f"no gpu: {why_not}") if why_not else ("gpu", "there is a GPU")


def match_blocks(
    opened: _native.Library, blocks: Pixels, engine: str, options: CollageOptions, on_progress: Progress | None = None
) -> _native.MatchResult:
    """The most similar image for every block; what `_native.Library.match` returns."""
    return opened.match(
        blocks,
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
        progress=_stage(on_progress, "matching"),
    )


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
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def stage(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now


def _stage(on_progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(name, done, total)


def _check_output(output: Path, photo: Path, library: Path) -> None:
    check_writable(output)
    check_is_no_input(output, ((photo, "the photograph itself"), (library, "the library itself")))
    if _format_of(output) is None:
        raise GpufsError(f"{output}: '{output.suffix}' is no picture's extension; try .png or .jpg")


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

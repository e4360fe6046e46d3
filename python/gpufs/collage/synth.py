# SPDX-License-Identifier: Apache-2.0
"""Building a large library of synthetic images: squares of a few photographs, at random."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gpufs import _native
from gpufs.collage.images import Pixels, UnreadableImageError, read_rgb, to_pixels
from gpufs.collage.indexing import IndexReport, find_pictures, why_nothing
from gpufs.collage.interrupt import check_new_library, sigterm_interrupts
from gpufs.collage.tiles import TILE_SIDE
from gpufs.collage.workers import in_order
from gpufs.errors import GpufsError

MOST_PIXELS = 1 << 25  # of all photographs together, held as 12 bytes each; more are made smaller
SEED_LIMIT = 1 << 64

# What `./dev demo` takes of scikit-image's: all that look like photographs, but for the one that its collage is of.
BUNDLED_PHOTOS = (
    *("brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png"),
    *("hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "motorcycle_right.png"),
    *("retina.jpg", "rocket.jpg"),
)


@dataclass(frozen=True)
class SynthOptions:
    """How a synthetic library is made. Its bytes do not depend on workers."""

    seed: int = 0  # of the images, 0 to 2^64 - 1
    packed: bool = False  # histograms 3 KiB apart instead of 4 KiB
    key_nbits: int = 0  # 0: chosen by measuring
    shortlist_goal: int = _native.DEFAULT_SHORTLIST_GOAL
    workers: int = 0  # processes that decode, threads that cut; 0: one a core


@dataclass
class SynthReport(IndexReport):
    """What became of the files, as for `IndexReport`; nthumbnails is the number of images."""

    nreduced: int = 0  # photographs that were made smaller, so that all fit into memory
    stages: dict[str, float] = field(default_factory=dict)  # seconds


@dataclass
class _Loaded:
    path: str
    error: str = ""  # why it cannot be used
    reduction: int = 1
    pixels: Pixels | None = None


def synthesize_library(
    nimages: int,
    output: Path | str,
    inputs: Sequence[Path | str] = (),
    options: SynthOptions | None = None,
    *,
    on_file: Callable[[int], None] = lambda nfiles: None,
    on_unreadable: Callable[[str, str], None] = lambda path, why: None,
    on_cut: Callable[[int, int], None] | None = None,
    on_finish: Callable[[int, int], None] | None = None,
) -> SynthReport:
    """Builds a library of nimages images, no two of them equal, and puts it in place of `output` when it is whole.

    Each image is a square of a photograph: the photograph is drawn by area, the square's side from 32 pixels to the
    photograph's shorter side (evenly by its logarithm), its place evenly; half of them are mirrored; each channel
    becomes gain * value + offset, gain 0.75 to 1.25, offset -24 to 24. Image i is the same for every nimages.

    inputs: photographs and folders of them, as for `build_library`; none: scikit-image's, when it is installed.
    on_cut, on_finish: called with what is done and the total, while images are cut and while the tables are made;
        on_file, on_unreadable: as for `build_library`.
    Raises GpufsError when a number cannot be, there is no usable photograph, the photographs do not give so many
    different images, or the library cannot be written. On any exception nothing is left behind.
    """
    options = options or SynthOptions()
    begin = time.monotonic()
    output = Path(output)
    report = SynthReport()
    if not 1 <= nimages <= _native.MAX_NIMAGES:
        raise GpufsError(f"a library holds 1 to {_native.MAX_NIMAGES:,} images, not {nimages:,}")
    if not 0 <= options.seed < SEED_LIMIT:
        raise GpufsError(f"a seed is a number from 0 to {SEED_LIMIT - 1}, not {options.seed}")
    for path in inputs:
        if not os.path.lexists(path):
            raise GpufsError(f"{path}: there is no such file or folder")
    inputs = inputs or bundled_photos()
    check_new_library(output, inputs)
    _check_room(output, nimages, options)
    with sigterm_interrupts():
        builder = _native.LibraryBuilder(
            output,
            packed=options.packed,
            tiles=True,
            shortlist_goal=options.shortlist_goal,
            key_nbits=options.key_nbits,
            nthreads=options.workers,
        )
        images = _native.Synthesizer(options.seed)
        files = list(find_pictures(inputs, report))
        with closing(_load_all(files, options.workers)) as results:
            for nread, loaded in enumerate(results, 1):
                _take(builder, images, loaded, report, on_unreadable)
                on_file(nread)
        if images.nphotos == 0:
            raise GpufsError(why_nothing(inputs, report))
        report.stages["reading"] = time.monotonic() - begin
        builder.add_synthetic(images, nimages, nthreads=options.workers, progress=on_cut)
        report.nthumbnails = nimages
        report.stages["cutting"] = time.monotonic() - begin - report.stages["reading"]
        report.info = builder.finish(on_finish)
    report.seconds = time.monotonic() - begin
    report.stages["tables"] = report.seconds - report.stages["reading"] - report.stages["cutting"]
    return report


def bundled_photos() -> list[Path]:
    """The photographs that come with scikit-image, which is not imported. Raises GpufsError when there are none."""
    found = importlib.util.find_spec("skimage")
    folder = Path(found.origin).parent / "data" if found and found.origin else None
    photos = [folder / name for name in BUNDLED_PHOTOS if (folder / name).is_file()] if folder else []
    if not photos:
        raise GpufsError(
            "no photographs: name pictures or folders of them to cut images from "
            "(scikit-image, whose photographs are the default, is not installed)"
        )
    return photos


def reduction_for(size: tuple[int, int], nphotos: int) -> int:
    """How many times smaller a photograph is made when there are so many: a whole number.

    All together have some MOST_PIXELS pixels then, and a shorter side has at most what sums of squares allow, but 32
    pixels at least.
    """
    shorter = min(size)
    share = max(1, MOST_PIXELS // nphotos)
    fits = max(math.ceil(math.sqrt(size[0] * size[1] / share)), math.ceil(shorter / _native.MAX_SYNTH_SIDE))
    return max(1, min(fits, shorter // TILE_SIDE))


def load_photo(path: str, nphotos: int) -> tuple[Pixels, int]:
    """A photograph, and how many times smaller than its file's it is. Raises UnreadableImageError."""
    image, (width, height) = read_rgb(path)
    if min(width, height) < TILE_SIDE:
        raise UnreadableImageError(f"has {width} x {height} pixels; at least {TILE_SIDE} x {TILE_SIDE} are needed")
    factor = reduction_for((width, height), nphotos)
    if factor == 1:
        return to_pixels(image), 1
    whole = (0, 0, width // factor * factor, height // factor * factor)  # no partial pixels
    return to_pixels(image.reduce(factor, whole)), factor


def _check_room(output: Path, nimages: int, options: SynthOptions) -> None:
    """Raises GpufsError when what is known of the library's size does not fit."""
    need = nimages * (3072 + (3072 if options.packed else 4096))
    free = shutil.disk_usage(output.parent).free
    if need > free:
        raise GpufsError(
            f"{output}: {nimages:,} images take {need / 2**30:,.1f} GiB; {output.parent} has {free / 2**30:,.1f} free"
        )


def _load(path: str, nphotos: int) -> _Loaded:
    """Runs in a worker."""
    try:
        pixels, reduction = load_photo(path, nphotos)
    except UnreadableImageError as error:
        return _Loaded(path, str(error))
    return _Loaded(path, "", reduction, pixels)


def _crashed(path: str, how: str) -> _Loaded:
    return _Loaded(path, f"the process that decoded it died ({how})")


def _load_all(files: Sequence[str], workers: int) -> Generator[_Loaded, None, None]:
    work = functools.partial(_load, nphotos=len(files))
    nworkers = workers or os.cpu_count() or 1
    if nworkers == 1:
        return (work(path) for path in files)
    return in_order(iter(files), work, _crashed, nworkers)


def _take(
    builder: _native.LibraryBuilder,
    images: _native.Synthesizer,
    loaded: _Loaded,
    report: SynthReport,
    on_unreadable: Callable[[str, str], None],
) -> None:
    if loaded.pixels is None:
        report.unreadable.append((loaded.path, loaded.error))
        on_unreadable(loaded.path, loaded.error)
        return
    images.add_photo(loaded.pixels, builder.add_source(os.fsencode(loaded.path)), loaded.reduction)
    report.nfiles += 1
    report.nreduced += loaded.reduction > 1

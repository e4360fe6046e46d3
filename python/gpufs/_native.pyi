# SPDX-License-Identifier: Apache-2.0
"""The C++ side of gpufs's Python package (apps/collage/python_module.cpp)."""

import os
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

MAGIC: bytes  # what every library begins with
TILE_SIDE: int
DEFAULT_SEED: int
DEFAULT_SHORTLIST_GOAL: int
MAX_NIMAGES: int
MAX_SYNTH_SIDE: int

# Called with what is done and with the total, at most every 50 ms; what it raises ends the work.
Progress = Callable[[int, int], None]

class LibraryInfo(TypedDict):
    """What a library's header says; docs/reference/collage-library-format.md."""

    version: int
    file_nbytes: int
    nimages: int
    nsources: int
    seed: int
    histogram_stride: int
    key_nbits: int
    cell_nbits: int
    shortlist_goal: int
    mean_shortlist: float
    tiles: bool

class MatchResult(TypedDict):
    """matches: uint32 [nblocks, 4]: id, squared distance, images from the block's own buckets, images compared.

    counters: since the engine was made.
    """

    matches: NDArray[np.uint32]
    seconds: float
    machine: str
    source: str
    counters: dict[str, int] | None

def engine_missing(engine: str) -> str:
    """Why the engine (cpu, simt, gpu) cannot run here; empty when it can."""

class Matcher:
    """An engine; what it has brought into its page cache is there for the next photograph."""

    def __init__(self) -> None:
        """TypeError: Library.matcher makes them."""

    def find(self, pixels: NDArray[np.uint8], *, progress: Progress | None = None) -> MatchResult:
        """The most similar image of every 32x32 block of pixels (uint8 [32 h, 32 w, 3]), row by row.

        One thread calls at a time.
        """

class Library:
    """An open collage library whose header and layout are sound."""

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        """Opens a library file. GpufsError says what is wrong with it."""

    def info(self) -> LibraryInfo: ...
    def origin(self, id: int) -> tuple[int, int, int, int]:
        """Source number and square (x, y, side in pixels) that the image shows."""

    def source_name(self, source: int) -> bytes:
        """The source's path, as bytes."""

    def thumbnails(self, ids: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The 32x32 pictures of the images asked for: uint8 [n, 32, 32, 3]."""

    def check_sums(self, progress: Progress | None = None) -> None:
        """Compares all checksums. GpufsError names the section that differs."""

    def check_contents(self, progress: Progress | None = None) -> None:
        """Checks what checksums cannot tell: histograms, order of tables, names."""

    def matcher(
        self,
        engine: str = "cpu",
        *,
        nthreads: int = 0,
        cache_nbytes: int = 0,
        page_nbytes: int = 4096,
        store: str = "auto",
        block_threads: int = 256,
        grid: int = 0,
        blocks_per_launch: int = 0,
        seed: int = 0,
        order: str = "in-order",
        resident_blocks: int = 0,
    ) -> Matcher:
        """An engine that is set up for one photograph after the other."""

    def match_exhaustive(
        self,
        pixels: NDArray[np.uint8],
        blocks: Sequence[int],
        *,
        nthreads: int = 0,
        progress: Progress | None = None,
    ) -> NDArray[np.uint32]:
        """The truly most similar image of each block asked for, as `matches`. Reads the whole library."""

class Synthesizer:
    """Draws images from photographs: squares of them, mirrored or not, colours shifted."""

    def __init__(self, seed: int) -> None: ...
    def add_photo(self, pixels: NDArray[np.uint8], source: int, reduction: int = 1) -> None:
        """A photograph (uint8 [height, width, 3]; the shorter side 32 to 4096 pixels) of that source.

        reduction: how many times smaller than the original it is. It is drawn with a probability proportional to the
            original's area.
        """

    def draw(self, index: int, attempt: int = 0) -> tuple[NDArray[np.uint8], tuple[int, int, int, int]]:
        """Image `index`: its pixels (uint8 [32, 32, 3]) and its origin (source, x, y, side).

        attempt: counts the images drawn for this index before, all like others.
        """

    @property
    def nphotos(self) -> int: ...

class LibraryBuilder:
    """Writes a library; nothing stays of one that is not finished."""

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        packed: bool = False,
        tiles: bool = False,
        seed: int = ...,
        shortlist_goal: int = ...,
        key_nbits: int = 0,
        nthreads: int = 0,
    ) -> None: ...
    def add_source(self, name: bytes) -> int:
        """Names a picture file; returns its number, for the origins of its thumbnails."""

    def add(self, pixels: NDArray[np.uint8], origins: NDArray[np.uint32]) -> int:
        """Adds thumbnails (uint8 [n, 32, 32, 3]) that equal none before; returns how many.

        origins: uint32 [n, 4]: source, x, y, side.
        """

    def add_synthetic(
        self, images: Synthesizer, nimages: int, *, nthreads: int = 0, progress: Progress | None = None
    ) -> None:
        """Adds that many images, all different, to a builder that has none.

        The photographs' sources must have been added.
        """

    @property
    def nimages(self) -> int: ...
    def finish(self, progress: Progress | None = None) -> LibraryInfo:
        """Writes the rest and puts the library in place."""

# SPDX-License-Identifier: Apache-2.0
"""The photo collage: a photograph rebuilt from the most similar of many small images.

`build_library` makes a library of small images, `synthesize_library` one of any number of images cut from a few
photographs, `make_collage` a collage, `make_collages` many; they raise `gpufs.GpufsError`. The command `gpufs collage`
is made of them.
docs/guide/collage.md says how it works, docs/reference/collage-library-format.md what a library holds.
"""

from gpufs.collage.indexing import IndexOptions, IndexReport, build_library
from gpufs.collage.making import CollageOptions, CollageReport, Quality, make_collage, make_collages
from gpufs.collage.synth import SynthOptions, SynthReport, synthesize_library
from gpufs.collage.tiles import TileOptions

__all__ = [
    "CollageOptions",
    "CollageReport",
    "IndexOptions",
    "IndexReport",
    "Quality",
    "SynthOptions",
    "SynthReport",
    "TileOptions",
    "build_library",
    "make_collage",
    "make_collages",
    "synthesize_library",
]

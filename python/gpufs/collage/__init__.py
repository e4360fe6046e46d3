# SPDX-License-Identifier: Apache-2.0
"""The photo collage: a photograph rebuilt from the most similar of many small images.

`build_library` makes a library of small images, `make_collage` a collage; both raise `gpufs.GpufsError`. The command
`gpufs collage` is made of them. docs/collage.md says how it works, docs/collage-library-format.md what a library holds.
"""

from gpufs.collage.indexing import IndexOptions, IndexReport, build_library
from gpufs.collage.making import CollageOptions, CollageReport, Quality, make_collage
from gpufs.collage.tiles import TileOptions

__all__ = [
    "CollageOptions",
    "CollageReport",
    "IndexOptions",
    "IndexReport",
    "Quality",
    "TileOptions",
    "build_library",
    "make_collage",
]

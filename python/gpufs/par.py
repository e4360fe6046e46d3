# SPDX-License-Identifier: Apache-2.0
"""Data-parallel operations on files and arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpufs.labelling import label_regions
from gpufs.lexing import each_piece, names_of, table_of
from gpufs.mounts import engine_of

__all__ = ["Labels", "Tokens", "label", "lex"]


class Tokens(NamedTuple):
    """Tokens of a text, in their order.

    Token i begins at byte offsets[i] of the file (uint64 [n]) and is of the kind names[kinds[i]] (uint8 [n]). names[1]
    is "error"; no token has kind 0.
    """

    offsets: NDArray[np.uint64]
    kinds: NDArray[np.uint8]
    names: list[str]


def lex(
    path: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    engine: str = "auto",
    device: int | None = None,
) -> Tokens:
    """The tokens of a file, found by a finite automaton on many threads at once, in memory of the host.

    table: "c", "csv", "json", or the path of a table's file (docs/guide/lex.md). What the table has no place for is a
    token of kind "error", and lexing goes on behind it.
    engine, device: as of :func:`gpufs.open`. All give the same tokens; `gpu` and `simt` read the file through gpufs, by
    pieces, so it may be larger than the device's memory.

    Source: Hillis and Steele, "Data parallel algorithms" (CACM 1986). Raises GpufsError: the table is none, the file
    does not open, is no regular file, or changes meanwhile. Ctrl-C is noticed between pieces.
    """
    of = table_of(table)
    pieces = list(each_piece(path, of, engine_of(engine), device=device))
    offsets, kinds = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Tokens(offsets, kinds, names_of(of))


class Labels(NamedTuple):
    """The regions of an image.

    Pixel (i, j) is in region labels[i, j] (int32 [height, width]), from 1 to nregions in the order of their first
    pixels, row by row; 0: it is background.
    """

    labels: NDArray[np.int32]
    nregions: int


def label(
    image: ArrayLike,
    *,
    corners: bool = False,
    background: int | Sequence[int] | None = 0,
    engine: str = "auto",
    device: int | None = None,
) -> Labels:
    """The regions of an image: pixels that are equal, and touch each other or others of the region.

    image: whole numbers or bools as [height, width], or uint8 as [height, width, 1 to 4], of less than 2^30 pixels.
    corners: pixels that meet at a corner touch, too; else only at a side.
    background: pixels of this value (of images with channels: a value for each, or one for all) have label 0, and are
    of no region; None: there is no background.
    engine, device: as of :func:`gpufs.open`. All give the same labels; `gpu` takes some 48 bytes of its memory a pixel.

    Source: Hillis and Steele, "Data parallel algorithms" (CACM 1986). Raises GpufsError: the array is no image, the
    background none of its values, or there is no such engine. Ctrl-C is noticed at the end.
    """
    return Labels(
        *label_regions(image, corners=corners, background=background, engine=engine_of(engine), device=device)
    )

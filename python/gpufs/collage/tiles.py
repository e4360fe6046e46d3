# SPDX-License-Identifier: Apache-2.0
"""Cutting pictures into 32x32 thumbnails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpufs.collage.images import Pixels, read_rgb

TILE_SIDE = 32

Squares = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class TileOptions:
    """How a photograph is cut: squares of 32, 64, ... pixels, half of which overlap by default.

    scales: sides of the squares in units of 32 pixels.
    stride: from one square to the next, in pixels of the picture scaled down so that squares have 32.
    most: tiles of one photograph; the stride is doubled until there are no more.
    """

    scales: tuple[int, ...] = (1, 2, 4, 8)
    stride: int = 16
    most: int = 20_000


def thumbnail(image: Image.Image, full_size: tuple[int, int]) -> tuple[Pixels, Squares]:
    """The picture's middle square at 32x32.

    Returns uint8 [1, 32, 32, 3], and its square in the picture at full size, uint32 [1, 3]: x, y, side in pixels.
    """
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # Reduced or cropped first: a filter that is told of a box looks beyond its edges. A large picture is not copied.
    factor = max(1, side // (3 * TILE_SIDE))
    square_part = (left, top, left + side, top + side)
    middle = image.crop(square_part) if factor == 1 else image.reduce(factor, square_part)
    box = (0, 0, side / factor, side / factor)  # a last pixel may be of less than factor
    small = middle.resize((TILE_SIDE, TILE_SIDE), Image.Resampling.LANCZOS, box)
    width, height = full_size
    side = min(full_size)
    square = np.array([[(width - side) // 2, (height - side) // 2, side]], np.uint32)
    return np.asarray(small)[np.newaxis], square


def cut(image: Image.Image, options: TileOptions) -> tuple[Pixels, Squares]:
    """All tiles of a picture: its middle square, then squares at every scale, row by row.

    Returns uint8 [n, 32, 32, 3], and their squares, uint32 [n, 3]: x, y, side in pixels.
    """
    pixels, squares = thumbnail(image, image.size)
    stride = options.stride
    while sum(_count(image.size, scale, stride) for scale in options.scales) >= max(1, options.most):
        stride *= 2
    parts, places = [pixels], [squares]
    for scale in options.scales:
        if _count(image.size, scale, stride):
            pixels, squares = _cut_at(image, scale, stride)
            parts.append(pixels)
            places.append(squares)
    return np.concatenate(parts), np.concatenate(places)


def _count(size: tuple[int, int], scale: int, stride: int) -> int:
    if min(size) // scale < TILE_SIDE:
        return 0
    return int(np.prod([(side // scale - TILE_SIDE) // stride + 1 for side in size]))


def _cut_at(image: Image.Image, scale: int, stride: int) -> tuple[Pixels, Squares]:
    reduced = image if scale == 1 else image.reduce(scale)
    width, height = image.width // scale, image.height // scale  # reduce() has partial pixels too
    ny, nx = ((side - TILE_SIDE) // stride + 1 for side in (height, width))
    pixels = np.empty((ny, nx, TILE_SIDE, TILE_SIDE, 3), np.uint8)
    for row, y in enumerate(range(0, height - TILE_SIDE + 1, stride)):
        band = np.asarray(reduced.crop((0, y, width, y + TILE_SIDE)))
        windows = np.lib.stride_tricks.sliding_window_view(band, TILE_SIDE, axis=1)[:, ::stride]  # row, tile, c, column
        pixels[row] = windows.transpose(1, 0, 3, 2)
    ys, xs = np.divmod(np.arange(ny * nx), nx)
    step = stride * scale
    squares = np.stack([xs * step, ys * step, np.full(ny * nx, TILE_SIDE * scale)], axis=1).astype(np.uint32)
    return pixels.reshape(ny * nx, TILE_SIDE, TILE_SIDE, 3), squares


def load(path: str, options: TileOptions | None) -> tuple[Pixels, Squares]:
    """Thumbnails of a picture file: one, or with options all its tiles. Raises UnreadableImageError."""
    if options is None:
        return thumbnail(*read_rgb(path, smallest_side=3 * TILE_SIDE))
    image, _ = read_rgb(path)
    return cut(image, options)

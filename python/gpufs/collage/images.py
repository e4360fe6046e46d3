# SPDX-License-Identifier: Apache-2.0
"""Reading pictures of any kind as RGB."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from gpufs import paths
from gpufs.errors import GpufsError

Pixels = npt.NDArray[np.uint8]

# Pillow decodes these by itself. For others it may start a program: Ghostscript for EPS, which is a program itself.
FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "MPO", "PCX", "PNG", "PPM", "PSD", "QOI"),
    *("SGI", "TGA", "TIFF", "WEBP"),
)
STRIP_NPIXELS = 1 << 18  # what is converted at a time, so that a picture is in memory once or twice and not five times

EXIF_ORIENTATION = 0x0112
TURNS = {  # by EXIF orientation: from how the camera stored the scene to how it was
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPS_SIDES = frozenset((5, 6, 7, 8))  # what was stored as its width is its height


class UnreadableImageError(GpufsError):
    """A file that is no picture, or one that cannot be decoded; the message does not name it."""


def readable_formats() -> list[str]:
    """Those of FORMATS that this Pillow has."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def readable_extensions() -> frozenset[str]:
    """'.png', '.jpg', ...: what pictures are called that `read_rgb` can read."""
    formats = readable_formats()
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in formats)


@contextmanager
def opened(path: Path | str) -> Iterator[Image.Image]:
    """The picture (the first of several), whose pixels the block may read. What fails is an UnreadableImageError.

    Never opens anything but a regular file.
    """
    try:
        # Pillow warns of pictures over half its limit; the limit itself is an error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_regular(path) as stream, Image.open(stream, formats=readable_formats()) as image:
                yield image
    except UnreadableImageError:
        raise
    except Image.DecompressionBombError as error:
        raise UnreadableImageError(f"has too many pixels: {error}") from error
    except MemoryError as error:
        raise UnreadableImageError("is too large for the memory there is") from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError("is not a picture that Pillow can read") from error
    except OSError as error:
        raise UnreadableImageError(error.strerror or str(error)) from error
    except Exception as error:  # what a decoder makes of a broken file can be anything
        raise UnreadableImageError(f"is broken ({type(error).__name__}: {error})") from error


def picture_size(path: Path | str) -> tuple[int, int]:
    """Its sides in pixels, not turned, as the file's header says; nothing is decoded. Raises as read_rgb does."""
    with opened(path) as image:
        return image.size


def read_rgb(path: Path | str, *, smallest_side: int = 0) -> tuple[Image.Image, tuple[int, int]]:
    """Reads the picture (the first of several): RGB, turned as its EXIF orientation says, transparency over white.

    smallest_side: pixels; where the format allows it (JPEG), the picture is decoded at a fraction of its size that
    keeps both sides at least this long. 0: at full size.
    Returns the picture and its full size (width, height in pixels, turned). Memory: 8 bytes a pixel that is decoded.
    Raises UnreadableImageError; never opens anything but a regular file.
    """
    with opened(path) as image:
        return _decode(image, smallest_side)


def open_regular(path: Path | str) -> BufferedReader:
    """As gpufs.paths has it. Raises UnreadableImageError where it is none; OSError: it does not open."""
    try:
        return paths.open_regular(Path(path))
    except IsADirectoryError:
        raise UnreadableImageError("is a directory") from None
    except GpufsError:
        raise UnreadableImageError("is not a regular file") from None


def _decode(image: Image.Image, smallest_side: int) -> tuple[Image.Image, tuple[int, int]]:
    full_size = image.size
    if 0 in full_size:
        raise UnreadableImageError("has no pixels")
    if smallest_side:
        image.draft("RGB", (smallest_side, smallest_side))
    image.load()
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
        turn = TURNS.get(orientation)
    except Exception:  # broken EXIF data: the picture itself is fine
        turn = None
    rgb = to_rgb(image)
    if rgb is not image:
        image.close()  # gives its memory back
    if turn is None:
        return rgb, full_size
    # By the orientation: a fraction of a picture may be square where the picture is not.
    return rgb.transpose(turn), full_size[::-1] if orientation in SWAPS_SIDES else full_size


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB: 16-bit greyscale keeps its high byte, transparency goes over white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    integers = image.mode == "I" or image.mode.startswith("I;16")
    most = max(_numbers(strip).max() for _, strip in strips(image)) if integers or image.mode == "F" else 0
    result = Image.new("RGB", image.size)
    for y, strip in strips(image):
        if integers:
            part = Image.fromarray(_grey_from_integers(_numbers(strip), int(most)))
        elif image.mode == "F":
            part = Image.fromarray(_grey_from_floats(_numbers(strip), most))
        elif "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
            layered = strip.convert("RGBA")
            white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
            part = Image.alpha_composite(white, layered)
        else:
            part = strip
        result.paste(part.convert("RGB"), (0, y))
    return result


def strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The picture in strips from top to bottom: (first row, the strip)."""
    nrows = max(1, STRIP_NPIXELS // image.width)
    for y in range(0, image.height, nrows):
        yield y, image.crop((0, y, image.width, min(y + nrows, image.height)))


def to_pixels(image: Image.Image) -> Pixels:
    """An RGB picture as uint8 [height, width, 3]. np.asarray would have it in memory twice meanwhile."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for y, strip in strips(image):
        pixels[y : y + strip.height] = np.asarray(strip)
    return pixels


def _numbers(strip: Image.Image) -> npt.NDArray[Any]:
    values = np.asarray(strip)
    if strip.mode == "F":
        return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=255.0, neginf=0.0)
    return np.maximum(values.astype(np.int64), 0)


def _grey_from_integers(values: npt.NDArray[np.int64], most: int) -> Pixels:
    """16-bit values keep their high byte; values that fit 8 bits stay what they are. most: of the picture's values."""
    if most > 0xFFFF:
        values = values * 0xFFFF // most
    if most > 0xFF:
        values = values >> 8
    return values.astype(np.uint8)


def _grey_from_floats(values: npt.NDArray[np.float64], most: float) -> Pixels:
    """Values of [0, 1] are spread over 0 .. 255; others are clipped to that. most: of the picture's values."""
    if most <= 1.0:
        values = values * 255.0
    grey: Pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return grey

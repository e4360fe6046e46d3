# SPDX-License-Identifier: Apache-2.0
"""Reading pictures of any kind as RGB."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from gpufs.errors import GpufsError

Pixels = npt.NDArray[np.uint8]

EXIF_ORIENTATION = 0x0112


class UnreadableImageError(GpufsError):
    """A file that is no picture, or one that cannot be decoded; the message does not name it."""


def read_rgb(path: Path | str, *, smallest_side: int = 0) -> tuple[Image.Image, tuple[int, int]]:
    """Reads the picture (the first of several): RGB, turned as its EXIF orientation says, transparency over white.

    smallest_side: pixels; where the format allows it (JPEG), the picture is decoded at a fraction of its size that
    keeps both sides at least this long. 0: at full size.
    Returns the picture and its full size (width, height in pixels, turned).
    Raises UnreadableImageError; never opens anything but a regular file.
    """
    try:
        # Pillow warns of pictures over half its limit; the limit itself is an error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _open_regular(path) as stream, Image.open(stream) as image:
                return _decode(image, smallest_side)
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


def _open_regular(path: Path | str) -> BinaryIO:
    """Opens a regular file for reading; a FIFO or a device is refused without being waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UnreadableImageError("is a directory" if stat.S_ISDIR(mode) else "is not a regular file")
    return os.fdopen(descriptor, "rb")


def _decode(image: Image.Image, smallest_side: int) -> tuple[Image.Image, tuple[int, int]]:
    full_size = image.size
    if 0 in full_size:
        raise UnreadableImageError("has no pixels")
    if smallest_side:
        image.draft("RGB", (smallest_side, smallest_side))
    image.load()
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
        turned = ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF data: the picture itself is fine
        orientation, turned = 1, image
    if orientation in (5, 6, 7, 8):
        full_size = (full_size[1], full_size[0])
    return to_rgb(turned), full_size


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB: 16-bit greyscale keeps its high byte, transparency goes over white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray(_grey_from_integers(np.asarray(image).astype(np.int64))).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(_grey_from_floats(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        layered = image.convert("RGBA")
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layered).convert("RGB")
    return image.convert("RGB")


def _grey_from_integers(values: npt.NDArray[np.int64]) -> Pixels:
    """16-bit values keep their high byte; values that fit 8 bits stay what they are."""
    values = np.maximum(values, 0)
    most = int(values.max())
    if most > 0xFFFF:
        values = values * 0xFFFF // most
    if most > 0xFF:
        values = values >> 8
    return values.astype(np.uint8)


def _grey_from_floats(values: npt.NDArray[np.floating]) -> Pixels:
    """Values of [0, 1] are spread over 0 .. 255; others are clipped to that."""
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=255.0, neginf=0.0)
    if values.max() <= 1.0:
        values = values * 255.0
    grey: Pixels = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return grey

# SPDX-License-Identifier: Apache-2.0
"""The regions of images, in memory and in files: the inside of `gpufs label` and gpufs.par.label()."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpufs import _label
from gpufs.errors import GpufsError
from gpufs.mounts import device_of
from gpufs.paths import path_of
from gpufs.unchanged import check_unchanged, stamp_of

Background = int | Sequence[int] | None

_MOST_CHANNELS = 4
_NPY = b"\x93NUMPY"


def read_image(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The pixels of a picture, or the array of a .npy file, as they are stored. Raises GpufsError, with the path.

    Also where the file was changed meanwhile.
    """
    of = path_of(path, "path")
    before = stamp_of(of)
    image = _read_image(of)
    check_unchanged(of, before, "read")
    return image


def _read_image(of: Path) -> NDArray[Any]:
    from gpufs.collage.images import UnreadableImageError, open_regular, opened

    try:
        with open_regular(of) as stream:
            if stream.read(len(_NPY)) == _NPY:
                stream.seek(0)
                array: NDArray[Any] = np.load(stream, allow_pickle=False)
                return array
        with opened(of) as image:
            if image.mode in ("P", "PA"):  # colours, not their numbers in the palette
                has_alpha = image.mode == "PA" or "transparency" in image.info
                return np.asarray(image.convert("RGBA" if has_alpha else "RGB"))
            return np.asarray(image)
    except UnreadableImageError as error:
        raise GpufsError(f"{of}: {error}") from error
    except OSError as error:
        raise GpufsError(f"{of}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:  # of np.load
        raise GpufsError(f"{of}: is no array that can be read: {error}") from error


def above(array: NDArray[Any], threshold: Decimal) -> NDArray[np.bool_]:
    """Where a grey image is at least so bright. Raises GpufsError.

    threshold: no NaN. Whole numbers are compared with it exactly; for real ones it is rounded to one of theirs.
    """
    if array.ndim != 2:
        raise GpufsError("a threshold is for grey images, of one number a pixel: this one has several")
    if array.dtype.kind not in "biuf":
        raise GpufsError(f"pixels of {array.dtype} have no brightness")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(array >= array.dtype.type(float(threshold)))
    whole = array.view(np.uint8) if array.dtype.kind == "b" else array
    bounds = np.iinfo(whole.dtype)
    if threshold <= bounds.min or threshold > bounds.max:
        return np.full(array.shape, threshold <= bounds.min)
    return np.asarray(whole >= whole.dtype.type(math.ceil(threshold)))


def write_labels(stream: BinaryIO, labels: NDArray[np.int32]) -> None:
    """As np.save, which does not say why where the disk is full."""
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(labels))
    stream.write(labels.reshape(-1).data)


def label_regions(
    array: ArrayLike, *, corners: bool, background: Background, engine: str, device: int | None
) -> tuple[NDArray[np.int32], int]:
    """The labels of an image's pixels, and how many regions there are. engine: one that there is. Raises GpufsError."""
    try:
        image = np.asarray(array)
    except ValueError as error:
        raise GpufsError(f"this is no image: {error}") from None
    if image.ndim >= 2 and image.shape[0] * image.shape[1] > _label.MOST_PIXELS:
        shape = " x ".join(map(str, image.shape[:2]))
        raise GpufsError(
            f"an image of {shape} pixels is too large to be labelled: cut it into parts of less than 2^30 pixels"
        )
    kinds, of_background = _kinds_of(image, background)
    labels = np.zeros(kinds.shape, np.int32)
    number = device_of(engine, device)
    height, width = kinds.shape
    nregions = _label.label(
        engine, kinds.ctypes.data, height, width, corners, of_background, number, labels.ctypes.data
    )
    return labels, nregions


def _kinds_of(array: NDArray[Any], background: Background) -> tuple[NDArray[np.uint32], int | None]:
    """A number of 32 bits for each pixel, which equal ones share; and that of the background's, if there is any."""
    if array.ndim == 3 and array.dtype == np.uint8 and 1 <= array.shape[2] <= _MOST_CHANNELS:
        nchannels = array.shape[2]
        colours = np.zeros((*array.shape[:2], _MOST_CHANNELS), np.uint8)
        colours[..., :nchannels] = array
        of_colour = None
        if background is not None:
            try:
                of_each = [background] * nchannels if isinstance(background, (int, np.integer)) else list(background)
                channels = [operator.index(each) for each in of_each]
            except TypeError:
                channels = []
            if len(channels) != nchannels or not all(0 <= each <= 255 for each in channels):
                raise GpufsError(f"background {background} is no colour of {nchannels} bytes")
            of_colour = int.from_bytes(bytes(channels), "little")
        return np.ascontiguousarray(colours.view("<u4")[..., 0]).astype(np.uint32, copy=False), of_colour
    if array.ndim != 2 or array.dtype.kind not in "biu":
        raise GpufsError(
            f"an array of shape {array.shape} and {array.dtype} is no image: it has whole numbers or bools as "
            "[height, width], or uint8 as [height, width, 1 to 4]"
        )
    value = None
    if background is not None:
        if not isinstance(background, (int, np.integer)):
            raise GpufsError(f"background {background} is a colour, and the image has one number a pixel")
        value = int(background)
        least, most = (0, 1) if array.dtype == np.bool_ else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        if not least <= value <= most:
            raise GpufsError(f"background {value} is no value of {array.dtype} pixels")
    if array.dtype.itemsize <= 4:
        unsigned = np.dtype(f"u{array.dtype.itemsize}")
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        kinds = np.ascontiguousarray(native).view(unsigned).astype(np.uint32, copy=False)
        return kinds, None if value is None else value % (1 << 8 * array.dtype.itemsize)
    values, numbers = np.unique(array, return_inverse=True)
    place = None if value is None else int(np.searchsorted(values, value))
    is_there = place is not None and place < len(values) and int(values[place]) == value
    return numbers.reshape(array.shape).astype(np.uint32), place if is_there else None

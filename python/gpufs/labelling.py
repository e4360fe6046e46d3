# SPDX-License-Identifier: Apache-2.0
"""The regions of images, in memory and in files: the inside of `gpufs label` and gpufs.par.label().

Images go by strips: some rows at a time are labelled, whose regions are joined along the seams; then all labels are
gone through once more, and get the numbers of the whole image's regions.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpufs import _label, tensors
from gpufs.errors import GpufsError
from gpufs.formats import npy_header
from gpufs.mounts import device_of
from gpufs.paths import path_of
from gpufs.unchanged import check_unchanged, stamp_of

Background = int | Sequence[int] | None
SomeLabels = NDArray[np.int32] | NDArray[np.int64]

_INT32_NPIXELS = 1 << 31  # from so many pixels on labels have 64 bits
_MOST_CHANNELS = 4
_MOST_LABELS = 1 << 59  # of 8 bytes, in one array
_NPY = b"\x93NUMPY"


class Image(NamedTuple):
    """Pixels that are taken some rows at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[int, int], NDArray[Any]]  # from one on, up to another; where they do not come it raises GpufsError

    @classmethod
    def of(cls, given: ArrayLike) -> Image:
        """Of an array in the host's memory, or of a copy of one on a GPU. Raises GpufsError."""
        library: Any = next((each for each in tensors.LIBRARIES if each.owns(given)), None)
        try:
            is_there = library is not None and library.place(given) is not tensors.HOST
            array = np.asarray(library.host(given) if is_there else given)
        except (ValueError, TypeError, RuntimeError) as error:  # what is on a device that gpufs does not know, too
            raise GpufsError(f"this is no image: {_line_of(error)}") from None
        return cls.of_shape(array.shape, array.dtype, lambda first, end: array[first:end])

    @classmethod
    def of_shape(cls, shape: tuple[int, ...], dtype: np.dtype[Any], rows: Callable[[int, int], NDArray[Any]]) -> Image:
        """Raises GpufsError: labels of so many pixels no array has."""
        if any(isinstance(n, bool) for n in shape) or math.prod(max(n, 1) for n in shape[:2]) >= _MOST_LABELS:
            raise GpufsError(f"an array of shape {shape} is no image that could be labelled")
        return cls(shape, dtype, rows)


class Store(Protocol):
    """Where labels go, some rows at a time."""

    def begin(self, height: int, width: int, dtype: np.dtype[Any]) -> None: ...
    def write(self, first: int, labels: SomeLabels) -> None: ...
    def read(self, first: int, end: int) -> SomeLabels:
        """What was written, to be changed and written again."""
        ...


class ArrayOfLabels:
    """Labels in memory, which are there after begin()."""

    labels: SomeLabels

    def begin(self, height: int, width: int, dtype: np.dtype[Any]) -> None:
        self.labels = np.empty((height, width), dtype)

    def write(self, first: int, labels: SomeLabels) -> None:
        self.labels[first : first + len(labels)] = labels

    def read(self, first: int, end: int) -> SomeLabels:
        return self.labels[first:end]


class FileOfLabels:
    """Labels in a .npy file. OSError: it cannot be written; np.save would not say why where the disk is full."""

    def __init__(self, stream: BufferedRandom) -> None:
        self._stream = stream

    def begin(self, height: int, width: int, dtype: np.dtype[Any]) -> None:
        self._width, self._dtype = width, dtype
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (height, width)}
        np.lib.format.write_array_header_1_0(self._stream, header)
        self._begin = self._stream.tell()

    def write(self, first: int, labels: SomeLabels) -> None:
        self._seek(first)
        self._stream.write(labels.astype(self._dtype, copy=False).reshape(-1).data)

    def read(self, first: int, end: int) -> SomeLabels:
        self._seek(first)
        labels: SomeLabels = np.zeros((end - first, self._width), self._dtype)
        self._stream.readinto(labels.reshape(-1).data)
        return labels

    def _seek(self, row: int) -> None:
        self._stream.seek(self._begin + row * self._width * self._dtype.itemsize)


@contextmanager
def opened_image(path: str | os.PathLike[str]) -> Iterator[Image]:
    """The pixels of a picture, or the array of a .npy file, as they are stored; the latter's are read row by row.

    Raises GpufsError, with the path: also for those of the block, and at its end if the file was changed meanwhile.
    """
    from gpufs.collage.images import open_regular

    of = path_of(path, "path")
    before = stamp_of(of)
    try:
        with _errors_told():
            opened = open_regular(of)
        with opened as stream:
            with _errors_told():
                is_npy = stream.peek(len(_NPY)).startswith(_NPY)
            yield _image_of_npy(stream) if is_npy else _image_of_picture(of)
    except GpufsError as error:
        raise GpufsError(f"{of}: {error}") from error
    check_unchanged(of, before, "read")


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GpufsError(error.strerror or str(error)) from error


def _line_of(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _image_of_picture(of: Path) -> Image:
    from gpufs.collage.images import opened

    with opened(of) as image:
        if image.mode in ("P", "PA"):  # colours, not their numbers in the palette
            has_alpha = image.mode == "PA" or "transparency" in image.info
            return Image.of(np.asarray(image.convert("RGBA" if has_alpha else "RGB")))
        return Image.of(np.asarray(image))


def _image_of_npy(stream: BufferedReader) -> Image:
    try:
        shape, fortran, dtype = npy_header(stream)
        begin = stream.tell()
        nbytes = os.fstat(stream.fileno()).st_size - begin
        is_whole = dtype.hasobject or (min(shape, default=0) >= 0 and nbytes >= math.prod(shape) * dtype.itemsize)
    except OSError as error:
        raise GpufsError(error.strerror or str(error)) from error
    except Exception as error:  # what its reader makes of a damaged header can be anything
        raise GpufsError(f"is no array that can be read: {_line_of(error)}") from error
    if not is_whole:
        raise GpufsError("is no array that can be read: the file ends before it does")

    def read(offset: int, into: NDArray[Any]) -> None:
        with _errors_told():
            stream.seek(begin + offset * dtype.itemsize)
            if stream.readinto(into.reshape(-1).view(np.uint8).data) != into.nbytes:
                raise GpufsError("was changed while it was read: try again")

    def rows(first: int, end: int) -> NDArray[Any]:
        nruns = math.prod(shape[1:])  # of a row's numbers; in Fortran order columns lie together
        if not fortran:
            pixels = np.empty((end - first, *shape[1:]), dtype)
            read(first * nruns, pixels)
            return pixels
        turned = np.empty((*shape[:0:-1], end - first), dtype)
        for i, run in enumerate(turned.reshape(nruns, end - first)):
            read(i * shape[0] + first, run)
        return turned.T

    return Image.of_shape(shape, dtype, rows)


def above(image: Image, threshold: Decimal) -> Image:
    """Where a grey image is at least so bright. Raises GpufsError.

    threshold: no NaN. Whole numbers are compared with it exactly; for real ones it is rounded to one of theirs.
    """
    if len(image.shape) != 2:
        raise GpufsError("a threshold is for grey images, of one number a pixel: this one has several")
    if image.dtype.kind not in "biuf":
        raise GpufsError(f"pixels of {image.dtype} have no brightness")
    return Image(image.shape, np.dtype(np.bool_), lambda first, end: _above(image.rows(first, end), threshold))


def _above(array: NDArray[Any], threshold: Decimal) -> NDArray[np.bool_]:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(array >= array.dtype.type(float(threshold)))
    whole = array.view(np.uint8) if array.dtype.kind == "b" else array
    bounds = np.iinfo(whole.dtype)
    if threshold <= bounds.min or threshold > bounds.max:
        return np.full(array.shape, threshold <= bounds.min)
    return np.asarray(whole >= whole.dtype.type(math.ceil(threshold)))


class How(NamedTuple):
    """What regions are, and what finds them. memory_nbytes: of the engine's, at most; 0: as much as it says."""

    corners: bool
    background: Background
    engine: str  # one that there is
    device: int | None = None
    memory_nbytes: int = 0


class Found(NamedTuple):
    """What was found in an image."""

    height: int
    width: int
    nregions: int
    nbackground: int  # pixels


def label_regions(
    image: Image, how: How, to: Store | None, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Found:
    """Labels an image; to: None: its regions are only counted. Raises GpufsError. Ctrl-C is noticed between strips.

    on_progress: of how many rows so much is done, which are gone through once or twice.
    """
    of_background = _background_of(image, how.background)
    height, width = image.shape[:2]
    dtype = np.dtype(np.int32 if height * width < _INT32_NPIXELS else np.int64)
    if to is not None:
        to.begin(height, width, dtype)
    if height == 0 or width == 0:
        return Found(height, width, 0, 0)
    number = device_of(how.engine, how.device)
    nrows = _rows_of_strip(height, width, how, number)
    strips = range(0, height, nrows)
    total = height if to is None or len(strips) == 1 else 2 * height
    regions = _label.Regions(how.engine, nrows * width, width, how.corners, number)
    nbackground = 0
    last_row: NDArray[Any] | None = None

    def label_strip(first: int, end: int) -> None:
        nonlocal nbackground, last_row
        pixels = image.rows(first, end)
        # Kinds are numbers of the strip's own where pixels have 64 bits, so the seam's are made of both of its rows.
        seam = None if last_row is None else _kinds_of(np.concatenate([last_row, pixels[:1]]), None)[0]
        last_row = pixels[-1:].copy()
        kinds, kind = _kinds_of(pixels, of_background)
        del pixels
        labels = np.empty(kinds.shape, np.int32)
        at_seam = 0 if seam is None else seam.ctypes.data
        regions.label(kinds.ctypes.data, end - first, kind, at_seam, labels.ctypes.data)
        nbackground += labels.size - int(np.count_nonzero(labels))
        if to is not None:
            to.write(first, labels)

    on_progress(0, total)
    for first in strips:
        end = min(first + nrows, height)
        label_strip(first, end)  # what it took is free when the next one begins
        on_progress(end, total)
    nregions = regions.number()
    if to is not None and len(strips) > 1:
        for which, first in enumerate(strips):
            end = min(first + nrows, height)
            some = to.read(first, end)
            regions.renumber(which, some.ctypes.data, some.size, dtype.itemsize == 8)
            to.write(first, some)
            on_progress(height + end, total)
    return Found(height, width, nregions, nbackground)


def _rows_of_strip(height: int, width: int, how: How, device: int) -> int:
    if width > _label.MOST_PIXELS:
        raise GpufsError(f"rows of {width} pixels are too long to be labelled: they may have less than 2^30")
    memory = how.memory_nbytes or _label.usual_memory(how.engine, device)
    if memory < width * _label.NBYTES_A_PIXEL:
        raise GpufsError(
            f"a row of {width} pixels takes {width * _label.NBYTES_A_PIXEL} bytes of memory to be labelled, and "
            f"{memory} may be taken"
        )
    return min(height, min(memory // _label.NBYTES_A_PIXEL, _label.MOST_PIXELS) // width)


def _background_of(image: Image, background: Background) -> int | None:
    """The value of its pixels, of colours that of their bytes. Raises GpufsError: it is none, or this is no image."""
    shape, dtype = image.shape, image.dtype
    if len(shape) == 3 and dtype == np.uint8 and 1 <= shape[2] <= _MOST_CHANNELS:
        if background is None:
            return None
        nchannels = shape[2]
        try:
            of_each = [background] * nchannels if isinstance(background, (int, np.integer)) else list(background)
            channels = [operator.index(each) for each in of_each]
        except TypeError:
            channels = []
        if len(channels) != nchannels or not all(0 <= each <= 255 for each in channels):
            raise GpufsError(f"background {background} is no colour of {nchannels} bytes")
        return int.from_bytes(bytes(channels), "little")
    if len(shape) != 2 or dtype.kind not in "biu":
        raise GpufsError(
            f"an array of shape {shape} and {dtype} is no image: it has whole numbers or bools as "
            "[height, width], or uint8 as [height, width, 1 to 4]"
        )
    if background is None:
        return None
    if not isinstance(background, (int, np.integer)):
        raise GpufsError(f"background {background} is a colour, and the image has one number a pixel")
    value = int(background)
    least, most = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not least <= value <= most:
        raise GpufsError(f"background {value} is no value of {dtype} pixels")
    return value


def _kinds_of(array: NDArray[Any], value: int | None) -> tuple[NDArray[np.uint32], int | None]:
    """A number of 32 bits for each pixel, which equal ones share; and that of the background's, if there is any."""
    if array.ndim == 3:
        colours = np.zeros((*array.shape[:2], _MOST_CHANNELS), np.uint8)
        colours[..., : array.shape[2]] = array
        return np.ascontiguousarray(colours.view("<u4")[..., 0]).astype(np.uint32, copy=False), value
    if array.dtype.itemsize <= 4:
        unsigned = np.dtype(f"u{array.dtype.itemsize}")
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        kinds = np.ascontiguousarray(native).view(unsigned).astype(np.uint32, copy=False)
        return kinds, None if value is None else value % (1 << 8 * array.dtype.itemsize)
    values = np.unique(array)
    numbers = np.searchsorted(values, array).astype(np.uint32)
    place = None if value is None else int(np.searchsorted(values, value))
    is_there = place is not None and place < len(values) and int(values[place]) == value
    return numbers, place if is_there else None

# SPDX-License-Identifier: Apache-2.0
"""Data-parallel operations on files, and on arrays larger than GPU memory."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpufs import scan_sort
from gpufs.collage.interrupt import check_is_no_input, check_writable
from gpufs.errors import GpufsError
from gpufs.labelling import ArrayOfLabels, How, Image, SomeLabels, label_regions
from gpufs.lexing import each_piece, find, go_on, inputs_of_table, names_of, new_token_file, table_of
from gpufs.mounts import MOST_NBYTES, engine_of, to_nbytes
from gpufs.paths import path_of

__all__ = ["Labels", "Tokens", "label", "lex", "scan", "sort"]


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
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    engine: str = "auto",
    device: int | None = None,
) -> Tokens:
    """The tokens of a file, found by a finite automaton on many threads at once, in memory of the host.

    table: "c", "csv", "json", "paper", or the path of a table's file (docs/guide/lex.md). What the table has no place
    for is a token of kind "error", and lexing goes on behind it.
    out: the path of a .npy file of the tokens, as `gpufs lex` writes it, which appears when it is complete. The arrays
    are then of a map of it, and may be larger than memory.
    resume: what is done is kept in the folder OUT.unfinished until then; whatever ends this call, the same one goes on
    from there, by any engine, or raises GpufsError if the file or the table has changed since.
    engine, device: as of :func:`gpufs.open`. All give the same tokens; `gpu` and `simt` read the file through gpufs, by
    pieces, so it may be larger than the device's memory.

    Source: Hillis and Steele, "Data parallel algorithms" (CACM 1986). Raises GpufsError: the table is none, the file
    does not open, is no regular file, or changes meanwhile, or `out` cannot be written. Ctrl-C is noticed between
    pieces.
    """
    of, by, resume = table_of(table), engine_of(engine), _flag("resume", resume)
    if out is None:
        if resume:
            raise GpufsError("resume: keeps tokens beside those of out: name it, too")
        pieces = list(each_piece(path, of, by, device=device))
        offsets, kinds = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return Tokens(offsets, kinds, names_of(of))
    source, to = path_of(path, "path"), path_of(out, "out")
    check_writable(to)
    check_is_no_input(to, [(source, "the input"), *inputs_of_table(table)])
    if resume:
        go_on(source, to, of, by, device=device)
    else:
        with new_token_file(to) as tokens:
            find(source, of, by, tokens, device=device)
    found = np.load(to, mmap_mode="r")
    return Tokens(found["offset"], found["kind"], names_of(of))


class Labels(NamedTuple):
    """The regions of an image.

    Pixel (i, j) is in region labels[i, j] (int32 [height, width]; int64 from 2^31 pixels on), from 1 to nregions in the
    order of their first pixels, row by row; 0: it is background.
    """

    labels: SomeLabels
    nregions: int


def label(
    image: ArrayLike,
    *,
    corners: bool = False,
    background: int | Sequence[int] | None = 0,
    memory: int | str = 0,
    engine: str = "auto",
    device: int | None = None,
) -> Labels:
    """The regions of an image: pixels that are equal, and touch each other or others of the region.

    image: whole numbers or bools as [height, width], or uint8 as [height, width, 1 to 4], of any size, in the host's
    memory, or a map of a file (numpy.memmap). What is on a GPU (a tensor of torch, an array of CuPy) is copied to the
    host, where the labels are, too.
    corners: pixels that meet at a corner touch, too; else only at a side.
    background: pixels of this value (of images with channels: a value for each, or one for all) have label 0, and are
    of no region; None: there is no background.
    memory: of the GPU, or of the host by other engines, at most; 0: gpufs decides. A pixel takes some 48 bytes; of
    larger images strips of rows are labelled one after another, and joined, which gives the same labels.
    engine, device: as of :func:`gpufs.open`. All give the same labels.

    Source: Hillis and Steele, "Data parallel algorithms" (CACM 1986). Raises GpufsError: the array is no image, the
    background none of its values, the memory too little for a row, or there is no such engine. Ctrl-C is noticed
    between strips.
    """
    nbytes = to_nbytes(memory, "memory")
    how = How(_flag("corners", corners), background, engine_of(engine), device, nbytes)
    to = ArrayOfLabels()
    found = label_regions(Image.of(image), how, to)
    return Labels(to.labels, found.nregions)


def scan(
    x: Any,
    op: str = "add",
    *,
    exclusive: bool = False,
    out: Any = None,
    dtype: DTypeLike | None = None,
    overwrite: bool = False,
    resume: bool = False,
    engine: str = "auto",
    device: int | None = None,
) -> Any:
    """The scan of x, with at each place all elements up to it combined; exclusive: all before it.

    x: a NumPy array, or a tensor of torch or an array of CuPy, in the host's memory or on a GPU, whose elements are
    taken in C order; the result has one dimension, the dtype of x, lies where x does, and is `out` if given. On a GPU
    it is there when this returns, after what was enqueued in the caller's stream. Or the path of a raw file: then `out`
    is another one, which is returned, and dtype says what the elements are. uint32, int32, uint64, int64, float32,
    float64.
    op: add, mul, max, min; of whole numbers and, or, xor, too. Whole numbers wrap around. max and min leave NaNs out.
    Of nothing there is 0; mul: 1; and: all ones; max, min: the least and the largest number, and of real ones NaN.
    overwrite: the file `out` is there, has the size of x, and is written as it is, which is faster; if that fails, a
    part of it is written. Else it appears under its name when it is complete.
    resume: what is done is kept in the folder OUT.unfinished until then; whatever ends this call, the same one goes on
    from there, or raises GpufsError if the input has changed since.
    engine, device: as of :func:`gpufs.open`. All give the same bits, but for sums and products of real numbers, whose
    brackets differ: those are the same on each run by one engine on machines alike.

    Raises GpufsError: the elements or the operator are none, the file does not open, is no regular file, or changes
    meanwhile, or `out` cannot be written. Ctrl-C is noticed between pieces.
    """
    by, exclusive = engine_of(engine), _flag("exclusive", exclusive)
    overwrite, resume = _flag("overwrite", overwrite), _flag("resume", resume)

    def work(type_name: str) -> scan_sort.Work:
        return scan_sort.scan_work(by, device, op, type_name, exclusive)

    if not isinstance(x, (str, os.PathLike)):
        _refuse_of_arrays(dtype=dtype, overwrite=overwrite or None, resume=resume or None)
        return scan_sort.of_array(x, out, work, keep_shape=False)
    of = work(_type_of_file(dtype))
    scan_sort.of_file(path_of(x, "x"), _out_of_file(out), of, overwrite=overwrite, resume=resume)
    return out


def sort(
    x: Any,
    *,
    descending: bool = False,
    out: Any = None,
    key: DTypeLike | None = None,
    record_nbytes: int | None = None,
    key_offset: int = 0,
    memory: int | str = 0,
    scratch: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    engine: str = "auto",
    device: int | None = None,
) -> Any:
    """x, sorted. Stable: equal keys stay in their order, also if descending.

    x: an array or a tensor of one dimension, as of :func:`scan`. Or the path of a file
    of records of record_nbytes bytes (by default keys alone), each with a key of the type `key` from byte key_offset
    on; then `out` is another path, which is returned, and may be overwritten, or gone on with, as by :func:`scan`.
    Of real numbers -0 comes before 0, NaNs without a sign last, those with one first; descending the other way round.
    memory: of the GPU, at most; 0: three quarters of what is free there. What does not fit is sorted by pieces, which
    go to the folder `scratch` and are merged from there; by default to the host's memory, or to the folder of `out` if
    half of the memory that is free has no room. What is on a GPU is sorted there as a whole, and takes its size again.
    engine, device: as of :func:`gpufs.open`. All give the same bytes.

    Raises GpufsError as :func:`scan`; and: the memory is too little for two records. Ctrl-C is noticed between pieces.
    """
    by, nbytes, descending = engine_of(engine), to_nbytes(memory, "memory"), _flag("descending", descending)
    overwrite, resume = _flag("overwrite", overwrite), _flag("resume", resume)
    record_nbytes = None if record_nbytes is None else _nbytes("record_nbytes", record_nbytes)
    key_offset = _nbytes("key_offset", key_offset)

    def work(type_name: str, folder: Path | None) -> scan_sort.Work:
        how = (by, device, type_name, record_nbytes, key_offset, descending, nbytes)
        return scan_sort.sort_work(*how, folder, prefers_memory=scratch is None)

    named = None if scratch is None else path_of(scratch, "scratch")
    if not isinstance(x, (str, os.PathLike)):
        _refuse_of_arrays(
            key=key,
            record_nbytes=record_nbytes,
            key_offset=key_offset or None,
            overwrite=overwrite or None,
            resume=resume or None,
        )
        if (ndim := getattr(x, "ndim", 1)) != 1:  # of what is no array, of_array() says that
            raise GpufsError(f"x: has {ndim} dimensions, and 1 is sorted")
        return scan_sort.of_array(x, out, lambda type_name: work(type_name, named), keep_shape=True)
    if resume and scratch is not None:
        raise GpufsError("scratch: what a sort goes on with is beside out: leave it out")
    type_name, to = _type_of_file(key, "key"), _out_of_file(out)
    scan_sort.of_file(path_of(x, "x"), to, work(type_name, named or to.parent), overwrite=overwrite, resume=resume)
    return out


def _refuse_of_arrays(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise GpufsError(f"{name}: is for files; x is an array")


def _type_of_file(dtype: DTypeLike | None, name: str = "dtype") -> str:
    if dtype is None:
        raise GpufsError(f"{name}: what are the file's elements? ({', '.join(scan_sort.TYPES)})")
    return scan_sort.type_of(dtype)


def _out_of_file(out: Any) -> Path:
    if not isinstance(out, (str, os.PathLike)):
        raise GpufsError("out: name the file that is to be written")
    return path_of(out, "out")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise GpufsError(f"{name}: is True or False, and no {type(value).__name__}")
    return bool(value)


def _nbytes(name: str, value: Any) -> int:
    try:
        nbytes = operator.index(value)
    except TypeError:
        raise GpufsError(f"{name}: is a whole number of bytes, and no {type(value).__name__}") from None
    if nbytes >= MOST_NBYTES:
        raise GpufsError(f"{name}: is a larger number of bytes than any machine has")
    if nbytes < 0:
        what = nbytes if nbytes > -MOST_NBYTES else "this"  # it may have more digits than Python makes text of
        raise GpufsError(f"{name}: {what} is no number of bytes")
    return nbytes

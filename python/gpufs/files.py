# SPDX-License-Identifier: Apache-2.0
"""Many small files at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpufs import _rows
from gpufs.mounts import engine_of, shared_mount
from gpufs.pieces import pieces
from gpufs.tensors import address_of

_MOST_FILES = 8192  # in a call, between which Ctrl-C is noticed


def read_files(
    paths: Iterable[str | bytes | os.PathLike[str]],
    *,
    pad_to: int | None = None,
    engine: str = "auto",
    device: int | None = None,
    cache: int | str = 0,
    progress: bool = False,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All bytes of many files, as ``data, offsets``; file i is ``data[offsets[i] : offsets[i + 1]]``.

    Returns uint8 [total] and int64 [n + 1], in the host's memory.
    pad_to: returns rows of this many bytes instead, uint8 [n, pad_to], with zeros behind each file, and the files'
    lengths, int64 [n]. ValueError: a file is longer.
    engine, device, cache: as of :func:`gpufs.open`. The engines gpu and simt open many files together in one kernel,
    and go by a mount of the folder that has all of them; cpu, by threads.
    progress: shows how far it is (tqdm).

    Raises OSError, with errno and path, for the first file that does not open, is no regular file, cannot be read, or
    has another size by the time that it is read; then nothing is returned.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("paths are several: give a list, also of one")
    whole = [os.path.abspath(os.fsencode(path)) for path in paths]  # noqa: PTH100
    sizes = np.array(_rows.sizes(whole), np.int64)
    if pad_to is None:
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        data, places, second = np.empty(int(offsets[-1]), np.uint8), offsets[:-1], offsets
    else:
        data, places = _padded(whole, sizes, pad_to)
        second = sizes
    engine = engine_of(engine)
    root = os.fsdecode(os.path.commonpath([os.path.dirname(path) for path in whole])) if whole else "/"  # noqa: PTH120
    mount = shared_mount(root, cache=cache, page=4096, writable=False, engine=engine, device=device)
    native = mount.native(0)
    names = [os.path.relpath(path, os.fsencode(root)) for path in whole]
    for begin, end in _parts(sizes, progress):
        native.read_files(names[begin:end], sizes[begin:end].tolist(), places[begin:end].tolist(), address_of(data))
    return data.reshape(-1, pad_to) if pad_to is not None else data, second


def _padded(paths: list[bytes], sizes: NDArray[np.int64], pad_to: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if pad_to <= 0:
        raise ValueError(f"pad_to is {pad_to}; rows have a byte at least")
    if sizes.size != 0 and int(sizes.max()) > pad_to:
        longest = int(sizes.argmax())
        raise ValueError(f"'{os.fsdecode(paths[longest])}' has {sizes[longest]} bytes, more than pad_to={pad_to}")
    return np.zeros(len(paths) * pad_to, np.uint8), np.arange(len(paths), dtype=np.int64) * pad_to


def _parts(sizes: NDArray[np.int64], progress: bool) -> Iterator[tuple[int, int]]:
    mean = int(sizes.mean()) + 1024 if sizes.size else 1
    for begin, end in pieces(len(sizes), mean, progress, "files"):
        for first in range(begin, end, _MOST_FILES):
            yield first, min(end, first + _MOST_FILES)

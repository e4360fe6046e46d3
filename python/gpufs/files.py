# SPDX-License-Identifier: Apache-2.0
"""Many small files at once."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufs import _rows
from gpufs.mounts import Mount, shared_mount
from gpufs.pieces import pieces
from gpufs.tensors import HOST, NUMPY, library_of, place_of

_MOST_FILES = 8192  # in a call, between which Ctrl-C is noticed
_BYTE, _OFFSET = np.dtype(np.uint8), np.dtype(np.int64)


def read_files(
    paths: Iterable[str | bytes | os.PathLike[str]],
    *,
    pad_to: int | None = None,
    like: Any = None,
    engine: str = "auto",
    device: int | None = None,
    cache: int | str = "256MiB",
    progress: bool = False,
) -> tuple[Any, Any]:
    """All bytes of many files, as ``data, offsets``; file i is ``data[offsets[i] : offsets[i + 1]]``.

    Returns uint8 [total] and int64 [n + 1]: NumPy arrays.
    pad_to: returns rows of this many bytes instead, uint8 [n, pad_to], with zeros behind each file, and the files'
    lengths, int64 [n]. ValueError: a file is longer.
    like: a torch tensor or CuPy array, whose kind and device the results are to have.
    engine, device, cache: as of :func:`gpufs.open`. The engines gpu and simt open many files together in one kernel;
    cpu reads by threads. Each call makes a mount of the folder that has all files, and ends it; who reads often keeps
    one: :meth:`gpufs.Mount.read_files`.
    progress: shows how far it is (tqdm).

    Raises OSError, with errno and path, for the first file that does not open, is no regular file, cannot be read, or
    has another size by the time that it is read; then nothing is returned.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("paths are several: give a list, also of one")
    names = [os.fsencode(path) for path in paths]
    if device is None and like is not None and library_of(like).place(like) is not HOST:
        device = library_of(like).place(like).device

    def mount_of(whole: list[bytes]) -> Mount:
        root = os.path.commonpath({path.rpartition(b"/")[0] or b"/" for path in whole}) if whole else b"/"
        return shared_mount(os.fsdecode(root), cache=cache, page=4096, writable=False, engine=engine, device=device)

    return read_by(mount_of, names, pad_to, like, progress)


def read_by(
    mount_of: Callable[[list[bytes]], Mount], paths: list[bytes], pad_to: int | None, like: Any, progress: bool
) -> tuple[Any, Any]:
    """The same, by the mount that mount_of gives for their absolute paths."""
    whole = _in_real_folders(paths)
    try:
        return _read(mount_of(whole), whole, pad_to, like, progress)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ELOOP):
            raise
    # A kernel's mount follows no link out of its root, and the engine cpu none. To look for links before would take as
    # long as the reads.
    whole = [os.path.realpath(path) for path in paths]
    return _read(mount_of(whole), whole, pad_to, like, progress)


def _read(mount: Mount, paths: list[bytes], pad_to: int | None, like: Any, progress: bool) -> tuple[Any, Any]:
    root = os.path.join(os.fsencode(mount.root), b"")  # noqa: PTH118
    for path in paths:
        if not path.startswith(root):
            mount.below_root(os.fsdecode(path))
    names = [path[len(root) :] for path in paths]
    sizes = np.array(_rows.sizes(paths), np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places, second, shape = offsets[:-1], offsets, (int(offsets[-1]),)
    if pad_to is not None:
        pad_to = _width(paths, sizes, pad_to)
        places, second, shape = np.arange(len(paths), dtype=np.int64) * pad_to, sizes, (len(paths) * pad_to,)
    library, place = (NUMPY, HOST) if like is None else (library_of(like), library_of(like).place(like))
    mine = place_of(mount.engine, mount.device)
    if place is not HOST and place != mine:
        raise ValueError(f"the results are to be on {place}, and {mount!r} is of {mine}")
    data = library.empty(shape, _BYTE, place)
    if pad_to is not None:
        library.clear(data)
    native, moved = mount.native(0), mount.moved()
    library.synchronize(place)  # what was in this memory before may be in use still
    for begin, end in _parts(sizes, progress):
        here, at = sizes[begin:end].tolist(), places[begin:end].tolist()
        native.read_files(names[begin:end], here, at, library.address(data), place is not HOST)
        if moved is not None:
            moved.add(sum(here))
    if pad_to is not None:
        data = data.reshape((len(paths), pad_to))
    return data, second if library is NUMPY else library.spread(second, second.shape, _OFFSET, place)


def _in_real_folders(paths: list[bytes]) -> list[bytes]:
    """Absolute paths, of folders without links. Of many files in few folders."""
    folders: dict[bytes, bytes] = {}
    whole = []
    for path in paths:
        if b"\0" in path:
            raise ValueError(f"there is a NUL in the path {path!r}")
        folder, slash, name = path.rpartition(b"/")
        real = folders.get(folder)
        if real is None:
            real = folders[folder] = os.path.join(os.path.realpath(folder + slash or b"."), b"")  # noqa: PTH118
        whole.append(os.path.realpath(path) if name in (b"", b".", b"..") else real + name)
    return whole


def _width(paths: list[bytes], sizes: NDArray[np.int64], wanted: int) -> int:
    try:
        pad_to = operator.index(wanted)
    except TypeError:
        raise TypeError(f"pad_to is {wanted!r}; it is a number of bytes") from None
    if not 0 < pad_to < 1 << 48:
        raise ValueError(f"pad_to is {pad_to}; rows have a byte at least, and fit into memory")
    if sizes.size != 0 and int(sizes.max()) > pad_to:
        longest = int(sizes.argmax())
        raise ValueError(f"'{os.fsdecode(paths[longest])}' has {sizes[longest]} bytes, more than pad_to={pad_to}")
    return pad_to


def _parts(sizes: NDArray[np.int64], progress: bool) -> Iterator[tuple[int, int]]:
    mean = int(sizes.mean()) + 1024 if sizes.size else 1
    for begin, end in pieces(len(sizes), mean, progress, "files", counts_bytes=False):
        for first in range(begin, end, _MOST_FILES):
            yield first, min(end, first + _MOST_FILES)

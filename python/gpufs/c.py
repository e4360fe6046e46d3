# SPDX-License-Identifier: Apache-2.0
"""Mounts for kernels that are written in Python: what gpufs/gpufs.h has, by way of libgpufs_c.so."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np

from gpufs import publish
from gpufs.c_header import built_file
from gpufs.errors import GpufsError

_MACHINES = {"cpu": 0, "gpu": 1}
_O_RDONLY, _O_RDWR = os.O_RDONLY, os.O_RDWR

_lock = threading.Lock()
_mounts: weakref.WeakSet[Mount] = weakref.WeakSet()


class _Value(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_uint64))


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(built_file("libgpufs_c.so")))
    pointer = ctypes.c_void_p
    for name, result, *parameters in (
        ("last_error", ctypes.c_char_p),
        ("mount_create", ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, pointer, pointer),
        ("mount_handle", ctypes.c_uint64, pointer),
        ("mount_destroy", None, pointer),
        ("mount_sync", ctypes.c_int64, pointer),
        ("mount_prepare", ctypes.c_int32, pointer, ctypes.c_char_p, ctypes.c_int32),
        ("mount_counters", ctypes.c_int32, pointer, pointer),
    ):
        function = getattr(library, f"gpufs_{name}")
        function.restype, function.argtypes = result, parameters
    return library


def _checked(answer: int) -> int:
    if answer >= 0:
        return answer
    text = os.fsdecode(_library().gpufs_last_error())
    if -answer in (errno.EINVAL, errno.ENODEV):
        raise GpufsError(text)
    raise OSError(-answer, text)


def _values(named: dict[str, int]) -> Any:
    return (_Value * (len(named) + 1))(*[_Value(name.encode(), value) for name, value in named.items()])


class Mount:
    """A directory that kernels open files of; `handle` is what they are given.

    root: the directory. machine: gpu, the GPU that is current for the calling thread, in its primary context, as Numba
    and CuPy use it; or cpu, the CPU machine, for C functions that gpufs_launch_cpu runs.
    options: numbers by their names in gpufs/mount.hpp: cache_nbytes, page_nbytes, writable, ... (docs/guide/tuning.md);
    times are nanoseconds.

    Raises OSError for the root, and GpufsError for what else is wrong: the option, or that there is no such machine.
    Close it after the kernels have ended that use it. All calls may be made by several threads at once, but for close.
    """

    def __init__(self, root: str | bytes | os.PathLike[str], machine: str = "gpu", **options: int) -> None:
        if machine not in _MACHINES:
            raise GpufsError(f"there is no machine '{machine}'; there are {' and '.join(_MACHINES)}")
        wrong = [name for name, value in options.items() if not 0 <= value < 1 << 64]
        if wrong:
            raise GpufsError(f"{wrong[0]} cannot be {options[wrong[0]]}")
        made = ctypes.c_void_p()
        self._made: ctypes.c_void_p | None = None
        self._destroy = _library().gpufs_mount_destroy
        path = os.fsencode(root)
        _checked(_library().gpufs_mount_create(path, _MACHINES[machine], _values(options), ctypes.byref(made)))
        self._made = made
        self._keeps = threading.RLock()  # from being closed
        self._number, self._root = publish.new_number(), os.path.realpath(os.fsdecode(root))
        self._engine, self._options = "gpu" if machine == "gpu" else "simt", options
        with _lock:
            _mounts.add(self)
        publish.start(beside_threads=True)

    def _open(self) -> ctypes.c_void_p:
        if self._made is None:
            raise ValueError("the mount is closed")
        return self._made

    @property
    def handle(self) -> np.uint64:
        """For kernels, as their parameter `fs`; good until the mount is closed."""
        return np.uint64(_library().gpufs_mount_handle(self._open()))

    def prepare(self, path: str | bytes | os.PathLike[str], writable: bool = False) -> None:
        """Registers a file's mapping before kernels read it, or write it: no first access waits for that then."""
        flags = _O_RDWR if writable else _O_RDONLY
        _checked(_library().gpufs_mount_prepare(self._open(), os.fsencode(path), flags))

    def sync(self) -> int:
        """Writes back what kernels have written, and waits: how many pages or files could not be written."""
        return _checked(_library().gpufs_mount_sync(self._open()))

    def counters(self, *names: str) -> dict[str, int]:
        """Members of gpufs::mount_counters, all of one moment: hits, faults, bytes_filled, ... by name."""
        values = _values(dict.fromkeys(names, 0))
        _checked(_library().gpufs_mount_counters(self._open(), values))
        return {name: int(value.value) for name, value in zip(names, values, strict=False)}

    def _describe(self) -> dict[str, Any]:
        """As gpufs.Mount.describe(), for who watches; the library does not list open files to C."""
        options = self._options
        return {
            "number": self._number,
            "root": self._root,
            "engine": self._engine,
            "device": options.get("device"),
            "writable": bool(options.get("writable")),
            "page_nbytes": options.get("page_nbytes") or None,
            "cache_nbytes": options.get("cache_nbytes") or None,
            "counters": self.counters(*publish.COUNTERS),
            "files": [],
        }

    def close(self) -> None:
        """Ends the mount; what kernels left unwritten is written. Twice does nothing."""
        with self._keeps:
            made, self._made = self._made, None
        if made is not None:
            self._destroy(made)

    def __enter__(self) -> Mount:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_made", None) is not None:
            self.close()


def _described() -> list[dict[str, Any]]:
    with _lock:
        mounts = list(_mounts)
    described = []
    for mount in mounts:
        with mount._keeps:
            if mount._made is not None:
                described.append(mount._describe())
    return described


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    for mount in _mounts:
        mount._keeps = threading.RLock()
    _mounts.clear()  # they are the parent's


os.register_at_fork(after_in_child=_in_child)
publish.sources.append(_described)

# SPDX-License-Identifier: Apache-2.0
"""Folders with a page cache, which the arrays of a process share; what all of them have counted."""

from __future__ import annotations

import atexit
import errno
import operator
import os
import re
import stat
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numpy.typing import DTypeLike

from gpufs import _rows, publish
from gpufs.errors import GpufsError
from gpufs.text import printable

if TYPE_CHECKING:
    from gpufs.arrays import Array

ENGINES = ("auto", "gpu", "cpu", "simt")
_LEAST_PAGE_NBYTES, _MOST_PAGE_NBYTES = 512, 2 << 20
MOST_NBYTES = 1 << 62
_MOST_DEVICES = 1 << 16
_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "t": 1000**4,
    "ti": 1 << 40,
}

_lock = threading.RLock()
_shared: weakref.WeakValueDictionary[tuple[Any, ...], Mount] = weakref.WeakValueDictionary()
_mounts: weakref.WeakSet[Mount] = weakref.WeakSet()
_arrays: weakref.WeakSet[Array] = weakref.WeakSet()


class Mount:
    """A folder with a page cache of its own, where the one that gpufs.open takes by default will not do.

    root: the folder; the files are opened by paths below it.
    cache, pin, engine: as of :func:`gpufs.open`. device: the GPU's number; None: the calling thread's current one.
    page: bytes of a page; auto: the rows of the first array that is opened decide.
    writable: files may be opened with mode="r+"; of an engine with a page cache that costs an eighth of it more.

    The page cache is there from the first open on, until close() or the end of the `with` block, which closes the
    arrays, too. A Mount pickles as what it was made of: all that come from equal ones share one mount where they land.
    """

    def __init__(
        self,
        root: str | bytes | os.PathLike[str],
        *,
        cache: int | str = 0,
        page: int | str = "auto",
        writable: bool = False,
        engine: str = "auto",
        device: int | None = None,
        pin: int | str = 0,
    ) -> None:
        self._begin(root, cache, page, writable, engine, device, pin)
        self._check_root()

    def _begin(
        self,
        root: str | bytes | os.PathLike[str],
        cache: int | str,
        page: int | str,
        writable: bool,
        engine: str,
        device: int | None,
        pin: int | str,
    ) -> None:
        """Without looking at the folder: one that was pickled need not be there until a file is opened."""
        self.root = os.path.realpath(os.fsdecode(root))
        self.engine = engine_of(engine)
        self.device = device_of(self.engine, device)
        self.writable = writable
        self._cache_nbytes = to_nbytes(cache, "cache")
        self._pin_nbytes = to_nbytes(pin, "pin")
        self._page_nbytes = None if page == "auto" else page_nbytes(page, 0)
        self._spec = (self.root, self._cache_nbytes, page, writable, engine, device, self._pin_nbytes)
        self._number = publish.new_number()
        self._native: _rows.Mount | None = None
        self._moved = Moved() if self.engine == "cpu" else None
        self._moved_by_file: weakref.WeakValueDictionary[str, Moved] = weakref.WeakValueDictionary()
        self._closed = False
        self._arrays: weakref.WeakSet[Array] = weakref.WeakSet()
        with _lock:
            _mounts.add(self)

    def _check_root(self) -> None:
        if not stat.S_ISDIR(Path(self.root).stat().st_mode):  # an OSError that says why, where there is none
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder", self.root)

    def open(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        mode: str = "r",
        name: str | None = None,
        dtype: DTypeLike | Any | None = None,
        shape: int | Sequence[int] | None = None,
        offset: int = 0,
        as_bits: bool = False,
    ) -> Array:
        """The array in a file of this folder, as :func:`gpufs.open` opens it. path: from the root on, or absolute."""
        from gpufs.arrays import Array

        whole = str(Path(self.root) / os.fsdecode(path))
        self.below_root(whole)
        how = {"mode": mode, "name": name, "dtype": dtype, "shape": shape, "offset": offset, "as_bits": as_bits}
        return Array(whole, self, how)

    def read_files(
        self,
        paths: Iterable[str | bytes | os.PathLike[str]],
        *,
        pad_to: int | None = None,
        like: Any = None,
        progress: bool = False,
    ) -> tuple[Any, Any]:
        """All bytes of many files of this folder, as :func:`gpufs.read_files` gives them. paths: as of open()."""
        from gpufs.files import read_by

        whole = [os.path.join(os.fsencode(self.root), os.fsencode(path)) for path in paths]  # noqa: PTH118
        return read_by(lambda _: self, whole, pad_to, like, progress)

    @property
    def page_nbytes(self) -> int | None:
        """None: no array was opened yet, whose rows decide."""
        return self._page_nbytes

    @property
    def stats(self) -> dict[str, int]:
        """The page cache's counters: hits, faults, bytes_filled, ...; none before an open.

        Of the engine cpu, which has no cache, zeros but for bytes_read and bytes_written.
        """
        native = self._native
        if native is None:
            return {}
        return native.counters() | (self._moved.counters() if self._moved is not None else {})

    @property
    def files(self) -> list[dict[str, Any]]:
        """The files that are open, each with its way, why its bytes take it, and its counters."""
        native = self._native
        if native is None:
            return []
        if self._moved is None:
            return native.files()
        with _lock:
            return [file.describe(native.way()) for file in self._moved_by_file.values()]

    def describe(self) -> dict[str, Any]:
        """What gpufs.stats() says of it."""
        native = self._native
        return {
            "number": self._number,
            "root": self.root,
            "engine": self.engine,
            "device": self.device,
            "writable": self.writable,
            "page_nbytes": self._page_nbytes,
            "cache_nbytes": native.cache_nbytes() if native is not None else self._cache_nbytes,
            "counters": self.stats,
            "files": self.files,
        }

    def close(self) -> None:
        """Closes its arrays, and frees the page cache. Twice does nothing. Raises what an array's close does."""
        with _lock:
            arrays, self._closed = list(self._arrays), True
        errors = []
        for array in arrays:
            try:
                array.close()
            except (OSError, IndexError, GpufsError) as error:
                errors.append(error)
        self._native = None
        if errors:
            raise errors[0]

    def __enter__(self) -> Mount:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpufs.Mount {self.root!r} by {self.engine}{', closed' if self._closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _mount_again, self._spec

    # For arrays.

    def for_host(self) -> Mount:
        """Of the same folder, for who wants rows in the host's memory: where nobody has chosen the engine, by cpu."""
        root, cache, page, writable, engine, _, pin = self._spec
        if engine != "auto" or self.engine == "cpu":
            return self
        return shared_mount(
            root, cache=cache, page=page, writable=writable, engine="cpu", device=None, pin=pin, later=True
        )

    def native(self, row_nbytes: int) -> _rows.Mount:
        """The mount itself, made now if it is not there yet."""
        with _lock:
            if self._closed:
                raise ValueError(f"{self!r} takes no more files")
            if self._native is None:
                self._check_root()
                page = self._page_nbytes or page_nbytes("auto", row_nbytes)
                self._native = _rows.Mount(
                    self.engine, self.root, self.device, self._cache_nbytes, page, self.writable, self._pin_nbytes
                )
                self._page_nbytes = page
                publish.start(beside_threads=self.engine != "cpu")
            return self._native

    def below_root(self, path: str) -> str:
        """A path of a file, as the mount has it, which follows no link out of its root."""
        below = os.path.relpath(os.path.realpath(path), self.root)
        if below == ".." or below.startswith("../"):
            raise GpufsError(f"'{printable(path)}' does not lie below the mount's root '{printable(self.root)}'")
        return below

    def moved(self, path: str | None = None) -> Moved | None:
        """What counts bytes of the file with this path, or of all files; None: the engine does it itself."""
        if self._moved is None or path is None:
            return self._moved
        nbytes = (Path(self.root) / path).stat().st_size
        with _lock:
            return self._moved_by_file.setdefault(path, Moved(path, nbytes, self._moved))

    def add(self, array: Array) -> None:
        with _lock:
            self._arrays.add(array)
            _arrays.add(array)
        if array.writable:
            _flush_also_in_workers()


class Moved:
    """The bytes that the engine cpu has moved, of a file or of all of a mount: it counts nothing itself.

    Each thread adds to numbers of its own: so nothing is lost, and there is no lock that a child of fork() could find
    held.
    """

    def __init__(self, path: str = "", nbytes: int = 0, whole: Moved | None = None) -> None:
        self._path, self._nbytes, self._whole = path, nbytes, whole
        self._read: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def add(self, nbytes: int, *, written: bool = False) -> None:
        numbers, thread = self._written if written else self._read, threading.get_ident()
        numbers[thread] = numbers.get(thread, 0) + nbytes
        if self._whole is not None:
            self._whole.add(nbytes, written=written)
        else:
            publish.start(beside_threads=False)  # again, after a fork

    def counters(self) -> dict[str, int]:
        return {"bytes_read": sum(self._read.copy().values()), "bytes_written": sum(self._written.copy().values())}

    def describe(self, way: str) -> dict[str, Any]:
        """As Mount.files has it."""
        zeros = {"hits": 0, "faults": 0, "bytes_filled": 0}
        return {"path": self._path, "nbytes": self._nbytes, "way": way} | zeros | self.counters()


def shared_mount(
    root: str,
    *,
    cache: int | str,
    page: int | str,
    writable: bool,
    engine: str,
    device: int | None,
    pin: int | str = 0,
    not_this: Mount | None = None,
    later: bool = False,
) -> Mount:
    """The mount of this folder that the process has already, with the same options, or a new one."""
    engine = engine_of(engine)
    device = device_of(engine, device)
    key = (os.getpid(), root, to_nbytes(cache, "cache"), page, writable, engine, device, to_nbytes(pin, "pin"))
    with _lock:
        mount = _shared.get(key)
        if mount is None or mount._closed or not_this is mount:
            mount = _shared[key] = Mount.__new__(Mount)
            mount._begin(root, cache, page, writable, engine, device, pin)
            if not later:
                mount._check_root()
        return mount


def _mount_again(
    root: str, cache: int, page: int | str, writable: bool, engine: str, device: int | None, pin: int
) -> Mount:
    return shared_mount(
        root, cache=cache, page=page, writable=writable, engine=engine, device=device, pin=pin, later=True
    )


def opening() -> threading.RLock:
    """Held while an array opens that was made before, so that it does once. A child after a fork has one of its own."""
    return _lock


def stats() -> dict[str, Any]:
    """What all mounts of this process have counted since they were made, and which files and arrays are open.

    ``mounts``: of each its number in this process, root, engine, device, page and cache in bytes, ``counters`` and open
    ``files``, of which each has counters of its own. ``arrays``: of each its path, shape, dtype, engine and mode.
    """
    with _lock:  # see _described
        arrays = list(_arrays)
        described = [array.describe() for array in arrays if not array.closed]
        del arrays
        return {"mounts": _described(), "arrays": described}


def _described() -> list[dict[str, Any]]:
    with _lock:  # so who drops a mount, and makes another one, does not find the memory of the first in use for this
        mounts = sorted(_mounts, key=lambda mount: mount._number)
        described = [mount.describe() for mount in mounts if mount._native is not None]
        del mounts
        return described


def engine_of(engine: str) -> str:
    if engine not in ENGINES:
        raise GpufsError(f"there is no engine '{engine}'; there are {', '.join(ENGINES)}")
    if engine == "auto":
        return "cpu" if _rows.engine_missing("gpu") else "gpu"
    return engine


def device_of(engine: str, device: int | None) -> int:
    """The number of the GPU that is meant; None: the calling thread's current one."""
    if device is None:
        return _rows.current_device(engine)
    try:
        number = operator.index(device)
    except TypeError:
        raise GpufsError(f"device is {device!r}; it is a GPU's number, as 0 is") from None
    if not 0 <= number <= _MOST_DEVICES:
        raise GpufsError(f"there is no device {number}")
    return number


def to_nbytes(amount: int | str, name: str = "this") -> int:
    """A number of bytes, from one or from text as "8GiB", "512 MB" or "4096". name: what errors may call it."""
    if isinstance(amount, int) and abs(amount) >= MOST_NBYTES:  # it may have more digits than Python makes text of
        what = "is a larger number of bytes than any machine has" if amount > 0 else "is no number of bytes"
        raise GpufsError(f"{name} {what}")
    match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]i?)?b?\s*", str(amount).lower())
    if isinstance(amount, (bool, float)) or match is None or (match[2] or "") not in _UNITS:
        raise GpufsError(f"{amount!r} is no number of bytes, as 4096 or 8GiB are")
    nbytes = int(Fraction(match[1]) * _UNITS[match[2] or ""])
    if nbytes >= MOST_NBYTES:
        raise GpufsError(f"{amount!r} is a larger number of bytes than any machine has")
    return nbytes


def page_nbytes(page: int | str, row_nbytes: int) -> int:
    if page == "auto":
        return min(max(_LEAST_PAGE_NBYTES, 1 << max(0, row_nbytes - 1).bit_length()), 64 << 10)
    nbytes = to_nbytes(page)
    if nbytes & (nbytes - 1) != 0 or not _LEAST_PAGE_NBYTES <= nbytes <= _MOST_PAGE_NBYTES:
        raise GpufsError(f"page is {nbytes} bytes; it can be a power of two from 512 to 2 MiB")
    return nbytes


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it
    _shared.clear()  # the parent's
    usable = [mount for mount in _mounts if mount.engine == "cpu"]
    _mounts.clear()
    _mounts.update(usable)


def _at_exit() -> None:
    """Ends prefetches and writes what is left, while there is an interpreter, and a CUDA context, to do it."""
    with _lock:
        arrays = list(_arrays)
    for array in arrays:
        try:
            array.close()
        except BaseException as error:  # Ctrl-C ends one of them, and the others have bytes, too
            print(f"gpufs: {error or type(error).__name__}", file=sys.stderr)


def _flush_also_in_workers() -> None:
    """Processes that multiprocessing forks end without atexit."""
    global _flushes_in
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _flushes_in != os.getpid():
        _flushes_in = os.getpid()
        util.Finalize(None, _at_exit, exitpriority=0)


_flushes_in = 0  # the process whose end by multiprocessing does, too
os.register_at_fork(after_in_child=_in_child)
publish.sources.append(_described)
atexit.register(_at_exit)
atexit.register(publish.at_exit)  # once more, to be called before: arrays that are being closed are not described

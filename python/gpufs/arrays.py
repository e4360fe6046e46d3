# SPDX-License-Identifier: Apache-2.0
"""Arrays in files that are larger than memory: ``gpufs.open("features.npy")[idx]`` reads the rows that idx names."""

from __future__ import annotations

import errno
import math
import operator
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpufs import _rows
from gpufs.errors import GpufsError
from gpufs.indexing import Selected, last_of_each, narrowed, select, split
from gpufs.mounts import Mount, Moved, engine_of, opening, page_nbytes, shared_mount
from gpufs.origin import Origin
from gpufs.pieces import at_first, pieces
from gpufs.tensors import (
    HOST,
    NUMPY,
    TORCH,
    Library,
    Place,
    address_of,
    element_of,
    host_values,
    library_of,
    place_of,
    torch_for,
)
from gpufs.text import printable

_LARGE_ROW_NBYTES = 8 << 20


def open(  # the module is used as gpufs, where it hides nothing
    path: str | bytes | os.PathLike[str],
    *,
    mode: str = "r",
    name: str | None = None,
    dtype: DTypeLike | Any | None = None,
    shape: int | Sequence[int] | None = None,
    offset: int = 0,
    as_bits: bool = False,
    engine: str = "auto",
    device: int | None = None,
    cache: int | str = 0,
    page: int | str = "auto",
    pin: int | str = 0,
) -> Array:
    """Opens the array in a file. Of its rows nothing is read yet.

    path: a .npy file; a .npz file, of whose stored members `name` is one (checksums are of whole members, and are not
    looked at); a .safetensors file, of whose tensors `name` is one; an Arrow, Feather or Parquet file, of whose columns
    `name` is one, in any number of record batches, row groups and pages; or, where `dtype` is given, raw bytes from
    `offset` on in C order, with this `shape` (its first axis may be -1: as many rows as there are).
    mode: r, or r+ for rows that are written, too. The file keeps its size. Not where the file would be wrong then: .npz
    has checksums, and Parquet mostly statistics of its columns.
    dtype: NumPy's or torch's; or a name, as "bfloat16", which only torch has: then rows are tensors.
    as_bits: such elements as unsigned integers of their size, without torch.
    engine: gpu, a kernel moves rows through gpufs's page cache on the GPU; cpu, threads copy from a mapping of the
    file; simt, the GPU's kernel on the CPU machine, slow and for tests; auto, gpu where there is one, else cpu. All
    give equal bytes.
    device: the GPU's number; None: the calling thread's current one.
    cache: the page cache's bytes, as a number or text ("8GiB"); 0: a quarter of the GPU's free memory, 16 GiB at most.
    page: bytes of a page, a power of two from 512 to 2 MiB; auto: the next one that holds a row, at most 64 KiB.
    pin: bytes of the host's memory that registered files may keep there, as cache; 0: half of what is available by
    then. What finds no room is read by host threads. With several processes that use a GPU, let the sum be right.
    Files of one folder that are opened with equal mode, engine, device, cache, page and pin share one cache.

    Raises OSError where the file does not open, GpufsError where it holds no such array or the engine cannot run.
    """
    whole = str(Path(os.fsdecode(path)).absolute())
    options = {"engine": engine, "device": device, "cache": cache, "page": page, "pin": pin}
    how = {"mode": mode, "name": name, "dtype": dtype, "shape": shape, "offset": offset, "as_bits": as_bits}
    return Array(whole, options, how)


class Array:
    """An array in a file, opened by :func:`gpufs.open` or a :class:`gpufs.Mount`.

    Indexing along the first axis reads rows into a new array: integers, slices with steps, arrays of integers (negative
    and repeated ones, of any number of dimensions, empty ones) and of booleans, as in NumPy; a tuple's other axes are
    slices and integers. The rows are of the index's kind: a torch tensor for a torch tensor, CuPy for CuPy, else NumPy
    (a number, of one axis). IndexError comes before anything is read.

    Where the index lies on a GPU, so do the rows. They are read in the caller's current stream, in its order, and
    nothing waits. Numbers of rows are not looked at by the host then: rows that there are not are zeros, and
    :meth:`check`, or the next call, raises IndexError; OSError, if the file could not be read.

    With mode="r+", ``x[index] = values`` writes rows, with NumPy's broadcasting; of a number that is repeated the last
    one counts (of an index on a GPU, any). Every array of this process that shares the mount sees it at once; the file
    has it after :meth:`flush` or :meth:`close`.

    Many threads may read and write at once; the interpreter's lock is free meanwhile. An Array pickles: it is opened
    anew where it lands, when it is first used there, and refuses then if the file holds another array, or is another
    one by now. So are those that :meth:`shard` gives.
    """

    def __init__(self, path: str, mount: Mount | dict[str, Any], how: dict[str, Any]) -> None:
        if how["mode"] not in ("r", "r+"):
            raise GpufsError(f"mode is {how['mode']!r}; it can be 'r', or 'r+' to write")
        self._begin(Origin.of(path, mount, how))
        if self.writable and self._layout.read_only:
            raise GpufsError(f"{self._quoted()} {self._layout.read_only}")
        self._open_now()

    @classmethod
    def _to_open(cls, origin: Origin, rows: tuple[int, int] | None = None) -> Array:
        """Of these rows (None: of all), opened when it is first used."""
        array = cls.__new__(cls)
        array._begin(origin, rows)
        return array

    def _for_host(self) -> Array:
        """The same rows for who wants them in the host's memory: where nobody has chosen the engine, by cpu."""
        mount = self._origin.mount
        here: Mount | dict[str, Any]
        if isinstance(mount, dict):
            here = mount | {"engine": "cpu"} if mount["engine"] == "auto" else mount
        else:
            here = mount.for_host()
        return self if here == mount else Array._to_open(replace(self._origin, mount=here), self._of_rows)

    def _begin(self, origin: Origin, rows: tuple[int, int] | None = None) -> None:
        """Without looking at the file."""
        self._origin, self._of_rows = origin, rows
        self._path, self._how, layout = origin.path, origin.how, origin.layout
        self._layout = layout if rows is None else layout.part(*rows)
        self._row_nbytes = layout.row_nbytes
        self._element, self._dtype = element_of(layout.dtype), layout.dtype
        if self._element and self._how["as_bits"]:
            self._element, self._dtype = "", np.dtype(layout.dtype.str)
        mount = origin.mount
        self._engine = mount["engine"] if isinstance(mount, dict) else mount.engine  # auto: until it is opened
        self._rows: _rows.Rows | None = None
        self._mount: Mount | None = None
        self._moved: Moved | None = None
        self._empty: dict[Library, Any] = {}  # of each library on the device, what results are made like
        self._closed = False

    def _open_later(self) -> _rows.Rows:
        """At the first use of an array that was pickled, or of a shard."""
        with opening():
            if self._closed:
                raise ValueError(f"{self!r} is closed")
            if self._rows is None:
                self._origin.check()
                self._open_now()
            assert self._rows is not None
            return self._rows

    def _open_now(self) -> None:
        mount = self._origin.mount
        if isinstance(mount, dict):
            try:
                self._open(self._shared(mount, None))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                # The shared mount has the file open as it was before it was replaced or written, for other arrays.
                self._open(self._shared(mount, self._shared(mount, None)))
        else:
            if self.writable and not mount.writable:
                raise GpufsError(f"mode 'r+' needs a mount that writes: gpufs.Mount({mount.root!r}, writable=True)")
            self._open(mount)

    def _shared(self, options: dict[str, Any], not_this: Mount | None) -> Mount:
        return shared_mount(
            os.path.dirname(os.path.realpath(self._path)),  # noqa: PTH120
            cache=options["cache"],
            page=page_nbytes(options["page"], self._row_nbytes),
            writable=self.writable,
            engine=options["engine"],
            device=options["device"],
            pin=options["pin"],
            not_this=not_this,
        )

    def _open(self, mount: Mount) -> None:
        self._engine, self._place = mount.engine, place_of(mount.engine, mount.device)
        self._below_root = mount.below_root(self._path)
        places = self._layout.places
        rows = _rows.Rows(
            mount.native(self._row_nbytes),
            self._below_root,
            address_of(places),
            len(places),
            self._row_nbytes,
            self._layout.shape[0],
            self.writable,
        )
        self._moved = mount.moved(self._below_root)
        self._process, self._mount, self._rows = os.getpid(), mount, rows
        mount.add(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def dtype(self) -> Any:
        """NumPy's; torch's, of elements that NumPy has none for."""
        if self._element:
            return getattr(torch_for(self._element, self._quoted()), self._element)
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    @property
    def path(self) -> str:
        return self._path

    @property
    def mode(self) -> str:
        """r or r+."""
        mode: str = self._how["mode"]
        return mode

    @property
    def writable(self) -> bool:
        return self.mode == "r+"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def engine(self) -> str:
        """gpu, cpu or simt."""
        return engine_of(self._engine)

    @property
    def mount(self) -> Mount:
        """What has its page cache."""
        self._open_rows()
        mount = self._mount
        if mount is None:  # by another thread
            raise ValueError(f"{self!r} is closed")
        return mount

    @property
    def path_in_use(self) -> str:
        """Which way the bytes take, and why; the page cache, and its pages."""
        native = self.mount.native(0)
        way = native.way()
        mine = next((file for file in native.files() if file["path"] == self._below_root), None)
        if mine is not None:  # gpu or simt; of simt the machine is the CPU
            cache = f"pages of {self.mount.page_nbytes} bytes in a cache of {native.cache_nbytes()}"
            way = f"{self.engine}: {mine['way']}; {cache}"
        npieces = len(self._layout.places)
        return way if npieces == 1 else f"{way}; rows in {npieces} pieces of the file"

    @property
    def stats(self) -> dict[str, int]:
        """The page cache's counters: hits, faults, bytes_filled, ... Of the engine cpu only bytes are counted."""
        return self.mount.stats

    def describe(self) -> dict[str, Any]:
        """What gpufs.stats() says of it."""
        dtype = self._element or str(self._dtype)
        return {"path": self.path, "shape": self.shape, "dtype": dtype, "engine": self.engine, "mode": self.mode}

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        state = ", closed" if self._closed else "" if self._rows is not None else ", not opened yet"
        kind, of = self._element or self._dtype, "" if self._of_rows is None else f" of rows {self._of_rows}"
        return f"<gpufs.Array {self._path!r}{of} {self.shape} {kind} by {self._engine}{state}>"

    def __getitem__(self, key: Any) -> Any:
        first, others = split(key, self.shape)
        rows, naxes = self._take(first, None, False)
        if others:
            return rows[(slice(None),) * naxes + others]
        return rows[()] if isinstance(rows, np.ndarray) else rows

    def __setitem__(self, key: Any, values: Any) -> None:
        first, others = split(key, self.shape)
        self._put(first, others, values, False)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def take(self, indices: Any, out: Any = None, *, progress: bool = False) -> Any:
        """The rows that an integer, a slice, or an array of integers or booleans names, as ``x[indices]``.

        out: where they go, in place of a new array: NumPy's, torch's or CuPy's, on the host or the array's GPU; of the
        same dtype, of shape ``indices.shape + x.shape[1:]``, in C order and writable; else ValueError.
        progress: shows how far it is (tqdm).
        """
        rows, _ = self._take(indices, out, progress)
        return rows[()] if out is None and isinstance(rows, np.ndarray) else rows

    def put(self, indices: Any, values: Any, *, progress: bool = False) -> None:
        """As ``x[indices] = values``. progress: shows how far it is (tqdm)."""
        self._put(indices, (), values, progress)

    def shard(self, i: int, n: int) -> Array:
        """The i-th of n parts of the rows, an Array of its own: rows ``len(x) * i // n`` to ``len(x) * (i + 1) // n``.

        So arrays of as many rows have shards of the same rows. Nothing is opened yet: a shard pickles, and is opened
        where it is first used. It has this array's mode and options, and is closed for itself.

        Raises IndexError: there is no such shard.
        """
        i, n = operator.index(i), operator.index(n)
        if not 0 <= i < n:
            raise IndexError(f"there is no shard {i} of {n}: they count from 0")
        first = 0 if self._of_rows is None else self._of_rows[0]
        begin, end = (first + len(self) * at // n for at in (i, i + 1))
        return Array._to_open(self._origin, (begin, end))

    def prefetch(self, indices: Any) -> None:
        """Begins to bring these rows into the page cache (of the engine cpu: the system's), and returns at once.

        How much of it happens is not promised: up to half of the cache, as far as requests are free. A later read is
        right in any case, and says what could not be read.
        """
        rows, library = self._open_rows(), library_of(indices)
        place = library.place(indices)
        if place is not HOST:
            self._check_place(place)
            numbers = library.numbers(indices, len(self))
            rows.prefetch_on(library.stream(self._place), library.address(numbers), math.prod(numbers.shape))
            return
        selected = select(_on_host(library, indices), len(self))
        address = 0 if selected.ids is None else address_of(selected.ids)
        if selected.n:
            rows.prefetch(address, selected.first, selected.n)

    def prepare(self) -> None:
        """Registers all of the file with the GPU, and waits, so that no first gather of its rows does.

        The GPU learns of it at its next miss, a moment later. It takes 22 ms a GiB of a file on a disk, and 57 in
        memory (mode="r+" and in memory: 130). It lasts as long as the mount, and pins the file's pages in the host's
        memory; what finds no room there is read as before. Nothing, by the engine cpu. An array that was opened within
        25 ms of its file's last change (2 s, where the file system's stamps are coarse) gains nothing: open it anew.
        Raises OSError: the path does not open any more.
        """
        self._open_rows().prepare()

    def check(self) -> None:
        """Waits for what was begun on a GPU, and raises what went wrong there: IndexError or OSError, each once."""
        if self._is_untouched():
            return
        rows = self._open_rows()
        self._settle(rows)
        rows.check()

    def flush(self, durable: bool = False) -> None:
        """Brings what was written to the file: other processes see it, or (durable) it stays if the machine stops.

        Raises OSError, with errno and path: some of it did not get there, and is lost.
        """
        if self._is_untouched():
            return
        rows = self._open_rows()
        self._settle(rows)
        if self.writable:
            rows.flush(durable)
        rows.check()

    def close(self) -> None:
        """Flushes, and ends the use of the file, after calls that are under way. Twice does nothing. Raises as flush().

        The page cache goes with the last array that uses it.
        """
        with opening():
            self._closed = True
            rows, self._rows, self._mount, self._moved = self._rows, None, None, None
        if rows is None:
            return
        try:
            if self._process == os.getpid():
                self._settle(rows)
                if self.writable:
                    rows.flush(False)
                rows.check()
        finally:
            rows.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array in a file is always copied")
        if self._element:
            raise TypeError(f"NumPy has no dtype for {self._element}: take x[:], a tensor, or open with as_bits=True")
        rows: NDArray[Any] = self[:]
        return rows if dtype is None else rows.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._origin, self._of_rows)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Of what Dask names its results after: once the file was written or replaced, they have other names."""
        status = Path(self._path).stat()
        return (*self.__reduce__()[1], status.st_size, status.st_mtime_ns)

    def _is_untouched(self) -> bool:
        """It was pickled, or is a shard, and nobody has used it yet."""
        return self._rows is None and not self._closed

    def _open_rows(self) -> _rows.Rows:
        rows = self._rows
        return rows if rows is not None else self._open_later()

    def _quoted(self) -> str:
        return f"'{printable(self._path)}'"

    def _settle(self, rows: _rows.Rows) -> None:
        """Until what was put into streams has ended. In Python, so that Ctrl-C is noticed."""
        pause_s = 50e-6
        while not rows.ended():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)

    def _check_place(self, place: Place) -> None:
        if place is self._place or place == self._place:  # to compare takes longer, and is hardly ever needed
            return
        if place.machine != self._engine:
            raise ValueError(
                f"the index is on {place}, and {self!r} is read by the host: index by a copy on the host, or open it "
                "with engine='gpu'"
            )
        raise ValueError(
            f"the index is on {place}, and {self!r} is on {self._place}: open it with device={place.device}"
        )

    def _take(self, index: Any, out: Any, progress: bool) -> tuple[Any, int]:
        """The rows, and how many axes the index has."""
        rows, library = self._open_rows(), library_of(index)
        if out is not None:
            self._check_owner(out)
        place = library.place(index)
        if place is not HOST:
            self._check_place(place)
            numbers = library.numbers(index, len(self))
            shape = (*numbers.shape, *self._layout.shape[1:])
            if out is None:
                empty = self._empty.get(library)
                out = library.like(self._new_empty(library) if empty is None else empty, shape)
            else:
                if library_of(out) is not library or library.place(out) != self._place:
                    raise ValueError(f"the index is on {self._place}, and out is not")
                self._check_out(out, library, shape)
            n, stream = math.prod(numbers.shape), library.stream(self._place)
            rows.read_on(stream, library.address(numbers), n, library.address(out))
            return out, len(numbers.shape)
        selected = select(_on_host(library, index), len(self))
        shape = selected.shape + self.shape[1:]
        if out is None:
            if self._element and library is NUMPY:
                torch_for(self._element, self._quoted())
                library = TORCH
            out = library.empty(shape, self._dtype, HOST)
        else:
            library = library_of(out)
            self._check_out(out, library, shape)
        if library.place(out) is not HOST:
            self._check_place(library.place(out))
            numbers = library.spread(selected.numbers(), (selected.n,), np.dtype(np.int64), self._place)
            rows.read_on(library.stream(self._place), library.address(numbers), selected.n, library.address(out))
        elif math.prod(shape) != 0:
            self._read(rows, selected, library.address(out), progress)
        return out, len(selected.shape)

    def _new_empty(self, library: Library) -> Any:
        made = self._empty[library] = library.empty((0,), self._dtype, self._place)
        return made

    def _check_owner(self, out: Any) -> None:
        if not isinstance(out, np.ndarray) and library_of(out) is NUMPY:
            raise ValueError(f"out must be an array of NumPy, torch or CuPy, not {type(out).__name__}")

    def _check_out(self, out: Any, library: Library, shape: tuple[int, ...]) -> None:
        if library.why_not(out, shape, self._dtype):
            kind = self._element or self._dtype
            raise ValueError(f"out must be a writable array of shape {shape} and dtype {kind}, in C order")

    def _read(self, rows: _rows.Rows, selected: Selected, address: int, progress: bool) -> None:
        """From the file to memory of the host."""
        scattered = selected.ids is not None
        if selected.n <= at_first(self._row_nbytes, scattered) and not progress:
            self._move(rows, selected, 0, selected.n, address)
            return
        name = Path(self._path).name
        for begin, end in pieces(selected.n, self._row_nbytes, progress, name, scattered=scattered):
            self._move(rows, selected, begin, end, address + begin * self._row_nbytes)

    def _move(
        self, rows: _rows.Rows, selected: Selected, begin: int, end: int, address: int, *, write: bool = False
    ) -> None:
        """Of what was selected, the rows from the place `begin` to `end`, between the file and memory of the host."""
        verb, moved = rows.write if write else rows.read, self._moved
        if selected.ids is None:
            verb(0, selected.first + begin, end - begin, address)
        elif self._row_nbytes < _LARGE_ROW_NBYTES:
            verb(address_of(selected.ids) + 8 * begin, 0, end - begin, address)
        else:  # each by all threads
            for i in range(begin, end):
                verb(0, int(selected.ids[i]), 1, address + (i - begin) * self._row_nbytes)
        if moved is not None:
            moved.add((end - begin) * self._row_nbytes, written=write)

    def _put(self, index: Any, others: tuple[slice | int, ...], values: Any, progress: bool) -> None:
        rows, library = self._open_rows(), library_of(index)
        if not self.writable:
            raise ValueError(f"{self!r} is read only: open it with mode='r+'")
        inner = narrowed(self.shape[1:], others)
        whole = inner == self.shape[1:] and all(isinstance(s, slice) and s.step in (None, 1) for s in others)
        place = library.place(index)
        if place is not HOST:
            self._check_place(place)
            self._put_on_device(rows, library, index, None if whole else others, values)
            return
        selected = select(_on_host(library, index), len(self))
        values = host_values(values, self._dtype, self._quoted())
        shape = selected.shape + inner
        while values.ndim > len(shape) and values.shape[0] == 1:
            values = values[0]
        try:
            values = np.broadcast_to(values, shape)
        except ValueError as error:
            raise ValueError(f"values of shape {values.shape} do not fit rows of shape {shape}") from error
        if selected.n == 0 or values.size == 0:
            return
        values = values.reshape((selected.n, *inner))
        # What is repeated is written once: threads, and warps, would do it in any order.
        places = None if selected.ids is None else last_of_each(selected.ids)
        if places is not None:
            assert selected.ids is not None
            selected = Selected((places.size,), places.size, 0, selected.ids[places])
        scattered = selected.ids is not None
        for begin, end in pieces(selected.n, self._row_nbytes, progress, Path(self._path).name, scattered=scattered):
            here = values[begin:end] if places is None else values[places[begin:end]]
            if whole:
                part = np.ascontiguousarray(here)
            else:
                part = np.empty((end - begin, *self.shape[1:]), self._dtype)
                self._move(rows, selected, begin, end, address_of(part))
                part[(slice(None), *others)] = here
            self._move(rows, selected, begin, end, address_of(part), write=True)

    def _put_on_device(
        self, rows: _rows.Rows, library: Library, index: Any, others: tuple[slice | int, ...] | None, values: Any
    ) -> None:
        numbers = library.numbers(index, len(self))
        shape = tuple(numbers.shape) + self.shape[1:]
        if others is None:
            full = library.spread(values, shape, self._dtype, self._place)
        else:
            full, _ = self._take(index, None, False)
            full[(slice(None),) * len(numbers.shape) + others] = values
        n = math.prod(numbers.shape)
        rows.write_on(library.stream(self._place), library.address(numbers), n, library.address(full))


def _on_host(library: Library, index: Any) -> Any:
    by_numpy = library is NUMPY and not hasattr(index, "__dlpack__")  # also a list: an empty one names no rows
    return index if by_numpy else library.host(index)


def _again(origin: Origin, rows: tuple[int, int] | None) -> Array:
    return Array._to_open(origin, rows)

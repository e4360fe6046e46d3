# SPDX-License-Identifier: Apache-2.0
"""Random programs that open, read, write, pass on and close arrays, while another process changes their files.

What an array gives is compared with what NumPy would have in its place. Where others than those who share its mount
have changed the file since it was opened, each row is one that the file has had at some time (or parts of two, where
pages meet), or the read is an OSError; of the engine cpu, which reads a mapping of the file, it is the file's now.
"""

from __future__ import annotations

import errno
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from gpufs.errors import GpufsError

_HEADER_NBYTES = 128
_NFILES, _NCOLUMNS, _MOST_HELD = 2, 60, 6


def key_of(rng: np.random.Generator, n: int) -> Any:
    """What names rows among n."""
    begin, end = rng.integers(-n - 1, n + 2, 2).tolist()
    keys = [
        slice(begin, end, int(rng.choice([-2, -1, 1, 1, 1, 3]))),
        rng.random(n) < rng.random(),
        np.zeros((0, 2), np.int64),
    ]
    if n:
        keys += [int(rng.integers(-n, n)), rng.integers(-n, n, rng.integers(0, 6, 2)), rng.permutation(n), slice(None)]
    return keys[rng.integers(len(keys))]


class File:
    """What lay at a path until another file took its place."""

    def __init__(self, path: Path, array: Any) -> None:
        self.path, self.nrows = path, len(array)
        np.save(path.with_suffix(".new.npy"), array)
        path.with_suffix(".new.npy").rename(path)
        self.descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)
        self.had = [{row.tobytes()} for row in array]
        self.views: dict[Any, View] = {}  # by mounts, of those who have it open
        self.is_cut = False

    def now(self) -> Any:
        """Its rows; zeros where it was cut."""
        data = os.pread(self.descriptor, self.nrows * _NCOLUMNS, _HEADER_NBYTES)
        return np.frombuffer(data.ljust(self.nrows * _NCOLUMNS, b"\0"), np.uint8).copy().reshape(-1, _NCOLUMNS)

    def note(self, by: Any, rows: Any) -> None:
        """That a mount, or another process, has changed it to these rows, or will."""
        for had, row in zip(self.had, rows, strict=True):
            had.add(row.tobytes())
        for mount, view in self.views.items():
            view.is_current &= mount is by

    def has_had(self, number: int, row: Any) -> bool:
        """At some time, or each part of it: what is written in place comes page by page."""
        had = [np.frombuffer(each, np.uint8) for each in self.had[number]]
        return bool((np.stack(had) == row).any(axis=0).all())

    def has_dirty(self, besides: Any = None) -> bool:
        return any(view.is_dirty for mount, view in self.views.items() if mount is not besides)


class View:
    """What a mount with a page cache has of a file: a version; once it is open for writing, with what is written.

    Who opens the file by the same mount has the same, until nobody has it open.
    """

    def __init__(self, file: File, is_live: bool) -> None:
        self.rows, self.is_current, self.is_dirty = file.now(), not file.has_dirty(), False
        self.is_live, self.nusers = is_live, 0


class Held:
    """An array: of rows of a file, from `begin` on. One that was passed on opens when it is first used."""

    def __init__(self, x: gpufs.Array, file: File, begin: int, end: int) -> None:
        self.x, self.file, self.begin, self.end = x, file, begin, end
        self.view: View | None = None
        self.is_open = False

    def open(self) -> None:
        self.mount = self.x.mount
        self.is_open = True
        if self.x.engine == "cpu":
            return
        self.view = self.file.views.get(self.mount)
        if self.view is None or (self.x.writable and not self.view.is_live):
            if self.view is not None:
                self.view.is_current = False  # an open for writing ends the mount's version
            self.view = self.file.views[self.mount] = View(self.file, self.x.writable)
        self.view.nusers += 1

    def closed(self) -> None:
        if self.view is not None:
            self.view.is_dirty &= not self.x.writable
            self.view.nusers -= 1
            if self.view.nusers == 0 and self.file.views.get(self.mount) is self.view:
                del self.file.views[self.mount]


class Program:
    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = np.random.default_rng(seed), folder
        self.nrows = int(self.rng.integers(1, 41))
        self.files = [File(folder / f"{i}.npy", self.new(self.nrows, _NCOLUMNS)) for i in range(_NFILES)]
        self.held: list[Held] = []
        self.mount: gpufs.Mount | None = None
        self.steps: list[str] = []

    def run(self, nsteps: int) -> None:
        weights = {
            self.open: 5, self.pass_on: 2, self.read: 9, self.write: 6, self.flush: 3, self.prefetch: 1, self.look: 1,
            self.close: 3, self.another_writes: 1, self.another_replaces: 1, self.another_cuts: 0.3,
        }  # fmt: skip
        likely = np.array(list(weights.values())) * self.rng.exponential(
            1, len(weights)
        )  # another program, other steps
        for step in self.rng.choice(np.array(list(weights)), nsteps, p=likely / likely.sum()):
            self.steps.append(step.__name__)
            step()
        while self.held:
            self.end(self.held[-1])
        if self.mount is not None:
            self.mount.close()
        for file in self.files:
            if not file.is_cut:
                assert all(file.has_had(number, row) for number, row in enumerate(file.now()))

    def say(self, **what: Any) -> None:
        self.steps[-1] += f" {what}"

    def chance(self, of: float) -> bool:
        return bool(self.rng.random() < of)

    def new(self, *shape: int) -> Any:
        """Bytes that differ from all others."""
        return self.rng.integers(0, 256, shape, np.uint8)

    def some_file(self) -> File:
        return self.files[int(self.rng.choice(_NFILES, p=[0.8, 0.2]))]

    def keep(self, x: gpufs.Array, file: File, begin: int, end: int) -> Held:
        self.held.append(Held(x, file, begin, end))
        return self.held[-1]

    def end(self, held: Held) -> None:
        self.held.remove(held)
        self.tell(held, held.x.close)
        assert held.x.closed
        held.closed()

    def tell(self, held: Held, work: Any) -> Any:
        """What work() gives; None: it is an error that may be."""
        file = held.file
        try:
            return work()
        except OSError as error:
            assert error.filename == str(file.path), error
            assert file.is_cut or (held.view is not None and not held.view.is_current), error
        return None

    def some_open(self) -> Held | None:
        """One of the arrays, which opens now if nobody has used it; None: there is none, or it does not."""
        held = self.some_held()
        if held is not None and not held.is_open:
            try:
                held.open()
            except GpufsError as error:
                assert held.file.is_cut or held.file not in self.files, error
                return None
            except OSError as error:
                self.assert_stale(error, held.file)
                return None
        return held

    def assert_stale(self, error: OSError, file: File) -> None:
        """A mount does not open again what it has open as it was before another wrote or replaced it."""
        assert error.errno == errno.ESTALE, error
        assert error.filename == str(file.path), error
        views = [held.view for held in self.held if held.file.path == file.path]
        assert any(view is not None and not view.is_current for view in views), error

    def some_held(self) -> Held | None:
        return self.held[self.rng.integers(len(self.held))] if self.held else None

    def open(self) -> None:
        if len(self.held) >= _MOST_HELD:
            self.end(self.held[0])
        file, engine, kept = self.some_file(), str(self.rng.choice(ENGINES)), self.chance(0.4)
        mode, page = ("r+" if self.chance(0.4) else "r"), (4096 if self.chance(0.1) else 512)
        self.say(file=file.path.name, engine=engine, mode=mode, page=page, kept=kept)
        how: dict[str, Any] = {"cache": 6 * page, "page": page, "engine": engine}
        try:
            if kept and self.mount is None:
                self.mount = gpufs.Mount(self.folder, writable=True, **how)
            if kept and self.mount is not None:
                x = self.mount.open(file.path.name, mode=mode)
            else:
                x = gpufs.open(file.path, mode=mode, **how)
        except GpufsError as error:
            assert file.is_cut and "is truncated" in str(error)
            return
        except OSError as error:
            assert kept, error
            self.assert_stale(error, file)
            return
        self.keep(x, file, 0, self.nrows).open()

    def pass_on(self) -> None:
        held = self.some_held()
        if held is None:
            return
        i, n, travels = int(self.rng.integers(3)), int(self.rng.integers(1, 4)), self.chance(0.3)
        self.say(i=i, n=n, travels=travels)
        x, begin, nrows = held.x, held.begin, held.end - held.begin
        if i < n:
            x = x.shard(i, n)
            begin, nrows = begin + nrows * i // n, nrows * (i + 1) // n - nrows * i // n
        if travels or i >= n:
            x = pickle.loads(pickle.dumps(x))
        assert len(x) == nrows
        self.keep(x, held.file, begin, begin + nrows)

    def read(self) -> None:
        held = self.some_open()
        if held is None:
            return
        key = key_of(self.rng, held.end - held.begin)
        before = held.file.now()
        got = self.tell(held, lambda: held.x[key])
        if got is None:
            return
        mine = slice(held.begin, held.end)
        assert got.shape == np.empty((held.end - held.begin, _NCOLUMNS), np.uint8)[key].shape
        if held.view is not None and held.view.is_current:
            assert got.tobytes() == held.view.rows[mine][key].tobytes()
        elif held.view is None and not held.file.has_dirty():
            assert got.tobytes() == before[mine][key].tobytes()
        else:
            numbers = np.arange(held.begin, held.end)[key].reshape(-1)
            for number, row in zip(numbers, got.reshape(-1, _NCOLUMNS), strict=True):
                assert held.file.has_had(number, row)

    def write(self) -> None:
        held = self.some_open()
        if held is None or held.x.mode == "r":
            return
        key = key_of(self.rng, held.end - held.begin)
        rows = (held.file.now() if held.view is None else held.view.rows).copy()
        mine = rows[held.begin : held.end]
        mine[key] = values = self.new(*mine[key].shape)

        def put() -> bool:
            held.file.note(held.mount if held.view is not None else None, rows)
            held.x[key] = values
            return True

        if self.tell(held, put) and held.view is not None:
            held.view.rows, held.view.is_dirty = rows, True

    def flush(self) -> None:
        held = self.some_open()
        if held is None:
            return
        self.tell(held, lambda: held.x.flush(self.chance(0.1)))
        if held.view is not None and held.x.mode == "r+":
            held.view.is_dirty = False
            if held.view.is_current and not held.file.is_cut and not held.file.has_dirty():
                assert held.file.now().tobytes() == held.view.rows.tobytes()

    def prefetch(self) -> None:
        held = self.some_open()
        if held is None:
            return
        key = key_of(self.rng, held.end - held.begin)
        self.tell(held, lambda: held.x.prefetch(key))

    def look(self) -> None:
        held = self.some_open()
        if held is None:
            return
        self.tell(held, held.x.check)
        self.tell(held, lambda: (held.x.path_in_use, held.x.stats))
        mine = [array for array in gpufs.stats()["arrays"] if Path(array["path"]).parent == self.folder]
        assert len(mine) == sum(held.is_open for held in self.held)

    def close(self) -> None:
        if self.held:
            self.end(self.held[self.rng.integers(len(self.held))])

    def another_writes(self) -> None:
        file = self.some_file()
        if not file.is_cut:
            rows, row = file.now(), int(self.rng.integers(self.nrows))
            rows[row] = self.new(_NCOLUMNS)
            file.note(None, rows)
            os.pwrite(file.descriptor, rows[row].tobytes(), _HEADER_NBYTES + row * _NCOLUMNS)

    def another_replaces(self) -> None:
        file = self.some_file()
        for view in file.views.values():
            view.is_current = False
        self.files[self.files.index(file)] = File(file.path, self.new(self.nrows, _NCOLUMNS))

    def another_cuts(self) -> None:
        file = self.some_file()
        file.note(None, file.now())
        file.is_cut = True
        os.ftruncate(file.descriptor, _HEADER_NBYTES + int(self.rng.integers(self.nrows)) * _NCOLUMNS)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_programs_see_what_numpy_would_have(first: int, tmp_path: Path) -> None:
    for seed in (*range(first, first + 10), *np.random.default_rng().integers(1 << 32, size=10).tolist()):
        (tmp_path / str(seed)).mkdir()
        program = Program(seed, tmp_path / str(seed))
        try:
            program.run(60)
        except Exception as error:
            raise AssertionError(f"Program({seed}) after\n" + "\n".join(program.steps)) from error

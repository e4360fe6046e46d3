# SPDX-License-Identifier: Apache-2.0
"""Prefetches, long reads, Ctrl-C, forks, and the interpreter's end."""

from __future__ import annotations

import multiprocessing
import operator
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, indices, numbers, run_python
from gpufs import pieces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def features(tmp_path: Path) -> tuple[Path, Any]:
    array = numbers(1000, 5, 7)
    np.save(tmp_path / "features.npy", array)
    return tmp_path / "features.npy", array


def wait_for_prefetch(x: gpufs.Array) -> None:
    until = time.monotonic() + 20
    while not x._open_rows().prefetched():
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_prefetched_is_in_the_cache(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, cache=1 << 20, page=512) as x:
        x.prefetch([3, 900])
        x.prefetch(slice(100, 110))
        x.prefetch([])
        wait_for_prefetch(x)
        if engine != "cpu":
            until = time.monotonic() + 20
            while x.stats["bytes_filled"] == 0 or x._open_rows().ended() is False:
                assert time.monotonic() < until
                time.sleep(0.001)
        np.testing.assert_array_equal(x[[3, 900, 105]], array[[3, 900, 105]])
        with pytest.raises(IndexError):
            x.prefetch([1000])
        x.prefetch(np.arange(1000))
    with pytest.raises(ValueError, match="closed"):
        x.prefetch([1])


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("engine", ENGINES)
def test_of_what_was_prepared_the_host_is_not_asked(engine: str, mode: str, tmp_path: Path) -> None:
    array = numbers(256, 1024)
    path = tmp_path / "a.npy"
    np.save(path, array)
    time.sleep(0.1)  # who opens a file within a tick of its last change shares no registration with who opens it later
    asked = []
    for prepared in (False, True):
        with gpufs.open(path, engine=engine, mode=mode, **SMALL) as x:
            x[[0]]
            if prepared:
                x.prepare()
                x.prepare()
                for row in range(221, 255 if mode == "r" else 221, 2):  # the device is told at a miss, a moment later
                    before = x.stats["host_reads"]
                    x[[row]]
                    if x.stats["host_reads"] == before:
                        break
                    time.sleep(0.2)
            before = x.stats["host_reads"]
            for i in range(20, 220, 10):
                np.testing.assert_array_equal(x[[i]], array[[i]])
            asked.append(x.stats["host_reads"] - before)
    assert engine == "cpu" or mode == "r+" or asked[1] < asked[0] / 2
    with gpufs.open(path, engine=engine, mode=mode, **SMALL) as x:
        path.unlink()
        if engine == "cpu":
            x.prepare()
        else:
            with pytest.raises(FileNotFoundError) as error:
                x.prepare()
            assert error.value.filename == str(path)
        np.testing.assert_array_equal(x[7], array[7])
    with pytest.raises(ValueError, match="closed"):
        x.prepare()


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "cpu"])
def test_what_finds_no_room_to_be_pinned_is_read_by_the_host(engine: str, tmp_path: Path) -> None:
    array = numbers(256, 1024)
    np.save(tmp_path / "a.npy", array)
    with gpufs.open(tmp_path / "a.npy", engine=engine, pin="4KiB", **SMALL) as x:
        x.prepare()
        for i in range(20, 220, 10):
            np.testing.assert_array_equal(x[[i]], array[[i]])
        assert x.stats["host_reads"] >= 20
        with gpufs.open(tmp_path / "a.npy", engine=engine, pin=4096, **SMALL) as same:
            assert same.mount is x.mount
        with gpufs.open(tmp_path / "a.npy", engine=engine, **SMALL) as other:
            assert other.mount is not x.mount
        again = pickle.loads(pickle.dumps(x))
        assert again.mount is x.mount
    mount = gpufs.Mount(tmp_path, engine=engine, pin="1GiB", cache=1 << 20)
    assert pickle.loads(pickle.dumps(mount))._pin_nbytes == 1 << 30


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_prefetches_change_nothing(data: st.DataObject, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=data.draw(st.sampled_from(ENGINES)), cache=64 << 10, page=512) as x:
        for _ in range(4):
            key, read = data.draw(indices(20)), data.draw(indices(20))
            x.prefetch(np.arange(1000)[:20][key])
            assert x[np.arange(20)[read]].tobytes() == array[:20][read].tobytes()


def test_the_system_reads_ahead_what_was_prefetched(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(os.urandom(8 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    with gpufs.open(path, dtype="u1", shape=(-1, 4096), engine="cpu") as x:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        x.prefetch(np.r_[5, 1000:2000])
        wait_for_prefetch(x)
        assert x[1999].tobytes() == os.pread(descriptor, 4096, 1999 * 4096)
    os.close(descriptor)


_ENDS = """
import sys
import numpy as np
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20, page=512)
y = gpufs.open(sys.argv[1], mode="r+", engine=sys.argv[2], cache=1 << 20, page=512)
y[0] = 5
for _ in range(60):
    x.prefetch(np.random.default_rng(1).permutation(1000))
print("ends")
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_interpreter_ends_while_a_prefetch_runs(engine: str, features: tuple[Path, Any]) -> None:
    path, _ = features
    done = run_python(_ENDS, str(path), engine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
    assert (np.load(path)[0] == 5).all()  # what was written and not closed is there


_FORKS = """
import os, sys
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20)
x.prefetch([1, 2, 3])
first = x[7].tobytes()
child = os.fork()
if child == 0:
    try:
        assert x[7].tobytes() == first
        x.prefetch([4])
        x[[8, 9]]
        print("the same")
    except gpufs.GpufsError as error:
        print(error)
    x.close()
    y = gpufs.open(sys.argv[1], engine="cpu")
    print(len(y[:5]), len(gpufs.stats()["mounts"]))
    sys.exit(3)
_, status = os.waitpid(child, 0)
assert x[7].tobytes() == first
print("child", os.waitstatus_to_exitcode(status), "parent", len(gpufs.stats()["mounts"]))
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fork_after_the_first_use(engine: str, features: tuple[Path, Any]) -> None:
    done = run_python(_FORKS, str(features[0]), engine)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, (lines, done.stderr)
    assert lines[0] == "the same" if engine == "cpu" else "forked" in lines[0] and "'spawn'" in lines[0]
    assert lines[1:] == ["5 1", "child 3 parent 1"], done.stderr


_DROPS = """
import gc, os, sys, threading
import numpy as np
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20)
x[np.arange(9000) % len(x)]  # so many that the mount sorts them, in a stream of its own
child = os.fork()
if child == 0:
    goes = threading.Event()
    for _ in range(8):  # on the stacks of threads that were the parent's
        threading.Thread(target=goes.wait, daemon=True).start()
    del x
    gc.collect()
    print(len(gpufs.stats()["arrays"]), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(x[:5]))
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_child_drops_what_its_parent_had(engine: str, features: tuple[Path, Any]) -> None:
    """As the garbage collection of a DataLoader's worker does, whenever it comes."""
    done = run_python(_DROPS, str(features[0]), engine)
    assert done.stdout.split() == ["0", "0", "5"], done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_in_a_long_read(engine: str, tmp_path: Path) -> None:
    with (tmp_path / "raw").open("wb") as file:
        file.truncate(64 << 20)
    with gpufs.open(tmp_path / "raw", dtype="u1", shape=(-1, 4096), engine=engine, cache=1 << 20) as x:
        out = np.empty((1 << 14, 4096), np.uint8)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() < begin + 20:
                x.take(slice(0, 1 << 14), out=out)
        assert time.monotonic() - begin < 5
        assert not x[3].any()


def test_pieces_are_as_long_as_ctrl_c_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(pieces.time, "monotonic", lambda: now)
    for nbytes_a_second in (1 << 20, 100 << 20, 50 << 30):
        times = []
        for begin, end in pieces.pieces(1 << 20, 4096, False, "x"):
            times.append((end - begin) * 4096 / nbytes_a_second)
            now += times[-1]
        assert max(times[3:]) < 0.5
        assert min(times[-9:-2]) > min(0.01, 1e9 / nbytes_a_second / 100)  # and not so short that asking would count


def test_scattered_rows_begin_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk may take a millisecond for each, however small they are."""
    now = 0.0
    monkeypatch.setattr(pieces.time, "monotonic", lambda: now)
    times = []
    for begin, end in pieces.pieces(20_000, 8, False, "x", scattered=True):
        times.append((end - begin) * 1e-3)
        now += times[-1]
    assert max(times) < 0.6
    of_memory = []
    for begin, end in pieces.pieces(1_000_000, 8, False, "x", scattered=True):
        of_memory.append(end - begin)
        now += (end - begin) * 1e-8
    assert sum(of_memory) == 1_000_000 and len(of_memory) < 15


@pytest.mark.parametrize("write", [False, True])
def test_rows_anywhere_go_in_pieces(write: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").write_bytes(bytes(8 * 4000))
    parts: list[int] = []
    move = gpufs.Array._move

    def counted(self: Any, rows: Any, selected: Any, begin: int, end: int, address: int, **how: Any) -> None:
        parts.append(end - begin)
        move(self, rows, selected, begin, end, address, **how)

    monkeypatch.setattr(gpufs.Array, "_move", counted)
    ids = np.random.default_rng(1).permutation(4000)
    with gpufs.open(tmp_path / "raw", dtype="i8", shape=(-1,), engine="cpu", mode="r+") as x:
        if write:
            x[ids] = ids
        else:
            assert not x[ids].any()
        assert parts[0] == pieces.SHORT_NROWS and sum(parts) == 4000
        np.testing.assert_array_equal(x[:], np.arange(4000) if write else np.zeros(4000))


def test_pieces_are_all_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    for n, nbytes in ((0, 1), (1, 1 << 40), (10, 1 << 20), (100, 3 << 20), (5, 0)):
        got = list(pieces.pieces(n, nbytes, False, "x"))
        assert [i for begin, end in got for i in range(begin, end)] == list(range(n))
    list(pieces.pieces(100, 1 << 20, True, "features.npy"))
    assert "features.npy" in capfd.readouterr().err


@pytest.mark.parametrize("engine", ENGINES)
def test_progress(engine: str, features: tuple[Path, Any], capfd: pytest.CaptureFixture[str]) -> None:
    path, array = features
    with gpufs.open(path, mode="r+", engine=engine, **SMALL) as x:
        np.testing.assert_array_equal(x.take(slice(None), progress=True), array)
        x.put([1, 2], 0, progress=True)
    assert capfd.readouterr().err.count("features.npy: 100%") >= 2


def test_arrays_travel_to_other_processes(features: tuple[Path, Any]) -> None:
    path, array = features
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        for engine in ENGINES:
            with gpufs.open(path, engine=engine, **SMALL) as x:
                rows = pool.submit(operator.getitem, x, [5, -1]).result(60)
            np.testing.assert_array_equal(rows, array[[5, -1]])

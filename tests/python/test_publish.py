# SPDX-License-Identifier: Apache-2.0
"""What processes publish for `gpufs top`: when, and who may read it."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers, run_python
from gpufs import c, publish, top
from gpufs.commands import app
from gpufs.errors import GpufsError
from gpufs.watch import Watcher
from typer.testing import CliRunner
from watching_support import ROW_NBYTES, document, put


def test_only_a_folder_of_ones_own_is_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Path
) -> None:
    publisher = publish.Publisher()

    def refused(words: str) -> None:
        with pytest.raises(GpufsError, match=words):
            publish.open_folder(make=True)
        with pytest.raises(GpufsError, match=words):
            publisher.write()
        said = CliRunner().invoke(app, ["top", "--once"])
        assert said.exit_code == 1 and said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1
        assert "XDG_RUNTIME_DIR" in said.stderr.replace("\n", " ") and said.stdout == ""

    for mode in (0o755, 0o770, 0o701):
        folder.mkdir()
        folder.chmod(mode)
        refused(f"its mode {mode:o}")
        folder.rmdir()
    folder.symlink_to(tmp_path)
    refused("no folder, a link")
    folder.unlink()
    folder.touch()
    refused("no folder, a link")
    folder.unlink()
    if os.geteuid() == 0:
        folder.mkdir(0o700)
        os.chown(folder, 12345, -1)
        refused("its owner is 12345")
        folder.rmdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    with pytest.raises(GpufsError, match="cannot be made: No such file"):
        publish.open_folder(make=True)
    assert not publish.is_watched()

    user = os.geteuid()
    usual, last = tmp_path / "user", tmp_path / "tmp"
    usual.mkdir()
    last.mkdir()
    monkeypatch.setattr(publish, "_RUN", str(usual))
    monkeypatch.setattr(publish, "_LAST_RESORT", str(last))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unset)
        assert publish.folder_path() == last / f"gpufs-{user}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    os.close(publish.open_folder(make=True))
    assert stat.S_IMODE((last / f"gpufs-{user}").stat().st_mode) == 0o700
    (last / f"gpufs-{user}").chmod(0o777)
    refused("is not only yours")
    (usual / str(user)).symlink_to(tmp_path)
    assert publish.folder_path() == last / f"gpufs-{user}"
    (usual / str(user)).unlink()
    (usual / str(user)).mkdir(0o700)
    assert publish.folder_path() == usual / str(user) / "gpufs"


def test_files_are_their_owners_alone_whatever_the_umask_is(folder: Path) -> None:
    for mask in (0, 0o777):
        before = os.umask(0o022)
        os.close(publish.open_folder(make=True))
        os.umask(mask)
        try:
            path = put(b"{}", 1)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            os.umask(before)
    path.with_suffix(".tmp").write_bytes(b"half")  # of a process that was killed
    assert put(b"{}", 1).read_bytes() == b"{}" and not path.with_suffix(".tmp").exists()
    target = folder / "target"
    target.touch()
    (folder / "watched").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        Watcher().touch()


def test_a_process_publishes_while_it_is_watched(folder: Path, rows: Path) -> None:
    publisher, watcher = publish.Publisher(), Watcher()
    with gpufs.open(rows, engine="cpu", **SMALL) as x:
        x[3]
        publisher.tick()
        assert not folder.exists()  # watchers make it
        watcher.touch()
        publisher.tick()
        (seen,) = watcher.look()
        assert seen.now.pid == os.getpid() and str(rows.parent) in {mount["root"] for mount in seen.now.mounts}
        for age in (-60, 60):  # also of a clock that was put back
            os.utime(folder / "watched", (time.time() + age, time.time() + age))
            publisher.tick()
            assert watcher.look() == []
            watcher.touch()
            publisher.tick()
            assert len(watcher.look()) == 1
        publisher.withdraw()
        assert {path.name for path in folder.iterdir()} == {"watched"}


_ENDS = """
import os, sys, threading, time
import gpufs
from gpufs import publish
named = lambda: [t.name for t in threading.enumerate() if t.name.startswith("gpufs")]
if sys.argv[1] == "early":
    print(named(), "numpy" in sys.modules)
    sys.exit()
x = gpufs.open(sys.argv[2], engine=sys.argv[1])
x[0]
print(named())
end = time.monotonic() + 20
while not os.path.exists(f"/proc/{os.getpid()}") or publish._publisher is None and time.monotonic() < end and named():
    time.sleep(0.05)
"""


def test_a_thread_is_there_for_mounts_only(folder: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Watcher().touch()
    assert run_python(_ENDS, "early", str(rows)).stdout == "[] False\n"
    for engine in ENGINES:
        done = run_python(_ENDS, engine, str(rows))
        assert (done.stdout, done.stderr) == ("['gpufs-publish']\n", "")
    assert {path.name for path in folder.iterdir()} == {"watched"}  # they have removed theirs
    monkeypatch.setenv("GPUFS_WATCH", "0")
    assert run_python(_ENDS, ENGINES[0], str(rows)).stdout == "[]\n"


_FORKS = """
import os, sys, threading, time
import gpufs
from gpufs import publish
named = lambda: [t.name for t in threading.enumerate() if t.name.startswith("gpufs")]
nthreads = lambda: int(open("/proc/self/stat").read().rpartition(")")[2].split()[17])
x = gpufs.open(sys.argv[1], engine="cpu")
x[0]
child = os.fork()
if child == 0:
    before = named()
    x[[1, 2]]
    print("child", before, named(), x.stats["bytes_read"], flush=True)
    path = publish.folder_path() / publish.file_name(publish.pid_namespace(), os.getpid())
    publish.touch(publish.open_folder(make=True))
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    print(path.exists(), flush=True)
    os._exit(0)
print("parent", named(), nthreads(), flush=True)
os.waitpid(child, 0)
x[0]
print(named(), x.stats["bytes_read"])
child = os.fork()  # watched by now
if child == 0:
    os._exit(0)
print(named())
"""


def test_a_fork_finds_no_thread(folder: Path, rows: Path) -> None:
    """Where nothing else has one: Python warns of forks beside threads."""
    done = run_python(_FORKS, str(rows))
    lines = sorted(done.stdout.splitlines())
    assert lines == sorted([
        "parent [] 1", f"child [] ['gpufs-publish'] {3 * ROW_NBYTES}", "True",
        f"['gpufs-publish'] {2 * ROW_NBYTES}", "['gpufs-publish']",
    ]), done.stderr  # fmt: skip


def test_a_thread_starts_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_wanted", True)
    go = threading.Barrier(8)

    def begin() -> None:
        go.wait()
        for _ in range(100):
            publish.start(beside_threads=False)

    callers = [threading.Thread(target=begin) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sum(thread.name == "gpufs-publish" for thread in threading.enumerate()) == 1
    publish._end()
    assert not any(thread.name == "gpufs-publish" for thread in threading.enumerate())
    with monkeypatch.context() as failing:
        failing.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no more threads")))
        publish.start(beside_threads=False)
        assert publish._thread is None


_LAST = """
import atexit, sys, threading, time
named = lambda: [t.name for t in threading.enumerate() if t.name.startswith("gpufs")]
read = lambda: gpufs.open(sys.argv[2], engine=sys.argv[1])[0].shape
def last():
    print(read(), flush=True)
    time.sleep(1)  # until a thread that was starting would have started
    print(named())
atexit.register(last)  # before gpufs's own, so called after them
import gpufs
gpufs.open  # which imports what is behind it
start, starting = threading.Thread.start, threading.Event()
def slow_start(thread):
    if thread.name == "gpufs-publish":
        starting.set()
        time.sleep(0.5)
    start(thread)
threading.Thread.start = slow_start
if sys.argv[3] == "beside":
    threading.Thread(target=read, daemon=True).start()
    starting.wait()
"""


@pytest.mark.parametrize("first_read", ["beside", "after"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_thread_starts_when_the_process_ends(engine: str, first_read: str, folder: Path, rows: Path) -> None:
    """It would crash, if the interpreter ended before its first step."""
    done = run_python(_LAST, engine, str(rows), first_read)
    assert (done.returncode, done.stdout) == (0, f"({ROW_NBYTES // 4},)\n[]\n"), done.stderr


_ORDER = """
from gpufs import mounts, publish
class Last:
    def close(self):
        print("publishes" if publish._wanted else "does not")
mounts._arrays.add(array := Last())
"""


def test_a_process_publishes_no_more_when_its_arrays_are_closed(folder: Path) -> None:
    done = run_python(_ORDER)
    assert (done.returncode, done.stdout) == (0, "does not\n"), done.stderr


def test_a_tick_that_fails_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_wanted", True)
    monkeypatch.setattr(publish, "PERIOD_S", 0.01)
    fails = [True]

    def source() -> list[dict[str, Any]]:
        if fails[0]:
            raise GpufsError("the device is lost")
        return []

    monkeypatch.setattr(publish, "sources", [source])
    watcher = Watcher()
    watcher.touch()
    publish.start(beside_threads=False)
    time.sleep(0.1)
    assert watcher.look() == []
    fails[0] = False
    end = time.monotonic() + 20
    while not watcher.look() and time.monotonic() < end:
        time.sleep(0.02)
    assert [seen.now.mounts for seen in watcher.look()] == [[]]
    assert "none is open" in top._as_text(watcher.look(), "")
    publish.at_exit()
    assert watcher.look() == []


def test_thousands_of_files_are_shortened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = dict.fromkeys(publish.COUNTERS, 0)
    files = [{"path": f"f{i}", "way": "pull", **zeros, "bytes_read": i} for i in range(5000)]
    mount = document(1)["mounts"][0] | {"counters": zeros}
    monkeypatch.setattr(publish, "sources", [lambda: [mount | {"files": [dict(file) for file in files]}]])
    publisher, watcher = publish.Publisher(), Watcher()
    watcher.touch()
    publisher.write()
    (seen,) = watcher.look()
    assert [file["path"] for file in seen.now.mounts[0]["files"]] == [f"f{i}" for i in range(4999, 4743, -1)]
    assert seen.now.mounts[0]["nfiles"] == 5000 and "and 4,990 more" in top._as_text([seen], "")
    files[3]["bytes_read"] += 1  # the only one that is read now
    mount["counters"] = zeros | {"bytes_read": 1}
    publisher.write()
    (seen,) = watcher.look()
    assert [file["path"] for file in seen.now.mounts[0]["files"]][:2] == ["f3", "f4999"]
    assert (folder / publish.file_name(publish.pid_namespace(), os.getpid())).stat().st_size < 100_000


def test_the_engine_cpu_counts_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", numbers(1000, 128))
    (tmp_path / "small").write_bytes(b"12345")
    with gpufs.Mount(tmp_path, writable=True, engine="cpu") as mount:
        x, again = mount.open("rows.npy", mode="r+"), mount.open("rows.npy")
        x[[1, 2, -1]]
        again[10:20]
        x[:2] = 1
        x[[4, 4, 5], 3:5] = 2  # reads the two rows first
        x.take(slice(0, 1000), out=np.empty((1000, 128), np.float32), progress=True)
        with pytest.raises(IndexError):
            x[[1, 5000]]
        mount.read_files(["small", "small"])
        counted = {"bytes_read": 512 * (3 + 10 + 2 + 1000), "bytes_written": 512 * 4}
        (file,) = mount.files
        assert {name: file[name] for name in counted} == counted
        assert (file["path"], file["nbytes"]) == ("rows.npy", (tmp_path / "rows.npy").stat().st_size)
        counted["bytes_read"] += 10
        assert {name: n for name, n in mount.stats.items() if n} == counted

        def read() -> None:
            for _ in range(300):
                again[7]

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mount.stats["bytes_read"] == counted["bytes_read"] + 1200 * 512
        x.close()
        assert len(mount.files) == 1
        again.close()
        assert mount.files == [] and mount.stats["bytes_read"] > 0


def test_mounts_for_kernels_are_seen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (Path(c.__file__).parent / "lib/libgpufs_c.so").exists():
        pytest.skip("this build has no libgpufs_c.so")
    watcher, publisher = Watcher(), publish.Publisher()
    watcher.touch()
    with c.Mount(tmp_path, "cpu", cache_nbytes=1 << 20, page_nbytes=4096):
        publisher.write()
        (seen,) = watcher.look()
        found = [m for m in seen.now.mounts if m["root"] == str(tmp_path) and m["cache_nbytes"] == 1 << 20]
        assert [m["engine"] for m in found] == ["simt"]
        assert "simt, cache 1.0 MiB in pages of 4.0 KiB" in top._as_text([seen], "")

    mount, entered, go = c.Mount(tmp_path, "cpu", cache_nbytes=1 << 20), threading.Event(), threading.Event()

    def slow_counters(_: c.Mount, *names: str) -> dict[str, int]:
        entered.set()
        assert go.wait(20)
        return dict.fromkeys(names, 0)

    monkeypatch.setattr(c.Mount, "counters", slow_counters)
    describing, closing = threading.Thread(target=c._described), threading.Thread(target=mount.close)
    describing.start()
    assert entered.wait(20)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()  # a mount that is looked at is not closed meanwhile
    go.set()
    closing.join()
    describing.join()
    assert not [m for m in c._described() if m["root"] == str(tmp_path)]

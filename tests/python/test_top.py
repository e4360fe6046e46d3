# SPDX-License-Identifier: Apache-2.0
"""`gpufs top`: what processes publish, who may read it, what rates are made of it, and how it is shown."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers, run_python
from conftest import Run
from gpufs import c, publish, top, watch
from gpufs.commands import app
from gpufs.errors import GpufsError
from gpufs.watch import Watcher
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

ROW_NBYTES = 512
PAUSE_S = 0.02


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes publish in this test; the one of the tests does not."""
    base = tmp_path / "run"
    base.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setattr(publish, "_wanted", False)
    publish._end()
    return base / "gpufs"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", numbers(64, ROW_NBYTES // 4))
    return tmp_path / "rows.npy"


@contextlib.contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "200"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command], env=environment, **pipes | options) as process:
        try:
            yield process
        finally:
            process.kill()


_READER = """
import json, sys, time
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20)
print("open", flush=True)
for i in range(int(sys.argv[3])):
    x[i % 8]
    time.sleep(float(sys.argv[4]))
print(json.dumps(x.stats), flush=True)
sys.stdin.read()
"""


def reader(rows: Path, engine: str, n: int) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """A process that reads n rows, PAUSE_S apart, says what it has counted, and stays."""
    return started(sys.executable, "-c", _READER, str(rows), engine, str(n), str(PAUSE_S))


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def lines_until(
    process: subprocess.Popen[str], enough: Callable[[dict[int, dict[str, Any]]], bool], limit_s: float = 60
) -> list[dict[int, dict[str, Any]]]:
    """What `gpufs top --json` writes, as processes by pid, until a line is enough."""
    lines, end = [], time.monotonic() + limit_s
    while time.monotonic() < end:
        lines.append({p["pid"]: p for p in json.loads(line_of(process))["processes"]})
        if enough(lines[-1]):
            return lines
    raise AssertionError(lines[-1])


def test_rates_of_other_processes(folder: Path, rows: Path, run: Run) -> None:
    n = 200
    engines = [engine for engine in ENGINES if engine != "gpu"]
    with contextlib.ExitStack() as stack:
        readers = {stack.enter_context(reader(rows, engine, n)): engine for engine in engines}
        for process in readers:
            assert line_of(process) == "open\n"
        watching = stack.enter_context(started(sys.executable, "-m", "gpufs", "top", "--json"))
        said: dict[int, Any] = {}

        def is_quiet(seen: dict[int, dict[str, Any]]) -> bool:
            if any(
                p.pid not in seen or seen[p.pid]["mounts"][0]["counters"]["bytes_read"] < n * ROW_NBYTES
                for p in readers
            ):
                return False
            said.update({p.pid: json.loads(line_of(p)) for p in readers if p.pid not in said})
            return all(seen[p.pid]["mounts"][0]["rates"]["per_s"]["bytes_read"] == 0 for p in readers)

        lines = lines_until(watching, is_quiet)
        for process, engine in readers.items():
            mounts = [line[process.pid]["mounts"] for line in lines if process.pid in line]
            assert all(len(of) == 1 and of[0]["root"] == str(rows.parent) for of in mounts)
            seen = [of[0] for of in mounts]
            last = seen[-1]
            assert last["engine"] == engine and last["counters"] == said[process.pid]
            assert last["counters"]["bytes_read"] == n * ROW_NBYTES
            assert [file["path"] for file in last["files"]] == ["rows.npy"] and last["nfiles"] == 1
            assert last["files"][0]["bytes_read"] == n * ROW_NBYTES
            assert last["files"][0]["way"].startswith("cpu:" if engine == "cpu" else "staged:")
            # What grew from one look to the next is the rate by its seconds; a look that finds nothing new repeats it.
            assert seen[0]["rates"] is None
            grown = 0.0
            for before, now in itertools.pairwise(seen):
                rates = now["rates"]
                if now["counters"] != before["counters"]:
                    grown += rates["per_s"]["bytes_read"] * rates["seconds"]
                    assert rates["per_s"]["bytes_read"] <= 2 * ROW_NBYTES / PAUSE_S
                    assert rates["hit_rate"] is None if engine == "cpu" else 0 <= rates["hit_rate"] <= 1
            assert grown == pytest.approx(n * ROW_NBYTES - seen[0]["counters"]["bytes_read"]) and grown > 0
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 130
        table = run("top", "--once")
        assert table.returncode == 0 and table.stderr == ""
        for engine in engines:
            assert f" {engine}" in table.stdout
        assert table.stdout.count(str(rows.parent)) >= len(engines) and "host threads" in table.stdout
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        killed, kept = list(readers)
        killed.kill()  # and nobody has waited for it yet
        now = json.loads(run("top", "--once", "--json").stdout)["processes"]
        assert [p["pid"] for p in now] == [kept.pid]
        assert not list(folder.glob(f"*-{killed.pid}.*"))
        only = run("top", "--once", "--pid", str(killed.pid))
        assert only.returncode == 1 and f"no process {killed.pid}" in only.stderr
        kept.communicate()
        assert not list(folder.glob(f"*-{kept.pid}.*"))  # it removes its own


def test_watching_one_ends_with_it(folder: Path, rows: Path) -> None:
    with reader(rows, "cpu", 1) as one, reader(rows, "cpu", 1) as other:
        assert line_of(one) == line_of(other) == "open\n"
        with started(sys.executable, "-m", "gpufs", "top", "--json", "--pid", str(one.pid)) as watching:
            assert lines_until(watching, bool)[-1].keys() == {one.pid}
            one.communicate()
            assert watching.wait(20) == 0


@pytest.fixture
def alive() -> Iterator[subprocess.Popen[str]]:
    """A process that publishes nothing."""
    with started("sleep", "1000") as process:
        yield process


def document(pid: int, **other: Any) -> dict[str, Any]:
    mount = {
        "number": 1, "root": "/data", "engine": "gpu", "device": 1, "writable": True, "page_nbytes": 4096,
        "cache_nbytes": 1 << 30, "nfiles": 2, "counters": dict.fromkeys(publish.COUNTERS, 5),
        "files": [{"path": "a", "way": "pull: registered", "bytes_read": 5, "hits": 3},
                  {"path": "b", "way": "staged: small"}],
    }  # fmt: skip
    whole = {"version": 1, "pid": pid, "pid_namespace": publish.pid_namespace(), "start": publish.start_of(pid)}
    return whole | {"command": "prog", "time_s": 10.0, "mounts": [mount]} | other


def put(of: dict[str, Any] | bytes, pid: int, namespace: int = 0, name: str = "") -> Path:
    text = of if isinstance(of, bytes) else json.dumps(of).encode()
    descriptor = publish.open_folder(make=True)
    publish.put(descriptor, name or publish.file_name(namespace or publish.pid_namespace(), pid), text)
    os.close(descriptor)
    return publish.folder_path() / (name or publish.file_name(namespace or publish.pid_namespace(), pid))


def test_what_a_document_says_is_seen(folder: Path, alive: subprocess.Popen[str]) -> None:
    watcher, pid = Watcher(), alive.pid
    put(document(pid), pid)
    (seen,) = watcher.look()
    assert (seen.now.pid, seen.now.command, seen.mounts, seen.is_silent) == (pid, "prog", {}, False)
    later = document(pid, time_s=12.0)
    later["mounts"][0]["counters"] |= {"hits": 11, "faults": 7, "bytes_read": 2_000_000_005, "evictions": 2}
    later["mounts"][0]["files"][0] |= {"bytes_read": 1_000_000_005, "hits": 1_000}
    put(later, pid)
    for _ in range(2):  # the second look finds nothing new
        (seen,) = watcher.look()
        rates = seen.mounts[1]
        assert (rates.seconds, rates.hit_rate) == (2.0, 0.75)
        assert (rates.per_s["bytes_read"], rates.per_s["faults"], rates.per_s["evictions"]) == (1e9, 1.0, 0.0)
        of_file = seen.files[1, "a"].per_s
        assert of_file == {"bytes_read": 5e8, "hits": 3.0}  # hits seem to jump: of the mount there are 3 a second
    shown = top._as_text([seen], "")
    assert f"{pid}  prog" in shown and "/data" in shown and "pull: registered" in shown
    assert (
        "75.0 %  1.000  0.000  0.000         1        0        0  gpu 1, cache 1.0 GiB in pages of 4.0 KiB, writable"
        in shown
    )
    path = put(later, pid)
    os.utime(path, (time.time() - 8, time.time() - 8))
    (seen,) = watcher.look()
    assert seen.is_silent and not seen.mounts and "says nothing for 8 s" in top._as_text([seen], "")


def test_who_has_ended_is_removed(folder: Path, alive: subprocess.Popen[str]) -> None:
    watcher, pid, mine = Watcher(), alive.pid, publish.pid_namespace()
    with started("sleep", "1000") as dead:
        of_dead = document(dead.pid)
        dead.kill()
        dead.wait()
    assert publish.start_of(dead.pid) is None
    gone = [
        put(of_dead, dead.pid),
        put(b"{", dead.pid, name=f"{mine}-{dead.pid}.tmp"),
        put(document(pid, start=1), pid),  # it had this pid before
    ]
    elsewhere = put(document(7, pid_namespace=mine + 1), 7, mine + 1)
    old = put(document(8, pid_namespace=mine + 1), 8, mine + 1)
    os.utime(old, (1, 1))
    (seen,) = watcher.look()
    assert seen.now.pid == 7 and "7 in another container" in top._as_text([seen], "")
    assert not any(path.exists() for path in [*gone, old]) and elsewhere.exists()
    with subprocess.Popen(["true"]) as unwaited:
        end = time.monotonic() + 10
        while publish.start_of(unwaited.pid) is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert publish.start_of(unwaited.pid) is None


def test_what_gpufs_did_not_write_is_ignored(folder: Path, alive: subprocess.Popen[str], tmp_path: Path) -> None:
    watcher, pid, mine = Watcher(), alive.pid, publish.pid_namespace()
    good = json.dumps(document(pid)).encode()
    for wrong in (
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, good[:-1], good.replace(b'"command"', b'"comand"'),
        good.replace(b"10.0", b"NaN"), good.replace(b"10.0", b"1e999"), good.replace(b'"/data"', b"3"),
        good.replace(b'"device": 1', b'"device": "1"'), good.replace(b'"hits": 5', b'"hits": -5'),
        good.replace(b'"hits": 5', b'"hits": 5.5'), good.replace(b'"hits": 5', b'"hits": 1' + b"0" * 5000),
        good.replace(b'"version": 1', b'"version": 0'), good.replace(b'"version": 1', b'"version": true'),
        good.replace(b'"writable": true', b'"writable": 1'), good.replace(b'"mounts": [', b'"mounts": [1, '),
        good.replace(b'"files": [', b'"files": [[], '), good.replace(b'"files": [', b'"files": 3, "f": ['),
        good.replace(b'"counters": {', b'"counters": [], "c": {'),
        json.dumps(document(pid + 1)).encode(), json.dumps(document(pid, pid_namespace=mine + 1)).encode(),
    ):  # fmt: skip
        path = put(wrong, pid)
        assert watcher.look() == [] and path.exists(), wrong
    name = publish.file_name(mine, pid)
    (folder / name).unlink()
    for make in (
        lambda path: path.symlink_to(put(good, 1, name="elsewhere")),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 1 << 30),
    ):
        make(folder / name)
        assert watcher.look() == []
        (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink()
    put(good.replace(b'"version": 1', b'"version": 2'), pid)
    assert watcher.look() == [] and watcher.nnewer == 1
    assert "later gpufs" in top._note(watcher, None, [])
    put(good, pid)
    assert len(watcher.look()) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_documents_raise_one_error(data: st.DataObject) -> None:
    text = bytearray(json.dumps(document(os.getpid())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    del text[data.draw(st.integers(1, len(text))) :]
    with contextlib.suppress(ValueError, watch.NewerFormatError):
        watch.parse(bytes(text))


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
    publish._at_exit()
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


@pytest.mark.parametrize("engine", ENGINES)
def test_names_cannot_command_the_terminal(engine: str, folder: Path, rows: Path) -> None:
    strange = os.fsdecode(b"a\x1b[31m\r\n\xff[bold]\xe2\x80\xae.npy")
    rows.rename(rows.parent / strange)
    with gpufs.open(rows.parent / strange, engine=engine, **SMALL) as x:
        x[0]
        watcher = Watcher()
        watcher.touch()
        publish.Publisher().write()
        seen = watcher.look()
        shown = top._as_text(seen, "")
        assert "a\\x1b[31m\\r\\n\\xff[bold]\\u202e.npy" in shown
        assert not {c for c in shown if c in "\x1b\r\u202e\udcff"}
        paths = {
            f["path"] for p in json.loads(top._as_json(seen, ""))["processes"] for m in p["mounts"] for f in m["files"]
        }
        assert strange in paths


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


def in_terminal(send: bytes | signal.Signals, term: str, *arguments: str) -> tuple[int, str, bool]:
    """`gpufs top` in a terminal, until it has shown something and was sent this: status, output, and is it restored?"""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    before = termios.tcgetattr(other)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TERM": term}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "gpufs", "top", *arguments]
    text, sent, end = b"", False, time.monotonic() + 60

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True,
                          preexec_fn=own_terminal) as process:  # fmt: skip
        while process.poll() is None and time.monotonic() < end:
            if select.select([main], [], [], 0.05)[0]:
                text += os.read(main, 1 << 16)
            if not sent and b"no process with mounts" in text:
                sent = True
                process.send_signal(send) if isinstance(send, signal.Signals) else os.write(main, send)
        process.kill()
    while select.select([main], [], [], 0.05)[0]:
        text += os.read(main, 1 << 16)
    restored = termios.tcgetattr(other) == before
    os.close(main)
    os.close(other)
    return process.returncode, text.decode(), restored


@pytest.mark.parametrize(
    "send, term, status",
    [(b"q", "xterm", 0), (b"\x03", "xterm", 130), (signal.SIGTERM, "xterm", 143), (b"\x03", "dumb", 130)],
)
def test_a_terminal(send: bytes | signal.Signals, term: str, status: int, folder: Path) -> None:
    code, text, restored = in_terminal(send, term)
    assert code == status and restored, text
    if term == "dumb":
        assert "\x1b" not in text and text.count("no process with mounts is running") >= 1
    else:
        assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1  # the other screen, and back
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor, too
    assert "nothing was written" not in text and "Traceback" not in text


def test_an_error_in_a_terminal_is_seen(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    code, text, restored = in_terminal(b"q", "xterm")
    assert code == 1 and restored and "is not only yours" in text.rpartition("\x1b[?1049l")[2]


def test_who_reads_the_lines_may_leave(folder: Path) -> None:
    command = f"{sys.executable} -m gpufs top | head -1; echo ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "no process with mounts is running\n141\n" and done.stderr == ""


def test_errors_are_one_line_and_their_status_is_right(folder: Path, alive: subprocess.Popen[str]) -> None:
    others = []
    if os.geteuid() == 0:
        others = [(["--pid", "@other"], 1, "another user's")]
    with contextlib.ExitStack() as stack:
        for arguments, status, words in [
            (["--pid", "4194999"], 1, "no process 4194999"),
            (["--once", "--pid", str(alive.pid)], 1, "GPUFS_WATCH=0"),
            (["--pid", "0"], 2, "pid"),
            (["--interval", "0.5"], 2, "interval"),
            (["--interval", "nan"], 2, "interval"),
            (["more"], 2, "unexpected"),
            *others,
        ]:
            if "@other" in arguments:
                arguments = ["--pid", str(stack.enter_context(started("sleep", "1000", user=65534)).pid)]
            said = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["top", *arguments])
            assert said.exit_code == status and words in said.stderr, (arguments, said.stderr)
            if status == 1:
                assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    nobody = json.loads(CliRunner().invoke(app, ["top", "--once", "--json"]).stdout)
    assert nobody["processes"] == [] and "no process" in nobody["note"]


def test_numbers_are_short() -> None:
    for n, text in (
        (0, "0"),
        (7.25, "7.25"),
        (999, "999"),
        (999.7, "1 k"),
        (12_345, "12.3 k"),
        (5e6, "5 M"),
        (2.5e12, "2.5e+03 G"),
    ):
        assert top._short(n) == text

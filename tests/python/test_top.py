# SPDX-License-Identifier: Apache-2.0
"""`gpufs top`: what rates are made of what processes publish, and how it is shown."""

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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import pytest
from arrays_support import ENGINES, SMALL
from conftest import Run
from gpufs import publish, top, watch
from gpufs.commands import app
from gpufs.watch import Watcher
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from watching_support import ROW_NBYTES, document, put

PAUSE_S = 0.02


@contextlib.contextmanager
def started(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "200"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command], env=environment, **pipes | options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(PermissionError):  # another user's, in a sandbox
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
        others = [(["--once", "--pid", "@other"], 1, "another user's")]
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
                arguments = ["--pid", str(stack.enter_context(started("cat", user=65534)).pid)]
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

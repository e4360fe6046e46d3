# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of files that go on after an interruption: what is kept, and whose it is."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import change_and_put_back, names_in
from going_on_support import StoppedError, stop_after
from gpufs import par, scan_sort, unfinished


def stopped_after(n: int, path: Path, work: scan_sort.Work) -> None:
    """Does n pieces of the file, and gives up."""
    with pytest.raises(StoppedError):
        scan_sort.of_file(path, path.parent / "out", work, resume=True, on_progress=stop_after(n))


def some_work(command: str, engine: str, op: str = "add") -> scan_sort.Work:
    """In pieces of 250 elements; by a GPU of as many as it takes."""
    if command == "scan":
        return scan_sort.scan_work(engine, None, op, "f32", True, 1000)
    return scan_sort.sort_work(engine, None, "f32", None, 0, False, 0 if engine == "gpu" else 4000, None)


def real_numbers(path: Path) -> Any:
    values = np.random.default_rng(8).standard_normal(2000).astype("f4")
    values.tofile(path)
    return values


@pytest.mark.parametrize("command", ["scan", "sort"])
@pytest.mark.parametrize("engine", ENGINES)
def test_work_goes_on_where_it_was_interrupted(engine: str, command: str, tmp_path: Path) -> None:
    source, to, work = tmp_path / "in", tmp_path / "out", some_work(command, engine)
    values = real_numbers(source)
    whole = par.scan(values, exclusive=True, engine=engine) if command == "scan" else np.sort(values)
    if engine == "gpu" and command == "sort":
        pytest.skip("a GPU sorts so little at once")
    shares = []
    for stop_at in (0, 1, 5):
        stopped_after(stop_at, source, work)
        assert names_in(tmp_path) == (["in", "out.unfinished"] if stop_at else ["in"])
        assert not to.exists()
    seen: list[int] = []
    done = scan_sort.of_file(source, to, work, resume=True, on_progress=lambda n, total: seen.append(n))
    shares.append(done.share)
    assert done.nbytes == 8000 and 0 < done.share < 0.7 and seen[0] > 0 and seen[-1] in (8000, 16000)
    assert names_in(tmp_path) == ["in", "out"]
    got = np.fromfile(to, "f4")
    if command == "sort":
        np.testing.assert_array_equal(got, whole)
    else:
        scan_sort.of_file(source, tmp_path / "again", work)
        assert got.tobytes() == (tmp_path / "again").read_bytes()
        np.testing.assert_allclose(got, whole, rtol=1e-3, atol=1e-3)


def test_what_is_kept_is_of_one_job_and_one_input(tmp_path: Path) -> None:
    source, folder, work = tmp_path / "in", tmp_path / "out.unfinished", some_work("scan", "cpu")
    real_numbers(source)
    stopped_after(3, source, work)

    def refused(words: str, by: scan_sort.Work = work) -> None:
        with pytest.raises(gpufs.GpufsError, match=words):
            scan_sort.of_file(source, tmp_path / "out", by, resume=True)

    refused("is of another job [(]op add, not max[)]: give the same", some_work("scan", "cpu", "max"))
    refused("is of another job [(]it is scanned, not sorted[)]", some_work("sort", "cpu"))
    kept = (folder / "state").read_text()
    (folder / "state").write_text(kept[:-5])
    refused("is damaged, or of another version")
    (folder / "state").write_text(with_checksum(kept, npieces=9))
    refused("there are not 9 pieces of 1000 bytes")
    (folder / "state").write_text(with_checksum(kept, format=1))
    refused("out.unfinished: is of another version of gpufs: remove it to begin anew$")
    (folder / "state").write_text(kept)
    os.truncate(folder / "out", 3000)
    refused("is damaged, or of another version of gpufs: remove it to begin anew")
    os.truncate(folder / "out", 8000)
    for words in (b"\xff", with_checksum(kept, npieces=-1).encode(), b'{"npieces": Infinity}', b"[]"):
        (folder / "state").write_bytes(words)
        refused("is damaged, or of another version")
    (folder / "state").write_text(kept)
    (folder / "out").rename(tmp_path / "elsewhere")
    (folder / "out").symlink_to(tmp_path / "elsewhere")
    refused("is damaged, or of another version")
    (folder / "out").unlink()
    (folder / "runs").unlink()
    (folder / "state").unlink()
    (folder / "mine").write_text("precious")
    refused("is another folder, with mine in it")
    (folder / "mine").unlink()
    stopped_after(3, source, work)
    change_and_put_back(source)
    refused("is of an input that has changed since")
    os.utime(source, ns=(1, 1))
    refused("is of an input that has changed since")
    assert names_in(tmp_path) == ["elsewhere", "in", "out.unfinished"]


def with_checksum(state: str, **changes: Any) -> str:
    """A state that says something else, and is not damaged."""
    told = json.loads(state) | changes
    del told["checksum"]
    return json.dumps(told | {"checksum": unfinished.checksum_of(told)})


def test_each_digit_of_what_is_kept_counts(tmp_path: Path) -> None:
    source, state, work = tmp_path / "in", tmp_path / "out.unfinished" / "state", some_work("scan", "cpu")
    real_numbers(source)
    stopped_after(3, source, work)
    kept = state.read_text()
    begin = kept.index('"so_far": "') + len('"so_far": "')
    for place in (begin, begin + 5, kept.index('"npieces": ') + len('"npieces": '), kept.index("}, ") + 13):
        assert kept[place] in "0123456789abcdef", kept[place:]
        state.write_text(kept[:place] + ("1" if kept[place] != "1" else "2") + kept[place + 1 :])
        with pytest.raises(gpufs.GpufsError, match=r"out.unfinished: is damaged"):
            scan_sort.of_file(source, tmp_path / "out", work, resume=True)
    state.write_text(kept)
    assert scan_sort.of_file(source, tmp_path / "out", work, resume=True).share < 1


def test_numbers_of_numpy_can_be_gone_on_with(tmp_path: Path) -> None:
    values = real_numbers(tmp_path / "in")
    par.sort(tmp_path / "in", out=tmp_path / "out", key="f4", record_nbytes=np.int64(4), resume=True)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", "f4"), np.sort(values))


def test_runs_that_were_cut_are_damaged(tmp_path: Path) -> None:
    real_numbers(tmp_path / "in")
    stopped_after(6, tmp_path / "in", some_work("sort", "cpu"))
    os.truncate(tmp_path / "out.unfinished" / "runs", 1000)
    with pytest.raises(gpufs.GpufsError, match="unfinished: is damaged"):
        scan_sort.of_file(tmp_path / "in", tmp_path / "out", some_work("sort", "cpu"), resume=True)


def test_what_cannot_get_its_name_stays(tmp_path: Path) -> None:
    source, to, work = tmp_path / "in", tmp_path / "out", some_work("sort", "cpu")
    values = real_numbers(source)

    def put_in_the_way(done: int, total: int) -> None:
        to.mkdir(exist_ok=True)

    with pytest.raises(
        gpufs.GpufsError, match=r"out: cannot be written: Is a directory; it is .*out.unfinished/out now$"
    ):
        scan_sort.of_file(source, to, work, resume=True, on_progress=put_in_the_way)
    to.rmdir()
    assert scan_sort.of_file(source, to, work, resume=True).share == 0
    np.testing.assert_array_equal(np.fromfile(to, "f4"), np.sort(values))
    with pytest.raises(gpufs.GpufsError, match="File name too long"):
        scan_sort.of_file(source, tmp_path / ("n" * 250), work, resume=True)
    assert names_in(tmp_path) == ["in", "out"]


@pytest.mark.parametrize("has_name", [False, True])
def test_an_interruption_at_the_end_loses_nothing(
    has_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to, work = tmp_path / "in", tmp_path / "out", some_work("sort", "cpu")
    values = real_numbers(source)
    replace = os.replace

    def interrupted(name: str, path: Any, **where: Any) -> None:
        if name == "out" and not has_name:
            raise KeyboardInterrupt
        replace(name, path, **where)
        if name == "out":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        if has_name:
            scan_sort.of_file(source, to, work, resume=True)
        else:
            with pytest.raises(KeyboardInterrupt):
                scan_sort.of_file(source, to, work, resume=True)
    assert names_in(tmp_path) == (["in", "out"] if has_name else ["in", "out.unfinished"])
    if not has_name:
        assert scan_sort.of_file(source, to, work, resume=True).share == 0
    np.testing.assert_array_equal(np.fromfile(to, "f4"), np.sort(values))
    (tmp_path / "out.unfinished").write_text("mine")
    with pytest.raises(gpufs.GpufsError, match="unfinished: is there, and is no folder: rename it"):
        scan_sort.of_file(source, to, work, resume=True)


def test_after_an_error_of_the_disk_nothing_more_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of bytes that it has lost once."""
    real_numbers(tmp_path / "in")
    calls = 0

    def sync(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(unfinished, "_SAVED_EVERY", 0)
    with pytest.raises(gpufs.GpufsError, match="Input/output error"):
        scan_sort.of_file(tmp_path / "in", tmp_path / "out", some_work("scan", "cpu"), resume=True)
    assert calls == 5 and json.loads((tmp_path / "out.unfinished" / "state").read_text())["npieces"] == 2


def test_one_process_works_on_what_is_kept(tmp_path: Path) -> None:
    real_numbers(tmp_path / "in")
    work = some_work("sort", "cpu")

    def while_it_works(done: int, total: int) -> None:
        with pytest.raises(gpufs.GpufsError, match="another process works on it"):
            scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, resume=True)

    scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, resume=True, on_progress=while_it_works)
    assert names_in(tmp_path) == ["in", "out"]


def test_what_is_kept_is_saved_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed has no time to save anything."""
    values = np.arange(500_000, dtype="u4")
    values.tofile(tmp_path / "in")
    program = (
        "from pathlib import Path; from gpufs import scan_sort, unfinished; import os, signal\n"
        "unfinished._SAVED_EVERY = 0\n"
        "work = scan_sort.scan_work('cpu', None, 'add', 'u32', False, 40_000)\n"
        "stop = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done > 1_000_000 else None\n"
        "scan_sort.of_file(Path('in'), Path('out'), work, resume=True, on_progress=stop)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL and names_in(tmp_path) == ["in", "out.unfinished"]
    work = scan_sort.scan_work("cpu", None, "add", "u32", False)
    done = scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, resume=True)
    assert done.share == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", "u4"), np.cumsum(values, dtype="u4"))


@pytest.mark.parametrize("name", ["state", "state.new", "out"])
@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_what_is_no_file_in_the_folder_is_not_waited_for(what: str, name: str, tmp_path: Path) -> None:
    real_numbers(tmp_path / "in")
    work = some_work("scan", "cpu")
    if name == "out":
        stopped_after(3, tmp_path / "in", work)
        (tmp_path / "out.unfinished" / name).unlink()
    else:
        (tmp_path / "out.unfinished").mkdir()
    at = tmp_path / "out.unfinished" / name
    if what == "fifo":
        os.mkfifo(at)
    elif what == "link":
        at.symlink_to(tmp_path / "in")
    else:
        at.mkdir()
    before = (tmp_path / "in").read_bytes()
    with pytest.raises(gpufs.GpufsError, match=r"out\.unfinished: is damaged, or of another version"):
        scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, resume=True)
    assert (tmp_path / "in").read_bytes() == before and not (tmp_path / "out").exists()


def test_a_state_that_nests_without_end_is_damaged(tmp_path: Path) -> None:
    real_numbers(tmp_path / "in")
    stopped_after(3, tmp_path / "in", some_work("scan", "cpu"))
    (tmp_path / "out.unfinished" / "state").write_text("[" * 200_000)
    with pytest.raises(gpufs.GpufsError, match=r"out\.unfinished: is damaged, or of another version"):
        scan_sort.of_file(tmp_path / "in", tmp_path / "out", some_work("scan", "cpu"), resume=True)

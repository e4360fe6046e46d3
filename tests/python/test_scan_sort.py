# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of files and arrays against NumPy, and the commands `gpufs scan` and `gpufs sort`."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, change_and_put_back, names_in
from gpufs import par, scan_sort
from gpufs.commands import app
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from typer.testing import CliRunner

DTYPES = {"u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8", "f32": "f4", "f64": "f8"}
UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.fmax,
    "min": np.fmin,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
fuzzed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
whole_arrays = st.sampled_from(["u4", "i4", "u8", "i8"]).flatmap(
    lambda dtype: npst.arrays(dtype, st.integers(0, 60), elements={})
)
any_arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: npst.arrays(dtype, st.integers(0, 60), elements={})
)


def bits(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@fuzzed
@given(whole_arrays, st.sampled_from(list(UFUNCS)), st.sampled_from(ENGINES))
def test_scans_of_whole_numbers_are_numpys(values: Any, op: str, engine: str) -> None:
    with np.errstate(over="ignore"):
        wanted = UFUNCS[op].accumulate(values, dtype=values.dtype)
    np.testing.assert_array_equal(par.scan(values, op, engine=engine), wanted)
    exclusive = par.scan(values, op, exclusive=True, engine=engine)
    np.testing.assert_array_equal(exclusive[1:], wanted[:-1])
    limits = np.iinfo(values.dtype)
    first = {"mul": 1, "and": limits.max if limits.min == 0 else -1, "max": limits.min, "min": limits.max}.get(op, 0)
    assert len(values) == 0 or exclusive[0] == first


@fuzzed
@given(any_arrays.filter(lambda values: values.dtype.kind == "f"), st.sampled_from(["max", "min"]))
def test_largest_and_least_of_real_numbers_leave_nans_out(values: Any, op: str) -> None:
    by_engines = {bits(par.scan(values, op, engine=engine)) for engine in ENGINES}
    assert len(by_engines) == 1  # which zero, too
    np.testing.assert_array_equal(np.frombuffer(by_engines.pop(), values.dtype), UFUNCS[op].accumulate(values))


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_real_numbers_are_near_numpys_and_the_same_each_time(engine: str) -> None:
    values = np.random.default_rng(3).random(100_000, np.float32)
    first = par.scan(values, engine=engine)
    np.testing.assert_allclose(first, np.cumsum(values, dtype=np.float64), rtol=1e-4)
    assert bits(par.scan(values, engine=engine)) == bits(first)
    assert np.isnan(par.scan(np.array([1, np.nan, 1], "f4"), engine=engine)[1:]).all()
    assert not np.signbit(par.scan(np.array([-0.0, -0.0], "f4"), engine=engine)).any()  # sums begin with +0


def sorted_keys(values: Any, descending: bool) -> Any:
    """By the order that is promised: real numbers by their bits, so that -0 is before 0, and NaNs are at the ends."""
    if values.dtype.kind != "f":
        order = np.argsort(values, kind="stable")
    else:
        whole = values.view(f"i{values.itemsize}")
        order = np.argsort(np.where(whole < 0, whole ^ np.iinfo(whole.dtype).max, whole), kind="stable")
    return values[order][::-1] if descending else values[order]


@fuzzed
@given(any_arrays, st.booleans(), st.sampled_from(ENGINES))
def test_sorts_are_in_the_order_that_is_promised(values: Any, descending: bool, engine: str) -> None:
    assert bits(par.sort(values, descending=descending, engine=engine)) == bits(sorted_keys(values, descending))


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_of_any_shape_are_taken(engine: str) -> None:
    values = np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1)
    np.testing.assert_array_equal(par.scan(values, engine=engine), np.cumsum(values, dtype=np.int32))
    result = np.empty(24, np.int32)
    assert par.scan(values, engine=engine, out=result) is result and result[-1] == values.sum()


def test_a_device_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("1 2")
    for call in (
        lambda: par.scan(np.arange(3), device="cuda"),  # type: ignore[arg-type]
        lambda: par.sort(np.arange(3), device="cuda"),  # type: ignore[arg-type]
        lambda: par.lex(tmp_path / "text", table="json", device="cuda"),  # type: ignore[arg-type]
        lambda: par.label(np.zeros((2, 2), np.uint8), device="cuda"),  # type: ignore[arg-type]
    ):
        with pytest.raises(gpufs.GpufsError, match="device is 'cuda'; it is a GPU's number"):
            call()


@pytest.mark.parametrize("engine", ENGINES)
def test_torch_tensors_give_tensors(engine: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([3.0, 1.0, 2.0])
    assert par.scan(tensor, engine=engine).tolist() == [3, 4, 6]
    got = par.sort(tensor, engine=engine)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.float32 and got.tolist() == [1, 2, 3]


@pytest.mark.parametrize("engine", ENGINES)
def test_files_of_records_are_sorted_by_runs(engine: str, tmp_path: Path) -> None:
    records = np.zeros(500, np.dtype([("name", "S3"), ("key", "<f8"), ("number", "<u2")]))
    records["key"] = np.random.default_rng(4).integers(-3, 3, 500)
    records["number"] = np.arange(500)
    records.tofile(tmp_path / "in")
    # Of so little memory CUB would want more, so only the others have runs of some records here.
    memory = 0 if engine == "gpu" else 16 << 10
    to = par.sort(
        tmp_path / "in", out=tmp_path / "out", key="f8", record_nbytes=13, key_offset=3, memory=memory, engine=engine
    )
    assert to == tmp_path / "out" and names_in(tmp_path) == ["in", "out"]
    got = np.fromfile(to, records.dtype)
    np.testing.assert_array_equal(got, records[np.argsort(records["key"], kind="stable")])
    par.sort(tmp_path / "in", out=to, key=np.float64, record_nbytes=13, key_offset=3, descending=True, engine=engine)
    np.testing.assert_array_equal(np.fromfile(to, records.dtype), records[np.argsort(-records["key"], kind="stable")])


@pytest.mark.parametrize("engine", ENGINES)
def test_files_are_scanned_and_may_be_overwritten(engine: str, tmp_path: Path) -> None:
    values = np.random.default_rng(5).integers(0, 1000, 70_000).astype("u8")
    values.tofile(tmp_path / "in")
    assert par.scan(tmp_path / "in", out=tmp_path / "out", dtype="u64", engine=engine) == tmp_path / "out"
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", "u8"), np.cumsum(values))
    number = (tmp_path / "out").stat().st_ino
    par.scan(tmp_path / "in", "max", out=tmp_path / "out", dtype="u8", overwrite=True, engine=engine)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", "u8"), np.maximum.accumulate(values))
    assert (tmp_path / "out").stat().st_ino == number


def wrong_calls(folder: Path) -> list[tuple[Any, str]]:
    numbers, path = np.arange(4), folder / "in"
    (folder / "npy").write_bytes(b"\x93NUMPY\x01\x00")
    path.write_bytes(bytes(16))
    return [
        (lambda: par.scan(numbers, "sub"), "no operator 'sub' (add, mul, max, min, and, or, xor)"),
        (lambda: par.scan(numbers, None), "no operator that is a NoneType (add, mul, max, min, and, or, xor)"),  # type: ignore[arg-type]
        (lambda: par.scan(numbers, exclusive=1), "exclusive: is True or False, and no int"),  # type: ignore[arg-type]
        (lambda: par.sort(numbers, descending=None), "descending: is True or False, and no NoneType"),  # type: ignore[arg-type]
        (lambda: par.sort(numbers, memory=10**30), "memory is a larger number of bytes than any machine has"),
        (lambda: par.sort(numbers, scratch=folder / "no"), "no: is no folder, where a sort could keep what waits"),
        (lambda: par.sort([[1], [1, 2]]), "x: is no NumPy array, torch tensor, CuPy array or path, but list"),
        (lambda: par.scan(numbers.astype(">i8")), "big-endian elements (>i8) are not scanned or sorted; there are u32"),
        (lambda: par.scan(numbers.astype("u1")), "elements of uint8 are not scanned or sorted"),
        (lambda: par.scan(numbers.astype("f4"), "xor"), "real numbers are not combined bit by bit"),
        (lambda: par.scan([1, 2]), "x: is no NumPy array, torch tensor, CuPy array or path, but list"),
        (lambda: par.scan(numbers, out=numbers), "out: shares memory with x"),
        (lambda: par.scan(numbers, out=np.arange(5)), "out: must be writable"),
        (lambda: par.scan(numbers, dtype="i8"), "dtype: is for files"),
        (lambda: par.sort(numbers.reshape(2, 2)), "x: has 2 dimensions"),
        (lambda: par.sort(numbers, key="i8"), "key: is for files"),
        (lambda: par.sort(path, key="i8"), "out: name the file"),
        (lambda: par.sort(path, out=folder / "out"), "key: what are the file's elements?"),
        (lambda: par.sort(path, out=folder / "out", key="i8", record_nbytes=-1), "record_nbytes: -1 is no number"),
        (
            lambda: par.sort(path, out=folder / "out", key="f4", record_nbytes=24, key_offset=1.0),  # type: ignore[arg-type]
            "key_offset: is a whole number of bytes, and no float",
        ),
        (
            lambda: par.sort(path, out=folder / "out", key="f4", record_nbytes=1 << 62),
            "record_nbytes: is a larger number of bytes than any machine has",
        ),
        (lambda: par.scan("a\0b", out=folder / "out", dtype="u4"), "x: no file can have the name 'a\\x00b'"),
        (lambda: par.scan("\ud800", out=folder / "out", dtype="u4"), "x: no file can have the name '\\ud800'"),
        (lambda: par.scan(path, out="o\0", dtype="u4"), "out: no file can have the name 'o\\x00'"),
        (lambda: par.sort(path, out=folder / "out", key="u4", scratch="\0"), "scratch: no file can have the name"),
        (lambda: par.sort(path, out=folder / "out", key="u4", scratch=3), "scratch: is no path, but int"),  # type: ignore[arg-type]
        (lambda: par.sort(path, out=folder / "out", key="i8", key_offset=4), "does not lie in a record of 8"),
        (lambda: par.sort(path, out=folder / "out", key="word"), "dtype: data type 'word'"),
        (lambda: par.sort(path, out=folder / "out", key="u4", memory=20, engine="cpu"), "too little for pieces of two"),
        (
            lambda: par.scan(path, out=folder / "out", dtype="u4", overwrite=True),
            "out: cannot be written: No such file",
        ),
        (lambda: par.scan(path, out=folder / "npy", dtype="u4", overwrite=True), "npy: has 8 bytes, not the 16 of the"),
        (lambda: par.scan(folder / "npy", out=folder / "out", dtype="u4"), "npy: has a header of NumPy's"),
        (lambda: par.scan(folder / "none", out=folder / "out", dtype="u4"), "none: No such file or directory"),
        (lambda: par.scan(path, out=path, dtype="u4"), "in: is the input"),
        (lambda: par.scan(numbers, engine="tpu"), "tpu"),
        (lambda: par.scan(path, out=folder / "out", dtype="u4", resume="no"), "resume: is True or False, and no str"),  # type: ignore[arg-type]
        (lambda: par.sort(path, out=folder / "out", key="u4", overwrite=1), "overwrite: is True or False, and no int"),  # type: ignore[arg-type]
        (lambda: par.scan(path, out=folder / ("o" * 300), dtype="u4"), "cannot be written: File name too long"),
    ]


@pytest.mark.parametrize("number", range(38))
def test_what_cannot_be_done_is_an_error(number: int, tmp_path: Path) -> None:
    calls = wrong_calls(tmp_path)
    assert len(calls) == 38
    call, words = calls[number]
    with pytest.raises(gpufs.GpufsError) as error:
        call()
    assert words in str(error.value)
    assert names_in(tmp_path) == ["in", "npy"] and (tmp_path / "npy").stat().st_size == 8


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(64))
    times = iter(range(10))

    def begin(of: Any, kept: Any) -> Any:
        os.utime(tmp_path / "in", ns=(0, next(times)))
        return scan_sort._par.scan("cpu", 0, of, "add", "u32", False, 16)

    work = scan_sort.Work("scanned", {}, begin)
    for resume in (False, True):
        with pytest.raises(gpufs.GpufsError, match=r"in: was changed while it was scanned: try again$"):
            scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, resume=resume)
        assert names_in(tmp_path) == ["in"]
    (tmp_path / "out").write_bytes(bytes(64))
    with pytest.raises(gpufs.GpufsError, match=r"try again; .*out is written in part now$"):
        scan_sort.of_file(tmp_path / "in", tmp_path / "out", work, overwrite=True)


def test_a_change_whose_time_is_put_back_is_an_error(tmp_path: Path) -> None:
    """As `touch -r` and `rsync --inplace -t` do: that the file's state has changed, nobody can put back."""
    source = tmp_path / "in"
    source.write_bytes(bytes(64))

    def begin(of: Any, kept: Any) -> Any:
        change_and_put_back(source)
        return scan_sort._par.scan("cpu", 0, of, "add", "u32", False, 16)

    work = scan_sort.Work("scanned", {}, begin)
    for resume in (False, True):
        with pytest.raises(gpufs.GpufsError, match=r"in: was changed while it was scanned: try again$"):
            scan_sort.of_file(source, tmp_path / "out", work, resume=resume)
        assert names_in(tmp_path) == ["in"]


# --- The commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_commands_write_files(engine: str, tmp_path: Path, run: Run) -> None:
    values = np.array([3, 1, 2, 1], "<i4")
    values.tofile(tmp_path / "in")
    said = run("scan", "--op", "add", "--type", "i32", "in", "out", "--engine", engine, "--piece", "8")
    assert said.returncode == 0 and said.stderr == "", said.stderr
    assert said.stdout.startswith("out: 4 elements scanned in ")
    assert np.fromfile(tmp_path / "out", "<i4").tolist() == [3, 4, 6, 7]
    facts = json.loads(
        run("scan", "--op", "and", "--type", "u32", "--exclusive", "in", "out", "--engine", engine, "--json").stdout
    )
    assert facts["op"] == "and" and facts["exclusive"] and facts["engine"] == engine and facts["nelements"] == 4
    assert np.fromfile(tmp_path / "out", "<u4").tolist() == [0xFFFFFFFF, 3, 1, 0]
    said = run("sort", "--key", "i32", "in", "out", "--descending", "--engine", engine, "--overwrite-in-place")
    assert said.stdout.startswith("out: 4 records sorted in "), said.stderr
    assert np.fromfile(tmp_path / "out", "<i4").tolist() == [3, 2, 1, 1]
    by = ("sort", "--key", "u32", "--record-bytes", "8", "--key-offset", "4", "in", "out", "--engine", engine, "--json")
    facts = json.loads(run(*by).stdout)
    assert facts["record_nbytes"] == 8 and facts["nelements"] == 2 and facts["nbytes"] == 16
    assert np.fromfile(tmp_path / "out", "<i4").tolist() == [3, 1, 2, 1]
    assert names_in(tmp_path) == ["in", "out"]


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["scan", "--op", "add", "in", "out"], 2, "--type"),
        (["scan", "--op", "add", "--type", "u8", "in", "out"], 2, "u8"),
        (["scan", "--op", "add", "--type", "u64", "in", "out"], 1, "in: has 28 bytes, which is no multiple of the 8"),
        (["scan", "--op", "xor", "--type", "f32", "in", "out"], 1, "real numbers are not combined bit by bit"),
        (["scan", "--op", "add", "--type", "u32", "none", "out"], 1, "none: No such file"),
        (["scan", "--op", "add", "--type", "u32", "in", "in"], 1, "in: is the input"),
        (["scan", "--op", "add", "--type", "u32", "in", "no/out"], 1, "there is no folder"),
        (["scan", "--op", "add", "--type", "u32", ".", "out"], 1, "Is a directory"),
        (["scan", "--op", "add", "--type", "u32", "in", "was", "--overwrite-in-place"], 1, "has 3 bytes, not the 28"),
        (["sort", "--key", "u64", "in", "out"], 1, "in: has 28 bytes, which is no multiple of the 8 of a record"),
        (["sort", "--key", "u64", "--record-bytes", "6", "in", "out"], 1, "does not lie in a record of 6"),
        (["sort", "--key", "u32", "in", "out", "--memory", "20", "--engine", "cpu"], 1, "20 bytes is too little"),
        (["sort", "--key", "u32", "in", "out", "--memory", "40", "--engine", "cpu", "--scratch", "no"], 1,
         "no: is no folder, where a sort could keep what waits: make it"),
        (["sort", "--key", "u32", "in", "out", "--scratch", "no"], 1, "no: is no folder, where a sort could keep"),
        (["sort", "--key", "u32", "--record-bytes", "8", "--key-offset", "9" * 23, "in", "out"], 2, "--key-offset"),
        (["sort", "--key", "u32", "--record-bytes", "9" * 23, "in", "out"], 2, "--record-bytes"),
        (["scan", "--op", "add", "--type", "u32", "/dev/null", "out"], 1, "/dev/null: is no regular file: copy it"),
        (["sort", "--key", "u32", "in", "out", "--memory", "x"], 2, "no size"),
        (["sort", "--key", "u32", "in", "out", "--resume", "--scratch", "."], 2, "is beside OUT"),
        (["scan", "--op", "add", "--type", "u32", "in", "was", "--resume", "--overwrite-in-place"], 2, "--resume"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(
    arguments: list[str], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(bytes(range(28)))
    (tmp_path / "was").write_bytes(b"abc")
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert names_in(tmp_path) == ["in", "was"]
    assert (tmp_path / "in").read_bytes() == bytes(range(28)) and (tmp_path / "was").read_bytes() == b"abc"


def test_a_closed_standard_output_is_no_file_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(64))
    command = [sys.executable, "-m", "gpufs", "scan", "--op", "add", "--type", "u32", "in", "out"]
    how: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}}
    how |= {"stderr": subprocess.PIPE, "text": True, "preexec_fn": lambda: os.close(1)}
    done = subprocess.run(command, check=False, **how)
    assert done.returncode == 1 and done.stderr.startswith("gpufs: standard output is closed")
    assert names_in(tmp_path) == ["in"]


@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite-in-place"]])
@pytest.mark.parametrize("command", [["scan", "--op", "add", "--type", "u32"], ["sort", "--key", "u32"]])
def test_a_fifo_is_not_waited_for(command: list[str], more: list[str], tmp_path: Path, run: Run) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "out").write_bytes(b"")
    said = run(*command, "fifo", "out", *more, timeout=60)
    assert said.returncode == 1 and said.stderr == "gpufs: fifo: is no regular file: copy it to one first\n"
    assert names_in(tmp_path) == ["fifo", "out"]


@pytest.mark.parametrize("command", [["scan", "--op", "add", "--type", "u32"], ["sort", "--key", "u32"]])
def test_a_file_that_may_not_be_read_is_no_wrong_usage(command: list[str], tmp_path: Path, unprivileged: Run) -> None:
    (tmp_path / "in").write_bytes(bytes(8))
    (tmp_path / "in").chmod(0)
    for more in ([], ["--resume"]):
        said = unprivileged(*command, "in", "out", *more)
        assert said.returncode == 1 and said.stderr == "gpufs: in: Permission denied\n"
    (tmp_path / "in").chmod(0o600)
    (tmp_path / "out").write_bytes(b"")
    (tmp_path / "out").chmod(0)
    assert unprivileged(*command, "in", "out").returncode == 0  # it is made anew
    assert (tmp_path / "out").stat().st_mode & 0o777 != 0
    assert (tmp_path / "out").read_bytes() == bytes(8)


@pytest.mark.parametrize("command", [["scan", "--op", "add", "--type", "u32"], ["sort", "--key", "u32"]])
def test_a_full_disk_leaves_nothing(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(200_000))
    (tmp_path / "out").write_bytes(b"what was there before")
    line = f"ulimit -f 64; exec {sys.executable} -m gpufs {' '.join(command)} in out --engine cpu"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert names_in(tmp_path) == ["in", "out"] and (tmp_path / "out").read_bytes() == b"what was there before"


def interrupted(sent: signal.Signals, folder: Path, *options: str, has_begun: Callable[[], bool]) -> tuple[int, str]:
    """The status of a scan that gets a signal, and what it says."""
    (folder / "in").write_bytes(b"\x01" * 4_000_000)
    command = [sys.executable, "-m", "gpufs", "scan", "--op", "add", "--type", "u32", "in", "out", "--engine", "simt"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    started = subprocess.Popen(
        [*command, "--piece", "100", *options], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        if has_begun():
            break
        time.sleep(0.05)
    assert has_begun()
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    return started.returncode, errors


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing(sent: signal.Signals, status: int, tmp_path: Path) -> None:
    said = interrupted(sent, tmp_path, has_begun=lambda: any(name.endswith(".tmp") for name in names_in(tmp_path)))
    assert said == (status, "gpufs: interrupted; nothing was written\n")
    assert names_in(tmp_path) == ["in"]


def test_an_interrupted_command_goes_on(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out.unfinished" / "out"

    def has_begun() -> bool:
        return out.exists() and out.read_bytes()[:1] != b"\0" and out.stat().st_size > 0

    said = interrupted(signal.SIGTERM, tmp_path, "--resume", "--piece", "4000", has_begun=has_begun)
    assert said == (143, "gpufs: interrupted; out is not written: the same command goes on with what is done\n")
    command = ("scan", "--op", "add", "--type", "u32", "in", "out", "--engine", "simt", "--resume")
    assert run("scan", "--op", "max", *command[3:]).stderr == (
        "gpufs: out.unfinished: is of another job (op add, not max): give the same options, or remove it\n"
    )
    done = run(*command)
    assert done.stdout.startswith("out: the last ") and done.returncode == 0, done.stderr
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "out", "u4"), np.cumsum(np.full(1_000_000, 0x01010101, "u4"), dtype="u4")
    )
    assert names_in(tmp_path) == ["in", "out"]


def test_an_interruption_says_that_a_file_is_overwritten_in_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(bytes(4_000_000))
    said = interrupted(signal.SIGINT, tmp_path, "--overwrite-in-place", has_begun=lambda: out.read_bytes()[:1] != b"\0")
    assert said == (130, "gpufs: interrupted; out is written in part\n")
    assert names_in(tmp_path) == ["in", "out"]

# SPDX-License-Identifier: Apache-2.0
"""`gpufs stat`, `cat` and `bench`, and `python -m gpufs.selftest`: what they print, and their exit status."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from gpufs.commands import app
from typer.testing import CliRunner

TABLE = np.arange(3000, dtype="<f4").reshape(1000, 3)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", TABLE)
    np.savez(tmp_path / "two.npz", a=TABLE, b=np.arange(7), c=np.float32(1))
    (tmp_path / "raw").write_bytes(b"head" + TABLE.tobytes())
    return tmp_path / "rows.npy"


@pytest.fixture
def cat(rows: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., bytes]:
    """What `gpufs cat ARGS...` writes."""
    monkeypatch.chdir(rows.parent)

    def written(*arguments: str) -> bytes:
        assert CliRunner().invoke(app, ["cat", *arguments]).exit_code == 0
        return capfdbinary.readouterr().out

    return written


def test_stat_says_what_arrays_there_are(rows: Path, run: Run) -> None:
    said = run("stat", "rows.npy")
    assert said.returncode == 0 and "1000 x 3 of <f4, 11.7 KiB from 128 on" in said.stdout and "npy" in said.stdout
    one = json.loads(run("stat", rows, "--json", "--engine", "simt").stdout)
    assert one["path"] == str(rows) and one["engine"] == "simt" and one["file_nbytes"] == rows.stat().st_size
    assert one["arrays"] == [
        {"name": None, "shape": [1000, 3], "dtype": "<f4", "nbytes": 12000, "offset": 128, "pieces": 1}
    ]
    several = json.loads(run("stat", "two.npz", "--json").stdout)
    assert [a["name"] for a in several["arrays"]] == ["a", "b", "c"] and several["format"] == "npz"
    assert several["arrays"][1]["shape"] == [7] and "single number" in several["arrays"][2]["problem"]
    assert "c: not readable" in run("stat", "two.npz").stdout
    raw = json.loads(run("stat", "raw", "--json", "--dtype", "f4", "--shape=-1,3", "--offset", "4").stdout)
    assert raw["format"] == "raw" and raw["arrays"][0]["shape"] == [1000, 3]


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["stat", "none.npy"], 1, "No such file"),
        (["stat", "raw"], 1, "needs dtype="),
        (["stat", "two.npz", "--name", "d"], 1, "no array 'd' (a, b, c)"),
        (["stat", "two.npz", "--name", "c"], 1, "single number"),
        (["stat", "."], 1, "Is a directory"),
        (["stat", "raw", "--dtype", "f5"], 2, "no dtype"),
        (["stat", "raw", "--dtype", "f4", "--shape", "x"], 2, "no shape"),
        (["stat"], 2, "Missing argument"),
        (["cat", "rows.npy:1000"], 1, "no row 1000"),
        (["cat", "rows.npy", "--npy", "--json"], 2, "exclude"),
        (["cat", "two.npz"], 1, "several arrays: give one's name (a, b, c)"),
        (["cat", "rows.npy:x"], 1, "':x' names no rows: write for example FILE:7"),
        (["cat", "rows.npy:1.5"], 1, "':1.5' names no rows"),
        (["cat", "rows.npy:1:2:3:4"], 1, "':1:2:3:4' names no rows"),
        (["cat", "none.npy:7"], 1, "none.npy: No such file"),
        (["cat", "none.npy:x"], 1, "none.npy:x: No such file"),
        (["cat", "rows.npy:::0"], 1, "step"),
        (["bench", "raw"], 1, "needs dtype="),
        (["bench", "rows.npy", "--runs", "0"], 2, "runs"),
        (["bench", "rows.npy", "--engine", "tpu"], 2, "tpu"),
    ],
)
def test_errors_are_one_line_and_their_status_is_right(
    arguments: list[str], status: int, words: str, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rows.parent)
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""


def test_cat_writes_the_rows_that_are_named(rows: Path, cat: Callable[..., bytes]) -> None:
    for key, wanted in (
        ("", TABLE), (":7", TABLE[[7]]), (":-1,3,3", TABLE[[-1, 3, 3]]), (":10:20", TABLE[10:20]),
        (":990:", TABLE[990:]), (":20:10:-3", TABLE[20:10:-3]), (":5:5", TABLE[:0]), ("::", TABLE),
    ):  # fmt: skip
        assert cat(f"rows.npy{key}") == wanted.tobytes()
    np.testing.assert_array_equal(np.load(io.BytesIO(cat("rows.npy:3:5", "--npy"))), TABLE[3:5])
    lines = cat("two.npz:1:3", "--name", "a", "--json").splitlines()
    assert [json.loads(line) for line in lines] == TABLE[1:3].tolist()
    (rows.parent / "rows.npy:1").write_bytes(b"a file of that name is meant first")
    assert cat("rows.npy:1", "--dtype", "S1", "--shape", "6") == b"a file"


def test_elements_that_numpy_has_no_dtype_for(rows: Path, cat: Callable[..., bytes], run: Run) -> None:
    bits = np.arange(0x3F80, 0x3F8C, dtype="<u2").reshape(4, 3)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4, 3], "data_offsets": [0, 24]}}).encode()
    (rows.parent / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bits.tobytes())
    assert "4 x 3 of bfloat16" in run("stat", "m.safetensors").stdout
    assert json.loads(run("stat", "m.safetensors", "--json").stdout)["arrays"][0]["dtype"] == "bfloat16"
    assert cat("m.safetensors:1:3") == bits[1:3].tobytes()
    assert np.array_equal(np.load(io.BytesIO(cat("m.safetensors", "--npy"))), bits)
    measured = json.loads(run("bench", "m.safetensors", "--rows", "5", "--runs", "1", "--json").stdout)
    assert measured["row_nbytes"] == 6 and len(measured["cases"]) == 3
    if find_spec("torch") is None:
        said = run("cat", "m.safetensors", "--json")
        assert said.returncode == 1 and "install torch" in said.stderr
    else:
        assert [json.loads(line) for line in cat("m.safetensors:0", "--json").splitlines()] == [
            [1.0, 1.0078125, 1.015625]
        ]


def test_rows_as_json_are_json(rows: Path, cat: Callable[..., bytes]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    arrays: dict[str, tuple[Any, list[Any]]] = {
        "f": (np.array([[1.5, np.nan], [-np.inf, 2]]), [[1.5, None], [None, 2.0]]),
        "c": (np.array([1 + 2j, complex(np.nan, 1)]), [[1.0, 2.0], [None, 1.0]]),
        "s": (np.array([b"ab", b"\xff"]), ["ab", "\\xff"]),
        "u": (np.array(["ü", "x"]), ["ü", "x"]),
        "t": (np.array(["2020-01-02"], "M8[D]"), ["2020-01-02"]),
        "r": (np.array([(1, np.inf, b"x")], [("a", "i4"), ("b", "f4"), ("c", "S2")]), [[1, None, "x"]]),
        "p": (np.array([(1, [0.5, np.nan])], [("a", "i4"), ("b", "f8", (2,))]), [[1, [0.5, None]]]),
    }
    for name, (array, wanted) in arrays.items():
        np.save(rows.parent / f"{name}.npy", array)
        lines = cat(f"{name}.npy", "--json").splitlines()
        assert [json.loads(line, parse_constant=refuse) for line in lines] == wanted


def test_cat_that_is_interrupted_says_what_it_leaves(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpufs.files_cli._write", interrupted)
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["cat", str(rows)])
    assert said.exit_code == 130
    assert said.stderr == "gpufs: interrupted; standard output has a part of the rows at most\n"


def test_cat_ends_with_who_reads_it(rows: Path) -> None:
    big = np.zeros((1 << 20, 16), np.uint8)
    np.save(rows.parent / "big.npy", big)
    command = f"{sys.executable} -m gpufs cat big.npy | head -c 5; echo ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", command], cwd=rows.parent, env=environment, capture_output=True, check=False)
    assert done.stdout == bytes(5) + b"141\n" and done.stderr == b""


def test_bench_measures_each_way(rows: Path, run: Run) -> None:
    said = run("bench", "rows.npy", "--runs", "2", "--rows", "50")
    assert (
        said.returncode == 0 and "x[idx] by" in said.stdout and "memory map" in said.stdout and "pread" in said.stdout
    )
    result: dict[str, Any] = json.loads(run("bench", "rows.npy", "--runs", "3", "--rows", "99", "--json").stdout)
    assert result["nrows"] == 99 and result["row_nbytes"] == 12 and len(result["cases"]) == 3
    for case in result["cases"]:
        rates = case["gb_per_s"]
        assert len(case["seconds"]) == 3 and 0 < rates["least"] <= rates["median"] <= rates["most"]
        assert case["median_s"] == sorted(case["seconds"])[1]
    empty = rows.parent / "empty.npy"
    np.save(empty, TABLE[:0])
    assert "has no rows" in run("bench", empty).stderr


def test_bench_draws(rows: Path, run: Run) -> None:
    from importlib.util import find_spec

    picture = rows.parent / "plot.png"
    said = run("bench", "rows.npy", "--runs", "2", "--rows", "50", "--plot", picture)
    if find_spec("matplotlib") is None:
        assert said.returncode == 1 and "pip install matplotlib" in said.stderr
    else:
        assert said.returncode == 0 and picture.read_bytes()[:4] == b"\x89PNG"
        wrong = run("bench", "rows.npy", "--runs", "1", "--plot", "plot.nope")
        assert wrong.returncode == 1 and "plot.nope" in wrong.stderr


def test_bench_refuses_wrong_rows(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpufs import bench
    from gpufs.errors import GpufsError

    how = {"name": None, "dtype": None, "shape": None, "offset": 0, "engine": "cpu"}
    monkeypatch.setattr(bench, "_pread", lambda pool, file, like, offsets: np.full_like(like, -1))
    with pytest.raises(GpufsError, match="pread by 16 threads gave other rows"):
        bench.measure(str(rows), how, 10, 1, 1)


def test_selftest_passes_and_can_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gpufs import selftest

    if not (Path(selftest.__file__).parent / "lib/libgpufs_c.so").exists():
        pytest.skip("this build has no libgpufs_c.so")
    assert selftest.main() == 0
    said = capsys.readouterr().out
    assert " 0 wrong" in said and "right: Parquet by simt" in said
    monkeypatch.setattr(selftest, "_COLUMN", selftest._COLUMN + 1)
    assert selftest.main() == 1
    assert "WRONG: Arrow by cpu" in capsys.readouterr().out

# SPDX-License-Identifier: Apache-2.0
"""gpufs.query() and `gpufs query`: against Python's and NumPy's sums, on tables of all formats, and errors."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import names_in
from gpufs import query_cli
from gpufs.queries import TAXI_COLUMNS, OpenQuery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

SMALL: dict[str, Any] = {"cache": "64K", "page": 1024, "threads": 2}
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
    ">=": np.greater_equal,
    ">": np.greater,
}
Columns = dict[str, NDArray[Any]]


ask, told = partial(conftest.ask, "query"), partial(conftest.told, "query")


def write_folder(path: Path, columns: Columns) -> None:
    path.mkdir(exist_ok=True)
    for name, values in columns.items():
        np.save(path / f"{name}.npy", values)


def drawn(n: int, seed: int = 1) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "miles": rng.lognormal(1, 1, n),
        "fare": rng.normal(10, 20, n),
        "short": rng.normal(0, 1e-3, n).astype(np.float32),
        "zone": rng.integers(-128, 128, n).astype(np.int8),
        "payment": rng.integers(0, 7, n).astype(np.uint16),
        "id": rng.integers(0, 2**64, n, np.uint64),
    }


def check(columns: Columns, found: gpufs.QueryResult, passed: NDArray[np.bool_]) -> None:
    """Sums are right to the last bit."""
    assert found.rows == len(passed) and found.passed == int(passed.sum())
    for name, sums in found.columns.items():
        values = columns[name][passed].tolist()
        if not values:
            assert (sums.sum, sums.mean, sums.min, sums.max) == (0, None, None, None)
            continue
        exact = sum((Fraction(value) for value in values), Fraction(0))
        assert sums.sum == (math.fsum(values) if columns[name].dtype.kind == "f" else sum(values))
        assert type(sums.sum) is (float if columns[name].dtype.kind == "f" else int)
        assert sums.mean == float(exact / len(values))
        assert (sums.min, sums.max) == (min(values), max(values))


def write_tables(folder: Path, columns: Columns) -> list[Path]:
    """The same rows in each format."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write_folder(folder / "folder", columns)
    table = pa.table(columns)
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as to:
        for first in range(0, len(table), 777):
            to.write_batch(table.slice(first, 777).combine_chunks().to_batches()[0])
    pq.write_table(
        table, folder / "t.parquet", compression="none", use_dictionary=False, row_group_size=1500, data_page_size=999
    )
    return [folder / "folder", folder / "t.arrow", folder / "t.parquet"]


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_of_tables_of_all_formats(engine: str, tmp_path: Path) -> None:
    columns = {name: values for name, values in drawn(4000).items() if values.itemsize > 2}  # as Parquet has them
    for table in write_tables(tmp_path, columns):
        found = gpufs.query(table, "miles >= 12.5", list(columns), engine=engine, **SMALL)
        check(columns, found, columns["miles"] >= 12.5)
        assert list(found.columns) == list(columns) and found.engine == engine


def test_counts_and_extrema_are_those_of_pyarrow(tmp_path: Path) -> None:
    columns = drawn(5000)
    folder, arrow, _ = write_tables(tmp_path, columns)
    import pyarrow as pa
    import pyarrow.compute as pc

    with pa.ipc.open_file(arrow) as file:
        table = file.read_all()
    passed = table.filter(pc.greater(table["zone"], 100))
    found = gpufs.query(folder, "zone > 100", ["fare", "id"], engine="cpu")
    assert found.passed == len(passed) > 0
    for name in ("fare", "id"):
        extrema = pc.min_max(passed[name]).as_py()
        assert (found.columns[name].min, found.columns[name].max) == (extrema["min"], extrema["max"])
    assert found.columns["fare"].sum == pytest.approx(pc.sum(passed["fare"]).as_py(), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_all_types_by_all_comparisons(engine: str, tmp_path: Path) -> None:
    columns = drawn(1200)
    write_folder(tmp_path / "t", columns)
    for i, (name, values) in enumerate(columns.items()):
        for k, (comparison, compare) in enumerate(COMPARED.items()):
            value = values[(7 * i + k) % len(values)]
            other = list(columns)[(i + k) % len(columns)]
            found = gpufs.query(tmp_path / "t", f"{name}{comparison}{value!s}", [name, other], engine=engine, **SMALL)
            check(columns, found, compare(values, value))


@given(
    values=hnp.arrays(np.float64, st.integers(1, 70), elements=st.floats(allow_nan=False, allow_infinity=False)),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_keep_all_bits(values: NDArray[np.float64], seed: int, tmp_path: Path) -> None:
    """Whatever their sizes, and in whatever order."""
    values = np.concatenate([values, -values[: len(values) // 2], values])
    np.random.default_rng(seed).shuffle(values)
    write_folder(tmp_path / "t", {"x": values, "all": np.zeros(len(values), np.uint8)})
    exact = sum((Fraction(value) for value in values.tolist()), Fraction(0))
    for engine in ENGINES:
        sums = gpufs.query(tmp_path / "t", "all == 0", ["x"], engine=engine, **SMALL).columns["x"]
        try:
            rounded = float(exact)
        except OverflowError:
            rounded = math.inf if exact > 0 else -math.inf
        assert sums.sum == rounded and sums.mean == float(exact / len(values))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_number_and_what_is_infinite(engine: str, tmp_path: Path) -> None:
    x = np.array([1.0, math.nan, 3.0, math.inf, -math.inf, -0.0])
    write_folder(tmp_path / "t", {"x": x, "row": np.arange(6, dtype=np.int32)})

    def sums(where: str) -> list[Any]:
        found = gpufs.query(tmp_path / "t", where, ["x"], engine=engine).columns["x"]
        return [found.sum, found.mean, found.min, found.max]

    def passed(where: str) -> int:
        return gpufs.query(tmp_path / "t", where, engine=engine).passed

    assert all(math.isnan(value) for value in sums("row <= 2"))
    assert sums("row == 2") == [3, 3, 3, 3] and sums("row == 5") == [0, 0, 0, 0]
    assert sums("x > 2") == [math.inf, math.inf, 3, math.inf] and sums("x <= 3") == [-math.inf, -math.inf, -math.inf, 3]
    assert math.isnan(sums("x != 1000")[0]) and passed("x != 1000") == 6 and passed("x == 0") == 1
    assert passed("x < inf") == 4 and passed("x >= -inf") == 5 and passed("x > inf") == passed("x < -inf") == 0


def test_a_number_is_rounded_to_the_column(tmp_path: Path) -> None:
    write_folder(tmp_path / "t", {"x": np.array([0.7, 0.1], np.float32), "n": np.array([3, 4], np.int8)})
    assert gpufs.query(tmp_path / "t", "x >= 0.7").passed == 1 and gpufs.query(tmp_path / "t", "x = 0.1").passed == 1
    assert gpufs.query(tmp_path / "t", " n >=  4.0 ").passed == 1 and gpufs.query(tmp_path / "t", "n>=-4e0").passed == 2


def test_wrong_arguments_are_errors(tmp_path: Path) -> None:
    write_folder(tmp_path / "t", {"x": np.arange(3)})
    for wrong, words in (
        ({"engine": "tpu"}, "there is no engine 'tpu'"),
        ({"threads": -1}, "threads is -1"),
        ({"cache": "much"}, "no number of bytes"),
        ({"page": 1000}, "a power of two"),
        ({"device": 99, "engine": "simt"}, "device"),
        ({"device": "cuda"}, "device is 'cuda'; it is a GPU's number"),
    ):
        with pytest.raises(gpufs.GpufsError, match=words):
            gpufs.query(tmp_path / "t", "x > 1", ["x"], **wrong)  # type: ignore[arg-type]
    assert gpufs.query(str(tmp_path / "t"), "x > 1", "x").columns["x"].sum == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_of_columns_what_is_not_wanted_is_not_read(engine: str, tmp_path: Path) -> None:
    n = 50_000
    where = np.zeros(n, np.int32)
    where[[7, 25_000, n - 1]] = 1
    write_folder(tmp_path / "t", {"where": where, "x": np.arange(n, dtype=np.float64), "y": np.ones(n)})
    how = OpenQuery(tmp_path / "t", "where = 1", ["x", "y", "x"], engine=engine, **SMALL)
    seen: list[tuple[int, int]] = []
    found, _ = how.run(lambda done, total: seen.append((done, total)))
    assert found.columns["x"].sum == 7 + 25_000 + n - 1 and found.columns["y"].sum == 3
    assert 4 * n <= found.bytes_read - 6 * 8 <= 1.1 * 4 * n and (found.bytes_filled is None) == (engine == "cpu")
    assert seen[0] == (0, n) and seen[-1] == (n, n) and how.run()[0].columns == found.columns


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_run_one_query_take_turns(engine: str, tmp_path: Path) -> None:
    columns = drawn(3000)
    write_folder(tmp_path / "t", columns)
    how = OpenQuery(tmp_path / "t", "fare > 0", ["miles", "fare", "id"], engine=engine, **SMALL)
    with ThreadPoolExecutor(4) as threads:
        for found, _ in threads.map(lambda _: how.run(), range(12)):
            check(columns, found, columns["fare"] > 0)
    with pytest.raises(gpufs.GpufsError, match="a query is called by its own progress function"):
        how.run(lambda done, total: how.run())


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trips")
    assert told("synth", "--rows", 200_000, "-o", folder / "trips", "--seed", 3)["rows"] == 200_000
    return folder / "trips"


def test_trips_are_as_those_of_taxis(trips: Path) -> None:
    columns = {path.stem: np.load(path) for path in trips.glob("*.npy")}
    assert len(columns) == 18 and columns["tpep_pickup_datetime"].dtype == np.dtype("M8[us]")
    distance = columns["trip_distance"]
    assert 0.0002 < np.mean(distance >= 30) < 0.0004 and 1.5 < np.median(distance) < 1.9 and distance.max() < 120
    assert np.all(columns["tpep_dropoff_datetime"] > columns["tpep_pickup_datetime"])
    parts = "fare_amount extra mta_tax tip_amount tolls_amount improvement_surcharge congestion_surcharge airport_fee"
    cents = sum(np.round(100 * columns[name]).astype(np.int64) for name in parts.split())
    assert np.array_equal(np.round(100 * columns["total_amount"]).astype(np.int64), cents)
    assert set(np.unique(columns["payment_type"])) == {1, 2, 3, 4} and set(np.unique(columns["VendorID"])) == {1, 2}
    assert columns["PULocationID"].min() >= 1 and columns["PULocationID"].max() <= 265


def test_trips_are_the_same_in_each_format_and_by_any_threads(trips: Path, tmp_path: Path) -> None:
    feather = pytest.importorskip("pyarrow.feather")
    made = told("synth", "--rows", 200_000, "-o", tmp_path / "t.arrow", "--seed", 3, "--threads", 1)
    table = feather.read_table(tmp_path / "t.arrow")
    assert table.column_names == made["columns"] and made["nbytes"] == (tmp_path / "t.arrow").stat().st_size
    for name in made["columns"]:
        assert np.array_equal(table[name].to_numpy(), np.load(trips / f"{name}.npy")), name
    told("synth", "--rows", 1000, "-o", tmp_path / "few", "--seed", 3, "--columns", "q5", "--threads", 1)
    told("synth", "--rows", 1000, "-o", tmp_path / "others", "--seed", 4, "--columns", "trip_distance")
    assert names_in(tmp_path / "few") == sorted(f"{name}.npy" for name in TAXI_COLUMNS)
    first = np.load(trips / "trip_distance.npy")[:1000]
    assert np.array_equal(np.load(tmp_path / "few/trip_distance.npy"), first)
    assert not np.array_equal(np.load(tmp_path / "others/trip_distance.npy"), first)


def test_tables_that_cannot_have_room_are_not_begun(tmp_path: Path) -> None:
    said = ask("synth", "--rows", 10**12, "-o", tmp_path / "t.arrow")
    assert said.exit_code == 1 and "are free there: make fewer rows or columns" in said.stderr
    assert names_in(tmp_path) == []


def test_one_condition_is_understood(trips: Path) -> None:
    said = ask("run", trips, "-w", "fare_amount > 3", "-w", "fare_amount < 4")
    assert said.exit_code == 2 and "one condition is understood" in said.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_the_queries_of_taxis(engine: str, trips: Path) -> None:
    columns = {name: np.load(trips / f"{name}.npy") for name in TAXI_COLUMNS}
    passed = columns["trip_distance"] >= 30
    for number in range(6):
        facts = told("run", trips, "--query", f"q{number}", "--engine", engine)
        assert list(facts["columns"]) == list(TAXI_COLUMNS[: number + 1]) and facts["passed"] == passed.sum() > 0
        assert facts["where"] == "trip_distance >= 30" and facts["engine"] == engine and facts["rows"] == 200_000
        for name, sums in facts["columns"].items():
            assert sums["sum"] == math.fsum(columns[name][passed])
        exact = {name: sum(map(Fraction, columns[name][passed].tolist())) for name in facts["columns"]}
        made = exact.pop("trip_distance")
        if number:
            total = exact.pop("total_amount") - sum(exact.values())
            assert facts["dollars_per_mile"] == float(total / made)
        else:
            assert "dollars_per_mile" not in facts
    said = ask("run", trips, "-q", "q5", "--engine", engine)
    assert said.exit_code == 0 and "dollars a mile" in said.stdout and "mta_tax" in said.stdout
    assert f"{math.fsum(columns['trip_distance'][passed]):,}" in said.stdout


def test_a_table_without_passing_rows(trips: Path) -> None:
    facts = told("run", trips, "-w", "trip_distance > 1000", "--sum", "trip_distance, extra")
    assert facts["passed"] == 0 and facts["columns"]["extra"] == {"sum": 0.0, "mean": None, "min": None, "max": None}
    assert "-" in ask("run", trips, "-w", "trip_distance > 1000", "-s", "extra").stdout
    assert "that pass" in ask("run", trips, "-w", "trip_distance > 1000").stdout


def test_infinite_sums_are_json(tmp_path: Path) -> None:
    write_folder(tmp_path / "t", {"x": np.array([1, math.inf])})
    said = ask("run", tmp_path / "t", "-w", "x > 0", "-s", "x", "--json").stdout
    sums = json.loads(said, parse_constant=pytest.fail)["columns"]["x"]
    assert sums == {"sum": "inf", "mean": "inf", "min": 1.0, "max": "inf"}


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["run"], 2, "TABLE"),
        (["run", "t"], 1, "which rows? give either --query q0 to q5, or --where"),
        (["run", "t", "-q", "q1", "-w", "x > 1"], 1, "which rows?"),
        (["run", "t", "-q", "q1", "-s", "x"], 1, "--query q1 says which columns: leave out --sum"),
        (["run", "t", "-q", "q6"], 2, "q6"),
        (["run", "t", "-q", "q5"], 1, "t: has no column 'trip_distance': there are far, flag, text, time, two, x, y"),
        (["run", "none", "-w", "x > 1"], 1, "none: No such file or directory"),
        (["run", "empty", "-w", "x > 1"], 1, "empty: has no columns: a table's folder has COLUMN.npy"),
        (["run", "t", "-w", "x"], 1, "'x' is no condition, as \"trip_distance >= 30\" is"),
        (["run", "t", "-w", "x > 1 and y < 3"], 1, "is no condition"),
        (["run", "t", "-w", "x => 1"], 1, "is no condition"),
        (["run", "t", "-w", "x > much"], 1, "'much' is no number: the column 'x' has elements of float64"),
        (["run", "t", "-w", "x > nan"], 1, "'nan' is unequal to all"),
        (["run", "t", "-w", "y > 1.5"], 1, "'1.5' is none of its values: the column 'y' has elements of int8"),
        (["run", "t", "-w", "y > 128"], 1, "'128' is none of its values"),
        (["run", "t", "-w", "y > inf"], 1, "'inf' is none of its values"),
        (["run", "t", "-w", f"x > {10**400}"], 1, "is too large"),
        (["run", "t", "-w", "x > 1", "-s", "x,z"], 1, "t: has no column 'z': there are far,"),
        (["run", "t", "-w", "far > 1"], 1, "the column 'far' has elements of >f8, and queries take numbers of i1,"),
        (["run", "t", "-w", "flag == 1"], 1, "the column 'flag' has elements of bool"),
        (["run", "t", "-w", "x > 1", "-s", "text"], 1, "the column 'text' has elements of <U3"),
        (["run", "t", "-w", "x > 1", "-s", "time"], 1, "the column 'time' has elements of datetime64[us]"),
        (["run", "t", "-w", "x > 1", "-s", "two"], 1, "has rows of the shape (2,): queries take a number a row"),
        (["run", "lengths", "-w", "x > 1", "-s", "y"], 1, "y.npy: has 4 rows, and lengths/x.npy has 3: columns"),
        (["run", "cut", "-w", "x > 1"], 1, "'cut/x.npy' is truncated, or the shape is of another array"),
        (["run", "damaged.arrow", "-w", "x > 1"], 1, "'damaged.arrow' has a header that does not read; it is damaged"),
        (["run", "t/x.npy", "-w", "x > 1"], 1, "'t/x.npy' is a .npy file, which has one array"),
        (["run", "text.csv", "-w", "x > 1"], 1, "'text.csv' is no .npy, .npz, safetensors, Arrow or Parquet file"),
        (["run", "t", "-w", "x > 1", "-s", ",".join("abcdefghijklm")], 1, "13 columns are more than the 12 of a query"),
        (["run", "t", "-w", "x > 1", "--page-size", "1000"], 2, "a power of two"),
        (["synth", "-o", "new"], 2, "--rows"),
        (["synth", "--rows", "-1", "-o", "new"], 2, "rows"),
        (["synth", "--rows", "1", "-o", "t"], 1, "t: is there already: choose another name, or remove it first"),
        (["synth", "--rows", "1", "-o", "text.csv"], 1, "text.csv: is there already"),
        (["synth", "--rows", "1", "-o", "no/new"], 1, "no/new: there is no folder no"),
        (["synth", "--rows", "1", "-o", "new.parquet"], 1, "tables are made as Arrow files (name it .arrow)"),
        (["synth", "--rows", "1", "-o", "new", "--columns", "fare"], 1, "trips have no column 'fare': there are"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(
    arguments: list[str], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.arange(3.0)
    write_folder(
        tmp_path / "t",
        {
            "x": x,
            "y": x.astype(np.int8),
            "far": x.astype(">f8"),
            "flag": x > 1,
            "text": np.array(["a", "bcd", "e"]),
            "time": np.zeros(3, "M8[us]"),
            "two": np.zeros((3, 2)),
        },
    )
    write_folder(tmp_path / "lengths", {"x": x, "y": np.arange(4)})
    write_folder(tmp_path / "cut", {"x": x})
    (tmp_path / "cut/x.npy").write_bytes((tmp_path / "t/x.npy").read_bytes()[:-1])
    (tmp_path / "damaged.arrow").write_bytes(b"ARROW1\0\0" + b"\1" * 50)
    (tmp_path / "text.csv").write_text("x\n1\n")
    (tmp_path / "empty").mkdir()
    before = {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    said = ask(*arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert before == {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}


def test_tables_that_are_compressed_say_how_to_write_them(tmp_path: Path) -> None:
    pa, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"x": np.arange(1000.0)})
    feather.write_feather(table, str(tmp_path / "t.arrow"), compression="lz4")
    pq.write_table(table, tmp_path / "t.parquet")
    nulls = pa.table({"x": pa.array([1.0, None])})
    feather.write_feather(nulls, str(tmp_path / "nulls.arrow"), compression="uncompressed")
    np.savez(tmp_path / "t.npz", x=np.arange(4.0), y=np.arange(4))
    assert gpufs.query(tmp_path / "t.npz", "x > 1", ["y"]).columns["y"].sum == 5
    for name, words in (("t.arrow", "is compressed"), ("t.parquet", "is compressed"), ("nulls.arrow", "has nulls")):
        said = ask("run", tmp_path / name, "-w", "x > 1")
        assert said.exit_code == 1 and words in said.stderr and "write it" in said.stderr, said.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_that_is_written_meanwhile_is_an_error(engine: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "t", {"x": np.arange(1000.0), "y": np.arange(1000.0)})
    how = OpenQuery(tmp_path / "t", "x > 1", ["y"], engine=engine, **SMALL)
    with (tmp_path / "t/y.npy").open("r+b") as file:
        file.seek(1000)
        file.write(b"\0" * 8)
    with pytest.raises(gpufs.GpufsError, match=r"y\.npy: was (changed|truncated, replaced or written).*try again"):
        how.run()


@pytest.mark.parametrize("name", ["t", "t.arrow"])
def test_a_full_disk_leaves_nothing(name: str, tmp_path: Path) -> None:
    if name.endswith(".arrow"):
        pytest.importorskip("pyarrow")
    command = f"ulimit -f 64; exec {sys.executable} -m gpufs query synth --rows 100000 -o {name}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith(f"gpufs: {name}"), done.stderr
    assert done.stderr.endswith(": cannot be written: File too large\n") and done.stderr.count("\n") == 1, done.stderr
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", ["run", "synth"])
def test_an_interruption_leaves_nothing(command: str, sent: signal.Signals, status: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "t", {"x": np.ones(4_000_000, np.uint8)})
    arguments = {
        "run": ["run", "t", "-w", "x > 0", "-s", "x", "--engine", "simt"],
        "synth": ["synth", "--rows", str(2**29), "-o", "new", "--columns", "VendorID", "--threads", "1"],
    }
    started = subprocess.Popen(
        [sys.executable, "-m", "gpufs", "query", *arguments[command]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    opened = Path(f"/proc/{started.pid}/fd")
    for _ in range(1200):  # until it reads, or writes; it goes on for long
        if any(os.path.realpath(link).startswith(f"{tmp_path}/") for link in opened.iterdir()):
            break
        time.sleep(0.05)
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == status and errors == "gpufs: interrupted; nothing was written\n", errors
    assert names_in(tmp_path) == ["t"]


def test_all_commands_have_help() -> None:
    for command in ("synth", "run"):
        said = ask(command, "--help")
        assert said.exit_code == 0 and "Usage" in said.stdout
    assert query_cli.app.info.help

# SPDX-License-Identifier: Apache-2.0
"""What the benches in Python can measure without a GPU, at a tiny size, and results as bench/report.py reads them."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
TINY = ("--table-gb", "0.003", "--runs", "2", "--rows", "40", "--small-rows", "200", "--files", "20", "--calls", "6")


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, by its own names for its parts, which nobody has afterwards."""
    for folder in (BENCH, BENCH / "python"):
        monkeypatch.syspath_prepend(str(folder))
    names = ("arrays", "devices", "gathers", "harness", "numba_hits", "others", "tables")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("arrays")
    for name in names:
        sys.modules.pop(name, None)


def run(arrays: Any, folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    out = folder / "python.json"
    assert arrays.main(["--dir", str(folder), "--out", str(out), *TINY, *arguments]) == status
    result: dict[str, Any] = json.loads(out.read_text())
    assert [path.name for path in folder.iterdir()] == ["python.json"]
    return result


def test_what_needs_no_gpu_is_measured(arrays: Any, tmp_path: Path) -> None:
    result = run(arrays, tmp_path, "--device", "host", "--only", "py_cpu_engine,py_read_files")
    assert [case["name"] for case in result["cases"]] == ["py_cpu_engine", "py_cpu_engine", "py_read_files"]
    for case in result["cases"]:
        assert (
            case["verified"] and case["samples"] == 2 and 0 < case["spread"][0] <= case["figure"] <= case["spread"][1]
        )
        assert case["figure"] == pytest.approx(case["measured"] / case["ceiling"])
    assert result["quick"] and str(tmp_path) not in result["command"] and "--dir DIR" in result["command"]
    report: Any = importlib.import_module("report_data")
    (bench,) = report.load_results(tmp_path)
    assert bench.quick and len(bench.cases) == 3


def test_each_name_is_measured_or_it_is_said_why_not(arrays: Any, tmp_path: Path) -> None:
    """By torch on the host in a GPU's place, where torch is."""
    result = run(arrays, tmp_path, "--device", "host")
    measured = {case["name"] for case in result["cases"]}
    notes = [note.split(": not measured: ") for note in result["notes"] if ": not measured: " in note]
    left_out = {name for names, _ in notes for name in names.split(", ")}
    assert measured | left_out == set(arrays.NAMES) and not measured & left_out
    assert all(case["verified"] for case in result["cases"])
    if find_spec("torch") is None:
        assert {why for _, why in notes} == {"torch is not installed"}
    else:
        assert set(arrays.OF_A_GPU) - measured == {"py_vs_kvikio"}
    with_bounds = {case["name"] for case in result["cases"] if case["bound"]}
    assert measured - with_bounds <= {"py_first", "py_numba_hit"}


def test_wrong_answers_are_found(arrays: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpufs

    take = gpufs.Array.__getitem__
    monkeypatch.setattr(gpufs.Array, "__getitem__", lambda self, key: take(self, key) + 1)
    result = run(arrays, tmp_path, "--device", "host", "--only", "py_cpu_engine", status=1)
    assert [case["verified"] for case in result["cases"]] == [False, False]


def test_what_no_run_is(arrays: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((["--only", "py_nothing"], "py_nothing"), (["--rows", "0"], "must be more than 0")):
        with pytest.raises(SystemExit):
            arrays.main(arguments)
        assert words in capsys.readouterr().err
    if find_spec("torch") is None:
        assert arrays.main(["--only", "py_first", *TINY, "--dir", str(tmp_path)]) == 1  # nothing was measured


def test_rows_are_drawn_as_they_should_be(arrays: Any, tmp_path: Path) -> None:
    tables: Any = importlib.import_module("tables")
    table = tables.make_table(tmp_path / "t.npy", 1e6, 4096, 2)
    rows = np.load(table.path)
    assert rows.shape == (244, 1024) and np.unique(rows).size > 0.98 * rows.size
    assert np.array_equal(rows, table.mapped())
    small = table.with_columns(128)
    assert np.array_equal(np.load(table.path), rows.reshape(-1, 128)) and small.nrows == 8 * 244
    picks = tables.Picks(244, 50, 4, seed=1)
    drawn = np.concatenate([picks[run] for run in range(4)])
    assert np.unique(drawn).size == 200 and drawn.max() < 244
    assert tables.Picks(244, 100, 4, seed=1).n == 61
    zipf = tables.Zipf(1000, 20_000, seed=1)
    counts = np.sort(np.bincount(zipf.draw(), minlength=1000))[::-1] / 20_000
    law = np.arange(1, 1001) ** -0.99
    law /= law.sum()
    assert counts[:2] == pytest.approx(law[:2], rel=0.1)
    assert counts[:50].sum() == pytest.approx(law[:50].sum(), rel=0.1)


def test_nodes_are_drawn_as_a_neighbor_loader_draws_them(arrays: Any) -> None:
    others: Any = importlib.import_module("others")
    rng = np.random.default_rng(3)
    tree = np.arange(10, 10 + 5000 * 10).reshape(5000, 10)  # so no node is found twice
    nodes = others.draw_nodes(tree, np.array([7, 3, 200]), rng)
    hop = tree[[7, 3, 200]]
    assert nodes[:3].tolist() == [7, 3, 200] and len(nodes) == 3 + 3 * 10 + 30 * 5
    assert sorted(nodes[3:33]) == sorted(hop.reshape(-1)) and set(nodes[3:13]) == set(hop[0])
    assert all(np.isin(tree[node], nodes[33:]).sum() == 5 for node in nodes[3:33])
    drawn = np.concatenate([others.draw_nodes(tree, np.array([0]), rng)[11:] for _ in range(400)])
    counts = np.bincount(drawn, minlength=210)[110:210]
    assert counts.sum() == 400 * 50 and counts.min() > 140 and counts.max() < 260  # half of 400, and six deviations
    graph = rng.integers(0, 300, (300, 10))
    for _ in range(20):
        seeds = rng.permutation(300)[:20]
        nodes = others.draw_nodes(graph, seeds, rng)
        assert np.unique(nodes).size == nodes.size and np.array_equal(nodes[:20], seeds)
        first = np.unique(graph[seeds])
        assert np.isin(first, nodes).all() and np.isin(nodes, np.r_[seeds, first, graph[first].reshape(-1)]).all()


def test_batches_are_drawn_by_pygs_loader_where_it_can(arrays: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    others: Any = importlib.import_module("others")
    batches = others.draw_batches(500, 3, 40, torch)
    assert [batch.dtype for batch in batches] == [torch.int64] * 3
    seeds = torch.cat([batch[:40] for batch in batches])
    assert seeds.unique().numel() == 120 and all(batch.unique().numel() == batch.numel() > 200 for batch in batches)


def test_the_collage_is_measured_as_a_command(arrays: Any, tmp_path: Path) -> None:
    collage: Any = importlib.import_module("collage")
    try:
        out = tmp_path / "collage.json"
        tiny = ("--images", "200", "--large", "128", "--device", "host")
        assert collage.main(["--dir", str(tmp_path), "--out", str(out), *tiny]) == 0
    finally:
        sys.modules.pop("collage", None)
    result = json.loads(out.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["collage.json"]
    assert result["bench"] == "collage" and result["command"].startswith("collage.py --dir DIR")
    figures = {case["name"]: case["figure"] for case in result["cases"]}
    assert set(figures) >= {"collage_auto", "collage_write"} and all(case["verified"] for case in result["cases"])
    assert 0.1 < figures["collage_auto"] < 10 and 0 < figures["collage_write"] < 60


def test_queries_are_compared_with_those_of_what_is_installed(arrays: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    query: Any = importlib.import_module("query")
    try:
        out = tmp_path / "query.json"
        arguments = ("--dir", str(tmp_path), "--out", str(out), "--device", "host", "--only")
        names = ["query_q0_vs_cpu16", "query_q5_vs_cpu16"]
        assert query.main([*arguments, ",".join(names)]) == 0
        result = json.loads(out.read_text())
        assert [path.name for path in tmp_path.iterdir()] == ["query.json"]
        assert [case["name"] for case in result["cases"]] == names
        for case in result["cases"]:
            assert case["verified"] and case["figure"] > 0 and case["details"]["pyarrow s"] > 0
        query.TAXI_WHERE = "trip_distance >= 20"  # and so it is found that others' answers differ
        assert query.main([*arguments, names[0]]) == 1
    finally:
        sys.modules.pop("query", None)


def test_vectors_are_searched(arrays: Any, tmp_path: Path) -> None:
    of_vectors: Any = importlib.import_module("vectors")
    try:
        out = tmp_path / "vectors.json"
        tiny = ("--vectors", "2000", "--lists", "20", "--queries", "120", "--device", "host")
        assert of_vectors.main(["--dir", str(tmp_path), "--out", str(out), *tiny]) == 0
        near = (np.arange(6).reshape(2, 3), np.ones((2, 3), np.float32))
        assert of_vectors.alike(near, near) and not of_vectors.alike(near, (near[0], near[1] * 2))
        assert of_vectors.recall_of(near[0], np.array([[0, 1, 9], [3, 4, 5]])) == pytest.approx(5 / 6)
    finally:
        sys.modules.pop("vectors", None)
    result = json.loads(out.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.json"]
    assert result["bench"] == "vectors_faiss" and all(case["verified"] for case in result["cases"])
    figures = {case["name"]: case["figure"] for case in result["cases"]}
    assert 0.1 < figures["vectors_recall"] <= 1
    assert ("vectors_vs_faiss16" in figures) != any("faiss is not installed" in note for note in result["notes"])


def test_scans_and_sorts_of_arrays_are_measured(arrays: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: Any = importlib.import_module("scans")
    try:
        out = tmp_path / "scans.json"
        arguments = ("--device", "host", "--elements", "3000", "--keys", "1000", "--out", str(out))
        assert scans.main([*arguments]) == 0
        result = json.loads(out.read_text())
        assert [case["name"] for case in result["cases"]] == ["py_scan_there"] * 2 + ["py_sort_there"] * 2
        for case in result["cases"]:
            assert case["verified"] and case["ceiling_is"] == "NumPy"
            assert case["figure"] == pytest.approx(case["measured"] / case["ceiling"])
        monkeypatch.setattr(scans.par, "scan", lambda x, engine: x)  # and so a wrong answer is found
        assert scans.main([*arguments, "--only", "py_scan_there"]) == 1
    finally:
        sys.modules.pop("scans", None)

# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs graph`: graphs from files of all kinds, results against plain Python, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, names_in
from gpufs import graph_cli

# 0 -> 1 (2) -> 2 (2), 0 -> 2 (9), 3 -> 4 (1), and 5 alone.
EDGES = "# a comment\n0 1 2\n1 2 2\n0 2 9\n3 4 1\n5 5 1\n"
NOT_REACHED, NO_PATH = 2**32 - 1, 2**64 - 1


ask, told = partial(conftest.ask, "graph"), partial(conftest.told, "graph")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a graph is, and its text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_text(EDGES)
    told("import", "edges.txt", "directed")
    told("import", "edges.txt", "both", "--undirected")
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES)
def test_algorithms_give_arrays_and_facts(engine: str, folder: Path) -> None:
    how = ("--engine", engine, "--verify", "--page-size", "512", "--cache-size", "64K", "--out", "x.npy")
    facts = told("bfs", "directed", *how)
    assert np.load("x.npy").tolist() == [0, 1, 1, NOT_REACHED, NOT_REACHED, NOT_REACHED]
    assert (
        facts | {"path": "directed", "out": "x.npy", "source": 0, "reached": 3, "rounds": 2, "verified": True} == facts
    )
    assert facts["engine"] == engine and facts["seconds"] > 0 and (facts["bytes_read"] is None) == (engine == "cpu")
    told("bfs", "both", "--source", "2", *how)
    assert np.load("x.npy").tolist() == [1, 1, 0, NOT_REACHED, NOT_REACHED, NOT_REACHED]
    facts = told("cc", "directed", *how)
    assert np.load("x.npy").tolist() == [0, 0, 0, 3, 3, 5] and (facts["components"], facts["largest"]) == (3, 3)
    facts = told("sssp", "directed", "--delta", "1", *how)
    assert np.load("x.npy").tolist() == [0, 2, 4, NO_PATH, NO_PATH, NO_PATH] and facts["reached"] == 3
    told("pagerank", "both", "--tolerance", "1e-6", *how)
    scores = np.load("x.npy")
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [1 / 6] * 5 + [0.15 / 6], atol=1e-6)  # all that have neighbours are alike
    assert names_in(folder) == ["both", "directed", "edges.txt", "x.npy"]


def test_synthetic_graphs_are_equal_by_all_engines(tmp_path: Path) -> None:
    for kind in ("kron", "urand"):
        made = []
        for engine in ENGINES:
            path = tmp_path / engine
            facts = told(
                "synth", kind, path, "--scale", 8, "--degree", 10, "--seed", 5, "--weights", "--engine", engine
            )
            made.append(path.read_bytes())
            assert facts["nvertices"] == 256 and facts["nedges"] + facts["ndropped"] <= 2560
        assert all(other == made[0] for other in made)
    told("synth", "kron", tmp_path / "wide", "--scale", "8", "--degree", "10", "--wide")
    about = told("info", tmp_path / "wide")
    assert about["target_nbytes"] == 8 and not about["weights"] and about["made_by"] == "kron scale 8 degree 10 seed 0"
    assert "lead both ways" in ask("info", tmp_path / "wide").stdout
    said = ask("bfs", tmp_path / "wide", "--verify")
    assert "vertices reached" in said.stdout and "checked" in said.stdout


def csr(path: Path, **changed: Any) -> Path:
    """What scipy.sparse.save_npz writes of 0 -> 1 (7), 0 -> 2 (8), 2 -> 0 (9)."""
    arrays: dict[str, Any] = {
        "indptr": np.array([0, 2, 2, 3], np.int32),
        "indices": np.array([1, 2, 0], np.int32),
        "data": np.array([7.0, 8, 9]),
        "shape": np.array([3, 3]),
        "format": np.array(b"csr"),
    }
    arrays |= changed
    np.savez(path, allow_pickle=False, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_matrices_are_imported(folder: Path) -> None:
    told("import", csr(folder / "m.npz"), "m")
    told("sssp", "m", "--out", "x.npy", "--verify")
    assert np.load("x.npy").tolist() == [0, 7, 8]
    facts = told("import", csr(folder / "m.npz", data=None, format=None), "m", "--undirected")
    assert (facts["nedges"], facts["ndropped"]) == (4, 2)
    assert not told("info", "m")["weights"] and not told("info", "m")["directed"]
    (folder / "m.mtx").write_text("%%MatrixMarket matrix coordinate pattern symmetric\n% about\n3 3 2\n2 1\n3 2\n")
    told("import", "m.mtx", "m")
    assert told("bfs", "m", "--verify", "--out", "x.npy")["reached"] == 3
    assert np.load("x.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["bfs"], 2, "GRAPH"),
        (["bfs", "none"], 1, "none: No such file or directory"),
        (["bfs", "."], 1, "Is a directory"),
        (["bfs", "edges.txt"], 1, "edges.txt: is no graph: it is too short; `gpufs graph synth`"),
        (["bfs", "both", "--source", "6"], 1, "both: has no vertex 6: it has 6, numbered from 0"),
        (["bfs", "both", "--source", "-1"], 2, "source"),
        (["bfs", "both", "--out", "both"], 1, "both: is the graph"),
        (["bfs", "both", "--out", "no/x.npy"], 1, "there is no folder"),
        (["bfs", "both", "--page-size", "1000"], 2, "a power of two"),
        (["bfs", "cut"], 1, "it was cut; copy or make it again"),
        (["cc", "damaged", "--out", "x.npy"], 1, "the header is damaged"),
        (["sssp", "plain"], 1, "plain: has no weights: make it by --weights"),
        (["sssp", "both", "--delta", "0"], 2, "delta"),
        (["pagerank", "both", "--damping", "2"], 2, "damping"),
        (["synth", "kron", "edges.txt"], 1, "is there already and is no graph; choose another name"),
        (["synth", "grid", "x"], 2, "grid"),
        (["synth", "kron", "x", "--scale", "40"], 2, "scale"),
        (["synth", "urand", "x", "--memory", "1", "--engine", "cpu"], 1, "allow more by --memory"),
        (["import", "edges.txt", "edges.txt"], 1, "edges.txt: is one of the inputs"),
        (["import", "none", "x"], 1, "none: No such file or directory"),
        (["import", "bad.txt", "x"], 1, "bad.txt:3: weight -1 is negative"),
        (["import", "bad.npz", "x"], 1, "bad.npz: cannot be read as .npz"),
        (["import", "csc.npz", "x"], 1, "csc.npz: is a matrix of another format than CSR"),
        (["import", "wide.npz", "x"], 1, "its shape is [3, 4], and a graph's matrix is square"),
        (["import", "half.npz", "x"], 1, "half.npz: 'data' is no array of whole numbers: multiply and round"),
        (["import", "other.npz", "x"], 1, "other.npz: has no arrays 'indptr', 'indices' and 'shape'"),
        (["import", "out.npz", "x"], 1, "out.npz: index 2 is 3, and the matrix has 3 rows"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(arguments: list[str], status: int, words: str, folder: Path) -> None:
    told("import", "edges.txt", "plain", "--no-weights")
    whole = (folder / "both").read_bytes()
    (folder / "cut").write_bytes(whole[:-1])
    (folder / "damaged").write_bytes(whole[:20] + b"\1" + whole[21:])
    (folder / "bad.txt").write_text("0 1 1\n\n1 2 -1\n")
    (folder / "bad.npz").write_bytes(b"PK\3\4" + b"\0" * 50)
    csr(folder / "csc.npz", format=np.array(b"csc"))
    csr(folder / "wide.npz", shape=np.array([3, 4]))
    csr(folder / "half.npz", data=np.array([0.5, 1, 2]))
    csr(folder / "out.npz", indices=np.array([1, 2, 3]))
    np.savez(folder / "other.npz", values=np.arange(3))
    before = {name: (folder / name).read_bytes() for name in names_in(folder)}
    said = ask(*arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert before == {name: (folder / name).read_bytes() for name in names_in(folder)}


def test_a_wrong_result_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpufs import _graph

    class Wrong(_graph.Graph):
        def wrong_in_components(self, components: int) -> str:
            return "vertex 1 is odd"

    monkeypatch.setattr(_graph, "Graph", Wrong)
    said = ask("cc", "both", "--verify", "--out", "x.npy")
    assert said.exit_code == 1 and "the result is wrong" in said.stderr and "vertex 1 is odd" in said.stderr
    assert "x.npy" not in names_in(folder) and ask("cc", "both").exit_code == 0


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    command = f"ulimit -f 64; exec {sys.executable} -m gpufs graph synth kron g --scale 14 --engine cpu"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr == "gpufs: g: cannot write: File too large\n", done.stderr
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing(sent: signal.Signals, status: int, run: Run, tmp_path: Path) -> None:
    assert run("graph", "synth", "urand", "g", "--scale", "12").returncode == 0
    command = [sys.executable, "-m", "gpufs", "graph", "pagerank", "g", "--out", "x.npy", "--engine", "simt"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        [*command, "--rounds", "1000000", "--tolerance", "0"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    opened = Path(f"/proc/{started.pid}/fd")
    for _ in range(1200):  # until kernels read the graph, too; they go on for long
        if sum(os.path.realpath(link) == str(tmp_path / "g") for link in opened.iterdir()) > 1:
            break
        time.sleep(0.05)
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == status and errors == "gpufs: interrupted; nothing was written\n", errors
    assert names_in(tmp_path) == ["g"]


def test_all_commands_have_help() -> None:
    for command in ("synth", "import", "info", "bfs", "cc", "pagerank", "sssp"):
        said = ask(command, "--help")
        assert said.exit_code == 0 and "Usage" in said.stdout
    assert graph_cli.app.info.help

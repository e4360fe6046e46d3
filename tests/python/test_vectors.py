# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs vectors` and gpufs.vectors: results against brute force by NumPy, files, and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, names_in
from gpufs import GpufsError, kmeans, vectors, vectors_cli
from numpy.typing import NDArray

N, DIM, LISTS = 1500, 12, 20


ask, told = partial(conftest.ask, "vectors"), partial(conftest.told, "vectors")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where vectors, queries and an index are."""
    monkeypatch.chdir(tmp_path)
    shape = ("--dim", DIM, "--clusters", 30, "--seed", 3)
    told("synth", "--n", N, *shape, "-o", "base.npy")
    told("synth", "--n", 40, "--first", N, *shape, "-o", "queries.npy")
    told("build", "base.npy", "-o", "index", "--lists", LISTS, "--train", "numpy")
    return tmp_path


def brute_force(base: NDArray[Any], queries: NDArray[Any], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    off = queries[:, None, :].astype(np.float64) - base[None].astype(np.float64)
    distances = (off * off).sum(axis=2)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(distances, ids, axis=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_of_all_lists_is_exact(engine: str, folder: Path) -> None:
    base, queries = np.load("base.npy"), np.load("queries.npy")
    how = ("--engine", engine, "--page-size", "512", "--cache-size", "64K", "--out", "i.npy", "--distances", "d.npy")
    facts = told("search", "index", "queries.npy", "-k", 7, "--nprobe", 0, *how)
    ids, distances = brute_force(base, queries, 7)
    assert np.load("i.npy").dtype == np.int64 and np.load("d.npy").dtype == np.float32
    np.testing.assert_array_equal(np.load("i.npy"), ids)
    np.testing.assert_allclose(np.load("d.npy"), distances, rtol=1e-5)
    expected = {"path": "index", "out": "i.npy", "distances_out": "d.npy", "queries": 40, "k": 7, "nprobe": LISTS}
    assert facts | expected == facts and facts["engine"] == engine and facts["compared"] == 40 * N
    assert facts["seconds"] > 0 and (facts["bytes_read"] is None) == (engine == "cpu")
    assert names_in(folder) == ["base.npy", "d.npy", "i.npy", "index", "queries.npy"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_finds_what_its_lists_have(engine: str, folder: Path) -> None:
    from gpufs import _vectors

    queries = np.load("queries.npy")
    index = _vectors.Index("index")
    centroids = index.centroids()
    ids, distances = vectors.search("index", queries, 5, nprobe=3, engine=engine)
    for q, query in enumerate(queries):
        lists = brute_force(centroids, query[None], 3)[0][0]
        rows, numbers = zip(*(index.list(int(number)) for number in lists), strict=True)
        there, of_there = np.concatenate(rows), np.concatenate(numbers, axis=1)[0]
        order = np.argsort(of_there)
        true, far = brute_force(there[order], query[None], 5)
        np.testing.assert_array_equal(ids[q], of_there[order][true[0]])
        np.testing.assert_allclose(distances[q], far[0], rtol=1e-5)


def test_recall_is_the_share_of_true_neighbours(folder: Path) -> None:
    base, queries = np.load("base.npy"), np.load("queries.npy")
    facts = told("search", "index", "queries.npy", "-k", 10, "--nprobe", 1, "--recall", 40, "--out", "i.npy")
    true = brute_force(base, queries, 10)[0]
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(true, np.load("i.npy"), strict=True)])
    assert facts["recall"] == pytest.approx(share) and 0.1 < share < 1
    assert told("search", "index", "queries.npy", "--nprobe", 0, "--recall", 5)["recall"] == 1
    assert "recall@10" in ask("search", "index", "queries.npy", "--recall", "5").stdout


def test_what_is_not_there_is_told(folder: Path) -> None:
    few = vectors.build(np.eye(4, 3, dtype=np.float32), "few", lists=1, train_by="numpy")
    assert few["nvectors"] == 4 and few["dim"] == 3
    ids, distances = vectors.search("few", np.zeros((1, 3)), 6)
    assert ids.tolist() == [[3, 0, 1, 2, -1, -1]] and distances.tolist() == [[0, 1, 1, 1, np.inf, np.inf]]
    np.save("zero.npy", np.zeros((1, 3)))
    facts = told("search", "few", "zero.npy", "-k", 6)
    assert facts["ids"] == ids.tolist() and facts["distances"] == [[0, 1, 1, 1, None, None]] and facts["nprobe"] == 1
    none = vectors.search("few", np.zeros((0, 3)), 2)
    assert none[0].shape == none[1].shape == (0, 2)


def test_info_and_check(folder: Path) -> None:
    about = told("info", "index")
    assert about | {"nvectors": N, "dim": DIM, "nlists": LISTS, "made_by": "20 lists of base.npy by numpy"} == about
    assert about["file_nbytes"] == (folder / "index").stat().st_size
    assert "elements of each" in ask("info", "index").stdout
    assert told("check", "index")["queries"] == 0
    assert told("check", "index", "--base", "base.npy", "--queries", 5, "-k", 3)["queries"] == 5
    other = np.load("base.npy")
    other[: N // 2] += 0.5
    np.save("other.npy", other)
    for base, words in (
        ("base.npy", "right"),
        ("other.npy", "are others than those that are found"),
        ("queries.npy", "has 40 vectors of 12 elements"),
    ):
        said = ask("check", "index", "--base", base)
        assert words in said.output, (base, said.output, said.exception)


def test_build_replaces_no_file_but_an_index(folder: Path) -> None:
    whole = Path("base.npy").read_bytes()
    for base in ("base.npy", np.load("base.npy", mmap_mode="r")):
        with pytest.raises(GpufsError, match=r"base\.npy: is one of the inputs"):
            vectors.build(base, "base.npy", train_by="numpy")
    with pytest.raises(GpufsError, match=r"is there already and is no index of vectors"):
        vectors.build("base.npy", "queries.npy", train_by="numpy")
    assert Path("base.npy").read_bytes() == whole and np.load("queries.npy").shape == (40, DIM)
    assert vectors.build("base.npy", "index", lists=3, train_by="numpy")["lists"] == 3


def test_files_of_all_kinds_make_the_same_index(folder: Path) -> None:
    base = np.round(np.load("base.npy") * 8)
    as_bytes = (base + 100).astype(np.uint8)
    heads = np.full((N, 1), DIM, "<i4")
    front = np.array([N, DIM], "<u4").tobytes()
    np.save("f8.npy", as_bytes.astype(np.float64))
    np.save("big.npy", as_bytes.astype(">f4"))
    np.savez("one.npz", base=as_bytes)
    np.savez("two.npz", other=as_bytes[:5], base=as_bytes)
    Path("v.fvecs").write_bytes(np.hstack([heads.view("<f4"), as_bytes.astype("<f4")]).tobytes())
    Path("v.bvecs").write_bytes(np.hstack([heads.view(np.uint8), as_bytes]).tobytes())
    Path("v.fbin").write_bytes(front + as_bytes.astype("<f4").tobytes())
    Path("v.u8bin").write_bytes(front + as_bytes.tobytes())
    made = set()
    for name in ("f8.npy", "big.npy", "one.npz", "v.fvecs", "v.bvecs", "v.fbin", "v.u8bin"):
        told("build", name, "-o", "index", "--lists", 7, "--train", "numpy")
        made.add((folder / "index").read_bytes()[8192:])  # what is behind the header, which has the name
    told("build", "two.npz", "--name", "base", "-o", "index", "--lists", 7, "--train", "numpy")
    made.add((folder / "index").read_bytes()[8192:])
    assert told("search", "index", "two.npz", "--name", "other", "-k", 1)["queries"] == 5
    assert "give one's name (other, base)" in ask("search", "index", "two.npz").stderr
    assert "none of the name 'base'" in ask("search", "index", "v.fbin", "--name", "base").stderr
    vectors.build(as_bytes, "index", lists=7, train_by="numpy")
    made.add((folder / "index").read_bytes()[8192:])
    assert len(made) == 1


def test_vectors_that_are_drawn_are_those_of_a_file(folder: Path) -> None:
    source = vectors.Synthetic(N, DIM, clusters=30, seed=3)
    np.testing.assert_array_equal(source.read(5, 25), np.load("base.npy")[5:25])
    vectors.build(source, "drawn", lists=LISTS, train_by="numpy")
    assert (folder / "drawn").read_bytes()[4096:] == (folder / "index").read_bytes()[4096:]


@pytest.mark.parametrize(
    "by", ["numpy", pytest.param("faiss", marks=pytest.mark.skipif(not kmeans.has_faiss(), reason="no faiss"))]
)
def test_training_finds_clusters(by: str) -> None:
    rng = np.random.default_rng(5)
    centres = rng.normal(0, 100, (6, 4)).astype(np.float32)
    rows = (centres[rng.integers(0, 6, 900)] + rng.normal(0, 0.1, (900, 4))).astype(np.float32)
    steps: list[tuple[int, int]] = []
    found = kmeans.train(
        rows, 30, by=by, iterations=12, seed=1, threads=1, progress=lambda done, total: steps.append((done, total))
    )
    assert found.shape == (30, 4) and found.dtype == np.float32 and steps[-1] == (12, 12)
    nearest = brute_force(found, rows, 1)[1]
    assert nearest.mean() < 0.2  # a centre that was missed would give hundreds
    again = kmeans.train(rows, 30, by=by, iterations=12, seed=1, threads=1, progress=lambda done, total: None)
    np.testing.assert_array_equal(found, again)


def test_lists_without_vectors_get_some() -> None:
    rows = np.repeat(np.arange(8, dtype=np.float32)[:, None], 50, axis=0)  # 8 places, and 100 lists for them
    found = kmeans.train(rows, 100, by="numpy", iterations=5, seed=0, threads=1, progress=lambda done, total: None)
    assert np.isfinite(found).all()
    assert brute_force(found, rows, 1)[1].max() < 1e-3


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["search"], 2, "INDEX"),
        (["search", "none", "queries.npy"], 1, "none: No such file or directory"),
        (["search", ".", "queries.npy"], 1, "Is a directory"),
        (["search", "empty", "queries.npy"], 1, "empty: is no index of vectors: it is too short; `gpufs vectors"),
        (["search", "base.npy", "queries.npy"], 1, "base.npy: is no index of vectors; `gpufs vectors build`"),
        (["search", "cut", "queries.npy", "--out", "x.npy"], 1, "it was cut; copy or build it again"),
        (["search", "damaged", "queries.npy", "--out", "x.npy"], 1, "the header is damaged"),
        (["check", "changed"], 1, "is damaged (its checksum is another): build or copy the index again"),
        (["info", "cut"], 1, "it was cut"),
        (["search", "index", "none.npy"], 1, "none.npy: No such file or directory"),
        (["search", "index", "other.npy"], 1, "other.npy: has vectors of 5 elements, and those of index have 12"),
        (["search", "index", "nan.npy", "--out", "x.npy"], 1, "nan.npy: vector 7 has an element that is no number"),
        (["search", "index", "flat.npy"], 1, "flat.npy: has shape [6] of float32, and vectors are [how many"),
        (["search", "index", "text.npy"], 1, "vectors are [how many, elements of each], of numbers"),
        (["search", "index", "queries.npy", "--out", "index"], 1, "index: is the index"),
        (["search", "index", "queries.npy", "--out", "queries.npy"], 1, "queries.npy: is the file of the queries"),
        (["search", "index", "queries.npy", "--out", "x.npy", "--distances", "x.npy"], 1, "both the ids and the dist"),
        (["search", "index", "queries.npy", "--out", "x", "--distances", "sub/../x"], 1, "both the ids and the dist"),
        (["search", "index", "queries.npy", "--out", "cut"], 1, "cut: is there already and is no .npy file"),
        (["search", "index", "queries.npy", "--distances", "cut"], 1, "cut: is there already and is no .npy file"),
        (["search", "index", "queries.npy", "--out", "no/x.npy"], 1, "there is no folder"),
        (["search", "index", "queries.npy", "-k", "0"], 2, "-k"),
        (["search", "index", "queries.npy", "--page-size", "1000"], 2, "a power of two"),
        (["build", "none.npy", "-o", "x"], 1, "none.npy: No such file or directory"),
        (["build", "nan.npy", "-o", "x"], 1, "nan.npy: vector 7 has an element that is no number (NaN or infinite)"),
        (["build", "nan.npy", "-o", "x", "--lists", "1", "--sample", "1"], 1, "is no number (NaN or infinite)"),
        (["build", "cut.npy", "-o", "x"], 1, "is truncated"),
        (["build", "cut.fvecs", "-o", "x"], 1, "are no rows of 12 elements"),
        (["build", "cut.fbin", "-o", "x"], 1, "cut.fbin: its head says 1500 vectors of 12 elements"),
        (["build", "mixed.fvecs", "-o", "x"], 1, "vector 1 has another number of elements than the first, 2"),
        (["build", "empty.fvecs", "-o", "x"], 1, "is too short to have a vector"),
        (["build", "no_rows.npy", "-o", "x"], 1, "no_rows.npy: has no vectors"),
        (["build", "huge.npy", "-o", "x", "--lists", "3", "--train", "numpy"], 1, "too large for distances"),
        (["build", "base.npy", "-o", "base.npy"], 1, "base.npy: is one of the inputs"),
        (["build", "base.npy", "-o", "queries.npy"], 1, "is there already and is no index of vectors; choose another"),
        (["build", "base.npy", "-o", "x", "--lists", "1501"], 1, "1501 lists of 1500 vectors: there may be 1 to 1500"),
        (["build", "base.npy", "-o", "x", "--sample", "3"], 1, "a sample of 3 vectors: it has 39"),
        (["synth", "-o", "index"], 1, "index: is there already and is no .npy file"),
        (["synth", "-o", "x", "--n", "0"], 2, "n"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(arguments: list[str], status: int, words: str, folder: Path) -> None:
    whole, base = (folder / "index").read_bytes(), np.load("base.npy")
    (folder / "sub").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "cut").write_bytes(whole[:-1])
    (folder / "damaged").write_bytes(whole[:20] + b"\1" + whole[21:])
    (folder / "changed").write_bytes(whole[:-500] + bytes([whole[-500] ^ 1]) + whole[-499:])
    with_nan = base[:40].copy()
    with_nan[7, 3] = np.nan
    np.save("nan.npy", with_nan)
    np.save("other.npy", np.zeros((3, 5), np.float32))
    np.save("flat.npy", np.zeros(6, np.float32))
    np.save("text.npy", np.array([["a", "b"]]))
    np.save("no_rows.npy", np.zeros((0, 4), np.float32))
    np.save("huge.npy", np.full((20, 4), 3e38, np.float32))
    (folder / "cut.npy").write_bytes((folder / "base.npy").read_bytes()[:-5])
    (folder / "cut.fbin").write_bytes(np.array([N, DIM], "<u4").tobytes() + base.tobytes()[:-4])
    (folder / "cut.fvecs").write_bytes(np.array([DIM, *range(DIM - 1)], "<i4").tobytes())
    (folder / "mixed.fvecs").write_bytes(np.array([2, 0, 0, 3, 0, 0], "<i4").tobytes())
    (folder / "empty.fvecs").write_bytes(b"")
    before = {name: (folder / name).read_bytes() for name in names_in(folder) if name != "sub"}
    said = ask(*arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert sorted([*before, "sub"]) == names_in(folder)
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_calls_say_what_is_wrong(folder: Path) -> None:
    with vectors.Index("index", engine="cpu") as index:
        assert index.info["nvectors"] == N
        for k, words in ((0, "0 nearest vectors"), (5000, "1 to 4096")):
            with pytest.raises(GpufsError, match=words):
                index.search("queries.npy", k)
        with pytest.raises(GpufsError, match="-1 lists are asked for"):
            index.search("queries.npy", nprobe=-1)
        with pytest.raises(GpufsError, match="a batch has one query"):
            index.search("queries.npy", batch=0)
        all_lists = index.search("queries.npy", nprobe=None).ids
        np.testing.assert_array_equal(index.search("queries.npy", nprobe=0).ids, all_lists)
        with pytest.raises(GpufsError, match="the queries: has shape"):
            index.search([1.0, 2.0])
    with pytest.raises(GpufsError, match="is closed"):
        index.search("queries.npy")
    with pytest.raises(GpufsError, match="no training by 'luck'"):
        vectors.build("base.npy", "x", train_by="luck")
    with pytest.raises(GpufsError, match="0 iterations"):
        vectors.build("base.npy", "x", iterations=0)
    with pytest.raises(GpufsError, match=r"none.npy: No such file or directory"):
        vectors.build("none.npy", "x")
    for wrong, words in (
        ({"clusters": 0}, "clusters is 0, and may be 1 to"),
        ({"spread": float("nan")}, "spread is nan"),
        ({"dim": 70_000}, "dim is 70000, and may be 1 to 65536"),
        ({"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(GpufsError, match=words):
            vectors.Synthetic(**{"n": 10, "dim": 2, **wrong})  # type: ignore[arg-type]


class Given:
    """Rows of a caller."""

    name = "what is given"

    def __init__(self, rows: NDArray[Any], shape: Any = None) -> None:
        self.rows = rows
        self.shape = rows.shape if shape is None else shape

    def read(self, begin: int, end: int) -> Any:
        return self.rows[begin:end]

    def check_unchanged(self) -> None:
        """Nobody changes them."""


def test_rows_of_any_class_are_checked(folder: Path) -> None:
    base = np.load("base.npy")
    as_doubles = np.asfortranarray(base.astype(np.float64))
    vectors.build(Given(as_doubles), "given", lists=LISTS, train_by="numpy")
    assert (folder / "given").read_bytes()[4096:] == (folder / "index").read_bytes()[4096:]
    for given, words in (
        (Given(base[:, :5], (N, DIM)), r"vectors 0 to 1500 were read as \[1500, 5\] of float32, and \[1500, 12\]"),
        (Given(base[:-1], (N, DIM)), r"were read as \[1499, 12\]"),
        (Given(base.astype(str)), "of numbers were asked for"),
        (Given(base, (N, 70_000)), "vectors of 70000 elements, and an index takes 1 to 65536"),
        (Given(base, (N,)), "what is given: has shape"),
        (Given(base, "ab"), "has no shape of two whole numbers"),
    ):
        with pytest.raises(GpufsError, match=words):
            vectors.build(given, "x", lists=LISTS, train_by="numpy")
    with pytest.raises(GpufsError, match="were read as"):
        vectors.search("index", Given(base[:2], (1000, DIM)))
    assert names_in(folder) == ["base.npy", "given", "index", "queries.npy"]


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_share_an_index(engine: str, folder: Path) -> None:
    queries = np.load("queries.npy")
    with vectors.Index("index", engine=engine) as index:
        alone = [index.search(queries[:n], 3 + n % 5, nprobe=4) for n in range(1, 21)]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda n: index.search(queries[:n], 3 + n % 5, nprobe=4), range(1, 21)))
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one.ids, other.ids)
            np.testing.assert_array_equal(one.distances, other.distances)
        with pytest.raises(GpufsError, match="a search is called by its own progress function"):
            index.search(queries, progress=lambda done, total: index.search(queries) and None)
        np.testing.assert_array_equal(index.search(queries[:20], 3, nprobe=4).ids, alone[-1].ids)


def test_a_builder_that_is_closed_takes_nothing(folder: Path) -> None:
    from gpufs import _vectors

    rows = np.zeros((2, 3), np.float32)
    how = {"engine": "cpu", "threads": 1, "device": 0, "made_by": "a test", "base": "rows"}
    builder = _vectors.Builder("x", rows.ctypes.data, 2, 3, **how)  # type: ignore[arg-type]
    builder.close()
    builder.close()
    for call in (lambda: builder.count(rows.ctypes.data, 2), builder.begin_lists, builder.finish):
        with pytest.raises(GpufsError, match="the builder is closed"):
            call()


def test_ids_and_distances_come_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(stream: Any, values: NDArray[Any], kept: Any = np.save) -> None:
        if values.dtype == np.float32:
            raise OSError(28, "No space left on device")
        kept(stream, values)

    told("search", "index", "queries.npy", "-k", 2, "-o", "i.npy", "--distances", "d.npy")
    before = (folder / "i.npy").read_bytes()
    monkeypatch.setattr(np, "save", save)
    said = ask("search", "index", "queries.npy", "-o", "i.npy", "--distances", "d.npy")
    assert said.exit_code == 1 and "d.npy: cannot be written: No space left on device" in said.stderr
    assert (folder / "i.npy").read_bytes() == before
    assert names_in(folder) == ["base.npy", "d.npy", "i.npy", "index", "queries.npy"]


def test_a_base_that_changes_meanwhile_is_refused(folder: Path) -> None:
    def change(stage: str, _done: int, _total: int) -> None:
        if stage == "writing lists":
            os.utime("base.npy", (1, 1))

    with pytest.raises(GpufsError, match=r"base.npy: was changed while it was read: try again"):
        vectors.build("base.npy", "x", progress=change)
    assert "x" not in names_in(folder)


def test_a_full_disk_leaves_nothing(folder: Path) -> None:
    for arguments in ("build base.npy -o x", "synth -o x --n 10000", "search index queries.npy -k 1500 -o x.npy"):
        command = f"ulimit -f 64; exec {sys.executable} -m gpufs vectors {arguments}"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("gpufs: x") and "File too large" in done.stderr, done.stderr
        assert names_in(folder) == ["base.npy", "index", "queries.npy"]


@pytest.mark.parametrize(
    "sent, status, arguments",
    [
        (signal.SIGINT, 130, "search i b.npy --nprobe 0 -o x.npy"),
        (signal.SIGTERM, 143, "search i b.npy --nprobe 0 -o x.npy"),
        (signal.SIGINT, 130, "build b.npy -o x --lists 400 --train numpy --iterations 1 --sample 400"),
    ],
)
def test_an_interruption_leaves_nothing(
    sent: signal.Signals, status: int, arguments: str, run: Run, tmp_path: Path
) -> None:
    assert run("vectors", "synth", "--n", "40000", "--dim", "8", "-o", "b.npy").returncode == 0
    built = run("vectors", "build", "b.npy", "-o", "i", "--lists", "20", "--train", "numpy")
    assert built.returncode == 0, built.stderr
    started = subprocess.Popen(
        [sys.executable, "-m", "gpufs", "vectors", *arguments.split(), "--engine", "simt"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    of_process = Path(f"/proc/{started.pid}/fd")
    for _ in range(1200):  # until kernels read the index, too, or the one to be made is open; they go on for long
        opened = [os.path.realpath(link) for link in of_process.iterdir()]
        if opened.count(str(tmp_path / "i")) > 1 or any(path.startswith(f"{tmp_path}/#") for path in opened):
            break
        time.sleep(0.05)
    time.sleep(0.2)
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == status and errors == "gpufs: interrupted; nothing was written\n", errors
    assert names_in(tmp_path) == ["b.npy", "i"]


def test_all_commands_have_help() -> None:
    for command in ("synth", "build", "info", "search", "check"):
        said = ask(command, "--help")
        assert said.exit_code == 0 and "Usage" in said.stdout
    assert vectors_cli.app.info.help

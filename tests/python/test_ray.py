# SPDX-License-Identifier: Apache-2.0
"""Arrays in Ray's tasks, actors and datasets, on a cluster of local processes; some of them are killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

import gpufs.ray  # noqa: E402
from ray.util import ActorPool  # noqa: E402

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(p for p in sys.path if p)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)  # for workers
        context = ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    context_of_data = ray.data.DataContext.get_current()
    context_of_data.enable_progress_bars = False
    context_of_data.execution_options.preserve_order = True
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or workers would import all that this file does
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture
def features(tmp_path: Path) -> tuple[Path, Any]:
    """Rows of which some straddle pages."""
    array = numbers(1000, 5, 7)
    np.save(tmp_path / "features.npy", array)
    return tmp_path / "features.npy", array


def is_first(sign: Path | None) -> bool:
    """In a worker: whether nobody was here before it. Its process id is in the file then, for who kills it."""
    if sign is None:
        return False
    mine = sign.with_name(f"{sign.name}.{os.getpid()}")
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, sign)
    except FileExistsError:
        return False
    return True


def kill(sign: Path) -> int:
    """The worker that is there, in the middle of what it does. Its process id."""
    until = time.monotonic() + 60
    while not sign.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.05)
    worker = int(sign.read_text())
    os.kill(worker, signal.SIGKILL)
    return worker


@ray.remote(max_retries=2)
def total(shard: gpufs.Array, sign: Path | None = None) -> Any:
    """Of its rows; and who found it out."""
    first, found = is_first(sign), np.zeros(shard.shape[1:])
    while True:
        for begin in range(0, len(shard), 100):
            found += shard[begin : begin + 100].sum(axis=0, dtype=np.float64)
        if not first:
            return found, os.getpid()


@ray.remote(max_retries=2)
def fill(shard: gpufs.Array, values: Any, sign: Path | None = None) -> None:
    """The first one in the file is killed after half of its rows, while it writes others that are wrong."""
    with shard:
        if is_first(sign):
            half = len(shard) // 2
            shard[:half] = values[:half]
            shard.flush()
            while True:
                shard[half // 2 : -1] = -1
                shard.flush()
        shard[:] = values


@ray.remote(max_restarts=1, max_task_retries=1)
class Server:
    """Keeps its array open, and so its mount."""

    def __init__(self, x: gpufs.Array) -> None:
        self.x = x

    def rows(self, idx: Any, sign: Path | None = None) -> Any:
        first = is_first(sign)
        while True:
            rows = self.x[idx]
            if not first:
                return rows, os.getpid(), self.x.stats.get("faults", 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_tasks_read_shards_and_one_is_killed(engine: str, features: tuple[Path, Any], tmp_path: Path) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        server = Server.remote(x)
        _, pid, _ = ray.get(server.rows.remote([3]))
        signs = [None, None, tmp_path / "sign", None]
        totals = [total.remote(x.shard(i, 4), sign) for i, sign in enumerate(signs)]
        killed = kill(tmp_path / "sign")
        found = ray.get(totals, timeout=60)
        np.testing.assert_array_equal(sum(t for t, _ in found), array.sum(axis=0, dtype=np.float64))
        assert found[2][1] != killed
        np.testing.assert_array_equal(x[:], array)
        rows, same, _ = ray.get(server.rows.remote([5, -1]))
        np.testing.assert_array_equal(rows, array[[5, -1]])
        assert same == pid
    np.testing.assert_array_equal(np.load(path), array)


@pytest.mark.parametrize("engine", ENGINES)
def test_tasks_write_shards_and_one_is_killed(engine: str, features: tuple[Path, Any], tmp_path: Path) -> None:
    path, array = features
    other = numbers(1000, 5, 7)
    np.save(tmp_path / "other.npy", other)
    wanted = array[::-1] * 3 + 1
    with (
        gpufs.open(path, mode="r+", engine=engine, **SMALL) as x,
        gpufs.open(tmp_path / "other.npy", engine=engine, **SMALL) as y,
    ):
        server = Server.remote(y)
        ray.get(server.rows.remote([3]))
        signs = [None, tmp_path / "sign", None]
        shards = [x.shard(i, 3) for i in range(3)]
        edges = np.cumsum([0, *map(len, shards)])
        written = [fill.remote(shards[i], wanted[edges[i] : edges[i + 1]], sign) for i, sign in enumerate(signs)]
        ray.get([written[0], written[2]], timeout=60)
        kill(tmp_path / "sign")
        ray.get(written[1], timeout=60)
        np.testing.assert_array_equal(np.load(path), wanted)
        np.testing.assert_array_equal(ray.get(server.rows.remote([5, -1]))[0], other[[5, -1]])
        np.testing.assert_array_equal(y[:], other)
    np.testing.assert_array_equal(np.load(path), wanted)  # what this process had open brings nothing back
    assert {p.name for p in tmp_path.glob("*.npy")} == {"features.npy", "other.npy"}


@pytest.mark.parametrize("engine", ENGINES)
def test_actors_serve_gathers_and_one_is_killed(engine: str, features: tuple[Path, Any], tmp_path: Path) -> None:
    path, array = features
    batches = np.random.default_rng(1).integers(-1000, 1000, (20, 32))
    with gpufs.open(path, engine=engine, **SMALL) as x:
        actors = [Server.remote(x) for _ in range(2)]
        pool = ActorPool(actors)
        answers = list(pool.map(lambda actor, idx: actor.rows.remote(idx), batches))
        np.testing.assert_array_equal([rows for rows, _, _ in answers], array[batches])
        assert len({pid for _, pid, _ in answers}) == 2
        before = [ray.get(actor.rows.remote(batches[0])) for actor in actors]
        again = ray.get(actors[1].rows.remote(batches[0]))
        assert again[2] == before[1][2]  # from the page cache, which stays from call to call
        asked = actors[0].rows.remote(batches[1], tmp_path / "sign")
        assert kill(tmp_path / "sign") == before[0][1]
        rows, pid, _ = ray.get(asked, timeout=60)
        np.testing.assert_array_equal(rows, array[batches[1]])
        assert pid != before[0][1]
        rows, pid, _ = ray.get(actors[1].rows.remote(batches[2]))
        np.testing.assert_array_equal(rows, array[batches[2]])
        assert pid == before[1][1]


def test_what_is_wrong_reaches_the_caller(features: tuple[Path, Any]) -> None:
    path, _ = features
    with gpufs.open(path, engine="cpu") as x:
        server = Server.remote(x)
        with pytest.raises(IndexError, match="1000 is out of bounds"):
            ray.get(server.rows.remote(1000))
        path.unlink()
        with pytest.raises(FileNotFoundError) as error:
            ray.get(total.remote(x.shard(0, 2)))
        assert error.value.cause.filename == str(path)  # type: ignore[attr-defined]


def column(data: Any, name: str = "data") -> Any:
    """In the file's order, which execution_options.preserve_order keeps."""
    return np.concatenate([batch[name] for batch in data.iter_batches(batch_size=None)])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dataset_of_rows(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        data = gpufs.ray.read_array(x, override_num_blocks=7)
        assert (data.count(), data.columns(), data.materialize().num_blocks()) == (1000, ["data"], 7)
        got = column(data)
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
        sums = column(data.map_batches(lambda batch: {"sum": batch["data"].sum(axis=(1, 2), dtype="f8")}), "sum")
        np.testing.assert_array_equal(sums, array.sum(axis=(1, 2), dtype="f8"))
        np.testing.assert_array_equal([row["data"] for row in data.take(5)], array[:5])


def test_blocks_are_read_by_the_host_where_nobody_has_chosen(features: tuple[Path, Any]) -> None:
    """On a machine with a GPU, each worker would make a page cache there for what goes to the host's memory."""
    asked = {engine: gpufs.open(features[0], engine=engine, **SMALL) for engine in ("auto", ENGINES[-1])}
    chosen = {engine: x._for_host() for engine, x in asked.items()}
    assert (repr(asked["auto"].shard(0, 2)).count("by auto"), repr(chosen["auto"]).count("by cpu")) == (1, 1)
    assert chosen[ENGINES[-1]] is asked[ENGINES[-1]]
    np.testing.assert_array_equal(chosen["auto"][5], features[1][5])


def test_datasets_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, labels = numbers(1000, 30), np.arange(1000, dtype=">i8")
    parts = np.zeros(1000, [("x", "<f4", (3,)), ("y", ">i2")])
    parts["x"], parts["y"] = array[:, :3], labels
    names = np.array([b"row%d" % i for i in range(1000)])
    for name, it in (("array", array), ("labels", labels), ("parts", parts), ("names", names), ("none", array[:0])):
        np.save(tmp_path / f"{name}.npy", it)
    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "target_max_block_size", 30_000)  # 250 rows: a task gives several blocks
    data = gpufs.ray.read_array(tmp_path / "array.npy", column="x", override_num_blocks=2)
    assert data.materialize().num_blocks() > 2
    np.testing.assert_array_equal(column(data, "x"), array)
    monkeypatch.undo()
    with gpufs.open(tmp_path / "array.npy", engine="cpu") as x:
        both = gpufs.ray.read_array({"x": x.shard(1, 2), "label": x.shard(0, 2)}, override_num_blocks=3)
        np.testing.assert_array_equal(column(both, "x"), array[500:])
    data = gpufs.ray.read_array(
        {"a": tmp_path / "array.npy", "label": str(tmp_path / "labels.npy"), "name": tmp_path / "names.npy"}
    )
    table = data.to_pandas()
    np.testing.assert_array_equal(table["label"], labels)
    np.testing.assert_array_equal(np.array(table["name"].tolist()), names)
    np.testing.assert_array_equal(np.stack(table["a"].tolist()), array)
    data = gpufs.ray.read_array(tmp_path / "parts.npy")
    np.testing.assert_array_equal(column(data, "x"), parts["x"])
    np.testing.assert_array_equal(column(data, "y"), labels)
    assert gpufs.ray.read_array(tmp_path / "none.npy").count() == 0
    assert gpufs.ray.read_array(tmp_path / "labels.npy", override_num_blocks=1).sum("data") == labels.sum()


def test_what_is_no_dataset(tmp_path: Path) -> None:
    def saved(array: Any) -> gpufs.Array:
        np.save(tmp_path / "a.npy", array)
        return gpufs.open(tmp_path / "a.npy", engine="cpu")

    for array in (np.zeros(3, "c8"), np.zeros((3, 2), "S4"), np.zeros(3, "V4"), np.zeros(3, "f16"),
                  np.zeros(3, [("a", "c8")]), np.zeros(3, [("a", [("b", "i4")])])):  # fmt: skip
        with pytest.raises(TypeError, match=r"Arrow has no|no column has"):
            gpufs.ray.read_array(saved(array))
    a = saved(np.zeros(3))
    b = a.shard(0, 2)
    with pytest.raises(ValueError, match=r"as many rows each, not of \{'a': 3, 'b': 1\}"):
        gpufs.ray.read_array({"a": a, "b": b})
    with pytest.raises(ValueError, match="columns have names of their own"):
        gpufs.ray.read_array({"a": saved(np.zeros(3, [("b", "i4")])), "b": a})
    with pytest.raises(ValueError, match="no column"):
        gpufs.ray.read_array({})
    with pytest.raises(FileNotFoundError):
        gpufs.ray.read_array(tmp_path / "none.npy")


def test_a_file_that_is_replaced_under_a_dataset(features: tuple[Path, Any], tmp_path: Path) -> None:
    path, array = features
    data = gpufs.ray.read_array(path)
    np.save(tmp_path / "new.npy", array + 1)
    (tmp_path / "new.npy").replace(path)
    with pytest.raises(Exception, match="was replaced since it was opened"):
        data.materialize()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_reads_a_dataset_is_killed(
    engine: str, features: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, array = features
    monkeypatch.setattr(ray.data.DataContext.get_current(), "target_max_block_size", 14_000)  # three blocks a task
    sign = tmp_path / "sign"

    def twice(batch: dict[str, Any]) -> dict[str, Any]:  # runs in the task that reads
        if batch["data"][0, 0, 1] == array[500, 0, 1] and is_first(sign):
            time.sleep(600)
        return {"data": batch["data"] * 2}

    with gpufs.open(path, engine=engine, **SMALL) as x:
        data = gpufs.ray.read_array(x, override_num_blocks=4).map_batches(twice, batch_size=None)
        batches = data.iter_batches(batch_size=None)
        kill_later = subprocess.Popen([sys.executable, "-c", _KILLS, str(sign)], env=os.environ | {"PYTHONPATH": PATHS})
        got = np.concatenate([batch["data"] for batch in batches])
        assert kill_later.wait(60) == 0
    np.testing.assert_array_equal(got, array * 2)


_KILLS = """
import os, signal, sys, time
until = time.monotonic() + 60
while not os.path.exists(sys.argv[1]):
    assert time.monotonic() < until
    time.sleep(0.01)
os.kill(int(open(sys.argv[1]).read()), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["ray_tasks", "ray_actors", "ray_data", "dask_array"])
def test_the_examples(name: str, cluster: str) -> None:
    if name == "dask_array" and importlib.util.find_spec("distributed") is None:
        pytest.skip("dask's distributed is not installed")
    environment = os.environ | {"PYTHONPATH": PATHS, "RAY_ADDRESS": cluster}
    command = [sys.executable, str(ROOT / f"examples/python/{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr

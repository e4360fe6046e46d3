# SPDX-License-Identifier: Apache-2.0
"""Arrays in other processes: shards, pickles that open when they are used, files that were replaced; with Dask."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, run_python
from gpufs import origin
from gpufs.errors import GpufsError


@pytest.mark.parametrize("engine", ENGINES)
def test_shards_are_all_rows_once(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        for n in (1, 2, 3, 7, 1000, 1001):
            shards = [x.shard(i, n) for i in range(n)]
            assert [len(s) for s in shards] == [1000 * (i + 1) // n - 1000 * i // n for i in range(n)]
            if n <= 7:
                np.testing.assert_array_equal(np.concatenate([s[:] for s in shards]), array)
        third = x.shard(1, 3)
        rows = array[333:666]
        assert third.shape == (333, 5, 7) and third.nbytes == rows.nbytes and third.dtype == array.dtype
        np.testing.assert_array_equal(third[[0, -1, 7], 1:3, 2], rows[[0, -1, 7], 1:3, 2])
        assert third.mount is x.mount and "of rows (333, 666)" in repr(third)
        for beyond in (333, -334, [0, 333]):  # rows that the file has, and the shard has not
            with pytest.raises(IndexError):
                third[beyond]
        np.testing.assert_array_equal(third.shard(2, 3)[:], rows[222:])  # of a shard
        third.close()
        with pytest.raises(ValueError, match="closed"):
            third[0]
        np.testing.assert_array_equal(x[400], array[400])
        for i, n in ((3, 3), (-1, 3), (0, 0), (0, -1)):
            with pytest.raises(IndexError, match="there is no shard"):
                x.shard(i, n)
        with pytest.raises(TypeError):
            x.shard(0.5, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_shards_are_written(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, mode="r+", engine=engine, **SMALL) as x:
        for i in range(3):
            with x.shard(i, 3) as shard:
                shard[-1], shard[0, 1:, 3] = i, i
        with pytest.raises(IndexError):
            x.shard(0, 3)[333] = 1
    array[[332, 665, 999]] = np.arange(3)[:, None, None]
    array[[0, 333, 666], 1:, 3] = np.arange(3)[:, None]
    np.testing.assert_array_equal(np.load(path), array)


def first_and_last(shard: gpufs.Array) -> Any:
    return shard[[0, -1]], len(gpufs.stats()["mounts"])


@pytest.mark.parametrize("engine", ENGINES)
def test_shards_travel(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        shards = [x.shard(i, 4) for i in range(4)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        for i, (rows, nmounts) in enumerate(pool.map(first_and_last, shards)):
            np.testing.assert_array_equal(rows, array[[250 * i, 250 * i + 249]])
            assert nmounts == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_pickled_opens_when_it_is_used(
    engine: str, features: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it passes through, as in Dask's scheduler, there may be neither the file nor memory for a page cache."""
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        state = pickle.dumps(x)
    path.rename(path.with_name("elsewhere"))
    passing = pickle.loads(pickle.loads(pickle.dumps(state)))
    assert (passing.shape, passing.dtype, len(passing), passing.closed) == (array.shape, array.dtype, 1000, False)
    assert str(path) not in str(gpufs.stats()) and passing.shard(0, 2).shape == (500, 5, 7)
    again = pickle.loads(pickle.dumps(passing))
    with pytest.raises(FileNotFoundError) as error:
        again[0]
    assert error.value.filename == str(path)
    path.with_name("elsewhere").rename(path)
    np.testing.assert_array_equal(again[0], array[0])
    layout_of, opened = origin._layout_of, []

    def slowly(*how: Any) -> Any:
        opened.append(how)
        time.sleep(0.05)
        return layout_of(*how)

    monkeypatch.setattr(origin, "_layout_of", slowly)
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda i: passing[i], range(64)))
    np.testing.assert_array_equal(rows, array[:64])
    assert len(opened) == 1  # by all threads
    assert sum(s["path"] == str(path) for s in gpufs.stats()["arrays"]) == 2
    passing.close()
    unused = pickle.loads(state)
    unused.close()
    with pytest.raises(ValueError, match="closed"):
        unused[0]
    again.close()


def test_files_that_were_replaced_are_refused(features: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was written in place is the same file."""
    path, array = features
    x = gpufs.open(path, mode="r+", engine="cpu")
    state, shard = pickle.dumps(x), x.shard(1, 2)
    x[0] = 5
    x.close()
    assert (pickle.loads(state)[0] == 5).all()
    np.save(path.with_name("other.npy"), array + 1)
    path.with_name("other.npy").replace(path)
    for later in (pickle.loads(state), shard):
        with pytest.raises(GpufsError, match="was replaced since it was opened: open it anew"):
            later[0]
    monkeypatch.setattr(origin, "_boot", lambda: "another machine")  # whose copy of the data set is another file
    np.testing.assert_array_equal(pickle.loads(state)[0], array[0] + 1)


def test_elements_are_compared_too(tmp_path: Path) -> None:
    """bfloat16 by its name: NumPy has it as uint16."""
    path = tmp_path / "raw"
    path.write_bytes(bytes(24))
    with gpufs.open(path, dtype="bfloat16", shape=(-1, 4), engine="cpu") as x:
        again = pickle.loads(pickle.dumps(x))
        assert "bfloat16" in repr(again) and "bfloat16" in repr(x.shard(0, 2))
    again._origin.how["dtype"] = "u2"
    os.utime(path, ns=(1, 1))  # of a file that is as it was nothing is read
    with pytest.raises(GpufsError, match="another array"):
        again[0]


_FORKS = """
import os, pickle, sys
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20)
shard = x.shard(1, 2)
if os.fork() == 0:
    print(shard[0, 0, 0] == gpufs.open(sys.argv[1], engine="cpu")[500, 0, 0])
    sys.exit()
os.wait()
"""


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "gpu"])  # CUDA itself does not go on after a fork
def test_a_shard_opens_in_a_child(engine: str, features: tuple[Path, Any]) -> None:
    done = run_python(_FORKS, str(features[0]), engine)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask(scheduler: str, engine: str, features: tuple[Path, Any]) -> None:
    da = pytest.importorskip("dask.array")
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        d = da.from_array(x, chunks=(100, 5, 4))
        assert (d.shape, d.dtype) == (array.shape, array.dtype)
        results = [d.mean(axis=0), d[:, 2, 3], da.topk(d[:, 0, 0], 3)]
        wanted = [array.mean(axis=0), array[:, 2, 3], -np.sort(-array[:, 0, 0])[:3]]
        if scheduler == "threads":
            for key in (7, -1, np.s_[::-3, 1:4], np.s_[200:, 1, ::2], np.s_[[5, 900, 3]], np.s_[:, [1, 4]],
                        np.s_[[5, 900], 2], array[:, 0, 0] > 30000):  # fmt: skip
                results.append(d[key])
                wanted.append(array[key])
        for got, right in zip(da.compute(*results, scheduler=scheduler), wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5)


def test_dask_names_what_was_written_otherwise(features: tuple[Path, Any]) -> None:
    tokenize = pytest.importorskip("dask.base").tokenize
    path, _ = features
    names = []
    for step in range(3):
        with gpufs.open(path, engine="cpu") as x, gpufs.open(path, engine="cpu") as same:
            assert tokenize(x) == tokenize(same)
            names += [tokenize(x), tokenize(x.shard(0, 2)), tokenize(x.shard(1, 2))]
        with gpufs.open(path, mode="r+", engine="cpu") as y:
            y[step] = -1
        os.utime(path, ns=(0, step))  # so that clocks do not count
    assert len(set(names)) == 9


def test_dask_distributed(features: tuple[Path, Any]) -> None:
    """Its scheduler unpickles arrays, too: it opens none."""
    distributed = pytest.importorskip("distributed")
    da = pytest.importorskip("dask.array")
    path, array = features
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        gpufs.open(path, engine="cpu") as x,
    ):
        d = da.from_array(x, chunks=(100, 5, 7))
        np.testing.assert_allclose(d.mean(axis=0).compute(), array.mean(axis=0), rtol=1e-5)
        totals = client.map(lambda shard: shard[:].sum(axis=0, dtype="f8"), [x.shard(i, 4) for i in range(4)])
        np.testing.assert_array_equal(sum(client.gather(totals)), array.sum(axis=0, dtype="f8"))
        mine = [s for s in gpufs.stats()["arrays"] if s["path"] == str(path)]
        assert len(mine) == 1  # the scheduler runs in this process


def test_errors_travel(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.arange(3), b=np.arange(4))
    with pytest.raises(GpufsError) as caught:
        gpufs.open(tmp_path / "two.npz")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value) and again.names == ["a", "b"]


def test_what_nobody_has_used_opens_for_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with gpufs.Mount(tmp_path, engine="simt", cache="1MiB") as mount, mount.open("x.npy") as x:
        text = pickle.dumps(x.shard(1, 2))
    (tmp_path / "x.npy").rename(tmp_path / "y.npy")
    shard = pickle.loads(text)  # of a mount, too
    shard.flush()
    shard.check()
    with pytest.raises(FileNotFoundError):
        shard[0]
    shard.close()
    with pytest.raises(ValueError, match="closed"):
        shard.flush()
    with pytest.raises(ValueError, match="closed"):
        _ = shard.stats


def test_a_mount_travels_where_its_folder_is_not(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    np.save(tmp_path / "there" / "x.npy", np.arange(10))
    with gpufs.Mount(tmp_path / "there", engine="simt", cache="1MiB") as mount:
        text = pickle.dumps(mount.open("x.npy"))
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    x = pickle.loads(text)
    with pytest.raises(FileNotFoundError):
        x[0]
    (tmp_path / "elsewhere").rename(tmp_path / "there")
    assert x[3] == 3
    x.close()


def test_a_column_that_lies_elsewhere_is_said_so(tmp_path: Path) -> None:
    feather = pytest.importorskip("pyarrow.feather")
    table = pytest.importorskip("pyarrow").table({"a": np.arange(100)})
    feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed", chunksize=10)
    with gpufs.open(tmp_path / "a.feather") as x:
        text = pickle.dumps(x)
    feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed", chunksize=20)
    with pytest.raises(GpufsError, match="another array than the one that was opened: its rows lie elsewhere"):
        pickle.loads(text)[0]

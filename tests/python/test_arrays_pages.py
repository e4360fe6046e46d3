# SPDX-License-Identifier: Apache-2.0
"""Pages of the cache begin where rows do, behind a header: so rows of a page's size lie in one page each."""

from __future__ import annotations

import errno
import pickle
import time
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, numbers

CACHING = [engine for engine in ENGINES if engine != "cpu"]
PAGES: dict[str, Any] = {"cache": 4 << 20, "page": 4096}


def save(path: Path, nrows: int, row_nbytes: int) -> Any:
    array = numbers(nrows, row_nbytes // 4)
    np.save(path, array)
    assert path.stat().st_size == array.nbytes + 128
    return array


@pytest.mark.parametrize("engine", CACHING)
@pytest.mark.parametrize(("row_nbytes", "rows_a_page"), [(512, 8), (4096, 1), (8192, 0.5)])
def test_rows_lie_in_as_few_pages_as_can_be(engine: str, row_nbytes: int, rows_a_page: float, tmp_path: Path) -> None:
    array = save(tmp_path / "a.npy", 40, row_nbytes)
    with gpufs.open(tmp_path / "a.npy", engine=engine, **PAGES) as x:
        for i in np.random.default_rng(1).permutation(40):
            np.testing.assert_array_equal(x[[i]], array[[i]])
        faults = x.stats["faults"]
        assert faults == 40 / rows_a_page
        np.testing.assert_array_equal(x[[-1, 3, 39, -40]], array[[-1, 3, 39, -40]])
        np.testing.assert_array_equal(x[:], array)
        with pytest.raises(IndexError):
            x[[40]]
        assert x.stats["faults"] == faults
        # Shards have the same pages, and what was pickled, too.
        for i in range(3):
            with x.shard(i, 3) as part:
                np.testing.assert_array_equal(part[:], array[40 * i // 3 : 40 * (i + 1) // 3])
        again = pickle.loads(pickle.dumps(x))
        np.testing.assert_array_equal(again[[7, 8]], array[[7, 8]])
        assert again.mount is x.mount and x.stats["faults"] == faults
        again.close()


@pytest.mark.parametrize("engine", CACHING)
@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("row_nbytes", [512, 4096])
def test_large_files_by_each_way(engine: str, prepares: bool, row_nbytes: int, tmp_path: Path) -> None:
    nrows = (1 << 20) // row_nbytes
    array = save(tmp_path / "a.npy", nrows, row_nbytes)
    time.sleep(0.1)  # see prepare
    generator = np.random.default_rng(2)
    with gpufs.open(tmp_path / "a.npy", engine=engine, cache=128 << 10, page=4096) as x:
        for turn in range(6):  # by host threads at first, and then from the mapping
            if prepares and turn == 1:
                x.prepare()
            ids = generator.integers(-nrows, nrows, 3000)
            np.testing.assert_array_equal(x[ids], array[ids])
            np.testing.assert_array_equal(x[nrows - 5 :], array[-5:])
        assert "windows" in x.path_in_use or "pull" in x.path_in_use
    if prepares:
        with gpufs.open(tmp_path / "a.npy", engine=engine, cache=128 << 10, page=4096) as x:
            np.testing.assert_array_equal(x[::-3], array[::-3])


@pytest.mark.parametrize("engine", CACHING)
def test_several_arrays_of_one_file(engine: str, tmp_path: Path) -> None:
    content = numbers(3000, dtype=np.uint8)
    (tmp_path / "raw").write_bytes(content.tobytes())
    with gpufs.Mount(tmp_path, engine=engine, **PAGES) as mount:
        arrays = [
            (at, mount.open("raw", dtype="u1", shape=(2, 512), offset=at)) for at in (0, 8, 16, 100, 128, 640, 1968)
        ]
        for _ in range(2):
            for at, x in arrays:
                np.testing.assert_array_equal(x[:].ravel(), content[at : at + 1024])
        assert {(file["path"], file["nbytes"]) for file in mount.files} == {("raw", 3000)}
        with mount.open("raw", dtype="u1", shape=(0, 512), offset=2992) as none:
            assert none[:].shape == (0, 512)


@pytest.mark.parametrize("engine", CACHING)
def test_who_reads_beside_who_writes(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = save(path, 100, 4096)
    time.sleep(0.1)
    with gpufs.Mount(tmp_path, engine=engine, writable=True, **PAGES) as mount:
        before = mount.open("a.npy")
        kept = before[[3, 4]]
        with mount.open("a.npy", mode="r+") as y:
            np.testing.assert_array_equal(before[[3, 4]], kept)
            with pytest.raises(OSError, match="written by others") as error:
                before[[90]]
            assert (error.value.errno, error.value.filename) == (errno.ESTALE, str(path))
            with mount.open("a.npy") as x:  # of the same pages
                y[[3, 70]] = 5
                array[[3, 70]] = 5
                np.testing.assert_array_equal(x[[3, 4, 70]], array[[3, 4, 70]])
                np.testing.assert_array_equal(x[-1], array[-1])
                assert x.path_in_use.count("pages of 4096 bytes") == 1
            y.flush()
            np.testing.assert_array_equal(y[:], array)
        before.close()
        with mount.open("a.npy") as x:
            np.testing.assert_array_equal(x[:], array)
            assert [file["path"] for file in mount.files] == ["a.npy"]
            assert "#" not in x.path_in_use


@pytest.mark.parametrize("engine", CACHING)
def test_errors_name_the_file(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    save(path, 100, 4096)
    with gpufs.open(path, engine=engine, **PAGES) as x:
        assert x[0, 0] == 0
        with path.open("r+b") as file:
            file.truncate(50_000)
        with pytest.raises(OSError, match="truncated") as error:
            x[[90]]
        assert (error.value.errno, error.value.filename) == (errno.ESTALE, str(path))

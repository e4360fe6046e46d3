# SPDX-License-Identifier: Apache-2.0
"""The engines agree with each other and with the reference, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from conftest import Bytes, paint
from gpufs import GpufsError, _native
from gpufs.collage.making import whole_blocks

SIMT = pytest.mark.skipif(bool(_native.engine_missing("simt")), reason=_native.engine_missing("simt"))
GPU = pytest.mark.skipif(bool(_native.engine_missing("gpu")), reason="no gpu")

ENGINES = [engine for engine in ("cpu", "simt", "gpu") if not _native.engine_missing(engine)]

DEVICE_OPTIONS: list[dict[str, Any]] = [
    {},
    {"page_nbytes": 512, "cache_nbytes": 64 * 512},
    {"page_nbytes": 4096, "cache_nbytes": 64 * 4096, "grid": 3},
    {"page_nbytes": 65536, "cache_nbytes": 64 * 65536},
    {"page_nbytes": 4096, "cache_nbytes": 64 << 20, "store": "posix"},
    {"page_nbytes": 2 << 20, "cache_nbytes": 64 << 20, "blocks_per_launch": 5},
    {"block_threads": 32},
    {"block_threads": 1024, "grid": 2},
]


@pytest.fixture(scope="module", params=["library", "packed_library"])
def opened(request: pytest.FixtureRequest) -> _native.Library:
    return _native.Library(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def blocks(photo: Bytes) -> Bytes:
    return whole_blocks(photo)


@pytest.fixture(scope="module")
def expected(library: Path, photo: Bytes) -> npt.NDArray[np.int64]:
    return reference.Library(library).match(reference.to_blocks(photo))


def test_the_plain_engine_agrees_with_the_reference(
    opened: _native.Library, blocks: Bytes, expected: npt.NDArray[np.int64]
) -> None:
    for nthreads in (1, 3):
        assert np.array_equal(opened.matcher("cpu", nthreads=nthreads).find(blocks)["matches"], expected)
    extended = expected[:, 2] < opened.info()["shortlist_goal"]
    assert extended.any() and not extended.all()  # the photograph tests both kinds of lists


@SIMT
@pytest.mark.parametrize("options", DEVICE_OPTIONS, ids=str)
def test_the_kernel_agrees_on_the_cpu_machine(
    options: dict[str, Any], opened: _native.Library, blocks: Bytes, expected: npt.NDArray[np.int64]
) -> None:
    result = opened.matcher("simt", seed=11, **options).find(blocks)
    assert np.array_equal(result["matches"], expected)
    assert result["counters"] is not None
    assert result["counters"]["errors"] == 0 and result["counters"]["pinned_frames"] == 0
    assert result["source"]


@SIMT
@pytest.mark.parametrize("order", ["in-order", "reversed", "random"])
@pytest.mark.parametrize(("seed", "resident"), [(1, 0), (2, 1), (3, 5)])
def test_the_kernel_agrees_under_every_schedule(
    order: str, seed: int, resident: int, opened: _native.Library, blocks: Bytes, expected: npt.NDArray[np.int64]
) -> None:
    result = opened.matcher(
        "simt", seed=seed, order=order, resident_blocks=resident, page_nbytes=4096, cache_nbytes=64 * 4096
    ).find(blocks)
    assert np.array_equal(result["matches"], expected)
    assert result["counters"] is not None and result["counters"]["evictions"] > 0


@GPU
@pytest.mark.parametrize("options", DEVICE_OPTIONS, ids=str)
def test_the_kernel_agrees_on_the_gpu(
    options: dict[str, Any], opened: _native.Library, blocks: Bytes, expected: npt.NDArray[np.int64]
) -> None:
    result = opened.matcher("gpu", **options).find(blocks)
    assert np.array_equal(result["matches"], expected)
    assert result["counters"] is not None and result["counters"]["errors"] == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("n", "goal"), [(1, 1), (1, 256), (3, 32), (20, 256), (70, 1), (300, 256), (300, 64)])
def test_small_libraries(engine: str, n: int, goal: int, tmp_path: Path) -> None:
    """Lists that come from neighbouring buckets and from the last resort, full ones, and duplicates in it."""
    rng = np.random.default_rng(n)
    pixels = np.stack([paint(rng, 32, 32) for _ in range(n)])
    builder = _native.LibraryBuilder(tmp_path / "l", shortlist_goal=goal, key_nbits=12)
    builder.add_source(b"x")
    builder.add(pixels, np.zeros((n, 4), np.uint32))
    builder.finish()
    picture = np.concatenate([np.concatenate(list(pixels[:2]), axis=1), paint(rng, 64, 32 * min(n, 2))])
    expected = reference.Library(tmp_path / "l").match(reference.to_blocks(picture))
    opened = _native.Library(tmp_path / "l")
    result = opened.matcher(engine, block_threads=64).find(np.ascontiguousarray(picture))["matches"]
    assert np.array_equal(result, expected)
    assert result[: min(n, 2), :2].tolist() == [[i, 0] for i in range(min(n, 2))]  # images find themselves


def test_exhaustive_search_finds_the_nearest(library: Path, photo: Bytes) -> None:
    blocks = whole_blocks(photo)
    wanted = [0, 7, 3, 3]
    found = _native.Library(library).match_exhaustive(blocks, wanted, nthreads=2)
    queries = reference.histograms(reference.to_blocks(photo)[wanted])
    stored = reference.Library(library).histograms.astype(np.int64)
    distances = ((stored[np.newaxis] - queries[:, np.newaxis]) ** 2).sum(axis=2)
    assert np.array_equal(found[:, 0], distances.argmin(axis=1))
    assert np.array_equal(found[:, 1], distances.min(axis=1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [4096, 0.5])
def test_a_library_that_is_truncated_while_it_is_open(
    engine: str, keep: float, library: Path, photo: Bytes, tmp_path: Path
) -> None:
    path = tmp_path / "victim.lib"
    path.write_bytes(library.read_bytes())
    opened = _native.Library(path)
    with path.open("r+b") as stream:
        stream.truncate(int(keep if keep > 1 else keep * path.stat().st_size))
    with pytest.raises(GpufsError, match=r"victim\.lib: "):
        opened.matcher(engine).find(whole_blocks(photo))


@SIMT
def test_a_library_that_is_replaced_while_it_is_open(library: Path, photo: Bytes, tmp_path: Path) -> None:
    path = tmp_path / "victim.lib"
    path.write_bytes(library.read_bytes())
    opened = _native.Library(path)
    (tmp_path / "other.lib").write_bytes(library.read_bytes())
    (tmp_path / "other.lib").replace(path)
    with pytest.raises(GpufsError, match="was replaced"):
        opened.matcher("simt").find(whole_blocks(photo))
    path.unlink()
    with pytest.raises(GpufsError, match=r"opening the library failed: No such file or directory \(errno 2\)"):
        opened.matcher("simt").find(whole_blocks(photo))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_progress_raises_ends_the_work(engine: str, library: Path, photo: Bytes) -> None:
    class Enough(Exception):  # noqa: N818
        pass

    def stop(done: int, total: int) -> None:
        assert 0 < done <= total
        raise Enough

    with pytest.raises(Enough):
        _native.Library(library).matcher(engine, blocks_per_launch=4).find(whole_blocks(photo), progress=stop)
    with pytest.raises(Enough):
        _native.Library(library).match_exhaustive(whole_blocks(photo), [0], progress=stop)


@pytest.mark.parametrize("shape", [(0, 32, 3), (32, 0, 3), (33, 32, 3), (32, 31, 3)])
def test_pictures_of_partial_blocks_are_refused(shape: tuple[int, ...], library: Path) -> None:
    with pytest.raises(GpufsError, match="multiples of 32"):
        _native.Library(library).matcher().find(np.zeros(shape, np.uint8))


def test_unknown_engines_are_refused(library: Path) -> None:
    with pytest.raises(GpufsError, match="there is no engine 'tpu'"):
        _native.Library(library).matcher("tpu")

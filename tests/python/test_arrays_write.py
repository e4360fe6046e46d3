# SPDX-License-Identifier: Apache-2.0
"""x[index] = values: against NumPy, on all engines; what reaches the file, and what cannot."""

from __future__ import annotations

import errno
import json
import os
import pickle
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, indices, numbers, run_python
from gpufs.errors import GpufsError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_writes_and_reads(data: st.DataObject, tmp_path: Path) -> None:
    dtype = data.draw(
        st.one_of(
            hnp.integer_dtypes(endianness="?"),
            hnp.floating_dtypes(endianness="?", sizes=(32, 64)),
            hnp.boolean_dtypes(),
            hnp.complex_number_dtypes(),
            hnp.byte_string_dtypes(min_len=1, max_len=9),
        )
    )
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9))
    array = np.zeros(shape, dtype)
    path = tmp_path / "a.npy"
    np.save(path, array)
    engine = data.draw(st.sampled_from(ENGINES))
    with gpufs.open(path, mode="r+", engine=engine, cache=64 << 10, page=512) as x:
        for _ in range(data.draw(st.integers(1, 5))):
            key: Any = (data.draw(indices(shape[0])),)
            for n in shape[1:]:
                if data.draw(st.booleans()):
                    break
                key += (data.draw(st.slices(n) | st.integers(-n, n - 1) if n else st.slices(n)),)
            target = array[key].shape
            fitting = hnp.broadcastable_shapes(target, max_dims=len(target), max_side=9) if target else st.just(())
            values_shape = data.draw(fitting.filter(lambda s, t=target: fits(s, t)))  # type: ignore[misc]
            values = data.draw(hnp.arrays(dtype, values_shape, elements=elements(dtype)))
            array[key] = values
            x[key] = values
            read = data.draw(indices(shape[0]))
            assert x[read].tobytes() == array[read].tobytes()
    assert np.load(path).tobytes() == array.tobytes()


def fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def elements(dtype: Any) -> Any:
    return {"allow_nan": False} if dtype.kind in "fc" else {}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_written_is_read_and_reaches_the_file(engine: str, tmp_path: Path) -> None:
    array = numbers(100, 3)
    path = tmp_path / "a.npy"
    np.save(path, array)
    x = gpufs.open(path, mode="r+", engine=engine, **SMALL)
    assert x.mode == "r+" and x.writable
    also = gpufs.open(path, mode="r+", engine=engine, **SMALL)
    x[3] = 1
    x[[5, 6, 5]] = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3]])  # the last one of those that are repeated
    x[-2:] = [[7.5], [8.5]]
    x.put(np.arange(100) % 50 == 10, np.int8(4))
    x[20:22, 1:] = 9
    array[3], array[5], array[6], array[-2:], array[[10, 60]], array[20:22, 1:] = 1, 3, 2, [[7.5], [8.5]], 4, 9
    for reader in (x, also):
        np.testing.assert_array_equal(reader[:], array)
    assert engine == "cpu" or (x.stats["unwritten_pages"] > 0 and x.stats["bytes_written"] >= 12 * 6)
    x.flush()
    assert x.stats["unwritten_pages"] == 0
    np.testing.assert_array_equal(np.load(path), array)
    x.flush(durable=True)
    x[0] = -1
    x.close()
    array[0] = -1
    np.testing.assert_array_equal(np.load(path), array)
    also.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_fit_writes_nothing(engine: str, tmp_path: Path) -> None:
    array = numbers(10, 3)
    path = tmp_path / "a.npy"
    np.save(path, array)
    with gpufs.open(path, mode="r+", engine=engine, **SMALL) as x:
        for key, values, error in (
            ([0, 1], np.ones((3, 3)), ValueError), (0, np.ones(4), ValueError), ([0, 10], 1, IndexError),
            (0, "text", ValueError), ([0.5], 1, IndexError), ((0, 3), 1, IndexError), ((0, [1]), 1, IndexError),
            ((0, 1), np.ones(2), ValueError), (0, np.ones((2, 3)), ValueError),
            (slice(0, 0), np.ones((2, 3)), ValueError),
        ):  # fmt: skip
            with pytest.raises(error):
                x[key] = values
        x[0] = np.ones((1, 1, 3))  # as in NumPy, axes of 1 in front are left out
        x[[]] = 1
        x[3:3] = np.ones((0, 3))
    array[0] = 1
    np.testing.assert_array_equal(np.load(path), array)
    with gpufs.open(path, engine=engine, **SMALL) as x:
        with pytest.raises(ValueError, match="read only"):
            x[0] = 1
        x.flush()
    with pytest.raises(GpufsError, match="mode is 'w'"):
        gpufs.open(path, mode="w", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_are_written_where_they_lie(engine: str, tmp_path: Path) -> None:
    body = numbers(20).tobytes()
    header = {"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},
              "b": {"dtype": "F32", "shape": [4, 3], "data_offsets": [32, 80]}}  # fmt: skip
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    (tmp_path / "raw").write_bytes(b"head" + bytes(12) + b"tail")
    with gpufs.open(tmp_path / "m.safetensors", name="b", mode="r+", engine=engine, **SMALL) as x:
        x[1] = [1, 2, 3]
        again = pickle.loads(pickle.dumps(x))
        again[3] = 3
        again.close()
    wanted = numbers(20)
    wanted[11:14], wanted[17:20] = [1, 2, 3], 3
    assert (tmp_path / "m.safetensors").read_bytes()[8 + len(text) :] == wanted.tobytes()
    with gpufs.open(tmp_path / "raw", dtype="u1", shape=(4, 3), offset=4, mode="r+", engine=engine, **SMALL) as x:
        x[...] = np.arange(12).reshape(4, 3)
    assert (tmp_path / "raw").read_bytes() == b"head" + bytes(range(12)) + b"tail"
    np.savez(tmp_path / "a.npz", a=numbers(5))
    with pytest.raises(GpufsError, match="checksums"):
        gpufs.open(tmp_path / "a.npz", mode="r+", engine=engine, **SMALL)


@pytest.mark.parametrize("writer", ENGINES)
@pytest.mark.parametrize("reader", ENGINES)
def test_who_reads_meanwhile_by_another_mount(reader: str, writer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, numbers(5000, 128))
    with gpufs.open(path, engine=reader, **SMALL) as x:
        kept = x[3]
        with gpufs.open(path, mode="r+", engine=writer, **SMALL) as y:
            y[:] = 1
        if reader == "cpu":
            assert (x[[3, 4000]] == 1).all()
        else:
            np.testing.assert_array_equal(x[3], kept)
            with pytest.raises(OSError, match="written by others") as error:
                x[4000]
            assert error.value.errno == errno.ESTALE
    with gpufs.open(path, engine=reader, **SMALL) as x:
        assert (x[[3, 4000]] == 1).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_is_cut_does_not_grow_again(engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(100_000))
    x = gpufs.open(tmp_path / "a.npy", mode="r+", engine=engine, **SMALL)
    x[5] = 1
    os.truncate(tmp_path / "a.npy", 4096)
    uses: tuple[Callable[[], Any], ...] = (lambda: x[99_000], lambda: x[98_000:], lambda: x[np.arange(99_999)])
    changes: tuple[Callable[[], Any], ...] = (lambda: x.put(99_000, 2), x.flush, x.close)
    for use in uses + changes:
        with pytest.raises(OSError, match="truncated") as error:
            use()
        assert (error.value.errno, error.value.filename) == (errno.ESTALE, str(tmp_path / "a.npy"))
    x.close()
    assert (tmp_path / "a.npy").stat().st_size == 4096


# The file system takes no more than 64 KiB of a file, as one that is full takes none.
_FULL = """
import resource, sys
import gpufs
x = gpufs.open(sys.argv[1], dtype="u1", mode="r+", engine=sys.argv[2], cache=1 << 20)
x[:1000] = 1
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
try:
    x[300_000:300_100] = 2
    x.flush()
    print("no error")
except OSError as error:
    print(error.errno, error.filename)
try:
    x.flush()
    print("told once")
except OSError:
    print("told twice")
x[:10] = 3
x.close()
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_file_system_refuses_is_an_error(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    done = run_python(_FULL, str(path), engine)
    assert done.stdout.splitlines() == [f"{errno.EFBIG} {path}", "told once"], done.stderr
    assert path.read_bytes()[:12] == bytes([3] * 10 + [1] * 2)


_UNPRIVILEGED = """
import os, sys
import gpufs.arrays
os.setegid(65534), os.seteuid(65534)
try:
    gpufs.open(sys.argv[1], dtype="u1", mode="r+", engine=sys.argv[2], cache=1 << 20)
except PermissionError as error:
    print(error.filename)
print(len(gpufs.open(sys.argv[1], dtype="u1", engine=sys.argv[2], cache=1 << 20)[:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("engine", ENGINES)
def test_what_may_not_be_written_does_not_open(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(10))
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o001)
    done = run_python(_UNPRIVILEGED, str(path), engine)
    assert done.stdout.splitlines() == [str(path), "10"], done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_write_at_once(engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((400, 9), np.int32))
    with gpufs.open(tmp_path / "a.npy", mode="r+", engine=engine, **SMALL) as x:

        def write(k: int) -> None:
            for _ in range(3):
                x[k::4] = np.full((100, 9), k)
                assert (x[k::4] == k).all()

        threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.repeat(np.arange(400) % 4, 9).reshape(400, 9))


def test_large_writes_go_by_several_threads(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 255, (40_000, 300), dtype=np.uint8)
    np.save(tmp_path / "a.npy", np.zeros_like(array))
    order = np.random.default_rng(2).permutation(40_000)
    with gpufs.open(tmp_path / "a.npy", mode="r+", engine="cpu") as x:
        x[order] = array[order]
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("nbytes", [150_001, 9 << 20])
@pytest.mark.parametrize("engine", ENGINES)
def test_large_rows(engine: str, nbytes: int, tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 255, (3, nbytes), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    with gpufs.open(tmp_path / "a.npy", mode="r+", engine=engine, **SMALL) as x:
        assert np.array_equal(x[[2, 0]], array[[2, 0]])
        x[[1, 0, 1]] = array[[0, 2, 2]]
        x[2, nbytes - 5 :] = 7
    array[[0, 1]], array[2, nbytes - 5 :] = array[2], 7
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)

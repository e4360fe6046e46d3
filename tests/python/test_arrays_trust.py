# SPDX-License-Identifier: Apache-2.0
"""Files that others replace, write and cut; values that do not fit; processes and threads that end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, run_python

RAW: dict[str, Any] = {"dtype": "u1", "shape": (-1, 4096)}


def save_anew(path: Path, array: Any) -> None:
    np.save(path.with_suffix(".new.npy"), array)
    path.with_suffix(".new.npy").replace(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_was_replaced_is_opened_anew(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    save_anew(path, np.arange(600).reshape(100, 6))
    with gpufs.open(path, engine=engine, **SMALL) as old:
        first = old[3].tolist()
        save_anew(path, np.full((30, 3), 1.5))
        with gpufs.open(path, engine=engine, **SMALL) as new:
            assert new[1].tolist() == [1.5] * 3 and old[3].tolist() == first


@pytest.mark.parametrize("engine", ENGINES)
def test_writes_to_a_file_that_was_replaced_reach_the_new_one(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    save_anew(path, np.zeros((10, 6)))
    with gpufs.open(path, mode="r+", engine=engine, **SMALL) as old:
        old[0] = 1
        save_anew(path, np.zeros((10, 6)))
        with gpufs.open(path, mode="r+", engine=engine, **SMALL) as new:
            new[5] = 7
    array = np.load(path)
    assert (array[5] == 7).all() and not array[0].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_who_opens_after_a_flush_sees_what_was_written(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"a" * (20 * 4096))
    with gpufs.open(path, engine=engine, **RAW, **SMALL) as reader:
        reader[[0, 1]]
        with gpufs.open(path, mode="r+", engine=engine, **RAW, **SMALL) as x:
            x[0:10] = 7
            x.flush()
            with gpufs.open(path, engine=engine, **RAW, **SMALL) as later:
                assert later[:][:, 0].tolist() == [7] * 10 + [97] * 10


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_cast_as_numpy_casts_them(engine: str, tmp_path: Path) -> None:
    values: list[tuple[str, Any]] = [
        ("u1", 300),
        ("u1", [-1, 2]),
        ("u8", [2**64 - 1, 2**53 + 1]),
        ("i4", float("nan")),
        ("i8", 2**63),
        ("f4", 1 + 2j),
        ("U8", [1, 2.5]),
        ("i4", [1.5, 2]),
    ]
    for i, (dtype, value) in enumerate(values):
        array = np.zeros(4, dtype)
        np.save(tmp_path / f"{i}.npy", array)
        with gpufs.open(tmp_path / f"{i}.npy", mode="r+", engine=engine, **SMALL) as x:
            try:
                array[[0, 1]] = value
            except (OverflowError, ValueError, TypeError) as error:
                with pytest.raises(type(error)):
                    x[[0, 1]] = value
            else:
                x[[0, 1]] = value
            assert x[:].tolist() == array.tolist(), (dtype, value)


def _writes_and_ends(path: Path, engine: str) -> None:
    global _kept
    _kept = gpufs.open(path, mode="r+", engine=engine, **RAW, **SMALL)
    _kept[3] = 7


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_worker_that_ends_has_written(how: str, engine: str, tmp_path: Path) -> None:
    if engine == "gpu" and how == "fork":
        pytest.skip("CUDA does not outlive a fork")
    path = tmp_path / "raw"
    path.write_bytes(b"a" * (20 * 4096))
    worker = multiprocessing.get_context(how).Process(target=_writes_and_ends, args=(path, engine))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0 and path.read_bytes()[3 * 4096] == 7


@pytest.mark.parametrize("engine", ENGINES)
def test_a_path_with_a_nul_is_no_path(engine: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(ValueError, match="NUL"):
        gpufs.read_files([str(tmp_path / "a") + "\0b"], engine=engine)


def test_what_headers_and_callers_claim_is_bounded(tmp_path: Path) -> None:
    shape = ",".join(["9" * 4000] * 400)
    header = f'{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,4]}}}}'.encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    begin = time.monotonic()
    with pytest.raises(gpufs.GpufsError):
        gpufs.open(path)
    assert time.monotonic() - begin < 3
    (tmp_path / "raw").write_bytes(b"")
    with pytest.raises(gpufs.GpufsError):
        gpufs.open(tmp_path / "raw", dtype="u1", shape=(0, 2**40, 2**40))
    for device in (-1, 2**40):
        with pytest.raises(gpufs.GpufsError):
            gpufs.open(tmp_path / "raw", dtype="u1", device=device, engine="cpu")


_LONG_INDEX = """
import resource, sys
import numpy as np
import gpufs
x = gpufs.open(sys.argv[1], engine=sys.argv[2], cache=1 << 20)
first = x[3].tobytes()
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (2 << 30), resource.RLIM_INFINITY))
for number, of in ((3, MemoryError), (-31, IndexError)):
    try:
        x[np.broadcast_to(np.int8(number), (1 << 16, 1 << 15))]
    except of:
        print(of.__name__)
assert x[3].tobytes() == first
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_of_more_than_memory_holds(engine: str, tmp_path: Path) -> None:
    """Of 2^31 numbers, which take no memory themselves: as int64 they would take 16 GiB."""
    np.save(tmp_path / "a.npy", np.arange(120).reshape(30, 4))
    done = run_python(_LONG_INDEX, str(tmp_path / "a.npy"), engine)
    assert (done.stdout.split(), done.returncode) == (["MemoryError", "IndexError"], 0), done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_whose_numbers_have_more_than_32_bits(engine: str, tmp_path: Path) -> None:
    places = np.array([7, 1 << 31, (1 << 32) + 5, (1 << 33) - 1])
    with (tmp_path / "raw").open("wb") as file:
        file.truncate(1 << 33)
        for i, place in enumerate(places.tolist()):
            file.seek(place)
            file.write(bytes([i + 1]))
    with gpufs.open(tmp_path / "raw", mode="r+", dtype="u1", engine=engine, **SMALL) as x:
        assert x.shape == (1 << 33,)
        assert x[places].tolist() == [1, 2, 3, 4] and x[[-1, -(1 << 33) + 7, 5]].tolist() == [4, 1, 0]
        assert x[np.tile(places, 1200)].tolist() == [1, 2, 3, 4] * 1200  # more go sorted
        assert x[(1 << 32) + 3 : (1 << 32) + 9 : 2].tolist() == [0, 3, 0]
        x[places[1:3]] = [8, 9]
        assert x[places].tolist() == [1, 8, 9, 4]


def things_held() -> tuple[int, int, int]:
    """Descriptors, threads, and mounts."""
    gc.collect()
    names = [len(list(Path(folder).iterdir())) for folder in ("/proc/self/fd", "/proc/self/task")]
    return names[0], names[1], len(gpufs.stats()["mounts"])


@pytest.mark.parametrize("engine", ENGINES)
def test_errors_leave_nothing_behind(engine: str, tmp_path: Path) -> None:
    array = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    path = tmp_path / "a.npy"
    np.save(path, array)
    text = path.read_bytes()
    bad = {"cut.npy": text[:-1], "head.npy": text[:40], "x.safetensors": b"\xff" * 9, "x.npz": b"PK\3\4" + bytes(40)}
    for name, content in {**bad, "cut_later": bytes(8 * 4096)}.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(array))

    def goes_wrong(what: Callable[[], Any], *errors: type[Exception]) -> None:
        with pytest.raises(errors):
            what()

    def all_that_goes_wrong(x: gpufs.Array) -> None:
        for name in (*bad, "objects.npy", "fortran.npy", "none.npy", "."):
            goes_wrong(partial(gpufs.open, tmp_path / name, engine=engine, **SMALL), gpufs.GpufsError, OSError)
        for index in (1000, [0, -1001], 0.5, [[0.5]], None, "a", np.zeros(3, bool), np.array([object()])):
            goes_wrong(partial(x.__getitem__, index), IndexError)
            goes_wrong(partial(x.prefetch, index), IndexError)
        goes_wrong(partial(x.take, [1, 2], out=np.empty((3, 4), np.float32)), ValueError)
        goes_wrong(partial(x.__setitem__, 3, 1), ValueError)
        (tmp_path / "cut_later").write_bytes(bytes(8 * 4096))
        with gpufs.open(tmp_path / "cut_later", engine=engine, **RAW, **SMALL) as later:
            os.truncate(tmp_path / "cut_later", 4096)
            goes_wrong(partial(later.__getitem__, [5, 7]), OSError)
        goes_wrong(partial(later.__getitem__, 0), ValueError)
        goes_wrong(partial(gpufs.read_files, [path, tmp_path / "none"], engine=engine, cache=1 << 20), OSError)
        assert np.array_equal(x[[3, -1]], array[[3, -1]])

    with gpufs.open(path, engine=engine, **SMALL) as x:
        all_that_goes_wrong(x)
        before = things_held()
        for _ in range(5):
            all_that_goes_wrong(x)
        assert things_held() == before


class OwnError(Exception):
    """Of a signal handler of the caller's."""


@pytest.mark.parametrize("own", [OwnError("mine"), TimeoutError("mine")])
def test_what_a_signal_handler_raises_in_an_open_comes_as_it_is(
    own: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise own

    np.save(tmp_path / "a.npy", np.zeros((4, 4)))
    monkeypatch.setattr("gpufs.formats._npy", interrupted)
    with pytest.raises(type(own)) as raised:
        gpufs.open(tmp_path / "a.npy", engine="cpu")
    assert raised.value is own and str(own) == "mine"

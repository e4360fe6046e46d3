# SPDX-License-Identifier: Apache-2.0
"""Files that others replace, write and cut; values that do not fit; processes and threads that end."""

from __future__ import annotations

import multiprocessing
import struct
import time
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


_ENDS_BESIDE_THREADS = """
import sys, threading, time, gpufs
how = {"dtype": "u1", "shape": (-1, 4096), "engine": sys.argv[2], "cache": 1 << 20}
x = gpufs.open(sys.argv[1], mode="r+", **how)
def go():
    while True:
        gpufs.open(sys.argv[1], **how)[[1, 2, 3] * 9]
for _ in range(3):
    threading.Thread(target=go, daemon=True).start()
x[3] = 7
time.sleep(0.2)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_interpreter_ends_beside_threads_that_read(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"a" * (20 * 4096))
    for _ in range(3):
        done = run_python(_ENDS_BESIDE_THREADS, str(path), engine)
        assert done.returncode == 0 and path.read_bytes()[3 * 4096] == 7, done.stderr


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

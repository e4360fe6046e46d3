# SPDX-License-Identifier: Apache-2.0
"""gpufs.open(): formats, indexing against NumPy, engines that give equal bytes, errors."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import struct
import threading
import zipfile
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers
from gpufs.errors import GpufsError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_those_of_numpy(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        assert (x.shape, x.dtype, x.nbytes, len(x), x.ndim) == (array.shape, array.dtype, array.nbytes, 1000, 3)
        keys: list[Any] = [
            3, -1, np.int16(5), np.array(7), slice(None, 40), slice(900, 10, -37), slice(5, 5), ..., (), (4, ...),
            [1, 2, 1], [], np.array([[5, -1], [999, 0]]), np.array([], np.uint8), np.arange(1000) % 3 == 0,
            np.zeros((2, 0), int), np.array([7, 9], np.uint64),
            (slice(3, 9), slice(1, 3)), ([4, -4], ..., slice(None, None, 2)),
            (3, 4), (slice(3, 9), -1), (slice(None), slice(1, 3), np.int8(2)), ([4, -4], 1),
            ([[4], [-4]], ..., -7), (1, 2, 3),
        ]  # fmt: skip
        for key in keys:
            got, wanted = x[key], array[key if not isinstance(key, list) else np.array(key, int)]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, key
            np.testing.assert_array_equal(got, wanted, err_msg=repr(key))
        assert isinstance(x.path_in_use, str) and engine in repr(x)
        np.testing.assert_array_equal(np.asarray(x)[:3], array[:3])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_names_no_rows_reads_none(engine: str, features: tuple[Path, Any]) -> None:
    path, _ = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        before = x.stats
        for key in (1000, -1001, [0, 1000], [-1001], 1.5, [0.5], None, True, "a", np.zeros(999, bool),
                    np.zeros((2, 2), bool), (0, 5), (0, 0, -8), (0, [1]), (0, True), (0, None), (0, np.array(1)),
                    (0, 0, 0, 0), (..., ...), 2**70):  # fmt: skip
            with pytest.raises(IndexError):
                x[key]
        for key, words in (
            (2**70, "is out of bounds"),
            ([2**70], r"not by \[118059"),
            ("a", "not by 'a'"),
            ({1, 2}, r"not by {1, 2}"),
        ):
            with pytest.raises(IndexError, match=words):
                x[key]
        assert x.stats == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_arrays_and_indices(data: st.DataObject, tmp_path: Path) -> None:
    dtype = data.draw(
        st.one_of(
            hnp.integer_dtypes(endianness="?"),
            hnp.floating_dtypes(endianness="?"),
            hnp.boolean_dtypes(),
            hnp.complex_number_dtypes(),
            hnp.datetime64_dtypes(),
            hnp.byte_string_dtypes(min_len=1, max_len=9),
        )
    )
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9))
    nbytes = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), dtype).reshape(shape)
    np.save(tmp_path / "a.npy", array)
    engine = data.draw(st.sampled_from(ENGINES))
    with gpufs.open(tmp_path / "a.npy", engine=engine, cache=64 << 10, page=512) as x:
        for _ in range(3):
            n = shape[0]
            ints = hnp.arrays(
                st.sampled_from([np.int64, np.int8]),
                hnp.array_shapes(max_dims=3, min_side=0, max_side=5),
                elements=st.integers(-n, n - 1),
            )
            masks = hnp.arrays(np.bool_, n)
            key = data.draw(st.one_of(st.slices(n), masks, ints) if n else st.one_of(st.slices(n), masks))
            got, wanted = x[key], array[key]
            assert got.shape == wanted.shape and got.dtype == wanted.dtype
            assert got.tobytes() == wanted.tobytes()  # also of NaNs


@pytest.mark.parametrize("engine", ENGINES)
def test_formats(engine: str, tmp_path: Path) -> None:
    a, b = numbers(50, 3), numbers(20, dtype=np.int16)
    np.savez(tmp_path / "two.npz", a=a, b=b)
    np.savez(tmp_path / "one.npz", only=b)
    tensors = {"weight": ("F32", a), "bias": ("I16", b)}
    header: dict[str, Any] = {"__metadata__": {"made": "here"}}
    body = b""
    for key, (kind, tensor) in tensors.items():
        header[key] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [len(body), len(body) + tensor.nbytes]}
        body += tensor.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    (tmp_path / "raw.bin").write_bytes(b"head" + a.tobytes())
    opened: list[tuple[Any, Any]] = [
        (gpufs.open(tmp_path / "two.npz", name="a", engine=engine, **SMALL), a),
        (gpufs.open(tmp_path / "one.npz", engine=engine, **SMALL), b),
        (gpufs.open(tmp_path / "m.safetensors", name="bias", engine=engine, **SMALL), b),
        (gpufs.open(tmp_path / "m.safetensors", name="weight", engine=engine, **SMALL), a),
        (gpufs.open(tmp_path / "raw.bin", dtype="f4", shape=(-1, 3), offset=4, engine=engine, **SMALL), a),
        (gpufs.open(str(tmp_path / "raw.bin"), dtype="f4", shape=(7, 2), offset=8, engine=engine, **SMALL),
         a.reshape(-1)[1:15].reshape(7, 2)),
        (gpufs.open(bytes(tmp_path / "raw.bin"), dtype="u1", engine=engine, **SMALL),
         np.frombuffer(b"head" + a.tobytes(), np.uint8)),
    ]  # fmt: skip
    for x, wanted in opened:
        np.testing.assert_array_equal(x[[2, -1, 0]], wanted[[2, -1, 0]])
        x.close()


def test_files_that_hold_no_such_array_say_so(tmp_path: Path) -> None:
    a = numbers(10, 4)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(a))
    np.save(tmp_path / "scalar.npy", np.float32(3))
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez_compressed(tmp_path / "small.npz", a=a)
    np.savez(tmp_path / "two.npz", a=a, b=a)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "head.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:20])
    (tmp_path / "x.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0[]")
    (tmp_path / "long.safetensors").write_bytes(b"\xff" * 8)
    (tmp_path / "raw").write_bytes(b"12345")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("fortran.npy", {}, "ascontiguous"), ("scalar.npy", {}, "no axis"), ("objects.npy", {}, "Python objects"),
        ("small.npz", {}, "compressed"), ("two.npz", {}, "several arrays"), ("two.npz", {"name": "c"}, "no array 'c'"),
        ("cut.npy", {}, "would end at"), ("head.npy", {}, "head.npy"), ("x.safetensors", {}, "safetensors header"),
        ("long.safetensors", {}, "no safetensors file"), ("raw", {}, "needs dtype="),
        ("raw", {"dtype": "f4"}, "rows of 4"), ("a.npy", {"dtype": "f4"}, "leave dtype out"),
        ("small.npz", {"dtype": "f4", "shape": (-1, 3)}, "leave dtype out"),
        ("raw", {"dtype": "u1", "shape": (6,)}, "would end at"), ("raw", {"dtype": "u1", "offset": -1}, "offset"),
        ("raw", {"dtype": "u1", "shape": (2, -1)}, "first axis"), ("raw", {"dtype": "O"}, "no size"),
        ("a.npy", {"name": "a"}, "without a name"), ("a.npy", {"shape": (1,)}, "raw files"),
        ("a.npy", {"engine": "tpu"}, "no engine 'tpu'"), ("a.npy", {"cache": "lots"}, "number of bytes"),
        ("a.npy", {"page": 1000}, "page"), ("a.npy", {"page": 256}, "page"), ("a.npy", {"page": 4 << 20}, "page"),
        ("a.npy", {"cache": 2**70}, "cache"), ("a.npy", {"cache": True}, "number of bytes"),
        ("a.npy", {"pin": "half"}, "number of bytes"), ("a.npy", {"pin": 2**70}, "pin is"),
        ("a.npy", {"device": "cuda:0"}, "a GPU's number"), ("a.npy", {"device": -1}, "no device -1"),
        ("raw", {"dtype": "u1", "offset": 6}, "the file has 5 bytes"),
        ("raw", {"dtype": "u1", "offset": 9, "shape": (0,)}, "the file has 5 bytes"),
        ("raw", {"dtype": "u1", "shape": 2.5}, "shape 2.5"), ("raw", {"dtype": "u1", "offset": 1.5}, "offset 1.5"),
        ("raw", {"dtype": "u1", "shape": (2**70, 0)}, "no arrays of shape"),
        ("raw", {"dtype": "u1", "shape": ()}, "no axis"),
        ("fifo", {"dtype": "u1"}, "no regular file"), ("/dev/zero", {"dtype": "u1"}, "no regular file"),
        ("x.npz", {}, "has no arrays"),
    ]  # fmt: skip
    os.mkfifo(tmp_path / "fifo")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme", "no array")
    for name, how, text in wrong:
        with pytest.raises(GpufsError, match=text):
            gpufs.open(tmp_path / name, **how)
    with pytest.raises(FileNotFoundError):
        gpufs.open(tmp_path / "none.npy")
    with pytest.raises(IsADirectoryError):
        gpufs.open(tmp_path)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_members_of_npz_end_where_they_end(tmp_path: Path) -> None:
    array = numbers(10, dtype=np.uint8)
    for text in (npy(array).replace(b"(10,)", b"(99,)"), npy(array)[:-1]):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("a.npy", text)
            archive.writestr("next.npy", npy(numbers(1000)))
        with pytest.raises(GpufsError, match="would end at"):
            gpufs.open(tmp_path / "a.npz", name="a")
        assert len(gpufs.open(tmp_path / "a.npz", name="next")) == 1000
    whole = (tmp_path / "a.npz").read_bytes()
    directory = whole.index(b"PK\x01\x02")
    encrypted = whole[: directory + 8] + b"\1" + whole[directory + 9 :]
    (tmp_path / "a.npz").write_bytes(encrypted)
    with pytest.raises(GpufsError, match="encrypted"):
        gpufs.open(tmp_path / "a.npz", name="a")


def test_versions_of_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = np.zeros(3, [("\u540d\U0001f600", "<f4"), ("b", "<i2", (2,))])
    array["b"] = [[1, 2], [3, 4], [5, 6]]
    for version in ((1, 0), (2, 0), (3, 0)):
        wanted = array if version == (3, 0) else array["b"]
        with path.open("wb") as file:
            np.lib.format.write_array(file, wanted, version)
        x = gpufs.open(path)
        assert x.dtype == wanted.dtype
        assert x[:].tobytes() == wanted.tobytes()
    for version in ((0, 0), (1, 1), (4, 0)):
        path.write_bytes(b"\x93NUMPY" + bytes(version) + npy(array["b"])[8:])
        with pytest.raises(GpufsError, match=r"a\.npy"):
            gpufs.open(path)
    path.write_bytes(npy(array["b"]).replace(b"(3, 2)", b"(-3,2)"))
    with pytest.raises(GpufsError, match="no arrays of shape"):
        gpufs.open(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_hold_what_they_say(data: st.DataObject, tmp_path: Path) -> None:
    array = numbers(6, 2)
    stored = io.BytesIO()
    np.savez(stored, a=array, b=array)
    header = {"a": {"dtype": "F32", "shape": [6, 2], "data_offsets": [0, array.nbytes]}}
    tensors = json.dumps(header).encode()
    kinds = {
        "x.npy": npy(array),
        "x.npz": stored.getvalue(),
        "x.safetensors": struct.pack("<Q", len(tensors)) + tensors + array.tobytes(),
    }
    name = data.draw(st.sampled_from(sorted(kinds)))
    text = bytearray(kinds[name])
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b"0123456789()[]{}\"',:-<>|"))
        )
    (tmp_path / name).write_bytes(text[: data.draw(st.one_of(st.just(len(text)), st.integers(0, len(text))))])
    try:
        x = gpufs.open(tmp_path / name, name=None if name == "x.npy" else "a", engine="cpu")
    except GpufsError as error:
        assert "x." in str(error)
    else:
        got = x[:]
        assert got.tobytes() in bytes(text)


def test_an_array_that_would_begin_before_its_archive_is_refused(tmp_path: Path) -> None:
    stored = io.BytesIO()
    np.savez(stored, a=numbers(6, 2))
    text = bytearray(stored.getvalue())
    (begin,) = struct.unpack_from("<I", text, len(text) - 6)  # where the directory begins, in the last record
    struct.pack_into("<I", text, len(text) - 6, begin + 1000)  # so that all of it is taken to be 1,000 bytes earlier
    (tmp_path / "x.npz").write_bytes(text)
    with pytest.raises(GpufsError, match=r"x\.npz"):
        gpufs.open(tmp_path / "x.npz", name="a", engine="cpu")


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_one_number_and_other_kinds_of_arrays(engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(9))
    x = gpufs.open(tmp_path / "a.npy", engine=engine, **SMALL)
    assert type(x[3]) is np.float32 and type(x[np.array(3)]) is np.float32 and type(x.take(3)) is np.float32
    got = x[np.array([[1, 2], [3, 4]]).view(np.matrix)]
    assert type(got) is np.ndarray and got.shape == (2, 2)
    with pytest.raises(ValueError, match="out must be"):
        x.take([1], out=[0.0])
    raw = gpufs.open(tmp_path / "a.npy", dtype=("<f4", (3,)), offset=128, shape=3, engine=engine, **SMALL)
    np.testing.assert_array_equal(raw[:], numbers(9).reshape(3, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_out_close_and_pickle(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    x = gpufs.open(path, engine=engine, **SMALL)
    out = np.full((2, 5, 7), -1, np.float32)
    assert x.take([4, 4], out=out) is out
    np.testing.assert_array_equal(out, array[[4, 4]])
    for bad in (
        np.empty((3, 5, 7), np.float32),
        np.empty((2, 5, 7)),
        np.empty((2, 7, 5), np.float32).transpose(0, 2, 1),
    ):
        with pytest.raises(ValueError, match="out must be"):
            x.take([1, 2], out=bad)
    again = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(again[17], array[17])
    x.close()
    x.close()
    with pytest.raises(ValueError, match="closed"):
        x[0]
    np.testing.assert_array_equal(again[18], array[18])
    state = pickle.dumps(again)
    again.close()
    np.save(path, array[:10])
    later = pickle.loads(state)
    assert later.shape == array.shape and not later.closed and "not opened yet" in repr(later)
    with pytest.raises(GpufsError, match="another array"):
        later[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_is_cut_is_an_error(engine: str, tmp_path: Path) -> None:
    array = numbers(100_000)
    np.save(tmp_path / "a.npy", array)
    with gpufs.open(tmp_path / "a.npy", engine=engine, **SMALL) as x:
        assert x[5] == array[5]
        with (tmp_path / "a.npy").open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(OSError, match="truncated") as error:
            x[[99_000, 98_000]]
        assert (error.value.errno, error.value.filename) == (errno.ESTALE, str(tmp_path / "a.npy"))
        with (tmp_path / "a.npy").open("r+b") as file:
            file.truncate(1000)  # in the middle of a page
        if engine == "cpu":  # which has no page cache of its own
            with pytest.raises(OSError, match="truncated"):
                x[[500]]


def test_threads_read_at_once(features: tuple[Path, Any]) -> None:
    path, array = features
    for engine in ENGINES:
        with gpufs.open(path, engine=engine, **SMALL) as x:
            wrong: list[int] = []

            def read(seed: int, x: gpufs.Array = x, wrong: list[int] = wrong) -> None:
                rng = np.random.default_rng(seed)
                for _ in range(5):
                    ids = rng.integers(-1000, 1000, 50)
                    if not np.array_equal(x[ids], array[ids]):
                        wrong.append(seed)

            threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert not wrong


# What is asked for ahead ends in the row, behind it, or with the file; and rows are fewer than are looked ahead to.
@pytest.mark.parametrize("row_nbytes", [1, 63, 300, 1024, 1500, 300_000])
def test_large_reads_go_by_several_threads(tmp_path: Path, row_nbytes: int) -> None:
    nrows = max(10, 3_000_000 // row_nbytes)
    array = np.random.default_rng(1).integers(0, 255, (nrows, row_nbytes), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    ids = np.random.default_rng(2).integers(-nrows, nrows, 2 * nrows)
    with gpufs.open(tmp_path / "a.npy", engine="cpu") as x:
        assert np.array_equal(x[ids], array[ids])
        for n in range(20):
            assert np.array_equal(x[ids[:n]], array[ids[:n]])

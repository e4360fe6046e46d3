# SPDX-License-Identifier: Apache-2.0
"""Rows of the index's kind, and in the caller's stream; device_arrays.py has what stands in for a GPU."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers
from gpufs import tensors
from gpufs.errors import GpufsError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

needs_simt = pytest.mark.skipif("simt" not in ENGINES, reason="no CPU machine")


@pytest.fixture
def features(tmp_path: Path) -> tuple[Path, Any]:
    array = numbers(1000, 5, 7)
    np.save(tmp_path / "features.npy", array)
    return tmp_path / "features.npy", array


@needs_simt
def test_rows_are_read_in_the_callers_stream(device: Any, features: tuple[Path, Any]) -> None:
    path, array = features
    index = device.of(np.array([[5, -1], [999, 0]], np.int32))
    with gpufs.open(path, engine="simt", **SMALL) as x:
        device.hold()
        rows = x[index]  # returns, though nothing in the stream goes on
        some = x[index, 1:3]
        masked = x[device.of(np.arange(1000) == 4)]
        assert type(rows) is type(index) and tuple(rows.shape) == (2, 2, 5, 7)
        assert not x._open_rows().ended()
        device.go()
        x.check()
        np.testing.assert_array_equal(np.asarray(rows), array[[[5, -1], [999, 0]]])
        np.testing.assert_array_equal(np.asarray(some), array[[[5, -1], [999, 0]], 1:3])
        np.testing.assert_array_equal(np.asarray(masked), array[[4]])
        out = device.of(np.zeros((2, 5, 7), np.float32))
        assert x.take([7, 8], out=out) is out  # from the host to the device
        x.check()
        np.testing.assert_array_equal(np.asarray(out), array[[7, 8]])
        assert x.take(device.of(np.array([1, 2])), out=out) is out
        x.prefetch(device.of(np.arange(30)))
        x.check()
        np.testing.assert_array_equal(np.asarray(out), array[[1, 2]])
        assert tuple(x[device.of(np.zeros((0, 3), np.int64))].shape) == (0, 3, 5, 7)


@needs_simt
def test_rows_that_there_are_not_are_zeros_and_told_later(device: Any, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine="simt", **SMALL) as x:
        for wrong in (1000, -1001, 2**40):
            rows = x[device.of(np.array([3, wrong, 4]))]
            with pytest.raises(IndexError, match="index 1 of those given"):
                x.check()
            np.testing.assert_array_equal(np.asarray(rows)[[0, 2]], array[[3, 4]])
            assert not np.asarray(rows)[1].any()
            x.check()  # told once
        x[device.of(np.array([1000]))]
        device.wait()
        with pytest.raises(IndexError):
            x[0]
        np.testing.assert_array_equal(x[0], array[0])
        x[device.of(np.array([1000]))]
        with pytest.raises(IndexError):
            x.close()
    with pytest.raises(ValueError, match="closed"):
        x[device.of(np.array([1]))]


@needs_simt
def test_booleans_on_a_device_are_one_a_row(device: Any, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, mode="r+", engine="simt", **SMALL) as x:
        for shape in ((999,), (1001,), (1000, 1), (1000, 5), (), (0,)):
            mask = device.of(np.ones(shape, bool))
            uses: tuple[Callable[[Any], Any], ...] = (x.__getitem__, lambda index: x.put(index, 1), x.prefetch)
            for use in uses:
                with pytest.raises(IndexError, match=r"a boolean index of shape .* does not fit 1000 rows"):
                    use(mask)
        np.testing.assert_array_equal(x[:], array)


@needs_simt
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_is_cut_is_told_later(mode: str, device: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(100_000))
    x = gpufs.open(tmp_path / "a.npy", mode=mode, engine="simt", **SMALL)
    device.hold()
    early = x[device.of(np.array([99_000]))]
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(4096)
    device.go()
    with pytest.raises(OSError, match="truncated") as error:
        x.check()
    assert error.value.filename == str(tmp_path / "a.npy")
    assert np.asarray(early)[0] == 0
    with pytest.raises(OSError, match="truncated"):
        x[device.of(np.array([99_000]))]
        x.check()
    with contextlib.suppress(OSError):
        x.close()
    assert x.closed


@needs_simt
def test_rows_are_written_in_the_callers_stream(
    device: Any, features: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, array = features
    index = device.of(np.array([5, -1, 30]))
    with gpufs.open(path, mode="r+", engine="simt", **SMALL) as x:
        device.hold()
        x[index] = 1.5
        x[device.of(np.array([[6], [7]]))] = device.of(numbers(5, 7))
        assert not x._open_rows().ended()
        device.go()
        x[device.of(np.array([40, 2000]))] = 3
        with pytest.raises(IndexError, match="index 1"):
            x.flush()
        array[[5, -1, 30]], array[[6, 7]], array[40] = 1.5, numbers(5, 7), 3
        np.testing.assert_array_equal(np.load(path), array)
        with pytest.raises(ValueError):
            x[index] = device.of(np.ones((2, 5, 7), np.float32))
    with gpufs.open(path, mode="r+", engine="simt", **SMALL) as x:
        taken = x._take

        def take_and_wait(*how: Any) -> Any:  # the library's own work is not in the stream here
            rows = taken(*how)
            device.wait()
            return rows

        monkeypatch.setattr(x, "_take", take_and_wait)
        x[index, 1:2] = device.of(numbers(3, 1, 7))
    array[[5, -1, 30], 1:2] = numbers(3, 1, 7)
    np.testing.assert_array_equal(np.load(path), array)


@needs_simt
def test_what_is_elsewhere_is_refused(device: Any, features: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = features
    index = device.of(np.array([1, 2]))
    with gpufs.open(path, engine="simt", device=1, **SMALL) as x, pytest.raises(ValueError, match="device=0"):
        x[index]
    with gpufs.open(path, engine="cpu") as x, pytest.raises(ValueError, match="read by the host"):
        x[index]
    with gpufs.open(path, engine="simt", **SMALL) as x:
        with pytest.raises(IndexError, match="integers or booleans"):
            x[device.of(np.array([0.5]))]
        with pytest.raises(ValueError, match="out is not"):
            x.take(index, out=np.empty((2, 5, 7), np.float32))
        with pytest.raises(ValueError, match="out must be"):
            x.take(index, out=device.of(np.empty((2, 5, 7))))
    with pytest.raises(GpufsError):
        gpufs.open(path, engine="simt", device=99)


def test_arrays_on_a_gpu_of_other_libraries_are_refused(features: tuple[Path, Any]) -> None:
    class Other:
        __cuda_array_interface__ = {"shape": (1,)}  # noqa: RUF012

    with gpufs.open(features[0], engine="cpu") as x, pytest.raises(TypeError, match="knows torch's and CuPy's"):
        x[Other()]


class HostTensor:
    """What gives its memory by DLPack, and is none of the libraries'."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("engine", ENGINES)
def test_other_libraries_on_the_host(engine: str, features: tuple[Path, Any]) -> None:
    path, array = features
    with gpufs.open(path, engine=engine, **SMALL) as x:
        rows = x[HostTensor(np.array([3, 4]))]
        assert type(rows) is np.ndarray
        np.testing.assert_array_equal(rows, array[[3, 4]])
        again = np.from_dlpack(rows)
        assert again.__array_interface__["data"][0] == rows.__array_interface__["data"][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_torch_on_the_host(engine: str, features: tuple[Path, Any]) -> None:
    torch = pytest.importorskip("torch")
    path, array = features
    with gpufs.open(path, mode="r+", engine=engine, **SMALL) as x:
        for key in ([3, -1, 3], [[0], [999]], [], 7, [5, 6]):
            index = torch.tensor(key, dtype=torch.int32)
            rows = x[index]
            assert isinstance(rows, torch.Tensor) and rows.dtype == torch.float32
            np.testing.assert_array_equal(rows.numpy(), array[np.array(key, int)])
        mask = torch.arange(1000) % 3 == 0
        np.testing.assert_array_equal(x[mask, 1:].numpy(), array[mask.numpy(), 1:])
        for wrong in (torch.tensor([0.5]), torch.tensor([1000]), torch.zeros(3, dtype=torch.bool)):
            with pytest.raises(IndexError):
                x[wrong]
        out = torch.empty(2, 5, 7)
        assert x.take([1, 2], out=out) is out
        np.testing.assert_array_equal(out.numpy(), array[[1, 2]])
        for bad in (torch.empty(2, 5, 7, dtype=torch.float64), torch.empty(2, 7, 5).transpose(1, 2),
                    torch.empty(2, 5, 7, requires_grad=True)):  # fmt: skip
            with pytest.raises(ValueError, match="out must be"):
                x.take([1, 2], out=bad)
        x[torch.tensor([4, 5])] = torch.ones(5, 7, requires_grad=True)
        x[6] = torch.full((5, 7), 2, dtype=torch.int64)
        np.testing.assert_array_equal(x[4:7], np.broadcast_to([[[1]], [[1]], [[2]]], (3, 5, 7)))
    np.save(path, np.zeros(3, "S4"))
    with gpufs.open(path, engine=engine, **SMALL) as x, pytest.raises(TypeError, match="no dtype"):
        x[torch.tensor([1])]


def bfloat16_file(path: Path) -> Any:
    """A tensor of 10 x 3 bfloat16; their bits."""
    bits = (numbers(10, 3).view(np.uint32) >> 16).astype(np.uint16)
    text = json.dumps({"w": {"dtype": "BF16", "shape": [10, 3], "data_offsets": [0, 60]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bits.tobytes())
    return bits


@pytest.mark.parametrize("engine", ENGINES)
def test_bfloat16_by_way_of_torch(engine: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    bits = bfloat16_file(tmp_path / "m.safetensors")
    with gpufs.open(tmp_path / "m.safetensors", mode="r+", engine=engine, **SMALL) as x:
        assert x.dtype == torch.bfloat16 and x.nbytes == 60 and "bfloat16" in repr(x)
        for key in (slice(2, 5), [1, -1], torch.tensor([1, 9]), 4):
            rows = x[key]
            assert rows.dtype == torch.bfloat16
            wanted = bits[key.numpy() if isinstance(key, torch.Tensor) else key]
            np.testing.assert_array_equal(rows.view(torch.uint16).numpy(), wanted)
        with pytest.raises(TypeError, match="bfloat16"):
            np.asarray(x)
        x[[0, 1]] = torch.tensor([[1.0], [2.0]])
        x[2] = [3, 4, 5]
        assert x[:3].float().tolist() == [[1, 1, 1], [2, 2, 2], [3, 4, 5]]
    (tmp_path / "raw").write_bytes(bytes(range(8)))
    for dtype in ("float8_e4m3fn", torch.float8_e4m3fn):
        with gpufs.open(tmp_path / "raw", dtype=dtype, shape=(-1, 4), engine=engine, **SMALL) as x:
            assert x[1].view(torch.uint8).tolist() == [4, 5, 6, 7]
    with gpufs.open(tmp_path / "raw", dtype=torch.int16, engine=engine, **SMALL) as x:
        assert x.dtype == np.int16


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("element", sorted(tensors.ELEMENTS))
def test_what_only_torch_has_is_written_by_value(element: str, engine: str, tmp_path: Path) -> None:
    """Into elements of other kinds; and as numbers of rows it is none."""
    torch = pytest.importorskip("torch")
    values = torch.tensor([[0.5, 2.0, 4.0]]).to(getattr(torch, element))
    for dtype in ("f4", ">f8", "i2", "c8"):
        np.save(tmp_path / "a.npy", np.ones((4, 3), dtype))
        with gpufs.open(tmp_path / "a.npy", mode="r+", engine=engine, **SMALL) as x:
            x[torch.tensor([1, 2])] = values
            x[3, ::-1] = values[0]
            wanted = np.array([[1, 1, 1], [0.5, 2, 4], [0.5, 2, 4], [4, 2, 0.5]]).astype(dtype)
            np.testing.assert_array_equal(x[:], wanted)
            with pytest.raises(IndexError, match="integers or booleans"):
                x[values[0]]


@pytest.mark.parametrize("engine", ENGINES)
def test_bfloat16_without_torch(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = bfloat16_file(tmp_path / "m.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)
    with gpufs.open(tmp_path / "m.safetensors", engine=engine, **SMALL) as x:
        for use in (lambda: x[1], lambda: x.dtype):
            with pytest.raises(GpufsError, match="install torch, or give as_bits=True"):
                use()
    with gpufs.open(tmp_path / "m.safetensors", as_bits=True, mode="r+", engine=engine, **SMALL) as x:
        assert x.dtype == np.uint16
        x[3] = 7
        bits[3] = 7
        np.testing.assert_array_equal(x[:], bits)


@needs_simt
def test_files_are_read_to_a_device(device: Any, tmp_path: Path) -> None:
    contents = [np.random.default_rng(i).bytes(i * 7 % 50) for i in range(90)]
    for i, content in enumerate(contents):
        (tmp_path / f"{i}").write_bytes(content)
    paths = [tmp_path / f"{i}" for i in range(90)]
    like = device.of(np.zeros(1))
    data, offsets = gpufs.read_files(paths, like=like, engine="simt", **SMALL)
    assert type(data) is type(like) is type(offsets)
    assert np.asarray(data).tobytes() == b"".join(contents)
    assert np.asarray(offsets).tolist() == [0, *np.cumsum([len(c) for c in contents])]
    with gpufs.Mount(tmp_path, engine="simt", **SMALL) as mount:
        rows, lengths = mount.read_files(range_of_names(90), pad_to=60, like=like)
        assert np.asarray(rows).tobytes() == b"".join(c + bytes(60 - len(c)) for c in contents)
        assert np.asarray(lengths).tolist() == [len(c) for c in contents]
    with pytest.raises(ValueError, match="are to be on"):
        gpufs.read_files(paths, like=like, engine="cpu")


def range_of_names(n: int) -> list[str]:
    return [str(i) for i in range(n)]


@pytest.mark.parametrize("engine", ENGINES)
def test_files_are_read_to_torch(engine: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "a").write_bytes(b"123")
    data, offsets = gpufs.read_files([tmp_path / "a"] * 2, like=torch.zeros(1), engine=engine, **SMALL)
    assert data.tolist() == [49, 50, 51] * 2 and offsets.tolist() == [0, 3, 6] and data.dtype == torch.uint8


@needs_simt
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_reads_and_writes_in_a_stream(data: st.DataObject, device: Any, tmp_path: Path) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "i2", "f4", "f8", "c8", "?"])))
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9))
    n, path = shape[0], tmp_path / "a.npy"
    array = np.random.default_rng(n).integers(0, 2, shape).astype(dtype)
    np.save(path, array)
    rows: list[tuple[Any, Any]] = []
    any_row = st.integers(-n - 2, n + 1)
    ids = hnp.arrays(st.sampled_from([np.int64, np.int32]), hnp.array_shapes(max_dims=2, max_side=4), elements=any_row)
    steps = data.draw(st.lists(st.tuples(st.booleans(), ids), max_size=5))
    with gpufs.open(path, mode="r+", engine="simt", cache=64 << 10, page=512) as x:
        wrong = False
        device.hold()
        for writes, index in steps:
            inside = (index >= -n) & (index < n)
            if writes:
                _, first = np.unique(index % n, return_index=True)
                index, inside = index.reshape(-1)[first], inside.reshape(-1)[first]
                values = np.random.default_rng(len(first)).integers(0, 2, (len(first), *shape[1:])).astype(dtype)
                x[device.of(index)] = device.of(values)
                array[index[inside]] = values[inside]
            else:
                wanted = np.asarray(array[index % n])
                wanted[~inside] = 0
                rows.append((x[device.of(index)], wanted))
            wrong = wrong or not inside.all()
        device.go()
        if wrong:
            with pytest.raises(IndexError):
                x.check()
        x.check()
        for got, wanted in rows:
            assert np.asarray(got).tobytes() == wanted.tobytes()
    assert np.load(path).tobytes() == array.tobytes()


@needs_simt
def test_rows_that_go_in_parts(device: Any, tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 255, (5, 150_001), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    with gpufs.open(tmp_path / "a.npy", mode="r+", engine="simt", **SMALL) as x:
        rows = x[device.of(np.array([4, 9, 1]))]
        with pytest.raises(IndexError, match="index 1 of"):
            x.check()
        np.testing.assert_array_equal(np.asarray(rows), [array[4], np.zeros(150_001, np.uint8), array[1]])
        x[device.of(np.array([2, 3]))] = device.of(array[:2])
        x.check()
    array[2:4] = array[:2]
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_gpu(library: str, features: tuple[Path, Any]) -> None:
    """What the CPU machine stands in for above."""
    module: Any = pytest.importorskip(library)
    path, array = features
    if library == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch sees no GPU")
        stream, on = module.cuda.Stream(), module.cuda.stream

        def of(a: Any) -> Any:
            return module.as_tensor(a, device="cuda")

        def host(a: Any) -> Any:
            return a.cpu().numpy()
    else:
        stream, of, host = module.cuda.Stream(non_blocking=True), module.asarray, module.asnumpy

        def on(s: Any) -> Any:
            return s

    with gpufs.open(path, mode="r+", engine="gpu", **SMALL) as x:
        for _ in range(20):
            with on(stream):
                index = of(np.random.default_rng(1).integers(-1000, 1000, (50, 2)))
                doubled = x[index] * 2  # behind it in the stream
                x[of(np.arange(10))] = doubled[:10, 0]
                written = x[of(np.arange(10))]
            stream.synchronize()
            wanted = array[host(index)] * 2
            np.testing.assert_array_equal(host(doubled), wanted)
            np.testing.assert_array_equal(host(written), wanted[:10, 0])
            array[:10] = wanted[:10, 0]
        with on(stream):
            assert not x[of(np.zeros((0, 3), np.int64))].any()
            rows = x[of(np.array([1, 1000, 2]))]
        with pytest.raises(IndexError, match="index 1 of"):
            x.check()
        np.testing.assert_array_equal(host(rows), [array[1], np.zeros((5, 7), np.float32), array[2]])
        out = of(np.zeros((3, 5, 7), np.float32))
        assert x.take(slice(7, 10), out=out) is out
        x.check()
        np.testing.assert_array_equal(host(out), array[7:10])
    np.testing.assert_array_equal(np.load(path), array)
    data, offsets = gpufs.read_files([path] * 3, like=out, engine="gpu", **SMALL)
    assert host(data).tobytes() == path.read_bytes() * 3 and host(offsets)[1] == path.stat().st_size

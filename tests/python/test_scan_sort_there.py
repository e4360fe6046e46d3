# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of arrays on a GPU, where they stay; device_arrays.py has what stands in for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from gpufs import par
from test_scan_sort import DTYPES, UFUNCS, bits

needs_simt = pytest.mark.skipif("simt" not in ENGINES, reason="no CPU machine")


def drawn(draw: np.random.Generator, dtype: str, n: int) -> Any:
    """Small whole numbers, whose sums are exact."""
    return draw.integers(0 if dtype[0] == "u" else -9, 9, n).astype(dtype)


def expect_numpys_results(of: Any, host: Any, engine: str) -> None:
    """of makes an array on the device, host brings it back."""
    draw = np.random.default_rng(4)
    for dtype in DTYPES.values():
        for n in (0, 1, 2, 700):
            values = drawn(draw, dtype, n)
            x = of(values)
            for op in ("add", "max") if dtype[0] == "f" else UFUNCS:
                wanted = UFUNCS[op].accumulate(values, dtype=values.dtype)
                got = par.scan(x, op, engine=engine)
                assert type(got) is type(x)
                np.testing.assert_array_equal(host(got), wanted)
                out = of(np.zeros_like(values))
                assert par.scan(x, op, exclusive=True, out=out, engine=engine) is out
                np.testing.assert_array_equal(host(out)[1:], wanted[:-1])
            np.testing.assert_array_equal(host(par.sort(x, engine=engine)), np.sort(values))
            out = of(np.zeros_like(values))
            assert par.sort(x, descending=True, out=out, engine=engine) is out
            assert getattr(out, "set_on_its_device", True)
            np.testing.assert_array_equal(host(out), np.sort(values)[::-1])
            np.testing.assert_array_equal(host(x), values)  # is as it was
    values = draw.integers(0, 9, (7, 11, 3)).astype("i8")
    np.testing.assert_array_equal(host(par.scan(of(values), engine=engine)), values.ravel().cumsum())
    real = draw.random(20000).astype("f4")
    first = par.scan(of(real), engine=engine)
    assert bits(host(par.scan(of(real), engine=engine))) == bits(host(first))
    np.testing.assert_allclose(host(first), np.cumsum(real, dtype="f8"), rtol=1e-5)
    special = np.array([np.nan, 1, -np.inf, -0.0, 0.0, -np.nan, np.inf], "f8")
    assert bits(host(par.sort(of(special), engine=engine))) == bits(par.sort(special, engine="cpu"))


@needs_simt
def test_results_are_numpys_and_lie_there(device: Any) -> None:
    expect_numpys_results(device.of, np.asarray, "simt")


@needs_simt
def test_what_the_callers_stream_does_comes_before(device: Any) -> None:
    x = device.of(np.zeros(100, "u4"))
    results: list[Any] = []
    device.hold()  # as if something were enqueued there that writes x
    call = threading.Thread(target=lambda: results.append(par.scan(x, engine="simt")))
    call.start()
    call.join(0.2)
    assert call.is_alive()
    x[:] = device.of(np.ones(100, "u4"))
    device.go()
    call.join(60)
    np.testing.assert_array_equal(np.asarray(results[0]), np.arange(1, 101))


@needs_simt
def test_what_cannot_be_done_is_an_error(device: Any) -> None:
    x = device.of(np.arange(6, dtype="i4"))
    calls: list[tuple[Any, str]] = [
        (lambda: par.scan(x, engine="cpu"), "x: is on simt:0, where engine cpu does not work"),
        (lambda: par.sort(x, engine="cpu"), "x: is on simt:0, where engine cpu does not work"),
        (lambda: par.scan(x, engine="simt", device=1), "device: x is on simt:0, not on 1"),
        (lambda: par.scan(x, out=x, engine="simt"), "out: shares memory with x"),
        (lambda: par.sort(x, out=x, engine="simt"), "out: shares memory with x"),
        (lambda: par.scan(x, out=device.of(np.arange(5, dtype="i4")), engine="simt"), "out: must be writable"),
        (lambda: par.scan(x, out=device.of(np.arange(6, dtype="u4")), engine="simt"), "out: must be writable"),
        (lambda: par.scan(x, out=np.arange(6, dtype="i4"), engine="simt"), "out: must be writable"),
        (lambda: par.scan(x, "sub", engine="simt"), "no operator 'sub'"),
        (lambda: par.scan(x, dtype="i4", engine="simt"), "dtype: is for files"),
        (lambda: par.scan(device.of(np.arange(3, dtype="i2")), engine="simt"), "elements of int16 are not scanned"),
        (lambda: par.scan(device.of(np.arange(3, dtype="f4")), "xor", engine="simt"), "real numbers are not combined"),
        (lambda: par.sort(x, memory="1 MiB", engine="simt"), "memory: is for files, and arrays of the host"),
        (lambda: par.sort(x, scratch="/tmp", engine="simt"), "scratch: is for files, and arrays of the host"),
    ]
    for call, words in calls:
        with pytest.raises(gpufs.GpufsError) as error:
            call()
        assert words in str(error.value)
    np.testing.assert_array_equal(np.asarray(x), np.arange(6))


@needs_simt
def test_a_device_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("[1]")
    calls: list[Callable[[], Any]] = [
        lambda: par.scan(np.arange(3), engine="simt", device=77),
        lambda: par.sort(np.arange(3), engine="simt", device=77),
        lambda: par.label(np.eye(3, dtype="u1"), engine="simt", device=77),
        lambda: par.lex(tmp_path / "text", "json", engine="simt", device=77),
    ]
    for call in calls:
        with pytest.raises(gpufs.GpufsError, match="there is no device 77"):
            call()


def test_an_array_of_no_library_that_is_known_is_an_error() -> None:
    class OnGpu:
        __cuda_array_interface__ = {"shape": (1,)}  # noqa: RUF012

    with pytest.raises(gpufs.GpufsError, match="x: is a OnGpu on a GPU: torch"):
        par.scan(OnGpu())


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_gpu(library: str) -> None:
    """What the CPU machine stands in for above."""
    module: Any = pytest.importorskip(library)
    if library == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch sees no GPU")
        expect_numpys_results(lambda a: module.as_tensor(a, device="cuda"), lambda a: a.cpu().numpy(), "auto")
        part = module.arange(100, device="cuda")[::3]  # not side by side
        assert par.scan(part).tolist() == np.arange(100)[::3].cumsum().tolist()
        assert par.sort(part, descending=True).tolist() == list(range(99, -1, -3))
        with pytest.raises(gpufs.GpufsError, match="elements of bfloat16 are not"):
            par.sort(part.to(module.bfloat16))
    else:
        expect_numpys_results(module.asarray, module.asnumpy, "gpu")
    with pytest.raises(gpufs.GpufsError, match="x: is on gpu:0, where engine cpu does not work"):
        par.scan(module.zeros(3, device="cuda") if library == "torch" else module.zeros(3), engine="cpu")

# SPDX-License-Identifier: Apache-2.0
"""Devices whose memory is full: what is raised, and that the same array reads and writes on afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, run_python

NROWS, ROW_NBYTES, SMALL_ROW_NBYTES = 4, 64 << 20, 64


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file of rows that are larger than what is left of a full memory; each begins with numbers of its own."""
    with (tmp_path / "raw").open("wb") as file:
        file.truncate(NROWS * ROW_NBYTES)
        for i in range(NROWS):
            file.seek(i * ROW_NBYTES)
            file.write(np.random.default_rng(i).bytes(1 << 16))
    return tmp_path / "raw"


_LIMITED = """
import resource, sys
import numpy as np
import gpufs

path, nbytes = sys.argv[1], 8 << 20
how = {"dtype": "u1", "engine": "simt", "cache": 1 << 20, "page": 4096}
x = gpufs.open(path, mode="r+", shape=(-1, nbytes), **how)
small = gpufs.open(path, mode="r+", shape=(-1, 64), **how)
assert x.mount is small.mount
small[:2] = small[:2]
out, more = np.zeros((2, nbytes), np.uint8), np.ones((1, nbytes), np.uint8)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (32 << 20), resource.RLIM_INFINITY))
taken = []
try:
    while True:
        taken.append(np.empty(1 << 20, np.uint8))
except MemoryError:
    del taken[:2]  # for what is small; rows go by 4 MiB of the device's memory
for way in (
    lambda: x.take([8, 0], out=out),
    lambda: x.take(slice(8, 9), out=out[:1]),
    lambda: x.__setitem__(slice(8, 9), more),
    lambda: gpufs.open(path, shape=(-1, 64), **(how | {"cache": 64 << 20})),
):
    try:
        way()
    except (MemoryError, gpufs.GpufsError) as error:
        print(type(error).__name__)
assert not out.any()
taken.clear()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
wanted = np.memmap(path, np.uint8, "r", shape=x.shape)
assert x.take([8, 0], out=out) is out and np.array_equal(out, wanted[[8, 0]])
assert out.any(1).all() and not np.array_equal(out[0], more[0])
x[8:9] = more
x.flush()
assert np.array_equal(wanted[8:9], more)
assert np.array_equal(small[[0, -1]], wanted.reshape(-1, 64)[[0, -1]])
"""


@pytest.mark.skipif("simt" not in ENGINES, reason="no CPU machine")
def test_no_memory_of_the_cpu_machine(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the host go by way of the device's memory, which is the process's here."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # so that no other thread's heap has room
    done = run_python(_LIMITED, str(raw))
    assert (done.stdout.split(), done.returncode) == (["MemoryError"] * 3 + ["GpufsError"], 0), done.stderr


@contextlib.contextmanager
def full(empty: Callable[[int], Any], no_memory: type[Exception], give_back: Callable[[], None]) -> Iterator[None]:
    """A GPU of whose memory less is left than a row takes. empty(nbytes): an array there."""
    taken, nbytes = [], 1 << 30
    try:
        while nbytes >= 2 << 20:
            try:
                taken.append(empty(nbytes))
            except no_memory:
                nbytes //= 2
        yield
    finally:
        taken.clear()
        give_back()


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_no_memory_of_a_gpu(library: str, raw: Path) -> None:
    module: Any = pytest.importorskip(library)
    if library == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch sees no GPU")
        no_memory, give_back = module.cuda.OutOfMemoryError, module.cuda.empty_cache

        def of(a: Any) -> Any:
            return module.as_tensor(a, device="cuda")

        def host(a: Any) -> Any:
            return a.cpu().numpy()

        def empty(nbytes: int) -> Any:
            return module.empty(nbytes, dtype=module.uint8, device="cuda")
    else:
        no_memory, give_back = module.cuda.memory.OutOfMemoryError, module.get_default_memory_pool().free_all_blocks
        of, host = module.asarray, module.asnumpy

        def empty(nbytes: int) -> Any:
            return module.empty(nbytes, module.uint8)

    how: dict[str, Any] = {"dtype": "u1", "engine": "gpu", "page": 4096, **SMALL}
    wanted = np.memmap(raw, np.uint8, "r", shape=(NROWS, ROW_NBYTES))
    small_rows = wanted.reshape(-1, SMALL_ROW_NBYTES)
    many = np.random.default_rng(1).integers(0, len(small_rows), 1 << 20)
    many[:1000] = np.arange(1000)  # which are not zeros
    with (
        gpufs.open(raw, shape=(-1, ROW_NBYTES), **how) as x,
        gpufs.open(raw, shape=(-1, SMALL_ROW_NBYTES), **how) as small,
    ):
        few, on_gpu, out = of(np.array([2, 0])), of(many), of(np.zeros((len(many), SMALL_ROW_NBYTES), np.uint8))
        for n in (10, 5000):  # as they come, and sorted
            np.testing.assert_array_equal(host(small[on_gpu[:n]]), small_rows[many[:n]])
        with full(empty, no_memory, give_back):
            with pytest.raises(MemoryError, match="bytes of device memory"):  # by way of it
                x[np.array([2, 0])]
            with pytest.raises(no_memory):
                x[few]
            with pytest.raises(gpufs.GpufsError, match="device memory"):
                gpufs.open(raw, shape=(-1, SMALL_ROW_NBYTES), **(how | {"cache": 1 << 30}))
            small.take(on_gpu, out=out)  # there is no room to sort them in: they are read as they come
            small.check()
            again = host(out)
        np.testing.assert_array_equal(again, small_rows[many])
        for rows in (x[np.array([2, 0])], host(x[few])):
            np.testing.assert_array_equal(rows, wanted[[2, 0]])
        np.testing.assert_array_equal(host(small[on_gpu]), small_rows[many])

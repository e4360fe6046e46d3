# SPDX-License-Identifier: Apache-2.0
"""Kernels in Python: what is read from the headers, mounts by way of C, what Numba and NVRTC compile and link."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpufs import c, c_header
from gpufs.errors import GpufsError

ROOT = Path(__file__).parents[2]
if not (c_header.FOLDER / "libgpufs_c.so").exists():  # of a build with sanitizers
    pytest.skip("this build has no libgpufs_c.so", allow_module_level=True)

PROMISED = {  # name: (result, parameters), as PTX has them
    name: (result, parameters.split())
    for result, name, parameters in re.findall(
        r"^device (\S+) (gpufs_\w+)\((.*)\)$", (ROOT / "tests/c_abi/symbols.txt").read_text(), re.MULTILINE
    )
}


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/python/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_calls_are_those_that_are_promised() -> None:
    def ptx(dtype: Any, of_nothing: str) -> str:
        return of_nothing if dtype is None else f".b{dtype.itemsize * 8}"

    found = {
        call.name: (ptx(call.result, "void"), [ptx(p.dtype, ".b64") for p in call.parameters])
        for call in c_header.calls()
    }
    assert found == PROMISED and len(found) > 90


def test_structs_and_constants_are_those_of_the_compiler(tmp_path: Path) -> None:
    lines = ['#include "gpufs/gpufs_device.h"', "#include <cstddef>"]
    for name, dtype in c_header.structs().items():
        lines.append(f"static_assert(sizeof(gpufs_{name}) == {dtype.itemsize});")
        for field, (_, offset, *_) in dtype.fields.items():
            lines.append(f"static_assert(offsetof(gpufs_{name}, {field}) == {offset});")
    lines += [f"static_assert(GPUFS_{name} == {number});" for name, number in c_header.constants().items()]
    assert len(c_header.structs()) == 8 and c_header.constants()["O_CREAT"] == 0o100 and len(lines) > 50
    (tmp_path / "a.cpp").write_text("\n".join(lines))
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, "-fsyntax-only", f"-I{c_header.INCLUDE}", str(tmp_path / "a.cpp")], check=True)


def test_the_package_has_the_headers_of_this_tree() -> None:
    for name in ("gpufs_device.h", "gpufs_verbs.h"):
        assert (c_header.INCLUDE / "gpufs" / name).read_text() == (ROOT / "include/gpufs" / name).read_text()


def test_a_mount_of_the_cpu_machine(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    with c.Mount(tmp_path, "cpu", cache_nbytes=1 << 20, page_nbytes=4096) as mount:
        assert isinstance(mount.handle, np.uint64) and mount.handle != 0
        mount.prepare("a")
        assert mount.counters("hits", "free_frames") == {"hits": 0, "free_frames": 256}
        assert mount.sync() == 0
        with pytest.raises(GpufsError, match="no counter 'hit'"):
            mount.counters("hit")
        with pytest.raises(FileNotFoundError):
            mount.prepare("b")
    mount.close()
    with pytest.raises(ValueError, match="closed"):
        mount.handle  # noqa: B018
    with pytest.raises(NotADirectoryError):
        c.Mount(tmp_path / "a", "cpu")
    with pytest.raises(FileNotFoundError):
        c.Mount(tmp_path / "none", "cpu")
    inside = {"nrings": 1, "request_rings": 4, "request_slots": 2, "request_batch": 1}
    c.Mount(tmp_path, "cpu", cache_nbytes=1 << 20, **inside).close()
    memory = np.zeros(1 << 20, np.uint8)
    c.Mount(tmp_path, "cpu", cache_memory=memory.ctypes.data, cache_memory_nbytes=memory.nbytes).close()
    assert memory.any(), "frames are free, and say so"
    with pytest.raises(OSError, match="cache_memory is no memory of device 0"):
        c.Mount(tmp_path, "cpu", cache_memory=memory.ctypes.data)
    for wrong in ({"cash_nbytes": 1}, {"page_nbytes": 1000}, {"nrings": 1 << 40}, {"nrings": -1}):
        with pytest.raises(GpufsError):
            c.Mount(tmp_path, "cpu", **wrong)
    with pytest.raises(GpufsError, match="no machine 'tpu'"):
        c.Mount(tmp_path, "tpu")


def test_what_a_build_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(c_header, "FOLDER", tmp_path)
    with pytest.raises(GpufsError, match=r"no gpufs_device\.fatbin: build it where nvcc is"):
        c_header.built_file(c_header.device_code().name)
    monkeypatch.setenv("GPUFS_DEVICE_CODE", "ltoir")
    assert c_header.device_code().name == "gpufs_device.ltoir"
    monkeypatch.setenv("GPUFS_DEVICE_CODE", "elf")
    with pytest.raises(GpufsError, match="fatbin or ltoir"):
        c_header.device_code()


@pytest.fixture(scope="module")
def numba_cuda() -> Any:
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")
    try:
        from numba import cuda
        from numba.cuda.cudadrv.error import NvvmSupportError
        from numba.cuda.cudadrv.nvvm import NVVM

        importlib.import_module("gpufs.numba")
    except Exception as error:  # with a NumPy that it does not know, say
        pytest.skip(f"numba-cuda does not import: {error}")

    try:
        NVVM()
    except NvvmSupportError:
        pytest.skip("numba-cuda finds no libnvvm")
    return cuda


def compiled(cuda: Any, kernel: Any, *arguments: Any) -> Any:
    """Its PTX."""
    from numba import types as nb

    code, _ = cuda.compile(kernel, nb.void(*arguments), device=False, cc=(9, 0), abi="numba", output="ptx")
    return code


def test_numba_declares_what_is_promised(numba_cuda: Any) -> None:
    """One kernel for each call; its PTX declares the call as symbols.txt has it."""
    from gpufs import numba as gpufs_numba
    from numba import types as nb

    for call in c_header.calls():
        name = call.name.removeprefix("gpufs_")
        values = ", ".join("array" if p.dtype is None else "number" for p in call.parameters)
        space: dict[str, Any] = {"gpufs_numba": gpufs_numba}
        exec(f"def kernel(array, number): gpufs_numba.{name}({values})", space)
        ptx = compiled(numba_cuda, space["kernel"], nb.uint8[::1], nb.int64)
        found = re.search(
            rf"\.extern \.func\s+(?:\(\.param (\S+) \w+\) )?{call.name}\s*\n?\((.*?)\)\s*;", ptx, re.DOTALL
        )
        assert found is not None, ptx
        assert (found[1] or "void", re.findall(r"\.param (\.\w+)", found[2])) == PROMISED[call.name]


def test_numba_refuses_what_no_call_takes(numba_cuda: Any) -> None:
    from gpufs import numba as gpufs_numba
    from numba import types as nb
    from numba.core.errors import TypingError

    def few(fs: Any, array: Any) -> None:
        gpufs_numba.open_warp(fs, array)

    def no_number(fs: Any, array: Any) -> None:
        gpufs_numba.open_warp(fs, array, 1.5)

    def apart(fs: Any, array: Any) -> None:
        gpufs_numba.open_warp(fs, array[::2], 0)

    for kernel, text in ((few, "takes 3 arguments"), (no_number, "flags must be a number"), (apart, "lies together")):
        with pytest.raises(TypingError, match=text):
            compiled(numba_cuda, kernel, nb.uint64, nb.uint8[::1])


def test_numba_reads_structs_and_mapped_pages(numba_cuda: Any) -> None:
    from gpufs import numba as gpufs_numba
    from numba import types as nb

    def kernel(fs: Any, file: Any, sums: Any) -> None:
        page = numba_cuda.local.array(1, gpufs_numba.page)
        if gpufs_numba.map_page_warp(fs, file, 0, page) == 0:
            numbers = gpufs_numba.view(page[0].data, page[0].nbytes // 4, np.float32)
            for i in range(len(numbers)):
                sums[0] += numbers[i]
            gpufs_numba.unmap_page_warp(page)

    ptx = compiled(numba_cuda, kernel, nb.uint64, nb.int32, nb.float32[::1])
    assert "gpufs_map_page_warp" in ptx and "ld.f32" in ptx


def test_the_numba_example_compiles_and_links(numba_cuda: Any, tmp_path: Path) -> None:
    from numba import types as nb

    module = example("linked_structure")
    kernel = module.sum_chains.py_func
    integers, path = nb.int64[::1], nb.uint8[::1]
    assert "gpufs_pread_thread" in compiled(numba_cuda, kernel, nb.uint64, path, integers, integers)
    heads, sums = module.make_chains(tmp_path / "chains")
    nodes = np.fromfile(tmp_path / "chains", np.int64).reshape(-1, 2)
    at, total = heads[7], 0
    while at >= 0:
        total += nodes[at, 1]
        at = nodes[at, 0]
    assert total == sums[7]
    if not c_header.device_code().exists():
        pytest.skip(f"this build has no {c_header.device_code().name}")
    # What Numba links: the kernel and gpufs's file, for the architecture that it takes on an H100.
    from cuda.core import Linker, LinkerOptions, ObjectCode

    (code, *files), _ = numba_cuda.compile_all(
        kernel, nb.void(nb.uint64, path, integers, integers), device=False, cc=(9, 0, "a"), abi="numba",
        output="ltoir",
    )  # fmt: skip
    assert [bytes(file.data) for file in files] == [c_header.device_code().read_bytes()]
    of = ObjectCode.from_ltoir if c_header.device_code().suffix == ".ltoir" else ObjectCode.from_fatbin
    how = LinkerOptions(arch="sm_90a", link_time_optimization=True)
    assert b"sum_chains" in Linker(ObjectCode.from_ltoir(code), of(files[0].data), options=how).link("cubin").code


def test_the_numba_example_follows_chains(numba_cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel as a Python function, by one thread after another."""
    module = example("linked_structure")
    monkeypatch.setattr(module, "NNODES", 1000)
    monkeypatch.setattr(module, "NCHAINS", 50)
    heads, wanted = module.make_chains(tmp_path / "chains")
    data = (tmp_path / "chains").read_bytes()

    def pread(fs: Any, file: int, into: Any, nbytes: int, offset: int) -> int:
        assert (fs, file) == (9, 3)
        if offset > 15_000:
            return -5  # EIO
        into[:] = np.frombuffer(data, into.dtype, len(into), offset)
        return nbytes

    calls = {"O_RDONLY": 0, "open_block": lambda *_: 3, "close_block": lambda *_: 0, "pread_thread": pread}
    local = types.SimpleNamespace(array=lambda n, dtype: np.zeros(n, dtype))
    sums = np.zeros(50, np.int64)
    for thread in range(64):
        monkeypatch.setattr(module, "gpufs_numba", types.SimpleNamespace(**calls))
        monkeypatch.setattr(module, "cuda", types.SimpleNamespace(grid=lambda _, i=thread: i, local=local))
        module.sum_chains.py_func(9, b"chains", heads, sums)
    right = sums == wanted
    assert 0 < right.sum() < 50 and (sums[~right] == -5).all()


@pytest.fixture
def hit_kernels(numba_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the bench measures hits by."""
    monkeypatch.syspath_prepend(str(ROOT / "bench/python"))
    monkeypatch.delitem(sys.modules, "numba_kernels", raising=False)
    yield importlib.import_module("numba_kernels")
    sys.modules.pop("numba_kernels", None)


def test_the_numba_kernels_of_the_bench_compile(numba_cuda: Any, hit_kernels: Any) -> None:
    from numba import types as nb

    which = (nb.uint32[:, ::1], nb.int64[::1])
    for way in ("pread_thread", "map_page_thread", "map_page_warp"):
        kernel = getattr(hit_kernels, f"by_{way}").py_func
        assert f"gpufs_{way}" in compiled(numba_cuda, kernel, nb.uint64, nb.uint8[::1], *which)
    assert "gpufs_" not in compiled(numba_cuda, hit_kernels.by_array.py_func, nb.uint32[::1], *which)


def test_the_numba_kernels_of_the_bench_read_the_same(hit_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python functions, by one thread after another, against what the bench compares their sums with."""
    elements = np.random.default_rng(1).integers(0, 1 << 24, 256, np.uint32)  # no sum has more than 32 bits
    nthreads, naccesses, data = 96, 5, elements.tobytes()

    def pread(fs: Any, file: int, into: Any, nbytes: int, offset: int) -> int:
        if fs != 9:
            return -5  # EIO
        into[:] = np.frombuffer(data, into.dtype, len(into), offset)
        return nbytes

    def map_page(fs: Any, file: int, offset: int, page: Any) -> int:
        page[0] = types.SimpleNamespace(data=int(offset))
        return 0 if fs == 9 else -5

    calls: dict[str, Any] = {"O_RDONLY": 0, "page": object, "open_block": lambda *_: 3, "close_block": lambda *_: 0}
    calls["pread_thread"] = pread
    calls["view"] = lambda address, n, dtype: np.frombuffer(data, dtype, n, address)
    for group in ("thread", "warp"):
        calls |= {f"map_page_{group}": map_page, f"unmap_page_{group}": lambda _: 0}
    monkeypatch.setattr(hit_kernels, "gpufs_numba", types.SimpleNamespace(**calls))
    local = types.SimpleNamespace(array=lambda n, dtype: np.zeros(n, dtype))

    def sums_by(way: str, *arguments: Any) -> Any:
        sums = np.zeros(nthreads, np.int64)
        for thread in range(nthreads):
            monkeypatch.setattr(hit_kernels, "cuda", types.SimpleNamespace(grid=lambda _, i=thread: i, local=local))
            getattr(hit_kernels, f"by_{way}").py_func(*arguments, sums)
        return sums

    for together, ways in ((1, ("pread_thread", "map_page_thread")), (32, ("map_page_warp",))):
        places = hit_kernels.make_places(elements.size, naccesses, nthreads // together, together)
        assert not (places % together).any() and places.max() <= 256 - together and np.unique(places).size > 4
        wanted = hit_kernels.sums_of(elements, places, together)
        assert np.unique(wanted).size == nthreads
        np.testing.assert_array_equal(sums_by("array", elements, places), wanted)
        for way in ways:
            np.testing.assert_array_equal(sums_by(way, 9, b"elements", places), wanted)
            assert (sums_by(way, 8, b"elements", places) == -5).all()


CPU_KERNEL = """
#include <algorithm>
#include <mutex>
#define __global__
struct index { unsigned x; };
#define threadIdx (index{gpufs_rank_block()})
#define blockDim (index{gpufs_size_block()})
static void atomicMin(int* to, int value) {
  static std::mutex one;
  const std::lock_guard<std::mutex> lock(one);
  *to = std::min(*to, value);
}
%s
struct call { gpufs_mount fs; const char* path; const long long* ids; unsigned n, row_nbytes; char* out; int* errors; };
extern "C" void kernel(void* argument) {
  const call& with = *static_cast<call*>(argument);
  gather(with.fs, with.path, with.ids, with.n, with.row_nbytes, with.out, with.errors);
}
"""


def test_the_cupy_example_gathers_on_the_cpu_machine(tmp_path: Path) -> None:
    """Its source, compiled for the CPU machine."""
    if importlib.util.find_spec("cuda") is None or shutil.which("g++") is None:
        pytest.skip("no cuda-core, or no g++")
    source = example("gather").SOURCE
    (tmp_path / "kernel.cpp").write_text(CPU_KERNEL % source)
    made, library = tmp_path / "kernel.so", c_header.FOLDER / "libgpufs_c.so"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{c_header.INCLUDE}",
        "-Wl,--unresolved-symbols=ignore-all",
    ]
    subprocess.run([*command, str(tmp_path / "kernel.cpp"), "-o", str(made)], check=True)
    host = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # the kernel finds its calls there
    kernel = ctypes.CDLL(str(made)).kernel

    rows = np.random.default_rng(1).random((500, 100), np.float32)
    rows.tofile(tmp_path / "rows")
    ids = np.random.default_rng(2).integers(0, 500, 300)
    for n, error in ((300, 0), (299, -22)):  # EINVAL: a negative offset
        out, errors = np.zeros((300, 100), np.float32), np.zeros(1, np.int32)
        if error != 0:
            ids[7] = -1
        with c.Mount(tmp_path, "cpu", cache_nbytes=1 << 20) as mount:
            path = ctypes.create_string_buffer(b"rows")
            words = struct.pack(
                "QQQIIQQ", int(mount.handle), ctypes.addressof(path), ids.ctypes.data, n, 400, out.ctypes.data,
                errors.ctypes.data,
            )  # fmt: skip
            assert host.gpufs_launch_cpu(kernel, ctypes.create_string_buffer(words), 2, 64) == 0
            assert mount.counters("opens", "bytes_filled")["opens"] >= 1
        assert errors[0] == error
        good = np.arange(n) != 7 if error != 0 else np.arange(n) >= 0
        np.testing.assert_array_equal(out[:n][good], rows[ids[:n][good]])
        assert not out[n:].any()


def test_the_cupy_example_compiles_and_links() -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        pytest.skip("cuda-core is not installed")
    module = example("gather")
    if not c_header.device_code().exists():
        with pytest.raises(GpufsError, match="build it where nvcc is"):
            module.gpufs.cupy.link(module.SOURCE, "sm_90")
        pytest.skip(f"this build has no {c_header.device_code().name}")
    code = module.gpufs.cupy.link(module.SOURCE, "sm_90")
    assert code[:4] == b"\x7fELF" and b"gather" in code
    with pytest.raises(Exception, match="gpufs_opne_warp"):
        module.gpufs.cupy.link(module.SOURCE.replace("open_block", "opne_warp"), "sm_90")


@pytest.mark.parametrize("name, needs", [("linked_structure", "numba_cuda"), ("gather", "cupy")])
def test_the_examples_run_on_a_gpu(name: str, needs: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    if needs == "numba_cuda":
        request.getfixturevalue(needs)
    try:
        c.Mount(tmp_path).close()
    except GpufsError as error:
        pytest.skip(str(error))
    command = [sys.executable, str(ROOT / f"examples/python/{name}.py")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "right" in done.stdout, done.stdout + done.stderr

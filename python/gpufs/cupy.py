# SPDX-License-Identifier: Apache-2.0
"""Kernels in CUDA C++ for CuPy that call gpufs: ``gpufs.cupy.load(source).get_function("gather")``.

``cupy.RawModule`` compiles, and does not link. So NVRTC compiles here, nvJitLink links with gpufs's device code, both
by way of cuda.core, and CuPy loads what comes of it. Sources include ``gpufs/gpufs_device.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions

from gpufs.c_header import INCLUDE, built_file, device_code


def link(source: str, arch: str, *, include: Sequence[str] = (), define: Sequence[str] = ()) -> bytes:
    """Machine code (a cubin) of a source's kernels, linked with gpufs. Needs no GPU.

    arch: the GPU's, as "sm_90". include: more folders with headers. define: macros, as NAME or NAME=VALUE.
    Raises GpufsError where this build of gpufs has no device code; what the compiler says, cuda.core raises.
    """
    code = built_file(device_code().name)
    is_ltoir = code.suffix == ".ltoir"
    how = ProgramOptions(
        arch=arch,
        std="c++17",
        relocatable_device_code=True,
        link_time_optimization=is_ltoir,
        include_path=[str(INCLUDE), *include],
        define_macro=list(define) or None,
    )
    kernels = Program(source, "c++", how).compile("ltoir" if is_ltoir else "cubin")
    library = ObjectCode.from_ltoir(str(code)) if is_ltoir else ObjectCode.from_fatbin(str(code))
    linked = Linker(kernels, library, options=LinkerOptions(arch=arch, link_time_optimization=is_ltoir)).link("cubin")
    return bytes(linked.code)


def load(source: str, *, include: Sequence[str] = (), define: Sequence[str] = ()) -> Any:
    """The source's kernels on CuPy's current device, as a cupy.cuda.Module: its ``get_function(name)`` gives a kernel.

    A kernel is called as CuPy's: ``kernel((blocks,), (threads,), (arguments...))``; the mount's handle
    (gpufs.c.Mount.handle) is passed as it is.
    """
    import cupy

    module = cupy.cuda.Module()
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    module.load(link(source, arch, include=include, define=define))
    return module


def path(text: str | bytes) -> Any:
    """A path as kernels take it: its bytes and a 0, in the current GPU's memory."""
    import cupy

    name = text.encode() if isinstance(text, str) else text
    return cupy.frombuffer(name + b"\0", dtype=cupy.uint8)

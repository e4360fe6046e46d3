# SPDX-License-Identifier: Apache-2.0
"""Where rows are gathered to: a GPU, by torch and CuPy; or, to check answers, the host, by torch alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpufs import _rows
from tables import Mapping, Table

# A warp takes four rows at a time, by 16-byte loads, one of each row in flight: as bench/rows.hpp does.
_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(256)
copy_rows(const uint4* from, const long long* ids, long long n, int words, uint4* to) {
  const long long warps = (long long)gridDim.x * blockDim.x / 32;
  const long long me = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  for (long long i = me * 4; i < n; i += warps * 4) {
    for (int k = threadIdx.x % 32; k < words; k += 32) {
      uint4 got[4];
      for (int r = 0; r < 4; ++r)
        if (i + r < n) got[r] = from[ids[i + r] * words + k];
      for (int r = 0; r < 4; ++r)
        if (i + r < n) to[(i + r) * words + k] = got[r];
    }
  }
}
"""


class Gpu:
    """The first GPU. gpufs's arrays by the engine gpu."""

    engine = "gpu"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cuda:0")
        about = torch.cuda.get_device_properties(0)
        self.name: str | None = about.name
        self.nprocessors: int = about.multi_processor_count
        self._kernel: Any = None

    def of(self, array: Any) -> Any:
        return self.torch.as_tensor(array, device=self.device)

    def empty_pinned(self, *shape: int) -> Any:
        return self.torch.empty(shape, dtype=self.torch.float32, pin_memory=True)

    def wait(self, result: Any) -> Any:
        self.torch.cuda.synchronize()
        return result

    def why_no_kernel(self) -> str:
        return "" if find_spec("cupy") else "CuPy, which compiles the kernel, is not installed"

    @contextlib.contextmanager
    def rows_by_kernel(self, table: Table) -> Iterator[Callable[[Any], Any]]:
        """What copies rows, whose numbers are on the GPU, in their order from the file's registered mapping."""
        import cupy

        torch = self.torch
        kernel = cupy.RawKernel(_SOURCE, "copy_rows")
        mapping, runtime = Mapping(table.path), cupy.cuda.runtime
        runtime.hostRegister(mapping.address, mapping.nbytes, 0x2)  # hostRegisterMapped

        def copy(ids: Any) -> Any:
            rows = torch.empty((len(ids), table.ncolumns), dtype=torch.float32, device=self.device)
            words = table.row_nbytes // 16
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
            arguments = (mapping.address + table.begin, ids.data_ptr(), len(ids), cupy.int32(words), rows.data_ptr())
            with stream:
                kernel((self.nprocessors * 8,), (256,), arguments)
            return self.wait(rows)

        try:
            yield copy
        finally:
            self.wait(None)
            runtime.hostUnregister(mapping.address)


class Host:
    """torch on the host. gpufs's arrays by the engine cpu."""

    engine = "cpu"
    name = None
    nprocessors = 0

    def __init__(self) -> None:
        import torch

        self.torch, self.device = torch, torch.device("cpu")

    def of(self, array: Any) -> Any:
        return self.torch.as_tensor(array)

    def empty_pinned(self, *shape: int) -> Any:
        return self.torch.empty(shape, dtype=self.torch.float32)

    def wait(self, result: Any) -> Any:
        return result

    def why_no_kernel(self) -> str:
        return ""

    @contextlib.contextmanager
    def rows_by_kernel(self, table: Table) -> Iterator[Callable[[Any], Any]]:
        mapped = self.torch.from_numpy(table.mapped("r+"))
        yield lambda ids: self.torch.index_select(mapped, 0, ids)


def find(choice: str) -> tuple[Gpu | Host | None, str]:
    """The device; None: why there is none. choice: gpu, host or auto."""
    if find_spec("torch") is None:
        return None, "torch is not installed"
    import torch

    missing = _rows.engine_missing("gpu")
    why = f"gpufs: {missing}" if missing else "" if torch.cuda.is_available() else "torch sees no GPU"
    if choice == "host" or (choice == "auto" and why):
        return Host(), ""
    return (None, why) if why else (Gpu(), "")


def kvikio_reader(path: Path, nthreads: int) -> tuple[Callable[[list[int], int, list[Any]], None] | None, str]:
    """What reads rows by KvikIO's non-blocking calls, all of them under way at once: read(begins, nbytes, rows)."""
    if find_spec("kvikio") is None:
        return None, "KvikIO is not installed"
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set("num_threads", nthreads)
    file = kvikio.CuFile(str(path), "r")

    def read(begins: list[int], nbytes: int, rows: list[Any]) -> None:
        under_way = [file.pread(row, nbytes, begin) for row, begin in zip(rows, begins, strict=True)]
        if math.fsum(each.get() for each in under_way) != nbytes * len(under_way):
            raise OSError(f"{path}: KvikIO read less than was asked for")

    return read, ""

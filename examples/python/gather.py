# SPDX-License-Identifier: Apache-2.0
"""A CUDA C++ kernel for CuPy that gathers rows of a file: each warp reads one.

It compiles and links without a GPU, too (tests/python/test_kernels.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gpufs.c
import gpufs.cupy
import numpy as np

SOURCE = r"""
#include "gpufs/gpufs_device.h"

// out[i]: the row ids[i]. errors[0] becomes the negative errno of a call that failed.
extern "C" __global__ void gather(gpufs_mount fs, const char* path, const long long* ids, unsigned n,
                                  unsigned row_nbytes, char* out, int* errors) {
  const gpufs_file file = gpufs_open_block(fs, path, GPUFS_O_RDONLY);
  const unsigned nwarps = gpufs_grid_size() * (blockDim.x / 32);
  for (unsigned long long i = gpufs_block_rank() * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += nwarps) {
    const long long got = gpufs_pread_warp(fs, file, out + i * row_nbytes, row_nbytes, ids[i] * row_nbytes);
    if (got < 0 && gpufs_rank_warp() == 0) atomicMin(errors, static_cast<int>(got));
  }
  gpufs_sync_block();
  gpufs_close_block(fs, file);
}
"""


def main() -> int:
    import cupy

    rows = np.random.default_rng(1).random((100_000, 128), np.float32)
    ids = np.random.default_rng(2).integers(0, len(rows), 50_000)
    with tempfile.TemporaryDirectory() as folder:
        rows.tofile(Path(folder) / "rows")
        gather = gpufs.cupy.load(SOURCE).get_function("gather")
        with gpufs.c.Mount(folder, cache_nbytes=16 << 20) as mount:
            out = cupy.empty((len(ids), rows.shape[1]), cupy.float32)
            errors = cupy.zeros(1, cupy.int32)
            arguments = (mount.handle, gpufs.cupy.path("rows"), cupy.asarray(ids), np.uint32(len(ids)))
            gather((264,), (512,), (*arguments, np.uint32(rows.strides[0]), out, errors))
            right = int(errors[0]) == 0 and np.array_equal(cupy.asnumpy(out), rows[ids])
            print(f"{len(ids)} rows: {'right' if right else 'WRONG'}, {mount.counters('faults', 'hits')}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""A Numba kernel that walks a linked structure in a file: each thread follows a chain of nodes, wherever they lie.

It compiles and links without a GPU, too (tests/python/test_kernels.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs.c
import numpy as np
from gpufs import numba as gpufs_numba
from numba import cuda

NNODES, NCHAINS = 1_000_000, 10_000


@cuda.jit
def sum_chains(fs: Any, path: Any, heads: Any, sums: Any) -> None:
    """sums[i]: what the values of the chain that begins with node heads[i] add up to, or a negative errno."""
    file = gpufs_numba.open_block(fs, path, gpufs_numba.O_RDONLY)
    i = cuda.grid(1)
    if i < heads.size:
        node = cuda.local.array(2, np.int64)  # the next node's number, -1 at the end; and the value
        at = heads[i]
        sums[i] = 0
        while at >= 0:
            read = gpufs_numba.pread_thread(fs, file, node, node.nbytes, at * 16)
            if read != 16:
                sums[i] = read
                break
            at = node[0]
            sums[i] += node[1]
    gpufs_numba.close_block(fs, file)


def make_chains(path: Path) -> tuple[Any, Any]:
    """Writes the file; which nodes are first, and what their chains' values add up to."""
    rng = np.random.default_rng(1)
    order = rng.permutation(NNODES).reshape(NCHAINS, -1)
    nodes = np.empty((NNODES, 2), np.int64)
    nodes[order[:, :-1], 0], nodes[order[:, -1], 0] = order[:, 1:], -1
    nodes[:, 1] = rng.integers(0, 1000, NNODES)
    nodes.tofile(path)
    return order[:, 0].copy(), nodes[order, 1].sum(axis=1)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        heads, wanted = make_chains(Path(folder) / "chains")
        with gpufs.c.Mount(folder, cache_nbytes=64 << 20) as mount:
            sums = cuda.device_array(NCHAINS, np.int64)
            path = gpufs_numba.path("chains")
            sum_chains[(NCHAINS + 255) // 256, 256](mount.handle, path, cuda.to_device(heads), sums)
            got = sums.copy_to_host()
            right = np.array_equal(got, wanted)
            print(f"{NCHAINS} chains: {'right' if right else 'WRONG'}, {mount.counters('faults', 'hits')}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

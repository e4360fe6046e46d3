#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpufs's arrays in Python against what programs do otherwise, on this machine.

Files lie in memory, and are registered before (`prepare()`), the rivals', too; all ways take turns, and each answer is
compared with NumPy's, outside the time. What needs torch, a GPU, CuPy, KvikIO, numba-cuda or PyG is left out where it
is not there, and a note says so. Without a GPU sizes are small and torch's tensors on the host stand in: answers are
checked, and figures mean nothing.

py_gather_cold, py_gather_cold_512: distinct random rows of 4 KiB and of 512 bytes that nobody has read before, by
x[idx]; of 4 KiB against a kernel that only copies the same rows, sorted, from the registered file.
py_gather_hot: rows that are all cached, against torch's index_select in GPU memory.
py_vs_memmap, py_vs_pread, py_vs_kvikio, py_vs_uva_uniform: the cold ones against other ways to have these rows on the
GPU; py_vs_uva_skewed: rows of 512 bytes by Zipf's law, the cache a tenth, against a kernel over the registered file.
py_call_p50, py_call_p99: a cached row, over what torch's index_select takes of one.
py_epoch: the features of batches as PyG's NeighborLoader draws them, against a DataLoader over a memory map.
py_read_files: many small files to one tensor. py_cpu_engine: by the engine cpu, against np.memmap.
py_first (bounded by nothing): the first gather from a file that was not registered.
py_numba_hit (bounded by nothing): a Numba kernel's reads of 4 bytes that are cached, against the same of an array in
GPU memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import devices
from gathers import COLD, COLD_SMALL, HOT, Gathers
from harness import Results, parse
from numba_hits import numba_hits
from others import cpu_engine, epoch, read_files
from tables import make_table

OF_A_GPU = (*dict.fromkeys((*COLD, *COLD_SMALL, *HOT)), "py_vs_kvikio", "py_vs_uva_skewed", "py_first")
NAMES = (*OF_A_GPU, "py_epoch", "py_read_files", "py_cpu_engine", "py_numba_hit")


def main(arguments: list[str]) -> int:
    found: list[tuple[devices.Gpu | devices.Host | None, str]] = []

    def find_device(choice: str) -> str:
        found.append(devices.find(choice))
        return "gpu" if isinstance(found[0][0], devices.Gpu) else "host"

    options = parse(arguments, __doc__ or "", NAMES, find_device)
    device, why = found[0]
    results = Results(options, device.name if device else None, device.nprocessors if device else 0)
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir=options.dir) as name:
        folder, nthreads = Path(name), min(options["threads"], len(os.sched_getaffinity(0)))
        if options.wants("py_cpu_engine", *OF_A_GPU):
            table = make_table(folder / "table.npy", options.sizes["table-gb"] * 1e9, 4096, nthreads)
            if options.wants("py_cpu_engine"):
                cpu_engine(table, options["rows"], options, results)
                cpu_engine(table.with_columns(128), options["small-rows"], options, results)
                table = table.with_columns(1024)
            if device is None:
                results.skip(filter(options.wants, OF_A_GPU), why)
            else:
                Gathers(options, results, device).all_of(table)
            table.path.unlink()
        if options.wants("py_read_files"):
            read_files(folder / "files", options, results, device)
        if options.wants("py_epoch"):
            if device is None:
                results.skip(["py_epoch"], why)
            else:
                epoch(folder, options, results, device)
        if options.wants("py_numba_hit"):
            numba_hits(folder / "hits", options, results, device, why)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

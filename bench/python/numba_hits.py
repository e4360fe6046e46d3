# SPDX-License-Identifier: Apache-2.0
"""What a hit costs from Numba: kernels that read cached elements of a file, against the same over an array."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpufs.c
import numpy as np
from devices import Gpu, Host
from gathers import median, rates
from gpufs.bench import Way, by_turns
from gpufs.c_header import device_code
from harness import Options, Results
from numpy.typing import NDArray

NAME = "py_numba_hit"

# As many threads as an SM takes of kernels that call gpufs, which have 64 registers: all run at once.
_BLOCKS_A_PROCESSOR, _THREADS_A_BLOCK = 4, 256
_PAGE_NBYTES = 4096
_CHUNK = 1 << 24


def why_not(device: Gpu | Host | None) -> str:
    if not isinstance(device, Gpu):
        return "it needs a GPU"
    if find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    try:
        import_module("gpufs.numba")
    except Exception as error:  # with a NumPy that it does not know, say
        return f"numba-cuda does not import: {error}"
    return "" if device_code().exists() else f"this build of gpufs has no {device_code().name}"


def make_elements(path: Path, nbytes: float) -> NDArray[np.uint32]:
    """A file of so many bytes, of whole pages, with random elements; which these are."""
    elements = np.memmap(path, np.uint32, "w+", shape=(max(1, int(nbytes) // _PAGE_NBYTES) * _PAGE_NBYTES // 4,))
    rng = np.random.default_rng(9)
    for begin in range(0, elements.size, _CHUNK):
        part = elements[begin : begin + _CHUNK]
        part[:] = rng.integers(0, 1 << 32, part.size, np.uint32)
    elements.flush()
    return elements


def numba_hits(folder: Path, options: Options, results: Results, device: Gpu | Host | None, why: str) -> None:
    """why: there is no device."""
    if missing := why or why_not(device):
        results.skip([NAME], missing)
        return
    folder.mkdir()
    elements = make_elements(folder / "elements", options.sizes["hit-mb"] * 1e6)
    cache_nbytes = max(64 << 20, elements.nbytes * 3 // 2)
    with gpufs.c.Mount(folder, cache_nbytes=cache_nbytes, page_nbytes=_PAGE_NBYTES) as mount:
        mount.prepare("elements")
        hits = _Hits(options, results, elements, mount)
        hits.against_array(("pread_thread", "map_page_thread"), 1, "each thread elsewhere")
        hits.against_array(("map_page_warp",), 32, "a warp's threads side by side")


class _Hits:
    def __init__(self, options: Options, results: Results, elements: NDArray[np.uint32], mount: gpufs.c.Mount) -> None:
        import numba_kernels
        from gpufs.numba import path
        from numba import cuda

        self._kernels, self._cuda = numba_kernels, cuda
        self._runs, self._results, self._elements, self._mount = options["runs"], results, elements, mount
        self._file, self._array = path("elements"), cuda.to_device(elements)
        self._nblocks = cuda.get_current_device().MULTIPROCESSOR_COUNT * _BLOCKS_A_PROCESSOR
        self._nthreads = self._nblocks * _THREADS_A_BLOCK
        self._naccesses = max(1, options["hits"] // self._nthreads)  # of each thread
        self._sums = cuda.device_array(self._nthreads, np.int64)

    def _way(self, kernel: Any, of: tuple[Any, ...], places: Any) -> Way:
        def go(_: int) -> Any:
            kernel[self._nblocks, _THREADS_A_BLOCK](*of, places, self._sums)
            self._cuda.synchronize()
            return self._sums

        return go

    def against_array(self, calls: tuple[str, ...], together: int, where: str) -> None:
        """Each call's kernel, by turns with the one over an array, by so many threads together."""
        kernels, of_file = self._kernels, (self._mount.handle, self._file)
        places = kernels.make_places(self._elements.size, self._naccesses, self._nthreads // together, together)
        on_gpu = self._cuda.to_device(places)
        ways = {call: self._way(getattr(kernels, f"by_{call}"), of_file, on_gpu) for call in calls}
        ways["array"] = self._way(kernels.by_array, (self._array,), on_gpu)
        wanted = kernels.sums_of(self._elements, places, together)
        right = dict.fromkeys(ways, True)

        def check(way: str, _: int, sums: Any) -> None:
            if not np.array_equal(sums.copy_to_host(), wanted):
                print(f"{way} gave other sums than NumPy did", flush=True)
                right[way] = False
            sums.copy_to_device(np.full(len(wanted), -1, np.int64))  # so that the next kernel must write its own

        ways[calls[0]](0)  # what is not in the cache yet comes before it is counted
        before = self._mount.counters("faults", "hits")
        seconds = by_turns(ways, self._runs, check)
        counted = {name: n - before[name] for name, n in self._mount.counters("faults", "hits").items()}
        millions = self._nthreads * self._naccesses / 1e6
        array = median(rates(seconds["array"], millions))
        for call in calls:
            self._results.add(
                NAME,
                f"{call}, {where}, elements of 4 B of {self._elements.nbytes >> 20} MiB",
                rates(seconds[call], millions),
                "M accesses/s",
                ceiling=array,
                ceiling_is="the same kernel over an array in GPU memory",
                verified=right[call] and right["array"] and counted["faults"] == 0,
                details={
                    "threads": self._nthreads,
                    "ns_of_a_thread": 1e9 * median(seconds[call]) / self._naccesses,
                    "ns_by_array": 1e9 * median(seconds["array"]) / self._naccesses,
                    **counted,
                },
            )

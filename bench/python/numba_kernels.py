# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-decorators
"""Numba's kernels that add up elements of 4 bytes: of a file, by gpufs's calls, or of an array in GPU memory.

places[k, i]: the element at which group i reads in its turn k. A group is a thread, or a warp whose threads read side
by side from there on. sums: one a thread, or a negative errno.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpufs import numba as gpufs_numba
from numba import cuda
from numpy.typing import NDArray

WARP = 32


@cuda.jit
def by_array(elements: Any, places: Any, sums: Any) -> None:
    thread, total = cuda.grid(1), 0
    nthreads = sums.size // places.shape[1]  # of a group
    group, mine = thread // nthreads, thread % nthreads
    for k in range(places.shape[0]):
        total += elements[places[k, group] + mine]
    sums[thread] = total


@cuda.jit
def by_pread_thread(fs: Any, path: Any, places: Any, sums: Any) -> None:
    file = gpufs_numba.open_block(fs, path, gpufs_numba.O_RDONLY)
    thread, total = cuda.grid(1), 0
    element = cuda.local.array(1, np.uint32)
    for k in range(places.shape[0]):
        read = gpufs_numba.pread_thread(fs, file, element, 4, places[k, thread] * 4)
        if read != 4:
            total = read if read < 0 else -5  # EIO: the file is too short
            break
        total += element[0]
    sums[thread] = total
    gpufs_numba.close_block(fs, file)


@cuda.jit
def by_map_page_thread(fs: Any, path: Any, places: Any, sums: Any) -> None:
    file = gpufs_numba.open_block(fs, path, gpufs_numba.O_RDONLY)
    thread, total = cuda.grid(1), 0
    page = cuda.local.array(1, gpufs_numba.page)
    for k in range(places.shape[0]):
        error = gpufs_numba.map_page_thread(fs, file, places[k, thread] * 4, page)
        if error != 0:
            total = error
            break
        total += gpufs_numba.view(page[0].data, 1, np.uint32)[0]
        gpufs_numba.unmap_page_thread(page)
    sums[thread] = total
    gpufs_numba.close_block(fs, file)


@cuda.jit
def by_map_page_warp(fs: Any, path: Any, places: Any, sums: Any) -> None:
    """What a group reads lies in one page."""
    file = gpufs_numba.open_block(fs, path, gpufs_numba.O_RDONLY)
    thread, total = cuda.grid(1), 0
    warp, lane = thread // WARP, thread % WARP
    page = cuda.local.array(1, gpufs_numba.page)
    for k in range(places.shape[0]):
        error = gpufs_numba.map_page_warp(fs, file, places[k, warp] * 4, page)
        if error != 0:
            total = error
            break
        total += gpufs_numba.view(page[0].data, WARP, np.uint32)[lane]
        gpufs_numba.unmap_page_warp(page)
    sums[thread] = total
    gpufs_numba.close_block(fs, file)


def make_places(nelements: int, naccesses: int, ngroups: int, nthreads: int) -> NDArray[np.uint32]:
    """At random, of groups of so many threads each, at multiples of their number, which nelements is one of."""
    rng = np.random.default_rng(10)
    return rng.integers(0, nelements // nthreads, (naccesses, ngroups), np.uint32) * np.uint32(nthreads)


def sums_of(elements: NDArray[np.uint32], places: NDArray[np.uint32], nthreads: int) -> NDArray[np.int64]:
    """What the kernels find, by NumPy."""
    sums = np.zeros((places.shape[1], nthreads), np.int64)
    beside = np.arange(nthreads, dtype=np.uint32)
    for turn in places:
        sums += elements[turn[:, np.newaxis] + beside]
    return sums.reshape(-1)

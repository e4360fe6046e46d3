# SPDX-License-Identifier: Apache-2.0
"""Centroids for lists of vectors, by a library: FAISS where it is there, else NumPy's product of matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufs.errors import GpufsError

Floats = NDArray[np.float32]

_PRODUCTS_AT_ONCE = 4 << 20  # float32, which stay in a cache
_NUDGE = 1 / 1024  # as FAISS has it, of an element
_TOO_LARGE = "the vectors' elements are too large for distances: scale them down"


def has_faiss() -> bool:
    return find_spec("faiss") is not None


def train(
    sample: Floats,
    nlists: int,
    *,
    by: str,
    iterations: int,
    seed: int,
    threads: int,
    progress: Callable[[int, int], None],
) -> Floats:
    """nlists centroids of the sample, which has as many rows at least. by: faiss or numpy."""
    if by == "faiss":
        return _by_faiss(sample, nlists, iterations, seed, threads, progress)
    return _by_numpy(sample, nlists, iterations, seed, progress)


def _by_faiss(
    sample: Floats, nlists: int, iterations: int, seed: int, threads: int, progress: Callable[[int, int], None]
) -> Floats:
    import faiss

    threads_before = faiss.omp_get_max_threads()
    if threads:
        faiss.omp_set_num_threads(threads)
    try:
        centroids: Any = None
        # An iteration at a time, so that Ctrl-C and progress come between them.
        for i in range(iterations):
            progress(i, iterations)
            means = faiss.Kmeans(
                sample.shape[1],
                nlists,
                niter=1,
                seed=seed % 2**31,
                min_points_per_centroid=1,
                max_points_per_centroid=len(sample) // nlists + 1,
            )
            means.train(sample, init_centroids=centroids)
            centroids = means.centroids
    finally:
        faiss.omp_set_num_threads(threads_before)
    progress(iterations, iterations)
    if not np.isfinite(centroids).all():
        raise GpufsError(_TOO_LARGE)
    return np.ascontiguousarray(centroids, np.float32)


def _by_numpy(sample: Floats, nlists: int, iterations: int, seed: int, progress: Callable[[int, int], None]) -> Floats:
    """Lloyd's iterations."""
    rng = np.random.Generator(np.random.PCG64(seed))
    centroids = sample[np.sort(rng.choice(len(sample), nlists, replace=False))].copy()
    before = None
    for i in range(iterations):
        progress(i, iterations)
        nearest = _nearest(sample, centroids, partial(progress, i, iterations))
        if before is not None and np.array_equal(nearest, before):
            break
        before = nearest
        order = np.argsort(nearest, kind="stable")
        counts = np.bincount(nearest, minlength=nlists)
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        there = np.flatnonzero(counts)
        sums = np.add.reduceat(sample[order], begins[there], axis=0, dtype=np.float64)
        centroids[there] = sums / counts[there, None]
        _split_largest(centroids, counts)
    progress(iterations, iterations)
    return centroids


def _nearest(sample: Floats, centroids: Floats, look: Callable[[], None]) -> NDArray[np.int64]:
    """Of each row the centroid c with the least |c|^2 - 2 c x."""
    nearest = np.empty(len(sample), np.int64)
    step = max(1, _PRODUCTS_AT_ONCE // len(centroids))
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", centroids, centroids)
        factors = np.ascontiguousarray(-2 * centroids.T)
        for at in range(0, len(sample), step):
            look()
            distances = sample[at : at + step] @ factors
            distances += squares
            least = np.argmin(distances, axis=1)  # a NaN, where there is one
            if not np.isfinite(distances[np.arange(len(least)), least]).all():
                raise GpufsError(_TOO_LARGE)
            nearest[at : at + step] = least
    return nearest


def _split_largest(centroids: Floats, counts: NDArray[np.int64]) -> None:
    """Gives each empty list half of the list that is the longest by then."""
    signs = np.where(np.arange(centroids.shape[1]) % 2 == 0, 1 + _NUDGE, 1 - _NUDGE).astype(np.float32)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(counts))
        centroids[empty] = centroids[largest] * signs
        centroids[largest] *= 2 - signs
        counts[empty] = counts[largest] // 2
        counts[largest] -= counts[empty]

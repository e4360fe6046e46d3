# SPDX-License-Identifier: Apache-2.0
"""The nearest of many vectors, in files larger than a GPU's memory: build(), search(), Index."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpufs import _vectors, kmeans
from gpufs.collage.interrupt import check_new_file
from gpufs.errors import GpufsError
from gpufs.mounts import device_of, engine_of, to_nbytes
from gpufs.vector_rows import Floats, Rows, parts_of, rows_of

__all__ = ["Found", "Index", "Rows", "Synthetic", "build", "check", "search"]

AnyPath = str | os.PathLike[str]
Ids = NDArray[np.int64]
Stages = Callable[[str, int, int], None]

_SAMPLE_A_LIST = 64


class Found(NamedTuple):
    """What a search gives: of each query k ids, the nearest first (-1: no more), and their squared distances."""

    ids: Ids
    distances: Floats
    facts: dict[str, Any]


class Synthetic:
    """Vectors of `gpufs vectors synth`, drawn when they are read: a base for build(), or queries.

    Raises GpufsError where a number is out of its range.
    """

    def __init__(
        self, n: int, dim: int, *, clusters: int = 1000, spread: float = 0.3, seed: int = 0, first: int = 0
    ) -> None:
        numbers = {"n": (n, 0, _vectors.MOST_VECTORS), "dim": (dim, 1, _vectors.MOST_DIM)}
        numbers |= {"clusters": (clusters, 1, 2**31), "seed": (seed, 0, 2**64 - 1), "first": (first, 0, 2**40)}
        for name, (value, least, most) in numbers.items():
            if not least <= operator.index(value) <= most:
                raise GpufsError(f"synthetic vectors: {name} is {value}, and may be {least} to {most}")
        if not 0 <= spread <= 1e6:
            raise GpufsError(f"synthetic vectors: spread is {spread}, and may be 0 to 1e6")
        self.shape = (n, dim)
        self.name = f"{n} synthetic vectors"
        self._first = first
        self._how: dict[str, Any] = {"dim": dim, "clusters": clusters, "spread": spread, "seed": seed, "threads": 0}

    def read(self, begin: int, end: int) -> Floats:
        rows = np.empty((end - begin, self.shape[1]), np.float32)
        _vectors.draw(rows.ctypes.data, first=self._first + begin, n=end - begin, **self._how)
        return rows

    def check_unchanged(self) -> None:
        """They cannot change."""


def _sample_of(rows: Rows, n: int, seed: int, progress: Callable[[int, int], None]) -> Floats:
    """One vector of each of n parts of the rows, which are equally long; any of it."""
    total, dim = rows.shape
    rng = np.random.Generator(np.random.PCG64(seed))
    edges = np.arange(n + 1) * total // n
    chosen = edges[:-1] + (rng.random(n) * np.diff(edges)).astype(np.int64)
    sample = np.empty((n, dim), np.float32)
    for begin, end in parts_of(rows):
        low, high = np.searchsorted(chosen, [begin, end])
        progress(begin, total)
        if low < high:
            sample[low:high] = rows.read(begin, end)[chosen[low:high] - begin]
    bad = _vectors.first_bad_row(sample.ctypes.data, n, dim)
    if bad < n:
        raise GpufsError(
            f"{rows.name}: vector {chosen[bad]} has an element that is no number (NaN or infinite): leave the "
            "vector out, or mend it"
        )
    progress(total, total)
    return sample


def build(
    base: Rows | ArrayLike | AnyPath,
    index: AnyPath,
    *,
    name: str | None = None,
    lists: int | None = None,
    sample: int | None = None,
    iterations: int = 10,
    train_by: str = "auto",
    seed: int = 0,
    engine: str = "auto",
    threads: int = 0,
    device: int | None = None,
    progress: Stages | None = None,
) -> dict[str, Any]:
    """Makes an index of vectors, and tells what it has. Where anything fails, there is none; what had the name stays.

    It replaces an index, or an empty file, and nothing else.

    base: a file (.npy, .fvecs, .fbin, ...), an array, or anything with the members of Rows; it is read three times, in
    parts. name: of the array, where the file has several. lists: default: as many as the square root of the vectors.
    sample: vectors that the lists' centroids are trained on; default: 64 a list. train_by: faiss, numpy, or auto
    (faiss, where it is installed). progress(stage, done, total).
    Raises GpufsError.
    """
    told: Stages = progress or (lambda stage, done, total: None)
    source = base if isinstance(base, (str, os.PathLike)) else getattr(base, "filename", None)  # of a memory map
    check_new_file(Path(index), [] if source is None else [Path(source)], _vectors.MAGIC, "index of vectors")
    rows, chosen = rows_of(base, "the vectors", name), engine_of(engine)
    n, dim = rows.shape
    if n == 0:
        raise GpufsError(f"{rows.name}: has no vectors")
    if n > _vectors.MOST_VECTORS:
        raise GpufsError(f"{rows.name}: has {n} vectors, and an index takes {_vectors.MOST_VECTORS} at most")
    nlists = max(1, round(math.sqrt(n))) if lists is None else operator.index(lists)
    if not 1 <= nlists <= min(n, _vectors.MOST_LISTS):
        raise GpufsError(f"{rows.name}: {nlists} lists of {n} vectors: there may be 1 to {min(n, _vectors.MOST_LISTS)}")
    nsample = min(n, _SAMPLE_A_LIST * nlists) if sample is None else operator.index(sample)
    if not nlists <= nsample <= n:
        raise GpufsError(f"{rows.name}: a sample of {nsample} vectors: it has {nlists} (a vector for each list) to {n}")
    if iterations < 1:
        raise GpufsError(f"{iterations} iterations: it takes one at least")
    trained_by = ("faiss" if kmeans.has_faiss() else "numpy") if train_by == "auto" else train_by
    if trained_by not in ("faiss", "numpy"):
        raise GpufsError(f"there is no training by '{train_by}'; there are auto, faiss and numpy")
    if trained_by == "faiss" and not kmeans.has_faiss():
        raise GpufsError("faiss is not installed: install faiss-cpu, or train by numpy")

    begin = time.monotonic()
    drawn = _sample_of(rows, nsample, seed, lambda done, total: told("reading a sample", done, total))
    centroids = kmeans.train(
        drawn,
        nlists,
        by=trained_by,
        iterations=iterations,
        seed=seed,
        threads=threads,
        progress=lambda done, total: told("training", done, total),
    )
    del drawn
    trained = time.monotonic()
    builder = _vectors.Builder(
        index,
        centroids.ctypes.data,
        nlists,
        dim,
        engine=chosen,
        threads=threads,
        device=device_of(chosen, device),
        made_by=f"{nlists} lists of {rows.name} by {trained_by}",
        base=rows.name,
    )
    try:
        for part, past in parts_of(rows):
            told("looking for lists", part, n)
            piece = rows.read(part, past)
            builder.count(piece.ctypes.data, len(piece))
        builder.begin_lists()
        assigned = time.monotonic()
        for part, past in parts_of(rows):
            told("writing lists", part, n)
            piece = rows.read(part, past)
            builder.add(piece.ctypes.data, len(piece))
        rows.check_unchanged()
        told("writing to the disk", 0, 1)
        report: dict[str, Any] = dict(builder.finish())
    finally:
        builder.close()
    seconds = {"train": trained - begin, "assign": assigned - trained, "write": time.monotonic() - assigned}
    return (
        {"dim": dim, "lists": nlists, "sample": nsample, "trained_by": trained_by, "engine": chosen}
        | report
        | {"seconds": seconds}
    )


class Index:
    """An index, open to be searched: what takes a GPU long to set up is there for all searches. Close it, or use with.

    Threads may share one: their searches wait for each other. A file that changes meanwhile is an error.
    cache: bytes of the page cache of a GPU ("8GiB", say). page: of its pages, a power of two.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        engine: str = "auto",
        threads: int = 0,
        cache: int | str = 0,
        page: int = 0,
        device: int | None = None,
    ) -> None:
        self.engine = engine_of(engine)
        self.path = Path(path)
        self._index = _vectors.Index(self.path)
        self.info: dict[str, Any] = dict(self._index.info())
        self._searcher: _vectors.Searcher | None = _vectors.Searcher(
            self._index,
            self.engine,
            threads=threads,
            cache_nbytes=to_nbytes(cache),
            page_nbytes=page,
            device=device_of(self.engine, device),
        )

    def search(
        self,
        queries: Rows | ArrayLike | AnyPath,
        k: int = 10,
        *,
        nprobe: int | None = 32,
        batch: int = 10_000,
        progress: Callable[[int, int], None] | None = None,
    ) -> Found:
        """Of each query the k nearest vectors in the nprobe lists with the nearest centroids; None, 0: in all, exactly.

        Of equally near ones those with lesser ids come first. batch: queries that are searched together. Raises
        GpufsError.
        """
        searcher = self._searcher  # another thread may close() meanwhile
        if searcher is None:
            raise GpufsError(f"{self.path}: is closed")
        rows = rows_of(queries, "the queries")
        n, dim = rows.shape
        if dim != self.info["dim"]:
            raise GpufsError(
                f"{rows.name}: has vectors of {dim} elements, and those of {self.path} have {self.info['dim']}"
            )
        if not 1 <= k <= _vectors.MOST_K:
            raise GpufsError(f"{k} nearest vectors are asked for; 1 to {_vectors.MOST_K} can be")
        lists = nprobe or self.info["nlists"]
        if lists < 1:
            raise GpufsError(f"{lists} lists are asked for; there are {self.info['nlists']}")
        if batch < 1:
            raise GpufsError("a batch has one query at least")
        values = rows.read(0, n)
        bad = _vectors.first_bad_row(values.ctypes.data, n, dim)
        if bad < n:
            raise GpufsError(f"{rows.name}: vector {bad} has an element that is no number (NaN or infinite)")
        ids, distances, facts = searcher.search(
            values.ctypes.data,
            n,
            k=k,
            nprobe=min(lists, self.info["nlists"]),
            batch=min(batch, 2**31),
            progress=progress,
        )
        if self.engine == "cpu":
            facts["bytes_read"] = None
        return Found(ids, distances, facts)

    def recall(self, queries: Rows | ArrayLike | AnyPath, found: Ids, sample: int) -> float:
        """The share of the true nearest vectors, of `sample` of the queries, that a search has found.

        found: its ids. The true ones are those that a search of all lists finds.
        """
        rows = rows_of(queries, "the queries")
        n = rows.shape[0]
        chosen = np.unique(np.arange(min(sample, n)) * n // max(1, min(sample, n)))
        values = rows.read(0, n)[chosen]
        k = found.shape[1]
        true = self.search(values, k, nprobe=None).ids
        nfound = sum(len(np.intersect1d(a[a >= 0], b[b >= 0])) for a, b in zip(true, found[chosen], strict=True))
        return nfound / max(1, int((true >= 0).sum()))

    def close(self) -> None:
        self._searcher = None

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def search(
    index: AnyPath, queries: Rows | ArrayLike | AnyPath, k: int = 10, *, nprobe: int | None = 32, **options: Any
) -> tuple[Ids, Floats]:
    """The ids [n, k] and the squared distances [n, k] of each query's nearest vectors. options: Index's.

    For more than one search, open an Index. Raises GpufsError.
    """
    with Index(index, **options) as opened:
        found = opened.search(queries, k, nprobe=nprobe)
    return found.ids, found.distances


def check(
    index: AnyPath,
    base: Rows | ArrayLike | AnyPath | None = None,
    *,
    queries: int = 10,
    k: int = 10,
    engine: str = "auto",
    threads: int = 0,
    progress: Stages | None = None,
) -> dict[str, Any]:
    """Reads a whole index, and raises GpufsError where it is damaged. With the vectors that it is of, also searches.

    Some of the vectors, as queries of all lists, must have the neighbours that NumPy finds in the base by float64.
    """
    told: Stages = progress or (lambda stage, done, total: None)
    opened = _vectors.Index(index)
    opened.check(threads=threads, progress=lambda done, total: told("reading lists", done, total))
    info: dict[str, Any] = dict(opened.info())
    if base is None:
        return info | {"queries": 0}
    rows = rows_of(base, "the vectors")
    if rows.shape != (info["nvectors"], info["dim"]):
        raise GpufsError(
            f"{rows.name}: has {rows.shape[0]} vectors of {rows.shape[1]} elements, and {os.fspath(index)} is of "
            f"{info['nvectors']} of {info['dim']}"
        )
    n = rows.shape[0]
    chosen = np.unique(np.arange(min(queries, n)) * n // max(1, min(queries, n)))
    asked = np.concatenate([rows.read(int(i), int(i) + 1) for i in chosen])
    with Index(index, engine=engine, threads=threads) as by:
        found = by.search(asked, k, nprobe=None)
    true = np.full((len(asked), k), np.inf)
    of_found = np.full((len(asked), k), np.inf)
    for begin, end in parts_of(rows):
        told("comparing with the vectors", begin, n)
        part = rows.read(begin, end).astype(np.float64)
        for q, query in enumerate(asked.astype(np.float64)):
            off = part - query
            distances = np.einsum("ij,ij->i", off, off)
            true[q] = np.sort(np.concatenate([true[q], distances]))[:k]
            here = (found.ids[q] >= begin) & (found.ids[q] < end)
            of_found[q, here] = distances[found.ids[q, here] - begin]
    scale = 1e-5 * max(1e-30, float(np.max(true[np.isfinite(true)], initial=0)))
    for q, number in enumerate(chosen):
        if not np.allclose(of_found[q], true[q], rtol=1e-4, atol=scale) or not np.allclose(
            found.distances[q], true[q], rtol=1e-4, atol=scale
        ):
            raise GpufsError(
                f"{os.fspath(index)}: the nearest of vector {number} of {rows.name} are others than those that are "
                "found: build the index again"
            )
    return info | {"queries": len(asked)}

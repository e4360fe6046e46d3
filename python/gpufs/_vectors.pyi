# SPDX-License-Identifier: Apache-2.0
"""Nearest vectors in files, for `gpufs vectors` and gpufs.vectors (apps/vectors/python_module.cpp)."""

import os
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

MAGIC: bytes
MOST_K: int
MOST_LISTS: int
MOST_DIM: int
MOST_VECTORS: int

class Info(TypedDict):
    nvectors: int
    dim: int
    nlists: int
    longest_list: int
    empty_lists: int
    file_nbytes: int
    made_by: str

class BuildReport(TypedDict):
    nvectors: int
    empty_lists: int
    shortest_list: int
    longest_list: int
    file_nbytes: int

Path = str | bytes | os.PathLike[str]
Progress = Callable[[int, int], None] | None

def write_drawn(
    path: Path,
    head: bytes,
    *,
    first: int,
    n: int,
    dim: int,
    clusters: int,
    spread: float,
    seed: int,
    threads: int,
    progress: Progress,
) -> None:
    """Writes synthetic vectors behind a head, as rows of float32. progress(done, total), in bytes."""

def draw(to: int, *, first: int, n: int, dim: int, clusters: int, spread: float, seed: int, threads: int) -> None:
    """The same in memory."""

def first_bad_row(rows: int, n: int, dim: int) -> int:
    """The first row with an element that is NaN or infinite; n: there is none."""

class Index:
    """The file of an index, open."""

    def __init__(self, path: Path) -> None: ...
    def info(self) -> Info:
        """What its header says."""

    def centroids(self) -> NDArray[np.float32]:
        """A row for each list."""

    def list(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The vectors of a list as rows, and their ids as one row."""

    def check(self, *, threads: int, progress: Progress) -> None:
        """Reads all lists. GpufsError: what is wrong. progress(done, total), in bytes."""

class Searcher:
    """What searches an index."""

    def __init__(
        self, index: Index, name: str, *, threads: int, cache_nbytes: int, page_nbytes: int, device: int
    ) -> None: ...
    def search(
        self, queries: int, n: int, *, k: int, nprobe: int, batch: int, progress: Progress
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], dict[str, Any]]:
        """Of n rows of float32: ids (int64, -1: none) and squared distances (float32), k of each, and facts."""

class Builder:
    """Makes the file of an index: count() of all vectors, begin_lists(), add() of all, finish()."""

    def __init__(
        self,
        path: Path,
        centroids: int,
        nlists: int,
        dim: int,
        *,
        engine: str,
        threads: int,
        device: int,
        made_by: str,
        base: Path,
    ) -> None: ...
    def count(self, rows: int, n: int) -> None: ...
    def begin_lists(self) -> None: ...
    def add(self, rows: int, n: int) -> None: ...
    def finish(self) -> BuildReport:
        """Puts the file in its place: what it has."""

    def close(self) -> None:
        """Without finish(): nothing stays."""

# SPDX-License-Identifier: Apache-2.0
"""Graphs in files, for `gpufs graph` (apps/graph/python_module.cpp)."""

import os
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

MAGIC: bytes

class BuildReport(TypedDict):
    nvertices: int
    nedges: int
    ndropped: int
    nranges: int
    file_nbytes: int

class Info(TypedDict):
    nvertices: int
    nedges: int
    directed: bool
    weights: bool
    target_nbytes: int
    file_nbytes: int
    made_by: str

Path = str | bytes | os.PathLike[str]
Progress = Callable[[int, int], None] | None
Stages = Callable[[str, int, int], None] | None

def synthesize(
    path: Path,
    kind: str,
    *,
    scale: int,
    nedges: int,
    seed: int,
    weights: bool,
    wide: bool,
    engine: str,
    threads: int,
    memory_nbytes: int,
    device: int,
    made_by: str,
    progress: Stages,
) -> BuildReport:
    """Writes a graph of a generator (kron, urand): what it has. progress(stage, done, total)."""

def import_text(
    path: Path,
    text: Path,
    *,
    weights: bool,
    undirected: bool,
    wide: bool,
    threads: int,
    memory_nbytes: int,
    made_by: str,
    progress: Stages,
) -> BuildReport:
    """Writes a graph of a list of edges, or of a Matrix Market file."""

def import_csr(
    path: Path,
    indptr: int,
    noffsets: int,
    indices: int,
    nindices: int,
    weights: int,
    name: str,
    *,
    undirected: bool,
    wide: bool,
    threads: int,
    memory_nbytes: int,
    made_by: str,
    progress: Stages,
) -> BuildReport:
    """Writes a graph of CSR arrays of int64 in memory; weights: 0, or the address of as many as indices."""

class Graph:
    """A graph's file, open."""

    def __init__(self, path: Path) -> None: ...
    def info(self) -> Info:
        """What its header says."""

    def first_source(self) -> int:
        """The first vertex that leads anywhere, or 0."""

    def wrong_in_bfs(self, source: int, depths: int) -> str:
        """What is wrong in them, or ''."""

    def wrong_in_components(self, components: int) -> str: ...
    def wrong_in_pagerank(self, damping: float, tolerance: float, scores: int) -> str: ...
    def wrong_in_paths(self, source: int, lengths: int) -> str: ...

class Engine:
    """What runs algorithms on a graph."""

    def __init__(
        self, graph: Graph, name: str, *, threads: int, cache_nbytes: int, page_nbytes: int, device: int
    ) -> None: ...
    def bfs(self, source: int, progress: Progress) -> tuple[NDArray[np.uint32], dict[str, Any]]:
        """Each vertex's number of edges from the source (uint32; 2^32 - 1: not reached), and facts."""

    def components(self, progress: Progress) -> tuple[NDArray[np.uint32], dict[str, Any]]:
        """The least vertex of each vertex's component (uint32), and facts."""

    def pagerank(
        self, damping: float, tolerance: float, most_rounds: int, progress: Progress
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Each vertex's score (float32), and facts."""

    def shortest_paths(self, source: int, delta: int, progress: Progress) -> tuple[NDArray[np.uint64], dict[str, Any]]:
        """Of each vertex how long the shortest path from the source is (uint64; 2^64 - 1: there is none), and facts."""

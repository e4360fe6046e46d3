# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs graph synth`, `import`, `info`, `bfs`, `cc`, `pagerank` and `sssp`."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpufs.collage.cli import Engine, Threads, parse_size, reports_errors
from gpufs.collage.interrupt import (
    check_is_no_input,
    check_new_file,
    check_writable,
    replacing,
    sigterm_interrupts,
)
from gpufs.errors import GpufsError
from gpufs.files_cli import Json, page_of, tell

if TYPE_CHECKING:
    from gpufs import _graph

_MOST_VERTICES = 2**32 - 2
_DEFAULT_DELTA = 32

app = typer.Typer(
    no_args_is_help=True,
    help="Make graphs, and search them, also where they are larger than memory.\n\n"
    "First `gpufs graph synth kron GRAPH` or `gpufs graph import EDGES GRAPH`, then `gpufs graph bfs GRAPH`.",
)


class Kind(str, Enum):
    kron = "kron"
    urand = "urand"


Graph = Annotated[Path, typer.Argument(metavar="GRAPH", help="Made by `gpufs graph synth` or `import`.")]
NewGraph = Annotated[Path, typer.Argument(metavar="GRAPH", help="The graph to write.")]
By = Annotated[Engine, typer.Option("--engine", help="auto: gpu, or cpu without one. All give the same, to the bit.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.npy", help="An element for each vertex.")]
Verify = Annotated[bool, typer.Option("--verify", help="Check the result by a serial algorithm, as GAP does.")]
Cache = Annotated[str, typer.Option("--cache-size", metavar="SIZE", help="gpu, simt: page cache. 0: gpufs decides.")]
Page = Annotated[str, typer.Option("--page-size", metavar="SIZE", help="gpu, simt: 512 to 2M, a power of two.")]
Source = Annotated[
    int | None,
    typer.Option(min=0, max=_MOST_VERTICES, help="Where it begins. Default: the first vertex with a neighbour."),
]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="For lists that are made at once. 0: half of what is available.")
]
Wide = Annotated[bool, typer.Option("--wide", help="8 bytes a neighbour in the file, not 4.")]


def _tell_build(graph: Path, report: _graph.BuildReport, seconds: float, as_json: bool) -> None:
    from gpufs.doctor import size_text

    rows = {
        "vertices": report["nvertices"],
        "neighbours of all": report["nedges"],
        "dropped as they came again": report["ndropped"],
        "file": size_text(report["file_nbytes"]),
        "time": f"{seconds:.1f} s",
    }
    tell(f"graph {graph}", rows, as_json, {"path": str(graph), **report, "seconds": seconds})


@app.command("synth")
@reports_errors
def synth(
    kind: Annotated[Kind, typer.Argument(help="kron: some vertices have many neighbours. urand: all about as many.")],
    graph: NewGraph,
    scale: Annotated[int, typer.Option(min=0, max=31, help="2^SCALE vertices.")] = 20,
    degree: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="Neighbours of a vertex, on average, before doubles are dropped.")
    ] = 32,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="Other seeds give other graphs; the same gives the same bytes.")
    ] = 0,
    weights: Annotated[bool, typer.Option("--weights", help="Edges have lengths of 1 to 255, for `sssp`.")] = False,
    wide: Wide = False,
    engine: By = Engine.auto,
    threads: Threads = 0,
    memory: Memory = "0",
    as_json: Json = False,
) -> None:
    """Make a random graph, by the generators of the GAP benchmark."""
    from gpufs import _graph, _rows
    from gpufs.collage import console
    from gpufs.mounts import engine_of

    memory_nbytes, chosen = parse_size(memory), engine_of(engine.value)
    check_new_file(graph, (), _graph.MAGIC, "graph")
    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:
        report = _graph.synthesize(
            graph,
            kind.value,
            scale=scale,
            nedges=(degree << scale) // 2,
            seed=seed,
            weights=weights,
            wide=wide,
            engine=chosen,
            threads=threads,
            memory_nbytes=memory_nbytes,
            device=_rows.current_device(chosen),
            made_by=f"{kind.value} scale {scale} degree {degree} seed {seed}",
            progress=bar.show,
        )
    _tell_build(graph, report, time.monotonic() - begin, as_json)


@app.command("import")
@reports_errors
def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="EDGES", help="Lines 'FROM TO [WEIGHT]', a Matrix Market file, or CSR in a .npz file."),
    ],
    graph: NewGraph,
    undirected: Annotated[bool, typer.Option("--undirected", help="Each edge leads both ways.")] = False,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Leave out what edges have for a weight.")] = False,
    wide: Wide = False,
    threads: Threads = 0,
    memory: Memory = "0",
    as_json: Json = False,
) -> None:
    """Make a graph of a file with its edges."""
    from gpufs import _graph
    from gpufs.collage import console
    from gpufs.graphs import import_graph

    memory_nbytes = parse_size(memory)
    check_new_file(graph, (source,), _graph.MAGIC, "graph")
    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:
        report = import_graph(
            graph,
            source,
            weights=not no_weights,
            undirected=undirected,
            wide=wide,
            threads=threads,
            memory_nbytes=memory_nbytes,
            made_by=f"import {source.name}",
            progress=bar.show,
        )
    _tell_build(graph, report, time.monotonic() - begin, as_json)


@app.command("info")
@reports_errors
def info(graph: Graph, as_json: Json = False) -> None:
    """Say what a graph has."""
    from gpufs import _graph
    from gpufs.doctor import size_text

    about = _graph.Graph(graph).info()
    rows = {
        "vertices": about["nvertices"],
        "neighbours of all": about["nedges"],
        "edges": "lead one way" if about["directed"] else "lead both ways",
        "weights": "yes" if about["weights"] else "no",
        "bytes a neighbour": about["target_nbytes"],
        "file": size_text(about["file_nbytes"]),
        "made by": about["made_by"],
    }
    tell(f"graph {graph}", rows, as_json, {"path": str(graph), **about})


class _Run:
    """An algorithm's run: from the options that all of them have to what is written and told."""

    def __init__(
        self,
        graph: Path,
        to: Path | None,
        engine: Engine,
        cache: str,
        page: str,
        threads: int,
        verify: bool,
        as_json: bool,
    ) -> None:
        from gpufs import _graph, _rows
        from gpufs.mounts import engine_of

        cache_nbytes, page_nbytes = parse_size(cache), page_of(page)
        if to is not None:
            check_writable(to)
            check_is_no_input(to, [(graph, "the graph")])
        self.path, self._to, self._verify, self._as_json = graph, to, verify, as_json
        self.engine = engine_of(engine.value)
        self.graph = _graph.Graph(graph)
        self.info = self.graph.info()
        self._how = {
            "threads": threads,
            "cache_nbytes": cache_nbytes,
            "page_nbytes": page_nbytes,
            "device": _rows.current_device(self.engine),
        }

    def source(self, asked: int | None) -> int:
        """The vertex that is meant. Raises GpufsError."""
        n = self.info["nvertices"]
        if asked is None and n != 0:
            return self.graph.first_source()
        if asked is None or asked >= n:
            raise GpufsError(f"{self.path}: has no vertex {asked or 0}: it has {n}, numbered from 0")
        return asked

    def __call__(
        self,
        name: str,
        work: Callable[[_graph.Engine, Callable[[int, int], None]], tuple[Any, dict[str, Any]]],
        wrong: Callable[[int, dict[str, Any]], str],
        rows: Callable[[dict[str, Any]], dict[str, Any]],
        more: dict[str, Any],
    ) -> None:
        import numpy as np

        from gpufs import _graph
        from gpufs.collage import console
        from gpufs.doctor import size_text

        with sigterm_interrupts(), console.progress() as bar:
            by = _graph.Engine(self.graph, self.engine, **self._how)
            values, facts = work(by, lambda done, total: bar.show(name, done, total))
            if self._verify:
                bar.show("checking the result", 0, 1)
                if why := wrong(values.ctypes.data, facts):
                    raise GpufsError(f"{self.path}: the result is wrong (a bug: please report it): {why}")
            if self._to is not None:
                with replacing(self._to) as stream:
                    np.save(stream, values)
        if self.engine == "cpu":
            facts["bytes_read"] = None
        table = rows(facts) | {"rounds": facts["rounds"], "time": f"{facts['seconds']:.3f} s, by {self.engine}"}
        if facts["bytes_read"] is not None:
            table["read"] = size_text(facts["bytes_read"])
        if self._verify:
            table["checked"] = "right"
        to = None if self._to is None else str(self._to)
        result = {"path": str(self.path), "out": to, "engine": self.engine, **more, **facts, "verified": self._verify}
        tell(f"{name} of {self.path}", table, self._as_json, result)


@app.command("bfs")
@reports_errors
def bfs(
    graph: Graph,
    source: Source = None,
    to: Out = None,
    verify: Verify = False,
    engine: By = Engine.auto,
    cache: Cache = "0",
    page: Page = "4K",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """How many edges each vertex is away from a source: breadth-first search."""
    run = _Run(graph, to, engine, cache, page, threads, verify, as_json)
    begin = run.source(source)
    run(
        "breadth-first search",
        lambda by, progress: by.bfs(begin, progress),
        lambda values, _: run.graph.wrong_in_bfs(begin, values),
        lambda facts: {"source": begin, "vertices reached": facts["reached"]},
        {"source": begin},
    )


@app.command("cc")
@reports_errors
def cc(
    graph: Graph,
    to: Out = None,
    verify: Verify = False,
    engine: By = Engine.auto,
    cache: Cache = "0",
    page: Page = "4K",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """The connected components (of a directed graph the weak ones): of each vertex, its component's least vertex."""
    run = _Run(graph, to, engine, cache, page, threads, verify, as_json)
    run(
        "components",
        lambda by, progress: by.components(progress),
        lambda values, _: run.graph.wrong_in_components(values),
        lambda facts: {"components": facts["components"], "vertices in the largest": facts["largest"]},
        {},
    )


@app.command("pagerank")
@reports_errors
def pagerank(
    graph: Graph,
    damping: Annotated[float, typer.Option(min=0, max=1, help="How much of a score neighbours give.")] = 0.85,
    tolerance: Annotated[float, typer.Option(min=0, help="Ends where a round changes less, over all vertices.")] = 1e-4,
    rounds: Annotated[int, typer.Option(min=1, max=2**31, help="Ends after so many.")] = 100,
    to: Out = None,
    verify: Verify = False,
    engine: By = Engine.auto,
    cache: Cache = "0",
    page: Page = "4K",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """The PageRank of each vertex."""
    run = _Run(graph, to, engine, cache, page, threads, verify, as_json)
    run(
        "PageRank",
        lambda by, progress: by.pagerank(damping, tolerance, rounds, progress),
        lambda values, facts: run.graph.wrong_in_pagerank(damping, max(tolerance, facts["change"]), values),
        lambda facts: {"change in the last round": f"{facts['change']:.3g}"},
        {"damping": damping},
    )


@app.command("sssp")
@reports_errors
def sssp(
    graph: Graph,
    source: Source = None,
    delta: Annotated[
        int, typer.Option(min=1, max=2**63, help="Lengths that are looked at together: longer edges want more.")
    ] = _DEFAULT_DELTA,
    to: Out = None,
    verify: Verify = False,
    engine: By = Engine.auto,
    cache: Cache = "0",
    page: Page = "4K",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """How long the shortest path from a source to each vertex is, by weights."""
    run = _Run(graph, to, engine, cache, page, threads, verify, as_json)
    if not run.info["weights"]:
        raise GpufsError(f"{graph}: has no weights: make it by --weights, or of edges that have some; or use `bfs`")
    begin = run.source(source)
    run(
        "shortest paths",
        lambda by, progress: by.shortest_paths(begin, delta, progress),
        lambda values, _: run.graph.wrong_in_paths(begin, values),
        lambda facts: {"source": begin, "vertices reached": facts["reached"]},
        {"source": begin, "delta": delta},
    )

# SPDX-License-Identifier: Apache-2.0
"""The commands `gpufs vectors synth`, `build`, `info`, `search` and `check`."""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

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
from gpufs.files_cli import Json, Name, page_of, tell

_NPY = b"\x93NUMPY"
_MOST_VECTORS, _MOST_K, _MOST_LISTS, _MOST_DIM = 2**32 - 1, 4096, 1 << 24, 1 << 16

app = typer.Typer(
    no_args_is_help=True,
    help="Find the nearest of many vectors, also where they are larger than memory.\n\n"
    "First `gpufs vectors build BASE.npy -o INDEX`, then `gpufs vectors search INDEX QUERIES.npy`.",
)


class TrainBy(str, Enum):
    auto = "auto"
    faiss = "faiss"
    numpy = "numpy"


IndexFile = Annotated[Path, typer.Argument(metavar="INDEX", help="Made by `gpufs vectors build`.")]
By = Annotated[Engine, typer.Option("--engine", help="auto: gpu, or cpu without one. All find the same, to the bit.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Other seeds give others; the same gives the same.")]


@app.command("synth")
@reports_errors
def synth(
    to: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.npy", help="Vectors of float32.")],
    n: Annotated[int, typer.Option("--n", min=1, max=_MOST_VECTORS, help="So many.")] = 100_000,
    dim: Annotated[int, typer.Option(min=1, max=_MOST_DIM, help="Elements of each.")] = 96,
    clusters: Annotated[int, typer.Option(min=1, max=2**31, help="They lie around so many centres.")] = 1000,
    spread: Annotated[float, typer.Option(min=0, max=1e6, help="How far, where centres are 1 from each other.")] = 0.3,
    first: Annotated[
        int, typer.Option(min=0, max=2**40, help="Leaves out so many: queries are others of the same clusters.")
    ] = 0,
    seed: Seed = 0,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Make random vectors in clusters, for trials."""
    import numpy as np

    from gpufs import _vectors
    from gpufs.collage import console
    from gpufs.doctor import size_text

    check_new_file(to, (), _NPY, ".npy file")
    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:
        _vectors.write_drawn(
            to,
            _npy_head(np.dtype(np.float32), (n, dim)),
            first=first,
            n=n,
            dim=dim,
            clusters=clusters,
            spread=spread,
            seed=seed,
            threads=threads,
            progress=lambda done, total: bar.show("drawing vectors", done, total),
        )
    facts = {"path": str(to), "nvectors": n, "dim": dim, "clusters": clusters, "spread": spread, "first": first}
    facts |= {"seed": seed, "file_nbytes": to.stat().st_size, "seconds": time.monotonic() - begin}
    rows = {
        "vectors": n,
        "elements of each": dim,
        "clusters": clusters,
        "file": size_text(to.stat().st_size),
        "time": f"{facts['seconds']:.1f} s",
    }
    tell(f"vectors {to}", rows, as_json, facts)


def _publish(arrays: list[tuple[Path, Any]]) -> None:
    """Writes .npy files, and puts them in their places when all are written."""
    import numpy as np

    if not arrays:
        return
    (path, values), *others = arrays
    with replacing(path) as stream:
        np.save(stream, values)
        stream.flush()
        os.fsync(stream.fileno())  # or the disk could be found full when others are in their places
        _publish(others)


def _npy_head(dtype: Any, shape: tuple[int, ...]) -> bytes:
    import io

    import numpy as np

    head = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


@app.command("build")
@reports_errors
def build(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="Vectors: .npy, .fvecs, .bvecs, .fbin, .u8bin, Arrow, Parquet, ...")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", metavar="INDEX", help="The index to write.")],
    name: Name = None,
    lists: Annotated[
        int, typer.Option(min=0, max=_MOST_LISTS, help="0: as many as the square root of the vectors.")
    ] = 0,
    sample: Annotated[int, typer.Option(min=0, help="Vectors to train on. 0: 64 for each list.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, max=10_000, help="Of the training.")] = 10,
    train_by: Annotated[TrainBy, typer.Option("--train", help="auto: faiss, or numpy without it.")] = TrainBy.auto,
    seed: Seed = 0,
    engine: By = Engine.auto,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Make an index of vectors: lists of those that are near each other (IVF-Flat)."""
    from gpufs import vectors as module
    from gpufs.collage import console
    from gpufs.doctor import size_text

    with sigterm_interrupts(), console.progress() as bar:
        report = module.build(
            base,
            to,
            name=name,
            lists=lists or None,
            sample=sample or None,
            iterations=iterations,
            train_by=train_by.value,
            seed=seed,
            engine=engine.value,
            threads=threads,
            progress=bar.show,
        )
    seconds = report["seconds"]
    rows = {
        "vectors": report["nvectors"],
        "elements of each": report["dim"],
        "lists": report["lists"],
        "vectors of a list": f"{report['shortest_list']:,} to {report['longest_list']:,}",
        "lists without any": report["empty_lists"],
        "trained": f"on {report['sample']:,} vectors, by {report['trained_by']}",
        "file": size_text(report["file_nbytes"]),
        "time": ", ".join(f"{stage} {took:.1f} s" for stage, took in seconds.items()) + f", by {report['engine']}",
    }
    tell(f"index {to}", rows, as_json, {"path": str(to), "base": str(base), **report})


@app.command("info")
@reports_errors
def info(index: IndexFile, as_json: Json = False) -> None:
    """Say what an index has."""
    from gpufs import _vectors
    from gpufs.doctor import size_text

    about = _vectors.Index(index).info()
    rows = {
        "vectors": about["nvectors"],
        "elements of each": about["dim"],
        "lists": about["nlists"],
        "vectors of the longest list": about["longest_list"],
        "lists without any": about["empty_lists"],
        "file": size_text(about["file_nbytes"]),
        "made of": about["made_by"],
    }
    tell(f"index {index}", rows, as_json, {"path": str(index), **about})


@app.command("search")
@reports_errors
def search(
    index: IndexFile,
    queries: Annotated[Path, typer.Argument(metavar="QUERIES", help="Vectors, in a file as BASE of `build`.")],
    name: Name = None,
    k: Annotated[int, typer.Option("-k", min=1, max=_MOST_K, help="So many nearest vectors of each query.")] = 10,
    nprobe: Annotated[int, typer.Option(min=0, max=_MOST_LISTS, help="Lists of each query. 0: all; exact.")] = 32,
    to: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.npy", help="The ids, a row for each query (int64).")
    ] = None,
    distances: Annotated[
        Path | None, typer.Option("--distances", metavar="FILE.npy", help="Their squared distances (float32).")
    ] = None,
    recall: Annotated[
        int, typer.Option("--recall", metavar="N", min=0, help="Also search all lists for N queries: recall@k.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1 << 30, help="Queries that are searched together.")] = 10_000,
    engine: By = Engine.auto,
    cache: Annotated[
        str, typer.Option("--cache-size", metavar="SIZE", help="gpu, simt: page cache. 0: gpufs decides.")
    ] = "0",
    page: Annotated[
        str,
        typer.Option("--page-size", metavar="SIZE", help="gpu, simt: 512 to 2M, a power of two. 0: gpufs decides."),
    ] = "0",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Find the nearest vectors of each query, in the lists whose centroids are nearest to it."""
    import numpy as np

    from gpufs import vectors as module
    from gpufs.collage import console
    from gpufs.doctor import size_text
    from gpufs.vector_rows import rows_of

    cache_nbytes, page_nbytes = parse_size(cache), 0 if parse_size(page) == 0 else page_of(page)
    outputs = [each for each in (to, distances) if each is not None]
    for each in outputs:
        check_writable(each)
        check_is_no_input(each, [(index, "the index"), (queries, "the file of the queries")])
        check_new_file(each, (), _NPY, ".npy file")
    if len({each.parent.resolve() / each.name for each in outputs}) < len(outputs):
        raise GpufsError(f"{to}: is to have both the ids and the distances")
    with sigterm_interrupts(), console.progress() as bar:
        with module.Index(index, engine=engine.value, threads=threads, cache=cache_nbytes, page=page_nbytes) as by:
            asked = rows_of(queries, "the queries", name)
            found = by.search(
                asked,
                k,
                nprobe=nprobe or None,
                batch=batch,
                progress=lambda done, total: bar.show("searching", done, total),
            )
            facts = {"queries": len(found.ids), "k": k, "nprobe": min(nprobe or by.info["nlists"], by.info["nlists"])}
            facts |= {"engine": by.engine, **found.facts, "recall": None}
            if recall:
                bar.show("searching all lists", 0, 1)
                facts["recall"] = by.recall(asked, found.ids, recall)
        of_outputs = [(to, found.ids), (distances, found.distances)]
        _publish([(path, values) for path, values in of_outputs if path is not None])
    seconds = max(facts["seconds"], 1e-9)
    rows = {
        "queries": facts["queries"],
        "lists of each": facts["nprobe"],
        "vectors compared with each": f"{facts['compared'] / max(1, facts['queries']):,.0f}",
        "time": f"{facts['seconds']:.3f} s, by {facts['engine']}",
        "queries a second": f"{facts['queries'] / seconds:,.0f}",
    }
    if facts["bytes_read"] is not None:
        rows["read"] = size_text(facts["bytes_read"])
    if recall:
        rows[f"recall@{k}"] = f"{facts['recall']:.4f}, of {min(recall, facts['queries']):,} queries"
    if not outputs:
        rows["ids"] = "with --out FILE.npy, or --json"
    where = {"path": str(index), "out": None if to is None else str(to)}
    where |= {"distances_out": None if distances is None else str(distances)}
    if not outputs and as_json:
        facts |= {
            "ids": found.ids.tolist(),
            "distances": [[x if x < np.inf else None for x in row] for row in found.distances.tolist()],
        }
    tell(f"search of {index}", rows, as_json, where | facts)


@app.command("check")
@reports_errors
def check(
    index: IndexFile,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="BASE", help="What it was built of: then also compare with brute force."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, max=100_000, help="Vectors of BASE that are looked for.")] = 10,
    k: Annotated[int, typer.Option("-k", min=1, max=_MOST_K, help="So many nearest vectors of each.")] = 10,
    engine: By = Engine.auto,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Read a whole index: is it damaged, and does it find what a search without it does?"""
    from gpufs import vectors as module
    from gpufs.collage import console
    from gpufs.doctor import size_text

    begin = time.monotonic()
    with sigterm_interrupts(), console.progress() as bar:
        facts = module.check(index, base, queries=queries, k=k, engine=engine.value, threads=threads, progress=bar.show)
    seconds = time.monotonic() - begin
    rows = {"vectors": facts["nvectors"], "lists": facts["nlists"], "file": size_text(facts["file_nbytes"])}
    if base is not None:
        rows["compared with brute force"] = f"{facts['queries']:,} queries: right"
    rows |= {"checked": "right", "time": f"{seconds:.1f} s"}
    tell(f"index {index}", rows, as_json, {"path": str(index), **facts, "seconds": seconds})

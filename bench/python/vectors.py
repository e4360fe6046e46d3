#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The search of gpufs.vectors against FAISS's on the host with the same index: the same lists, centroids and nprobe.

Vectors are synthetic, in clusters; the index lies in a file in memory, and is larger than the cache. Both ways take
turns, after one turn that is not counted. What both find is compared, outside the time. FAISS (`pip install faiss-cpu`)
has all lists in memory of its own. Where it is not there, the search alone is measured, and a note says so.

vectors_vs_faiss16: all queries as one batch, against FAISS with 16 threads; vectors_vs_faiss16_100 and
vectors_vs_faiss16_1: batches of so many (bounded by nothing). vectors_recall: recall@k of the search, and its queries
a second.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpufs import _native, _vectors, kmeans, vectors
from gpufs.doctor import gpus_from_driver
from harness import Options, Results, Size, parse, spread_of
from numpy.typing import NDArray

NAMES = ("vectors_vs_faiss16", "vectors_vs_faiss16_100", "vectors_vs_faiss16_1", "vectors_recall")
SIZES = {
    "vectors": Size(100_000_000, 4_000_000, 20_000, "vectors in the index"),
    "dim": Size(96, 96, 24, "elements of each"),
    "lists": Size(10_000, 2_000, 100, "lists"),
    "nprobe": Size(32, 16, 5, "lists that a query looks into"),
    "k": Size(10, 10, 10, "nearest vectors of each query"),
    "queries": Size(10_000, 10_000, 200, "queries"),
    "exact": Size(200, 200, 50, "of them that also look into all lists, for recall"),
    "calls": Size(100, 30, 3, "searches of few queries"),
    "runs": Size(3, 3, 1, "of each way, by turns, after one that is not counted"),
    "threads": Size(16, 16, 2, "of FAISS, and of who makes the index"),
}

Answer = tuple[NDArray[np.int64], NDArray[np.float32]]


def same_index_of_faiss(path: Path, threads: int) -> Any:
    """FAISS's IVF-Flat with our centroids and lists."""
    import faiss

    faiss.omp_set_num_threads(threads)
    ours = _vectors.Index(path)
    centroids = ours.centroids()
    quantizer = faiss.IndexFlatL2(centroids.shape[1])
    quantizer.add(centroids)
    theirs = faiss.IndexIVFFlat(quantizer, centroids.shape[1], len(centroids), faiss.METRIC_L2)
    theirs.is_trained = True
    for number in range(len(centroids)):
        rows, ids = ours.list(number)
        if len(rows):
            codes, numbers = rows.view(np.uint8).reshape(-1), np.zeros(len(rows), np.int64)
            numbers[:] = ids[0]  # FAISS knows NumPy's int64 alone, not the one that is called long long
            theirs.invlists.add_entries(number, len(rows), faiss.swig_ptr(numbers), faiss.swig_ptr(codes))
            theirs.ntotal += len(rows)
    return theirs


def alike(a: Answer, b: Answer) -> bool:
    """Whether two searches found the same, but for neighbours that are as near as float32 can tell."""
    near = np.isclose(a[1], b[1], rtol=1e-4, atol=1e-5)
    return bool(near.mean() > 0.9999 and (a[0] == b[0]).mean() > 0.999)


def recall_of(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, true, strict=True)]))


def by_turns(ways: dict[str, Callable[[int], Answer]], turns: int) -> tuple[dict[str, list[float]], dict[str, Answer]]:
    """Seconds of each way in each turn but the first, and the last answers. A way gets the number of the turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers = {}
    for turn in range(turns + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            answers[name] = way(turn)
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return seconds, answers


def compare(
    index: vectors.Index, theirs: Any, queries: NDArray[np.float32], options: Options, results: Results
) -> None:
    k, nprobe = options["k"], options["nprobe"]
    theirs.nprobe = nprobe
    exact = index.search(queries[: options["exact"]], k, nprobe=None).ids
    for n in (len(queries), 100, 1):
        name = "vectors_vs_faiss16" + ("" if n == len(queries) else f"_{n}")
        if not options.wants(name):
            continue

        def part(turn: int, n: int = n) -> NDArray[np.float32]:
            first = turn * n % (len(queries) - n + 1)
            return queries[first : first + n]

        def by_faiss(turn: int) -> Answer:
            distances, ids = theirs.search(part(turn), k)
            return ids, distances

        seconds, answers = by_turns(
            {"gpufs": lambda turn: index.search(part(turn), k, nprobe=nprobe)[:2], "faiss": by_faiss},
            options["runs"] if n == len(queries) else options["calls"],
        )
        medians = {way: spread_of(took)[0] for way, took in seconds.items()}
        details = {"ms": medians["gpufs"] * 1e3, "their ms": medians["faiss"] * 1e3}
        if n == len(queries):
            for way, answer in answers.items():
                details[f"recall of {way}"] = recall_of(answer[0][: len(exact)], exact)
        results.add(
            name,
            f"batches of {n}, {index.info['nvectors']} vectors",
            [n / took for took in seconds["gpufs"]],
            "queries/s",
            ceiling=n / medians["faiss"],
            ceiling_is=f"FAISS on the host, {options['threads']} threads",
            verified=alike(answers["gpufs"], answers["faiss"]),
            details=details,
        )


def search_alone(
    index: vectors.Index, base: vectors.Rows, queries: NDArray[np.float32], options: Options, results: Results
) -> None:
    k, nprobe = options["k"], options["nprobe"]
    seconds, answers = by_turns({"gpufs": lambda _: index.search(queries, k, nprobe=nprobe)[:2]}, options["runs"])
    share = index.recall(queries, answers["gpufs"][0], options["exact"])
    right = 0 < share <= 1
    if base.shape[0] <= 10_000_000:  # else it takes minutes; the bench in C++ does it
        vectors.check(index.path, base, queries=2, k=k, engine=index.engine)
    rate = len(queries) / spread_of(seconds["gpufs"])[0]
    label = f"{len(queries)} queries, {nprobe} of {index.info['nlists']} lists"
    results.add("vectors_recall", label, [share], "", share=False, verified=right, details={"queries/s": rate})


def main(arguments: list[str]) -> int:
    no_gpu = _native.engine_missing("gpu")

    def choose(choice: str) -> str:
        return "host" if choice == "host" or no_gpu else "gpu"

    options = parse(arguments, __doc__ or "", NAMES, choose, "vectors.py", SIZES)
    engine = "cpu" if choose(options.device) == "host" else "gpu"
    names, _ = gpus_from_driver()
    results = Results(options, names[0] if names else None, 0, "vectors_faiss")
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir=options.dir) as name:
        path = Path(name) / "index"
        how = {"clusters": max(1, options["lists"] // 64), "seed": 1}
        base = vectors.Synthetic(options["vectors"], options["dim"], **how)
        wanted = vectors.Synthetic(options["queries"], options["dim"], first=options["vectors"], **how)
        begin = time.perf_counter()
        vectors.build(base, path, lists=options["lists"], engine=engine)
        results.note(f"the index of {options['vectors']} vectors was made in {time.perf_counter() - begin:.1f} s")
        queries = wanted.read(0, options["queries"])
        with vectors.Index(path, engine=engine, threads=options["threads"], cache=options.cache) as index:
            if options.wants("vectors_recall"):
                search_alone(index, base, queries, options, results)
            if not kmeans.has_faiss():
                results.skip(filter(options.wants, NAMES[:3]), "faiss is not installed")
            elif options.wants(*NAMES[:3]):
                compare(index, same_index_of_faiss(path, options["threads"]), queries, options, results)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

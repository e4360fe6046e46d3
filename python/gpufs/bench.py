# SPDX-License-Identifier: Apache-2.0
"""``gpufs bench``: a gather of random rows, by gpufs and by what else there is, on this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import gpufs
from gpufs.errors import GpufsError
from gpufs.formats import find_layout

Way = Callable[[int], Any]

_NTHREADS = 16
_MOST_ROWS, _MOST_NBYTES = 100_000, 64 << 20


def measure(path: str, how: dict[str, Any], nrows: int, runs: int, seed: int) -> dict[str, Any]:
    """Seconds of each way to gather `nrows` random rows (0: as many as 64 MiB have), after a run that is not counted.

    how: gpufs.open()'s arguments. Raises GpufsError also where a way's rows are not NumPy's.
    """
    with gpufs.open(path, **how, as_bits=True) as x:  # which compare as they are
        if x.nbytes == 0:
            raise GpufsError(f"{path} has no rows to read")
        row_nbytes = x.nbytes // len(x)
        nrows = nrows or max(1, min(_MOST_ROWS, _MOST_NBYTES // row_nbytes))
        ids = np.random.default_rng(seed).integers(0, len(x), nrows)
        layout = find_layout(path, **{key: value for key, value in how.items() if key != "engine"})
        offsets, like = layout.offsets(ids), np.empty((nrows, *x.shape[1:]), layout.dtype)
        with Path(path).open("rb") as file, ThreadPoolExecutor(_NTHREADS) as pool:
            ways: dict[str, Way] = {f"x[idx] by {x.engine}": lambda _: x[ids]}
            if not layout.pieces:  # NumPy has no array in several
                mapped = np.memmap(path, layout.dtype, "r", layout.begin, x.shape)
                ways["memory map"] = lambda _: mapped[ids]
            ways[f"pread by {_NTHREADS} threads"] = lambda _: _pread(pool, file.fileno(), like, offsets)
            wanted = ways["memory map" if "memory map" in ways else f"pread by {_NTHREADS} threads"](0)

            def check(way: str, _: int, rows: Any) -> None:
                if rows.tobytes() != wanted.tobytes():
                    raise GpufsError(f"{way} gave other rows than NumPy did")

            seconds = by_turns(ways, runs, check)
        cases = [_case(way, took, nrows * row_nbytes) for way, took in seconds.items()]
        return {
            "path": path,
            "engine": x.engine,
            "way": x.path_in_use,
            "nrows": nrows,
            "row_nbytes": row_nbytes,
            "nprocessors": len(os.sched_getaffinity(0)),
            "cases": cases,
        }


def by_turns(ways: dict[str, Way], runs: int, check: Callable[[str, int, Any], None]) -> dict[str, list[float]]:
    """Seconds of each way's runs, which take turns, after one that is not counted.

    A way takes the run's number, 0 of the one that is not counted. check: of each answer, outside the time.
    """
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for run in range(runs + 1):
        for way, go in ways.items():
            started = time.perf_counter()
            answer = go(run)
            took = time.perf_counter() - started
            check(way, run, answer)
            del answer  # before the next one is made
            if run > 0:
                seconds[way].append(took)
    return seconds


def _case(way: str, seconds: list[float], nbytes: int) -> dict[str, Any]:
    def rate(of: float) -> float:
        return nbytes / of / 1e9

    median = statistics.median(seconds)
    rates = {"median": rate(median), "least": rate(max(seconds)), "most": rate(min(seconds))}
    return {"name": way, "median_s": median, "seconds": seconds, "gb_per_s": rates}


def _pread(pool: ThreadPoolExecutor, file: int, like: Any, offsets: Any) -> Any:
    rows = np.empty_like(like)
    row_nbytes = rows.nbytes // len(rows)
    into = memoryview(rows.reshape(-1).view(np.uint8))

    def read(part: Any) -> None:
        for i in part:
            os.preadv(file, [into[i * row_nbytes : (i + 1) * row_nbytes]], int(offsets[i]))

    list(pool.map(read, np.array_split(np.arange(len(offsets)), _NTHREADS)))
    return rows


def plotting() -> Any:
    """matplotlib's pyplot, that needs no window. GpufsError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise GpufsError("a plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def draw(result: dict[str, Any], to: Path) -> None:
    """Bars of the medians, with the fastest and the slowest run."""
    pyplot = plotting()
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.6 * len(result["cases"])), layout="constrained")
    rates = [case["gb_per_s"] for case in result["cases"]]
    medians = [rate["median"] for rate in rates]
    spread = [[r["median"] - r["least"] for r in rates], [r["most"] - r["median"] for r in rates]]
    axes.barh([case["name"] for case in result["cases"]], medians, xerr=spread, capsize=3, color="#4477aa")
    axes.invert_yaxis()
    axes.set_xlabel(f"GB/s, {result['nrows']} random rows of {result['row_nbytes']} B, median and spread")
    try:
        figure.savefig(to)
    except ValueError as error:  # no such kind of picture
        raise GpufsError(f"{to}: {error}") from None
    finally:
        pyplot.close(figure)

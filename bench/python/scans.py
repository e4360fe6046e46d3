#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpufs.par's scans and sorts of arrays on a GPU against torch's and CuPy's, on this machine.

All ways take turns, and each answer is compared with NumPy's, outside the time, which is until the result is there.
Bounded by nothing. Without a GPU arrays are small, and NumPy stands in: answers are checked, and figures mean nothing.

py_scan_there: sums of 4-byte whole numbers, and of real ones, against torch.cumsum and cupy.cumsum, the faster one.
py_sort_there: 4-byte and 8-byte whole numbers, against torch.sort and cupy.sort.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from gpufs import _rows, par
from gpufs.doctor import gpus_from_driver
from harness import Options, Results, Size, parse, spread_of

NAMES = ("py_scan_there", "py_sort_there")
SIZES = {
    "elements": Size(1 << 28, 1 << 24, 50_000, "of an array that is scanned"),
    "keys": Size(1 << 27, 1 << 22, 20_000, "of an array that is sorted"),
    "runs": Size(9, 3, 2, "of each way, by turns, after one that is not counted"),
}


class Gpu:
    """torch's arrays, and CuPy's of the same memory."""

    engine = "gpu"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.cupy: Any = __import__("cupy") if find_spec("cupy") else None

    def of(self, array: Any) -> Any:
        return self.torch.as_tensor(array, device="cuda")

    def host(self, array: Any) -> Any:
        return array.cpu().numpy() if isinstance(array, self.torch.Tensor) else array.get()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def rivals(self, x: Any, sorts: bool) -> dict[str, Callable[[], Any]]:
        ways: dict[str, Callable[[], Any]] = {
            "torch": (lambda: self.torch.sort(x).values) if sorts else (lambda: self.torch.cumsum(x, 0, dtype=x.dtype))
        }
        if self.cupy:
            same = self.cupy.asarray(x)
            ways["CuPy"] = (
                (lambda: self.cupy.sort(same)) if sorts else (lambda: self.cupy.cumsum(same, dtype=same.dtype))
            )
        return ways


class Host:
    engine = "cpu"

    def of(self, array: Any) -> Any:
        return array

    def host(self, array: Any) -> Any:
        return array

    def wait(self) -> None: ...

    def rivals(self, x: Any, sorts: bool) -> dict[str, Callable[[], Any]]:
        return {"NumPy": (lambda: np.sort(x)) if sorts else (lambda: np.cumsum(x, dtype=x.dtype))}


def measure(name: str, dtype: str, options: Options, results: Results, on: Gpu | Host) -> None:
    sorts, draw = name == "py_sort_there", np.random.default_rng(1)
    n = options["keys" if sorts else "elements"]
    if dtype[0] == "f":
        values = draw.integers(0, 2, n).astype(dtype)  # sums are exact up to 2^24, and then near
    else:
        values = draw.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, n, dtype)
    wanted = np.sort(values) if sorts else np.cumsum(values, dtype="f8" if dtype[0] == "f" else dtype)
    x = on.of(values)
    ours = (lambda: par.sort(x, engine=on.engine)) if sorts else (lambda: par.scan(x, engine=on.engine))
    ways = {"gpufs": ours, **on.rivals(x, sorts)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    right = dict.fromkeys(ways, True)
    for turn in range(options["runs"] + 1):
        for way, call in ways.items():
            on.wait()
            begin = time.perf_counter()
            result = call()
            on.wait()
            if turn:
                seconds[way].append(time.perf_counter() - begin)
            if turn in (0, options["runs"]):
                got = on.host(result)
                right[way] &= bool(np.allclose(got, wanted, rtol=1e-4) if dtype[0] == "f" else (got == wanted).all())
            del result
    rates = {way: n / spread_of(took)[0] * 1e-9 for way, took in seconds.items()}
    best = max(rates.keys() - {"gpufs"}, key=lambda way: rates[way] if right[way] else 0.0)
    results.add(
        name,
        f"{n} elements of {np.dtype(dtype).name}",
        [n / took * 1e-9 for took in seconds["gpufs"]],
        "G/s",
        ceiling=rates[best],
        ceiling_is=best,
        verified=right["gpufs"] and right[best],
        details={f"{way} G/s": rate for way, rate in rates.items() if way not in ("gpufs", best)},
    )


def main(arguments: list[str]) -> int:
    no_gpu = _rows.engine_missing("gpu") or not find_spec("torch")

    def choose(choice: str) -> str:
        return "host" if choice == "host" or no_gpu else "gpu"

    options = parse(arguments, __doc__ or "", NAMES, choose, "scans.py", SIZES)
    on: Gpu | Host = Host() if choose(options.device) == "host" else Gpu()
    names, _ = gpus_from_driver()
    results = Results(options, names[0] if names else None, 0, "python_scans")
    for name, dtypes in zip(NAMES, (("i4", "f4"), ("i4", "i8")), strict=True):
        for dtype in dtypes if options.wants(name) else ():
            measure(name, dtype, options, results, on)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

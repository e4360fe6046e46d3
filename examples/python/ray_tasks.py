# SPDX-License-Identifier: Apache-2.0
"""Ray tasks that each read, or write, a shard of a file: means of columns, and rows made to have length 1."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import ray


@ray.remote
def sums(shard: gpufs.Array) -> Any:
    """Of the columns. A piece at a time, as a shard may be larger than the worker's memory."""
    total = np.zeros(shard.shape[1])
    for begin in range(0, len(shard), 4096):
        total += shard[begin : begin + 4096].sum(axis=0, dtype=np.float64)
    return total


@ray.remote
def normalize(shard: gpufs.Array) -> None:
    """Writes each row anew. If its worker is killed, another does it again: of rows of length 1 it makes the same."""
    with shard:  # its end has the rows in the file
        for begin in range(0, len(shard), 4096):
            rows = shard[begin : begin + 4096]
            shard[begin : begin + 4096] = rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main() -> int:
    features = np.random.default_rng(1).random((50_000, 32), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features)
        ray.init()

        x = gpufs.open(path, engine="cpu")
        nshards = 8
        totals = ray.get([sums.remote(x.shard(i, nshards)) for i in range(nshards)])
        means = sum(totals) / len(x)

        y = gpufs.open(path, mode="r+", engine="cpu")
        ray.get([normalize.remote(y.shard(i, nshards)) for i in range(nshards)])

        ray.shutdown()
        lengths = np.linalg.norm(np.load(path), axis=1)
        right = np.allclose(means, features.mean(axis=0), rtol=1e-5) and np.allclose(lengths, 1, rtol=1e-5)
    print(f"{len(features)} rows by {nshards} tasks: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

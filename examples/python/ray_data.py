# SPDX-License-Identifier: Apache-2.0
"""Ray Data: a file's rows as a dataset, and a dataset of numbers whose rows an actor pool gathers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs
import gpufs.ray
import numpy as np
import ray


class Gather:
    """Made once in each actor of the pool, and called with one batch after the other."""

    def __init__(self, x: gpufs.Array) -> None:
        self.x = x

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "features": self.x[batch["id"]]}


def main() -> int:
    features = np.random.default_rng(1).random((20_000, 32), np.float32)
    labels = np.arange(len(features)) % 10
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "features.npy", features)
        np.save(Path(folder) / "labels.npy", labels)
        ray.init()
        x = gpufs.open(Path(folder) / "features.npy", engine="cpu")

        # All rows: in blocks, which are read where they are needed, and come as they are done.
        data = gpufs.ray.read_array({"features": x, "label": Path(folder) / "labels.npy"})
        nines = data.map_batches(lambda batch: {"features": batch["features"][batch["label"] == 9]})
        found = np.concatenate([batch["features"] for batch in nines.iter_batches()])

        # In random order: the numbers are shuffled, which are few bytes, and then rows are gathered.
        numbers = ray.data.range(len(x)).random_shuffle(seed=1)
        actors = ray.data.ActorPoolStrategy(min_size=1, max_size=2)
        shuffled = numbers.map_batches(Gather, fn_constructor_args=[x], batch_size=256, compute=actors)
        batches = list(shuffled.iter_batches())

        ray.shutdown()
    ids = np.concatenate([batch["id"] for batch in batches])
    right = np.array_equal(np.sort(found, axis=0), np.sort(features[labels == 9], axis=0))
    right = right and np.array_equal(np.sort(ids), np.arange(len(features)))
    right = right and np.array_equal(np.concatenate([batch["features"] for batch in batches]), features[ids])
    print(f"{len(found)} rows with label 9, and {len(ids)} in random order: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

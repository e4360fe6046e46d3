# SPDX-License-Identifier: Apache-2.0
"""Ray actors that serve gathers: each keeps the file open, and so what it has in its page cache, from call to call."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import ray
from ray.util import ActorPool


@ray.remote(max_restarts=-1, max_task_retries=-1)  # one that is killed starts again, and answers what it was asked
class Features:
    def __init__(self, x: gpufs.Array) -> None:
        self.x = x

    def rows(self, idx: Any) -> Any:
        return self.x[idx]


def main() -> int:
    features = np.random.default_rng(1).random((50_000, 32), np.float32)
    batches = np.random.default_rng(2).integers(0, len(features), (40, 256))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features)
        ray.init()

        x = gpufs.open(path, engine="cpu")
        pool = ActorPool([Features.remote(x) for _ in range(2)])
        gathered = list(pool.map(lambda actor, idx: actor.rows.remote(idx), batches))

        ray.shutdown()
    right = np.array_equal(gathered, features[batches])
    print(f"{len(batches)} batches by 2 actors: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

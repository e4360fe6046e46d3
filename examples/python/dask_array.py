# SPDX-License-Identifier: Apache-2.0
"""Dask: a file's rows in chunks, by threads of this process, and by a cluster of others."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask.array as da
import gpufs
import numpy as np
from dask.distributed import Client


def main() -> int:
    features = np.random.default_rng(1).random((50_000, 32), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features)

        x = gpufs.open(path, engine="cpu")
        d = da.from_array(x, chunks=(8192, -1))
        means = d.mean(axis=0).compute()  # threads, which share x

        with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):  # processes: each opens x for itself
            largest = da.topk(d[:, 3], 5).compute()

    right = np.allclose(means, features.mean(axis=0), rtol=1e-5)
    right = right and np.array_equal(largest, -np.sort(-features[:, 3])[:5])
    print(f"{len(features)} rows: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

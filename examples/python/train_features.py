# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier whose features and labels lie in files, and again with both in memory: the losses are the same.

    train_features.py [ENGINE [WORKERS]]

A batch is one gather: a worker is given its indices, and gives its rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs.torch
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

NROWS, NCOLUMNS, NCLASSES = 5000, 32, 4


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(1)
    features = rng.standard_normal((NROWS, NCOLUMNS), np.float32)
    np.save(folder / "features.npy", features)
    np.save(folder / "labels.npy", (features @ rng.standard_normal((NCOLUMNS, NCLASSES))).argmax(axis=1))


def train(dataset: Any, nworkers: int) -> list[float]:
    """The mean loss of each epoch."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(NCOLUMNS, 64), torch.nn.ReLU(), torch.nn.Linear(64, NCLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = BatchSampler(RandomSampler(dataset), batch_size=250, drop_last=False)
    loader = DataLoader(
        dataset, sampler=batches, batch_size=None, num_workers=nworkers, persistent_workers=nworkers > 0
    )
    losses = []
    for _ in range(3):
        losses.append(0.0)
        for features, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            losses[-1] += loss.item() / len(loader)
    return losses


def main(engine: str = "cpu", nworkers: str = "0") -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        dataset = gpufs.torch.Dataset(f"{folder}/features.npy", f"{folder}/labels.npy", engine=engine, cache="16MiB")
        losses = train(dataset, int(nworkers))
        in_memory = [torch.from_numpy(np.load(f"{folder}/{name}.npy")) for name in ("features", "labels")]
        right = losses == train(TensorDataset(*in_memory), int(nworkers)) and losses[-1] < losses[0] / 2
    print(f"losses {losses}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

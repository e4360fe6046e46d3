# SPDX-License-Identifier: Apache-2.0
"""Trains an embedding whose table lies in a file, and again one of torch in memory: losses and tables are the same.

    train_embedding.py [ENGINE]

The table may be larger than memory: a step reads and writes the rows that its batch names, and no others.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gpufs.torch
import numpy as np
import torch

NWORDS, NCOLUMNS, NBAGS, NSTEPS = 5000, 16, 100, 60


def train(bag: Any, rows: Any) -> list[float]:
    """The loss of each step. rows: the optimizer of the bag's."""
    torch.manual_seed(1)
    top = torch.nn.Linear(NCOLUMNS, 1)
    optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
    liked = torch.rand(NWORDS) < 0.5
    losses = []
    for _ in range(NSTEPS):
        words = torch.randint(NWORDS, (NBAGS, 20)).where(torch.rand(NBAGS, 20) < 0.5, 7)  # one is in all bags
        labels = liked[words].float().mean(dim=1, keepdim=True)
        optimizer.zero_grad()
        rows.zero_grad()
        loss = torch.nn.functional.mse_loss(top(bag(words)), labels)
        loss.backward()
        optimizer.step()
        rows.step()
        losses.append(loss.item())
    return losses


def main(engine: str = "auto") -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/table.npy"
        np.save(path, np.random.default_rng(1).standard_normal((NWORDS, NCOLUMNS), np.float32))
        in_memory = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(np.load(path)), freeze=False, sparse=True)
        in_file = gpufs.torch.EmbeddingBag(path, mode="mean", engine=engine, cache="16MiB")
        rows = gpufs.torch.SparseAdam(in_file, f"{folder}/moments.npy", lr=0.01, cache="16MiB")
        losses = train(in_file, rows)
        rows.flush()
        wanted = train(in_memory, torch.optim.SparseAdam(in_memory.parameters(), lr=0.01))
        right = np.allclose(losses, wanted, rtol=1e-4) and losses[-1] < losses[0] / 2
        right = right and np.allclose(np.load(path), in_memory.weight.detach(), atol=1e-5)
    print(f"losses {losses[0]:.4f} to {losses[-1]:.4f}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

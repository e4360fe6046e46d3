# SPDX-License-Identifier: Apache-2.0
"""Trains a graph network whose nodes' features lie in a file, and again with all in memory: the losses are the same.

    train_gnn.py [ENGINE [WORKERS]]

The loader is PyG's, and is given a feature store and a graph store in place of the graph.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import gpufs.torch
import numpy as np
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

NNODES, NEDGES, NCOLUMNS, NCLASSES = 2000, 12000, 16, 3


class AllNeighbors(BaseSampler):
    """All neighbours within two edges: for machines with neither pyg-lib nor torch-sparse, which NeighborLoader needs
    to draw some of them."""

    def __init__(self, edges: Any) -> None:
        self._edges = edges

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        nodes = index.node
        for _ in range(2):
            wanted = torch.isin(self._edges[1], nodes)
            new = torch.unique(self._edges[0, wanted])
            nodes = torch.cat([nodes, new[~torch.isin(new, nodes)]])  # the seeds come first
        ids, places = nodes.sort()
        row, col = places[torch.searchsorted(ids, self._edges[:, wanted])]
        return SamplerOutput(node=nodes, row=row, col=col, edge=None, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        raise NotImplementedError


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(NCOLUMNS, 32), SAGEConv(32, NCLASSES)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def make_graph(folder: Path) -> Any:
    """The edges. A node's label is the column in which its neighbours' features are largest."""
    rng = np.random.default_rng(1)
    edges = rng.integers(0, NNODES, (2, NEDGES))
    features = rng.standard_normal((NNODES, NCOLUMNS), np.float32)
    sums = np.zeros((NNODES, NCLASSES))
    np.add.at(sums, edges[1], features[edges[0], :NCLASSES])
    np.save(folder / "x.npy", features)
    np.save(folder / "y.npy", sums.argmax(axis=1))
    return torch.from_numpy(edges)


def train(data: Any, edges: Any, nworkers: int) -> list[float]:
    """The mean loss of each epoch."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    has_sampler = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE
    loader = NeighborLoader(
        data,
        num_neighbors=[10, 10],
        input_nodes=torch.arange(NNODES // 2),
        batch_size=100,
        shuffle=True,
        num_workers=nworkers,
        neighbor_sampler=None if has_sampler else AllNeighbors(edges),
    )
    losses = []
    for _ in range(3):
        losses.append(0.0)
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            losses[-1] += loss.item() / len(loader)
    return losses


def main(engine: str = "cpu", nworkers: str = "0") -> int:
    with tempfile.TemporaryDirectory() as folder:
        edges = make_graph(Path(folder))
        features = gpufs.torch.FeatureStore(
            {"x": f"{folder}/x.npy", "y": f"{folder}/y.npy"}, engine=engine, cache="16MiB"
        )
        graph = Data(num_nodes=NNODES)
        graph.put_edge_index(edges, layout="coo", size=(NNODES, NNODES))  # samplers ask for the size
        losses = train((features, graph), edges, int(nworkers))
        x, y = (torch.from_numpy(np.load(f"{folder}/{name}.npy")) for name in ("x", "y"))
        right = losses == train(Data(x=x, y=y, edge_index=edges), edges, int(nworkers)) and losses[-1] < losses[0] / 1.3
    print(f"losses {losses}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

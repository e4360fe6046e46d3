# SPDX-License-Identifier: Apache-2.0
"""gpufs.torch.FeatureStore by PyG's interface, and in its loaders; and the examples that train."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers

torch: Any = pytest.importorskip("torch")
import gpufs.torch  # noqa: E402

torch.set_num_threads(1)  # of small matrices more take longer, beside other tests

ROOT = Path(__file__).parents[2]
SIZES = {"paper": 300, "author": 200, "field": 40}
EDGES = [
    ("author", "writes", "paper"),
    ("paper", "by", "author"),
    ("paper", "about", "field"),
    ("field", "of", "paper"),
]


def x_of(kind: str) -> Any:
    return numbers(SIZES[kind], 3 + len(kind)) / np.float32(65521)


def edges_of(kind: tuple[str, str, str]) -> Any:
    rng = np.random.default_rng(EDGES.index(kind))
    return torch.from_numpy(np.stack([rng.integers(0, SIZES[kind[0]], 900), rng.integers(0, SIZES[kind[2]], 900)]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("torch_geometric")
    for kind in SIZES:
        np.save(tmp_path / f"{kind}.npy", x_of(kind))
    return tmp_path


def store_of(folder: Path, engine: str, **options: Any) -> Any:
    files = {(kind, "x"): folder / f"{kind}.npy" for kind in SIZES}
    labels = {("paper", "y"): torch.arange(SIZES["paper"]) % 3}
    return gpufs.torch.FeatureStore(files | labels, engine=engine, **SMALL, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_interface(engine: str, folder: Path) -> None:
    store = store_of(folder, engine)
    x = torch.from_numpy(x_of("paper"))
    for index in (
        torch.tensor([5, 2, 5]),
        torch.arange(300) % 7 == 0,
        slice(5, 90, 3),
        slice(None),
        7,
        torch.tensor([]).long(),
    ):
        assert torch.equal(store["paper", "x", index], x[index])
        assert torch.equal(store.get_tensor("paper", "y", index), (torch.arange(300) % 3)[index])
        assert store.get_tensor_size("paper", "x", index) == tuple(x[index].shape)
    assert torch.equal(store["paper", "x"][None], x) and torch.equal(store["paper"].x[slice(1, 3)], x[1:3])
    found = store.multi_get_tensor(
        [torch_attr(kind, "x", torch.tensor([0, 3])) for kind in SIZES]  # any number of types
    )
    assert all(np.array_equal(f, x_of(kind)[[0, 3]]) for f, kind in zip(found, SIZES, strict=True))
    attrs = store.get_all_tensor_attrs()
    assert {(a.group_name, a.attr_name) for a in attrs} == {*((kind, "x") for kind in SIZES), ("paper", "y")}
    assert not any(a.is_set("index") for a in attrs)
    attrs[0].index = 3  # as loaders do
    assert not store.get_all_tensor_attrs()[0].is_set("index")
    assert store.get_tensor_size("author", "x") == (200, 9) and store.get_tensor_size("author", "y") is None
    for wrong in (300, torch.tensor([1, -301])):
        with pytest.raises(IndexError):
            store["paper", "x", wrong]
    with pytest.raises(KeyError, match="there is no tensor"):
        store["author", "y", None]
    with pytest.raises(ValueError, match="fully"):
        store.get_tensor("paper", "x")


def torch_attr(*key: Any) -> Any:
    from torch_geometric.data import TensorAttr

    return TensorAttr(*key)


@pytest.mark.parametrize("engine", ENGINES)
def test_put_update_and_remove(engine: str, folder: Path) -> None:
    store = gpufs.torch.FeatureStore(engine=engine, **SMALL)
    store["author", "x", None] = folder / "author.npy"
    store["paper", "x", None] = gpufs.open(folder / "paper.npy", mode="r+", engine=engine, **SMALL)
    store["paper", "y", None] = np.arange(300)
    assert store["paper", "y", slice(3)].tolist() == [0, 1, 2]
    assert store.put_tensor(torch.ones(2, 8), "paper", "x", torch.tensor([4, 6]))
    assert store.update_tensor(np.full((1, 8), 2, np.float32), "paper", "x", slice(8, 9))
    store["paper", "y", torch.tensor([0])] = torch.tensor([50])
    assert store["paper", "y", 0] == 50
    wanted = x_of("paper")
    wanted[[4, 6]], wanted[8] = 1, 2
    assert np.array_equal(store["paper", "x", None], wanted)
    with pytest.raises(ValueError, match="read only"):
        store["author", "x", slice(0, 1)] = torch.ones(1, 9)
    for update in (store.put_tensor, store.update_tensor):
        with pytest.raises(KeyError):
            update(torch.ones(1, 4), "field", "x", slice(0, 1))
    store["paper", "x", slice(None)] = torch.zeros(300, 2)  # the name is another's now
    assert store.get_tensor_size("paper", "x") == (300, 2)
    assert store.remove_tensor("paper", "x", None) and not store.remove_tensor("paper", "x", None)
    del store["paper", "y"]
    assert [(a.group_name, a.attr_name) for a in store.get_all_tensor_attrs()] == [("author", "x")]
    assert "author" in repr(store)
    with pytest.raises(FileNotFoundError):
        store["paper", "x", None] = folder / "none.npy"
    with pytest.raises(FileNotFoundError):
        gpufs.torch.FeatureStore({"x": folder / "none.npy"})


def all_neighbors(graph: Any) -> Any:
    """A sampler of a graph of several types: the seeds, and all nodes within two edges."""
    from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput

    class AllNeighbors(BaseSampler):
        def sample_from_nodes(self, index: Any, **how: Any) -> Any:
            nodes = {kind: torch.empty(0, dtype=torch.int64) for kind in SIZES} | {index.input_type: index.node}
            for _ in range(2):
                chosen = {e: graph[e].edge_index for e in EDGES}
                chosen = {e: pairs[:, torch.isin(pairs[1], nodes[e[2]])] for e, pairs in chosen.items()}
                for (kind, _, _), pairs in chosen.items():
                    new = torch.unique(pairs[0])
                    nodes[kind] = torch.cat([nodes[kind], new[~torch.isin(new, nodes[kind])]])
            row, col = {}, {}
            for e, pairs in chosen.items():
                for side, kind, out in ((0, e[0], row), (1, e[2], col)):
                    ids, places = nodes[kind].sort()
                    out[e] = places[torch.searchsorted(ids, pairs[side])]
            return HeteroSamplerOutput(nodes, row, col, dict.fromkeys(EDGES), metadata=(index.input_id, index.time))

        def sample_from_edges(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    return AllNeighbors()


@pytest.mark.parametrize("engine, nworkers", [(engine, 0) for engine in ENGINES] + [("cpu", 2)])
def test_a_graph_of_several_types_in_a_loader(engine: str, nworkers: int, folder: Path) -> None:
    """Batches are those of the graph in memory; by a sampler of our own, which takes no pyg-lib."""
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NodeLoader

    graph, whole = HeteroData(), HeteroData()
    for kind, n in SIZES.items():
        graph[kind].num_nodes, whole[kind].x = n, torch.from_numpy(x_of(kind))
    for e in EDGES:
        graph[e].edge_index = whole[e].edge_index = edges_of(e)
    whole["paper"].y = torch.arange(300) % 3
    got, wanted = [], []
    for data, batches in (((store_of(folder, engine), graph), got), (whole, wanted)):
        loader = NodeLoader(
            data,
            all_neighbors(graph),
            input_nodes=("paper", torch.arange(0, 300, 2)),
            batch_size=40,
            num_workers=nworkers if batches is got else 0,
        )
        batches += list(loader)
    assert len(got) == len(wanted) == 4
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine["paper"].batch_size == theirs["paper"].batch_size
        for kind in SIZES:
            assert torch.equal(mine[kind].x, theirs[kind].x)
        assert torch.equal(mine["paper"].y, theirs["paper"].y)
        for e in EDGES:
            assert torch.equal(mine[e].edge_index, theirs[e].edge_index)


def test_pygs_own_sampler(folder: Path) -> None:
    import torch_geometric.typing
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NeighborLoader

    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        pytest.skip("neither pyg-lib nor torch-sparse is installed")
    graph = HeteroData()
    for kind, n in SIZES.items():
        graph[kind].num_nodes = n
    for e in EDGES:
        graph[e].edge_index = edges_of(e)
    loader = NeighborLoader((store_of(folder, "cpu"), graph), [5, 5], input_nodes="paper", batch_size=50)
    for batch in loader:
        for kind in SIZES:
            assert np.array_equal(batch[kind].x, x_of(kind)[batch[kind].n_id])


def homogeneous(folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_sampler: bool) -> Any:
    """A loader by PyG's own sampler, of a graph of one type of nodes, as the guide makes it."""
    import torch_geometric.typing
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    if not has_sampler:  # the loader can be made without, and nothing be drawn
        monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", True)
    n = SIZES["paper"]
    graph = Data(num_nodes=n)
    edges = torch.stack([torch.arange(n), torch.arange(n).roll(1)])
    graph.put_edge_index(edges, layout="coo", size=(n, n))
    store = gpufs.torch.FeatureStore({"x": folder / "paper.npy"}, engine="cpu")
    return NeighborLoader((store, graph), [2, 2], input_nodes=torch.arange(n), batch_size=50)


def test_pygs_own_sampler_of_one_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_geometric.typing

    has_sampler = torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE
    loader = homogeneous(folder, monkeypatch, has_sampler=has_sampler)
    if not has_sampler:
        return  # it was made, which a graph without sizes does not let it
    for batch in loader:
        assert np.array_equal(batch.x, x_of("paper")[batch.n_id])


def test_it_pickles_as_paths_and_options(folder: Path) -> None:
    store = gpufs.torch.FeatureStore({"x": folder / "paper.npy"}, engine="cpu")
    text = pickle.dumps(store)
    again = pickle.loads(text)
    assert len(text) < 2000 and torch.equal(again[None, "x", slice(3)], torch.from_numpy(x_of("paper")[:3]))


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
def test_features_go_to_a_gpu(folder: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    labels = torch.arange(300)
    store = gpufs.torch.FeatureStore({"x": folder / "paper.npy", "y": labels}, device="cuda", **SMALL)
    x = torch.from_numpy(x_of("paper"))
    for index in (torch.tensor([5, 2, 5]), torch.arange(300) % 7 == 0, slice(5, 90, 3), None, 7):
        rows, picked = store[None, "x", index], store[None, "y", index]
        assert rows.is_cuda and picked.is_cuda
        at = slice(None) if index is None else index
        assert torch.equal(rows.cpu(), x[at]) and torch.equal(picked.cpu(), labels[at])


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/python/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["train_features", "train_gnn", "train_embedding"])
def test_the_examples_train_as_in_memory(name: str, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "train_gnn":
        pytest.importorskip("torch_geometric")
    assert example(name).main(engine) == 0, capsys.readouterr().out
    assert "right" in capsys.readouterr().out

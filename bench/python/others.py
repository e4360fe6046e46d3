# SPDX-License-Identifier: Apache-2.0
"""The engine cpu against NumPy, many small files, and an epoch of a graph's features."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
from devices import Gpu, Host
from gathers import OURS, median, rates
from gpufs.bench import Way, by_turns
from harness import Options, Results
from tables import Answers, Ids, Picks, Table, make_table, take

_BATCH, _FAN_OUT, _NEIGHBOURS = 1024, [10, 5], 10


def cpu_engine(table: Table, n: int, options: Options, results: Results) -> None:
    picks = Picks(table.nrows, n, options["runs"] + 1, seed=6)
    mapped = table.mapped()
    answers = Answers(table, picks.__getitem__, options["threads"], lambda rows: rows)
    with gpufs.open(table.path, engine="cpu") as x:
        ways: dict[str, Way] = {OURS: lambda run: x[picks[run]], "memmap": lambda run: mapped[picks[run]]}
        seconds = by_turns(ways, options["runs"], answers.check)
    gb = picks.n * table.row_nbytes / 1e9
    results.add(
        "py_cpu_engine",
        f"{picks.n} random rows of {table.row_nbytes} B of {table.nbytes / 1e9:.3g} GB",
        rates(seconds[OURS], gb),
        "GB/s",
        ceiling=median(rates(seconds["memmap"], gb)),
        ceiling_is="np.memmap[idx]",
        verified=answers.right,
    )


def read_files(folder: Path, options: Options, results: Results, device: Gpu | Host | None) -> None:
    """To one tensor; without torch, to NumPy's array by the engine cpu."""
    nfiles, nbytes, nthreads = options["files"], 4096, options["threads"]
    content = np.random.default_rng(7).integers(0, 256, (nfiles, nbytes), np.uint8)
    paths = [folder / f"{i // 1000}" / f"{i}" for i in range(nfiles)]
    for parent in {path.parent for path in paths}:
        parent.mkdir(parents=True)
    with ThreadPoolExecutor(nthreads) as pool:
        list(pool.map(lambda i: paths[i].write_bytes(content[i].tobytes()), range(nfiles)))
        engine = "cpu" if device is None else device.engine
        like = None if device is None else device.of(np.zeros(1, np.uint8))
        pinned = np.empty(content.size, np.uint8)
        if device is not None:
            pinned = device.empty_pinned(content.size // 4).view(device.torch.uint8).numpy()

        def together(_: int) -> Any:
            files = list(pool.map(lambda path: np.fromfile(path, np.uint8), paths))
            np.concatenate(files, out=pinned)
            return pinned if device is None else device.wait(device.of(pinned))

        def ours(_: int) -> Any:
            data, _offsets = gpufs.read_files(paths, like=like, engine=engine)
            return data if device is None else device.wait(data)

        wanted = content.reshape(-1) if device is None else device.of(content.reshape(-1))
        right = True

        def check(way: str, _: int, data: Any) -> None:
            nonlocal right
            if tuple(data.shape) != tuple(wanted.shape) or not bool((data == wanted).all()):
                print(f"{way} gave other bytes than were written", flush=True)
                right = False

        seconds = by_turns({OURS: ours, "threads": together}, options["runs"], check)
    results.add(
        "py_read_files",
        f"{nfiles} files of {nbytes} B",
        rates(seconds[OURS], nfiles / 1e3),
        "k files/s",
        ceiling=median(rates(seconds["threads"], nfiles / 1e3)),
        ceiling_is=f"np.fromfile by {nthreads} threads, and one copy",
        verified=right,
    )


class Batches:
    """Rows of each batch from a memory map, as a data set for a DataLoader's workers."""

    def __init__(self, table: Table, batches: list[Any]) -> None:
        self._table, self._batches = table, batches
        self._mapped: Any = None

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, i: int) -> Any:
        import torch

        if self._mapped is None:
            self._mapped = torch.from_numpy(self._table.mapped("r+"))
        return self._mapped[self._batches[i]]


def why_no_neighbor_loader() -> str:
    import torch_geometric.typing as kinds

    if kinds.WITH_PYG_LIB or kinds.WITH_TORCH_SPARSE:
        return ""
    return "NeighborLoader needs pyg-lib or torch-sparse"


def draw_batches(nnodes: int, nbatches: int, batch: int, torch: Any) -> list[Any]:
    """The nodes of each batch that PyG's NeighborLoader draws from a random graph; where it cannot, by draw_nodes()."""
    rng = np.random.default_rng(8)
    neighbours = rng.integers(0, nnodes, (nnodes, _NEIGHBOURS))
    seeds = rng.permutation(nnodes)[: nbatches * batch]
    if why_no_neighbor_loader():
        parts = [seeds[begin : begin + batch] for begin in range(0, len(seeds), batch)]
        return [torch.from_numpy(draw_nodes(neighbours, part, rng)) for part in parts]
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    edges = np.stack([neighbours.reshape(-1), np.repeat(np.arange(nnodes), _NEIGHBOURS)])
    graph = Data(edge_index=torch.from_numpy(edges), num_nodes=nnodes)
    loader = NeighborLoader(graph, _FAN_OUT, input_nodes=torch.from_numpy(seeds), batch_size=batch)
    return [drawn.n_id for drawn in loader]


def draw_nodes(neighbours: Ids, seeds: Ids, rng: np.random.Generator) -> Ids:
    """As NeighborLoader does: the seeds, and a hop after the other nodes that were not there, each once.

    Of each node that the hop before has found, a hop follows as many edges as its fan-out, none twice.
    """
    nodes = newest = seeds
    for most in _FAN_OUT:
        edges = rng.permuted(np.broadcast_to(np.arange(_NEIGHBOURS), (len(newest), _NEIGHBOURS)), axis=1)[:, :most]
        found, first = np.unique(np.take_along_axis(neighbours[newest], edges, 1), return_index=True)
        newest = found[np.argsort(first)]  # in the order in which they were found
        newest = newest[~np.isin(newest, nodes)]
        nodes = np.concatenate([nodes, newest])
    return nodes


def epoch(folder: Path, options: Options, results: Results, device: Gpu | Host) -> None:
    """What fetching the features of all batches takes: those that NeighborLoader drew before."""
    if find_spec("torch_geometric") is None:
        results.skip(["py_epoch"], "torch_geometric is not installed")
        return
    if why := why_no_neighbor_loader():
        results.note(f"py_epoch: {why}: the nodes of its batches are drawn as it draws them")
    import gpufs.torch

    torch, nthreads = device.torch, options["threads"]
    table = make_table(folder / "graph.npy", options.sizes["graph-gb"] * 1e9, 4096, nthreads)
    batch = _BATCH if isinstance(device, Gpu) else 16
    batches = draw_batches(table.nrows, options["batches"], batch, torch)
    # Its workers are there before the first epoch that is measured.
    loader = torch.utils.data.DataLoader(
        Batches(table, batches),
        batch_size=None,
        num_workers=nthreads,
        persistent_workers=True,
        pin_memory=isinstance(device, Gpu),
    )
    mapped, right = table.mapped(), True

    def is_right(rows: Any, nodes: Any) -> bool:
        return bool((device.of(take(mapped, nodes.numpy(), nthreads)) == rows).all())

    def through(run: int, fetched: Iterator[Any]) -> Any:
        """Of the epoch that is not counted all rows are compared; of the others what is kept, as all would not fit."""
        nonlocal right
        kept = []
        for nodes, rows in zip(batches, fetched, strict=True):
            if run == 0:
                right = right and is_right(rows, nodes)
            kept.append(rows[:: len(rows) // 64 + 1].clone())
        return device.wait(kept)

    def compare(_way: str, _run: int, kept: list[Any]) -> None:
        nonlocal right
        pairs = zip(batches, kept, strict=True)
        right = right and all(is_right(rows, nodes[:: len(nodes) // 64 + 1]) for nodes, rows in pairs)

    with gpufs.open(table.path, engine=device.engine, cache=max(1 << 20, table.nbytes // 4)) as x:
        x.prepare()
        store = gpufs.torch.FeatureStore({"x": x}, device=device.device)
        ways: dict[str, Way] = {
            OURS: lambda run: through(run, (store[None, "x", nodes] for nodes in batches)),
            "loader": lambda run: through(run, (rows.to(device.device, non_blocking=True) for rows in loader)),
        }
        seconds = by_turns(ways, options["runs"], compare)
    nrows = sum(len(nodes) for nodes in batches)
    results.add(
        "py_epoch",
        f"{len(batches)} batches, {nrows} rows of {table.row_nbytes} B, 4 times the cache",
        rates(seconds[OURS], nrows * table.row_nbytes / 1e9),
        "GB/s",
        ceiling=median(rates(seconds["loader"], nrows * table.row_nbytes / 1e9)),
        ceiling_is=f"a DataLoader of {nthreads} workers over a memory map",
        verified=right,
    )

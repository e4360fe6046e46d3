# SPDX-License-Identifier: Apache-2.0
"""gpufs.torch.Dataset: alone, in DataLoader's workers, and by the samplers that its users have."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers

torch: Any = pytest.importorskip("torch")
import gpufs.torch  # noqa: E402
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset, random_split  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

N = 600


@pytest.fixture
def files(tmp_path: Path) -> tuple[Any, Any]:
    """Of features and labels the paths; their contents are features() and arange(N)."""
    np.save(tmp_path / "x.npy", features().numpy())
    np.save(tmp_path / "y.npy", np.arange(N))
    return tmp_path / "x.npy", tmp_path / "y.npy"


def features() -> Any:
    return torch.from_numpy(numbers(N, 3, 2))


def loaded(loader: Any) -> list[int]:
    """The labels in their order, after a look whether their features are with them."""
    labels = []
    for x, y in loader:
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        assert torch.equal(x, features()[y])
        labels += y.tolist()
    return labels


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_by_number(engine: str, files: tuple[Any, Any]) -> None:
    one, two = (gpufs.torch.Dataset(*f, engine=engine, **SMALL) for f in (files[:1], files))
    assert len(one) == len(two) == N
    x = features()
    for i in (0, -1, np.int64(7), torch.tensor(8)):
        assert torch.equal(one[i], x[i])
        row, label = two[i]
        assert torch.equal(row, x[i]) and label.shape == () and label == i % N
    for many in ([5, -2, 5], torch.tensor([[1, 2], [3, 4]]), torch.arange(N) % 7 == 0, slice(5, 90, 3), slice(None)):
        assert torch.equal(one[many], x[many])
        assert torch.equal(two[many][0], x[many]) and torch.equal(two[many][1], torch.arange(N)[many])
    assert one[[]].shape == (0, 3, 2) and one.__getitems__([]) == [] == two.__getitems__([])
    assert [y.item() for _, y in two.__getitems__([3, 1])] == [3, 1]
    for wrong in (N, [0, -N - 1]):
        with pytest.raises(IndexError):
            two[wrong]
    assert len(list(iter(gpufs.torch.Dataset(torch.arange(3))))) == 3  # ends by IndexError
    assert "x.npy" in repr(two)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_is_one_gather(engine: str, files: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpufs.torch.Dataset(*files, engine=engine, **SMALL)
    gathers: list[tuple[str, int]] = []
    taken = gpufs.Array._take

    def count(array: Any, index: Any, *how: Any) -> Any:
        gathers.append((Path(array.path).name, len(index)))
        return taken(array, index, *how)

    monkeypatch.setattr(gpufs.Array, "_take", count)
    for loader in (
        DataLoader(dataset, batch_size=64, shuffle=True),
        DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), 64, False), batch_size=None),
        DataLoader(Subset(dataset, range(N)), batch_size=64),
    ):
        gathers.clear()
        assert sorted(loaded(loader)) == list(range(N))
        assert gathers == [(name, n) for n in [64] * 9 + [24] for name in ("x.npy", "y.npy")]


@pytest.mark.parametrize(
    "engine, how", [(e, h) for e in ENGINES for h in ("fork", "spawn") if (e, h) != ("gpu", "fork")]
)
def test_workers(engine: str, how: str, files: tuple[Any, Any]) -> None:
    dataset = gpufs.torch.Dataset(files[0], torch.arange(N), engine=engine, **SMALL)
    dataset[0]  # as one does before training
    workers: dict[str, Any] = {"multiprocessing_context": how, "persistent_workers": True}
    workers["num_workers"] = 2 if how == "fork" else 1  # which imports torch anew: seconds
    loader = DataLoader(dataset, batch_size=50, shuffle=True, **workers)
    if how == "fork" and engine != "cpu":
        with pytest.raises(gpufs.GpufsError, match="'spawn'"):
            loaded(loader)
        return
    orders = [loaded(loader) for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(N)) and orders[0] != orders[1]
    if how == "fork":
        by_batches = BatchSampler(RandomSampler(dataset), 50, drop_last=True)
        assert sorted(loaded(DataLoader(dataset, sampler=by_batches, batch_size=None, **workers))) == list(range(N))
        with pytest.raises(IndexError, match="out of bounds"):
            loaded(DataLoader(dataset, sampler=[[1, N]], batch_size=None, num_workers=1))


def test_samplers_and_parts(files: tuple[Any, Any]) -> None:
    dataset = gpufs.torch.Dataset(*files)
    parts = random_split(dataset, [400, 200])
    got = [loaded(DataLoader(part, batch_size=33)) for part in parts]
    assert [len(g) for g in got] == [400, 200] and sorted(got[0] + got[1]) == list(range(N))
    for batches in (True, False):
        got = []
        for rank in range(3):
            sampler = DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=True)
            how = {"sampler": BatchSampler(sampler, 40, False), "batch_size": None} if batches else {"sampler": sampler}
            got.append(loaded(DataLoader(dataset, **({"batch_size": 40} | how))))
        assert sorted(label for labels in got for label in labels) == list(range(N)) and len(got[0]) == 200
    twice = ConcatDataset([dataset, Subset(dataset, [3, 4])])
    assert loaded(DataLoader(twice, batch_size=100)) == [*range(N), 3, 4]


def test_pinned_batches(files: tuple[Any, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU, and pins nothing")
    loader = DataLoader(gpufs.torch.Dataset(*files), batch_size=50, pin_memory=True, num_workers=1)
    assert loaded(loader) == list(range(N)) and next(iter(loader))[0].is_pinned()


@pytest.mark.parametrize("engine", ENGINES)
def test_it_pickles_as_paths_and_options(engine: str, files: tuple[Any, Any]) -> None:
    with gpufs.open(files[0], engine=engine, **SMALL) as x:
        dataset = gpufs.torch.Dataset(x, files[1])
        text = pickle.dumps(dataset)
        assert len(text) < 2000
        again = pickle.loads(text)
        assert [a.engine for a in again.arrays] == [engine, "cpu"]
        assert torch.equal(again[[4, 5]][0], features()[[4, 5]])
    with pytest.raises(ValueError, match="closed"):
        dataset[0]


def test_what_no_dataset_is_made_of(files: tuple[Any, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs an array"):
        gpufs.torch.Dataset()
    with pytest.raises(ValueError, match=r"have \[600, 5\]"):
        gpufs.torch.Dataset(files[0], np.arange(5))
    with pytest.raises(FileNotFoundError):
        gpufs.torch.Dataset(tmp_path / "none.npy")
    np.save(tmp_path / "s.npy", np.zeros(3, "S4"))
    with pytest.raises(TypeError, match="no dtype"):
        gpufs.torch.Dataset(tmp_path / "s.npy")
    with pytest.raises(TypeError):
        gpufs.torch.Dataset(3)


@pytest.mark.parametrize("guide, place, last", [("pytorch", 1, 1000 % 256), ("python", 2, 1000)])
def test_programs_of_the_guides_train(
    guide: str, place: int, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "features.npy", numbers(1000, 128) / np.float32(65521))
    np.save(tmp_path / "labels.npy", np.arange(1000) % 10)
    text = (Path(__file__).parents[2] / f"docs/guide/{guide}.md").read_text()
    program = text.split("```python\n")[place].split("```")[0]
    assert len(program.split("\n")) < 15 and "gpufs" in program
    if not torch.cuda.is_available() or "gpu" not in ENGINES:
        program = program.replace("cuda", "cpu")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["model"].weight.grad is not None
    assert len(names["features" if guide == "pytorch" else "idx"]) == last

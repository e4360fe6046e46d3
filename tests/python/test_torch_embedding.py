# SPDX-License-Identifier: Apache-2.0
"""gpufs.torch.EmbeddingBag and its optimizers, beside torch's in memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers

torch: Any = pytest.importorskip("torch")
import gpufs.torch  # noqa: E402

torch.set_num_threads(1)  # of small matrices more take longer, beside other tests

N, COLUMNS = 300, 6


def table() -> Any:
    return numbers(N, COLUMNS) / np.float32(65521) - np.float32(0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", table())
    return tmp_path / "table.npy"


def in_memory(mode: str, **how: Any) -> Any:
    return torch.nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(table()), freeze=False, mode=mode, sparse=mode != "max", **how
    )


def bags(nbags: int, seed: int) -> tuple[Any, Any]:
    """Indices with repeated ones, and offsets with an empty bag."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 9, (nbags,), generator=generator)
    sizes[nbags // 2] = 0
    indices = torch.randint(0, N // 4, (int(sizes.sum()),), generator=generator) * 4
    return indices, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)[:-1]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_forward_and_gradient_are_those_of_torch(engine: str, mode: str, path: Path) -> None:
    bag, wanted = gpufs.torch.EmbeddingBag(path, mode=mode, engine=engine, **SMALL), in_memory(mode)
    indices, offsets = bags(20, 1)
    square = indices[:20].reshape(4, 5)
    for given in ((indices, offsets), (indices.int(), offsets.int()), (square,), (indices[:0], offsets[:3] * 0)):
        out = bag(*given)
        torch.testing.assert_close(out, wanted(*given))
        (out * torch.arange(COLUMNS)).sum().backward()
        (wanted(*given) * torch.arange(COLUMNS)).sum().backward()
    grad = bag.grad
    assert grad is not None and grad.is_sparse and grad.is_coalesced() and grad.shape == (N, COLUMNS)
    assert set(grad.indices()[0].tolist()) == set(indices.tolist())
    torch.testing.assert_close(grad.to_dense(), wanted.weight.grad.to_dense())
    bag.zero_grad()
    assert bag.grad is None and not list(bag.parameters()) and not bag.state_dict()


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_of_samples_and_the_last_offset(engine: str, path: Path) -> None:
    bag = gpufs.torch.EmbeddingBag(path, mode="sum", include_last_offset=True, engine=engine, **SMALL)
    wanted = in_memory("sum", include_last_offset=True)
    indices, offsets = bags(20, 2)
    offsets = torch.cat([offsets, torch.tensor([len(indices)])])
    grads = []
    for module in (bag, wanted):
        weights = torch.linspace(0, 1, len(indices), requires_grad=True)
        out = module(indices, offsets, per_sample_weights=weights)
        out.square().sum().backward()
        grads += [out.detach(), weights.grad]
    torch.testing.assert_close(grads[:2], grads[2:])
    torch.testing.assert_close(bag.grad.to_dense(), wanted.weight.grad.to_dense())


def optimizers(kind: str, bag: Any, wanted: Any, state: Path) -> tuple[Any, Any]:
    if kind == "sgd":
        return gpufs.torch.SparseSGD(bag, lr=0.1), torch.optim.SGD(wanted.parameters(), lr=0.1)
    if kind == "adagrad":
        mine = gpufs.torch.SparseAdagrad(bag, state, lr=0.1, **SMALL)
        return mine, torch.optim.Adagrad(wanted.parameters(), lr=0.1)
    return gpufs.torch.SparseAdam(bag, state, lr=0.1, **SMALL), torch.optim.SparseAdam(wanted.parameters(), lr=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_training_is_that_of_torch(engine: str, kind: str, path: Path, tmp_path: Path) -> None:
    """Also over two runs, the second of which goes on with the files and the state_dict of the first."""
    wanted, state = in_memory("mean"), {}
    for run in range(2):
        bag = gpufs.torch.EmbeddingBag(path, engine=engine, **SMALL)
        mine, other = optimizers(kind, bag, wanted, tmp_path / "state.npy")
        if run:
            mine.load_state_dict(state["mine"])
            other.load_state_dict(state["other"])
        for optimizer in (mine, other):
            optimizer.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(6):
            for module, optimizer in ((bag, mine), (wanted, other)):
                optimizer.zero_grad()
                for part in range(1 + step % 2):  # gradients of several batches add up
                    indices, offsets = bags(8, 10 * run + step + part)
                    module(indices, offsets).square().sum().backward()
                optimizer.step()
                optimizer.scheduler.step()
        state = {"mine": mine.state_dict(), "other": other.state_dict()}
        mine.flush()
        torch.testing.assert_close(torch.from_numpy(np.load(path)), wanted.weight.detach(), rtol=1e-5, atol=1e-5)
        bag.array.close()
        if mine.rows_state is not None:
            mine.rows_state.close()
    untouched = np.arange(N) % 4 != 0
    np.testing.assert_array_equal(np.load(path)[untouched], table()[untouched])
    assert not np.array_equal(np.load(path), table())


@pytest.mark.parametrize("engine", ENGINES)
def test_half_precision(engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "half.npy", table().astype(np.float16))
    bag = gpufs.torch.EmbeddingBag(tmp_path / "half.npy", mode="sum", engine=engine, **SMALL)
    optimizer = gpufs.torch.SparseAdagrad(bag, tmp_path / "state.npy", lr=0.5, **SMALL)
    bag(torch.tensor([[3, 3]])).sum().backward()
    optimizer.step()
    optimizer.flush()
    assert np.load(tmp_path / "state.npy").dtype == np.float32 and (np.load(tmp_path / "state.npy")[3] == 4).all()
    wanted = (table()[3].astype(np.float16).astype(np.float32) - 0.5).astype(np.float16)
    np.testing.assert_allclose(np.load(tmp_path / "half.npy")[3], wanted, atol=1e-3)


def test_rows_of_a_graph_that_is_dropped_are_free(path: Path) -> None:
    """As those of an evaluation without torch.no_grad()."""
    bag = gpufs.torch.EmbeddingBag(path, engine="cpu")
    taken: list[Any] = []
    take = gpufs.Array._take

    def keep_weakly(*how: Any) -> Any:
        rows = take(*how)
        taken.append(weakref.ref(rows[0]))
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpufs.Array, "_take", keep_weakly)
        out = bag(torch.tensor([[1, 2]]))
    assert out.requires_grad and taken[0]() is not None
    del out
    gc.collect()
    assert taken[0]() is None and bag.grad is None
    with torch.no_grad():
        assert not bag(torch.tensor([[1, 2]])).requires_grad
    frozen = gpufs.torch.EmbeddingBag(path, trainable=False, engine="cpu")
    assert not frozen(torch.tensor([[1, 2]])).requires_grad
    with pytest.raises(ValueError, match="read only"):
        gpufs.torch.SparseSGD(frozen)


def test_it_is_a_part_of_compiled_models(path: Path) -> None:
    torch._dynamo.reset()
    bag = gpufs.torch.EmbeddingBag(path, engine="cpu")
    model = torch.nn.Sequential(bag, torch.nn.Linear(COLUMNS, 1))
    indices = torch.tensor([[1, 2], [2, 9]])
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(indices), model(indices))
    torch.compile(model, backend="aot_eager")(indices).sum().backward()
    assert bag.grad is not None and bag.grad.indices().tolist() == [[1, 2, 9]]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_goes_wrong(engine: str, path: Path, tmp_path: Path) -> None:
    bag = gpufs.torch.EmbeddingBag(path, engine=engine, **SMALL)
    for wrong in (N, -1):
        with pytest.raises(IndexError):
            bag(torch.tensor([[1, wrong]]))
    with pytest.raises(ValueError, match="'sum', 'mean' or 'max'"):
        gpufs.torch.EmbeddingBag(path, mode="median")
    for shape, dtype in (((3,), "f4"), ((3, 2), "i4")):
        np.save(tmp_path / "other.npy", np.zeros(shape, dtype))
        with pytest.raises(ValueError, match="table of floats"):
            gpufs.torch.EmbeddingBag(tmp_path / "other.npy", engine=engine, **SMALL)
    with pytest.raises(ValueError, match=r"state of .* is float32 of shape \(300, 6\)"):
        gpufs.torch.SparseAdagrad(bag, tmp_path / "other.npy", **SMALL)
    with pytest.raises(ValueError, match="lr is -1"):
        gpufs.torch.SparseSGD(bag, lr=-1)
    with pytest.raises(FileNotFoundError):
        gpufs.torch.SparseAdam(bag, tmp_path / "none" / "state.npy")
    before = gpufs.torch.SparseSGD(bag)
    before.step()  # without a gradient: nothing
    assert before.step(lambda: 3) == 3


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_training_on_a_gpu(kind: str, path: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    bag, wanted = gpufs.torch.EmbeddingBag(path, engine="gpu", **SMALL), in_memory("mean").cuda()
    mine, other = optimizers(kind, bag, wanted, tmp_path / "state.npy")
    for step in range(6):
        indices, offsets = (t.cuda() for t in bags(8, step))
        for module, optimizer in ((bag, mine), (wanted, other)):
            optimizer.zero_grad()
            module(indices, offsets).square().sum().backward()
            optimizer.step()
    mine.flush()
    torch.testing.assert_close(torch.from_numpy(np.load(path)), wanted.weight.detach().cpu(), rtol=1e-5, atol=1e-5)

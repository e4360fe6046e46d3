# SPDX-License-Identifier: Apache-2.0
"""gpufs::gather in what torch.compile makes."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES, SMALL, numbers

torch: Any = pytest.importorskip("torch")
import gpufs.torch  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", numbers(100, 4))
    torch._dynamo.reset()
    return tmp_path / "x.npy"


@pytest.mark.parametrize("engine", ENGINES)
def test_one_graph_for_all_sizes(engine: str, path: Path) -> None:
    x, counter = torch.from_numpy(numbers(100, 4)), CompileCounterWithBackend("aot_eager")
    model = torch.nn.Sequential(gpufs.torch.Gather(path, engine=engine, **SMALL), torch.nn.Linear(4, 2))
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for shape in ((5,), (7,), (64,), (3,)):
        index = torch.randint(-100, 100, shape)
        out = compiled(index)
        torch.testing.assert_close(out, model[1](x[index]))
        out.sum().backward()
    assert counter.frame_count == 1
    graph = counter.graphs[0]
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and "gpufs" in str(node.target)]
    assert [str(node.target) for node in calls] == ["gpufs.gather.default"]
    assert model[1].weight.grad is not None
    compiled(torch.zeros((2, 3), dtype=torch.int32))  # of another rank, a graph of its own
    assert counter.frame_count == 2
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 2, 3, 100]))


def test_inductor(path: Path) -> None:
    gather = gpufs.torch.Gather(path, engine="cpu")
    double = torch.compile(lambda index: gather(index) * 2 + 1, fullgraph=True, dynamic=True)
    for n in (4, 9):
        index = torch.randint(100, (n,))
        torch.testing.assert_close(double(index), torch.from_numpy(numbers(100, 4))[index] * 2 + 1)


def test_the_array_itself_breaks_the_graph(path: Path) -> None:
    """Why there is a Gather."""
    x, gather = gpufs.open(path, engine="cpu"), gpufs.torch.Gather(path, engine="cpu")
    index = torch.tensor([1, 2])
    assert torch._dynamo.explain(lambda index: gather(index) * 2)(index).graph_break_count == 0
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda index: x[index] * 2, backend="eager", fullgraph=True)(index)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("index", [[3], [], [[-1, 5], [5, 0]], 7])
def test_the_operation_is_what_it_says(engine: str, index: Any, path: Path) -> None:
    gather = gpufs.torch.Gather(path, engine=engine, **SMALL)
    numbers_of = torch.tensor(index, dtype=torch.int64)
    torch.library.opcheck(torch.ops.gpufs.gather.default, (gather._handle, numbers_of))
    rows = gather(numbers_of)
    assert torch.equal(rows, torch.from_numpy(numbers(100, 4))[numbers_of]) and not rows.requires_grad


def test_elements_that_only_torch_has(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(60))
    gather = gpufs.torch.Gather(tmp_path / "raw", dtype="bfloat16", shape=(-1, 3), engine="cpu")
    compiled = torch.compile(lambda index: gather(index) + 1, backend="aot_eager", fullgraph=True)
    out = compiled(torch.tensor([1, 2]))
    assert out.dtype == torch.bfloat16 and out.shape == (2, 3) and (out == 1).all()


def test_what_goes_wrong(path: Path) -> None:
    gather = gpufs.torch.Gather(path, engine="cpu")
    compiled = torch.compile(gather, backend="aot_eager", fullgraph=True)
    for index in (torch.zeros(100, dtype=torch.bool), torch.tensor([0.5])):
        with pytest.raises(IndexError, match="by integers"):
            gather(index)
        with pytest.raises(Exception, match="by integers"):
            compiled(index)
    index = torch.tensor([1, 2])
    compiled(index)
    gather.array.close()
    with pytest.raises(ValueError, match="is closed"):
        compiled(index)
    handle = gather._handle
    assert "float32[4]" in handle
    del gather, compiled
    torch._dynamo.reset()
    gc.collect()
    with pytest.raises(ValueError, match="is gone: keep its"):
        torch.ops.gpufs.gather(handle, index)
    with pytest.raises(TypeError):
        gpufs.torch.Gather(torch.zeros(3))


def test_copies_open_the_array_anew(path: Path) -> None:
    gather = gpufs.torch.Gather(path, engine="cpu")
    for again in (pickle.loads(pickle.dumps(gather)), copy.deepcopy(torch.nn.Sequential(gather))[0]):
        assert again.array is not gather.array and again._handle != gather._handle
        assert torch.equal(again(torch.tensor([4])), gather(torch.tensor([4])))
    assert not gather.state_dict() and "x.npy" in repr(gather)


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])  # the latter makes CUDA graphs of what is around it
def test_compiled_on_a_gpu(mode: str, path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    gather, x = gpufs.torch.Gather(path, engine="gpu", **SMALL), torch.from_numpy(numbers(100, 4)).cuda()
    compiled = torch.compile(lambda index: gather(index) * 2 + 1, mode=mode, fullgraph=True)
    for seed in range(5):
        index = torch.from_numpy(np.random.default_rng(seed).integers(-100, 100, 50)).cuda()
        torch.testing.assert_close(compiled(index), x[index] * 2 + 1)
    gather.array.check()

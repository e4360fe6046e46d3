# SPDX-License-Identifier: Apache-2.0
"""What a type checker says of programs that use gpufs. mypy reads it (an error that it does not find is one, too)."""

import gpufs
import numpy as np
from gpufs import c, cupy, torch
from typing_extensions import assert_type

with gpufs.open("features.npy", name=None, dtype="f4", shape=(-1, 3), engine="cpu", cache="8GiB", page=4096) as x:
    assert_type(x, gpufs.Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.nbytes, int)
    assert_type(x.stats, dict[str, int])
    assert_type(x.path_in_use, str)
    x.take([1, 2])
    assert_type(x.shard(0, 2), gpufs.Array)

with c.Mount("/data", cache_nbytes=1 << 30) as mount:
    assert_type(mount.handle, np.uint64)
    assert_type(mount.counters("hits"), dict[str, int])
    assert_type(mount.sync(), int)
assert_type(cupy.link("", "sm_90", define=["A=1"]), bytes)

dataset = torch.Dataset("features.npy", x, engine="cpu")
assert_type(len(dataset), int)
torch.SparseAdagrad(torch.EmbeddingBag(x, mode="sum"), "sums.npy", lr=0.1, cache="8GiB").flush()
torch.FeatureStore({"x": "x.npy", ("paper", "y"): x}, device="cuda")

torch.EmbeddingBag("table.npy", mode=3)  # type: ignore[arg-type]
gpufs.open("features.npy", engin="cpu")  # type: ignore[call-arg]
gpufs.open(3)  # type: ignore[arg-type]
x.shape = (1,)  # type: ignore[misc]
c.Mount("/data", cache_nbytes="1GiB")  # type: ignore[arg-type]
cupy.link(b"", "sm_90")  # type: ignore[arg-type]

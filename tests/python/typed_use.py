# SPDX-License-Identifier: Apache-2.0
"""What a type checker says of programs that use gpufs. mypy reads it (an error that it does not find is one, too)."""

from typing import Any

import gpufs
import numpy as np
from gpufs import c, cupy, numba, par, ray, torch, vectors
from numpy.typing import NDArray
from typing_extensions import assert_type

with gpufs.open("features.npy", name=None, dtype="f4", shape=(-1, 3), engine="cpu", cache="8GiB", page=4096) as x:
    assert_type(x, gpufs.Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.nbytes, int)
    assert_type(x.stats, dict[str, int])
    assert_type(x.path_in_use, str)
    x.take([1, 2])
    assert_type(x.shard(0, 2), gpufs.Array)
    assert_type(x.mount, gpufs.Mount)
    assert_type(len(x), int)
    assert_type(x.__array__(), NDArray[Any])
    x.prepare()
    x.prefetch(slice(3))
    x.flush(durable=True)

with gpufs.Mount("/data", cache="8GiB", page="auto", writable=True) as fs:
    assert_type(fs.open("a.npy", mode="r+", as_bits=True), gpufs.Array)
    assert_type(fs.read_files(["a", b"b"], pad_to=4096, progress=True), tuple[Any, Any])
    assert_type(fs.files, list[dict[str, Any]])
assert_type(gpufs.read_files(["a"], like=None, cache=0), tuple[Any, Any])
assert_type(gpufs.stats(), dict[str, Any])

with c.Mount("/data", cache_nbytes=1 << 30) as mount:
    assert_type(mount.handle, np.uint64)
    assert_type(mount.counters("hits"), dict[str, int])
    assert_type(mount.sync(), int)
assert_type(cupy.link("", "sm_90", define=["A=1"]), bytes)

with vectors.Index("base.index", engine="cpu", cache="1GiB") as index:
    found = index.search([[1.0, 2.0]], 10, nprobe=None)
    assert_type(found, vectors.Found)
    assert_type(found.ids, NDArray[np.int64])
    assert_type(found.distances, NDArray[np.float32])
    assert_type(index.recall("queries.npy", found.ids, sample=10), float)
assert_type(vectors.build(vectors.Synthetic(1000, 8), "base.index", lists=10), dict[str, Any])
assert_type(vectors.search("base.index", "queries.npy", 5), tuple[NDArray[np.int64], NDArray[np.float32]])
assert_type(vectors.check("base.index"), dict[str, Any])

assert_type(par.lex("log.json", "json"), par.Tokens)
par.lex("log.json", "json", out="tokens.npy", resume=True, engine="cpu")
assert_type(par.label(np.eye(3, dtype=np.uint8), memory="1GiB"), par.Labels)
par.scan("in", "max", out="out", dtype="f4", exclusive=True, overwrite=True)
par.sort(np.arange(3), descending=True, memory="8GiB", engine="cpu")

sums = gpufs.query("trips.arrow", "trip_distance >= 30", ["total_amount"], cache="1GiB")
assert_type(sums.columns["total_amount"].mean, float | None)

numba.pread_warp(0, 0, numba.path("a"), 1, 2)
ray.read_array({"a": x, "b": "b.npy"}, column="a", concurrency=2)

dataset = torch.Dataset("features.npy", x, engine="cpu")
assert_type(len(dataset), int)
torch.SparseAdagrad(torch.EmbeddingBag(x, mode="sum"), "sums.npy", lr=0.1, cache="8GiB").flush()
assert_type(torch.Gather(x), torch.Gather)
torch.SparseSGD(torch.EmbeddingBag("table.npy"), lr=1).flush()
torch.FeatureStore({"x": "x.npy", ("paper", "y"): x}, device="cuda")

torch.EmbeddingBag("table.npy", mode=3)  # type: ignore[arg-type]
gpufs.open("features.npy", engin="cpu")  # type: ignore[call-arg]
gpufs.open(3)  # type: ignore[arg-type]
x.shape = (1,)  # type: ignore[misc]
c.Mount("/data", cache_nbytes="1GiB")  # type: ignore[arg-type]
cupy.link(b"", "sm_90")  # type: ignore[arg-type]
gpufs.Mount("/data", page=2.5)  # type: ignore[arg-type]
gpufs.read_files(["a"], pad_to="4096")  # type: ignore[arg-type]
par.sort("in", out="out", key="u8", record_nbytes="8")  # type: ignore[arg-type]
gpufs.nothing()  # type: ignore[attr-defined]
ray.read_array(3)  # type: ignore[arg-type]
x.shard(0.5, 2)  # type: ignore[arg-type]

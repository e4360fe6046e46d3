# SPDX-License-Identifier: Apache-2.0
"""The CPU machine stands in for a GPU: libraries whose arrays lie in the host's memory say that they lie on its device.

They also say that the caller's stream is one of its own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpufs import _rows, tensors
from gpufs.tensors import CupyLibrary, Place, TorchLibrary


class OnDevice:
    """A library of host arrays that says where they lie."""

    def __init__(self, real: Any, device: int = 0) -> None:
        self._real, self._device = real, device
        self._test_stream = _rows.TestStream()
        self.kept: list[Any] = []  # a stream's work is under way; CUDA's libraries know that, and these do not

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def place(self, array: Any) -> Place:
        return Place("simt", self._device)

    def stream(self, place: Place) -> int:
        return self._test_stream.handle()

    def numbers(self, index: Any, nrows: int) -> Any:
        return self._keep(self._real.numbers(index, nrows))

    def empty(self, shape: tuple[int, ...], dtype: Any, place: Place) -> Any:
        return self._keep(self._real.empty(shape, dtype, tensors.HOST if hasattr(self._real, "torch") else place))

    def like(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self._keep(self._real.like(array, shape))

    def spread(self, values: Any, shape: tuple[int, ...], dtype: Any, place: Place) -> Any:
        place = tensors.HOST if hasattr(self._real, "torch") else place
        return self._keep(self._real.spread(values, shape, dtype, place))

    def in_order(self, array: Any) -> Any:
        return self._keep(self._real.in_order(array))

    def synchronize(self, place: Place) -> None:
        self.wait()

    def _keep(self, array: Any) -> Any:
        self.kept.append(array)
        return array

    def hold(self) -> None:
        self._test_stream.hold()

    def go(self) -> None:
        self._test_stream.go()

    def wait(self) -> None:
        self._test_stream.wait()


class FakeCupyArray:
    """As cupy.ndarray, as far as gpufs looks at it."""

    device = types.SimpleNamespace(id=0)

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array.array if isinstance(array, FakeCupyArray) else array)
        self.shape, self.dtype, self.flags = self.array.shape, self.array.dtype, self.array.flags

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.array.__array_interface__["data"][0], False)}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array

    def __getitem__(self, key: Any) -> FakeCupyArray:
        return FakeCupyArray(self.array[key])

    def __setitem__(self, key: Any, values: Any) -> None:
        self.array[key] = np.asarray(values)
        self.set_on_its_device = sys.modules["cupy"].cuda.Device.ncurrent > 0  # else in another device's stream

    def fill(self, value: Any) -> None:
        self.array.fill(value)

    def reshape(self, shape: Any) -> FakeCupyArray:
        return FakeCupyArray(self.array.reshape(shape))

    def astype(self, dtype: Any) -> FakeCupyArray:
        return FakeCupyArray(self.array.astype(dtype))


def fake_cupy() -> types.ModuleType:
    module: Any = types.ModuleType("cupy")

    class Device:
        ncurrent = 0  # how many are

        def __init__(self, number: int) -> None:
            assert number == 0

        def __enter__(self) -> None:
            Device.ncurrent += 1

        def __exit__(self, *_: object) -> None:
            Device.ncurrent -= 1

    module.ndarray = FakeCupyArray
    module.cuda = types.SimpleNamespace(Device=Device)
    module.asnumpy = np.array
    module.asarray = FakeCupyArray
    module.flatnonzero = lambda a: FakeCupyArray(np.flatnonzero(a.array))
    module.ascontiguousarray = lambda a, dtype=None: FakeCupyArray(np.ascontiguousarray(a.array, dtype))
    module.empty = lambda shape, dtype: FakeCupyArray(np.full(shape, 77, dtype))
    module.broadcast_to = lambda a, shape: FakeCupyArray(np.broadcast_to(a.array, shape))
    return module


@pytest.fixture(params=["cupy", "torch"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A library whose arrays lie on the CPU machine's device; `of` makes one."""
    if request.param == "cupy":
        module = fake_cupy()
        monkeypatch.setitem(sys.modules, "cupy", module)
        library: Any = OnDevice(CupyLibrary())
        library.of = module.asarray
    else:
        torch = pytest.importorskip("torch")
        library = OnDevice(TorchLibrary())
        library.of = lambda a: torch.from_numpy(np.array(a))
    monkeypatch.setattr(tensors, "LIBRARIES", [library])
    yield library
    library.go()
    library.wait()

# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, torch and CuPy: where they are, and new ones like them. Only what the caller imported is used."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpufs.errors import GpufsError
from gpufs.indexing import check_mask

# Elements that NumPy has no dtype for and torch has, by the integers of their size. The dtype of a file's array has the
# name in its metadata.
ELEMENTS = {
    "bfloat16": "u2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
}


@dataclass(frozen=True)
class Place:
    """Whose memory: "host", or that of a device of the engine "gpu"."""

    machine: str
    device: int = 0

    def __str__(self) -> str:
        return "the host" if self.machine == "host" else f"{self.machine}:{self.device}"


HOST = Place("host")  # the only one of the host


@functools.cache
def place_of(machine: str, device: int) -> Place:
    return Place(machine, device)


class Library(Protocol):
    """What gpufs asks of a library of arrays. `dtype` is the file's. On a device all is in the caller's stream."""

    def owns(self, array: Any) -> bool: ...
    def place(self, array: Any) -> Place: ...

    def host(self, array: Any) -> NDArray[Any]:
        """As NumPy has it, or with what NumPy has no dtype for as float32: the same memory, or a copy."""
        ...

    def numbers(self, index: Any, nrows: int) -> Any:
        """int64 in C order, of an index on a device of so many rows; IndexError: it is none."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any: ...
    def like(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Without values, where this one is, of its dtype. To name both takes longer than to read a row."""
        ...

    def clear(self, array: Any) -> None:
        """Makes zeros of it."""
        ...

    def address(self, array: Any) -> int: ...

    def in_order(self, array: Any) -> Any:
        """In C order: the same memory, or a copy."""
        ...

    def copy(self, to: Any, array: Any) -> None:
        """To one that lies where it does, of its shape and dtype."""
        ...

    def why_not(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether rows cannot go there: another dtype or shape, not in C order, not writable."""
        ...

    def spread(self, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        """The values on the device, in C order, broadcast to this shape. ValueError: they do not fit."""
        ...

    def stream(self, place: Place) -> int:
        """The caller's current one, as CUDA has it."""
        ...

    def synchronize(self, place: Place) -> None:
        """Waits for the caller's current stream."""
        ...


class NumpyLibrary:
    def owns(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    def place(self, array: Any) -> Place:
        return HOST

    def host(self, array: Any) -> NDArray[Any]:
        if hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
            return np.from_dlpack(array)
        return np.asarray(array)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        return np.empty(shape, dtype)

    def like(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, array.dtype)

    def clear(self, array: Any) -> None:
        array.fill(0)

    def address(self, array: Any) -> int:
        return address_of(array)

    def in_order(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def copy(self, to: Any, array: Any) -> None:
        to[...] = array

    def why_not(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        return not (out.shape == shape and out.dtype == dtype and out.flags.c_contiguous and out.flags.writeable)

    def numbers(self, index: Any, nrows: int) -> Any:
        raise NotImplementedError

    def spread(self, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        raise NotImplementedError

    def stream(self, place: Place) -> int:
        raise NotImplementedError

    def synchronize(self, place: Place) -> None:
        """There is nothing to wait for."""


class TorchLibrary:
    def __init__(self) -> None:
        self._dtypes: dict[tuple[str, str], Any] = {}
        self._devices: dict[Place, Any] = {}

    @property
    def torch(self) -> Any:
        return sys.modules["torch"]

    def owns(self, array: Any) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(array, torch.Tensor)

    def place(self, array: Any) -> Place:
        if array.is_cuda:
            return place_of("gpu", array.get_device())
        if array.device.type != "cpu":
            raise TypeError(f"gpufs knows tensors of torch on cpu and cuda, not on {array.device}")
        return HOST

    def host(self, array: Any) -> NDArray[Any]:
        array = array.detach().cpu()
        if str(array.dtype).removeprefix("torch.") in ELEMENTS:
            array = array.to(self.torch.float32)  # exact
        numbers: NDArray[Any] = array.resolve_conj().resolve_neg().numpy()
        return numbers

    def bits(self, values: Any, element: str) -> NDArray[Any]:
        """On the host, as integers of their size: those of the values as elements with this name."""
        torch = self.torch
        elements = torch.as_tensor(values).detach().cpu().to(getattr(torch, element))
        numbers: NDArray[Any] = elements.view(self._dtype(np.dtype(ELEMENTS[element]))).numpy()
        return numbers

    def numbers(self, index: Any, nrows: int) -> Any:
        torch, dtype = self.torch, index.dtype
        if dtype is torch.int64 and index.is_contiguous():
            return index
        if dtype == torch.bool:  # as in torch, this waits for the device
            check_mask(tuple(index.shape), nrows)
            return index.nonzero().squeeze(1)
        if dtype.is_floating_point or dtype.is_complex:
            raise IndexError(f"rows are named by integers or booleans, not by {dtype}: index.long() makes integers")
        return index.to(torch.int64).contiguous()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=self._device(place))

    def like(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.new_empty(shape)

    def clear(self, array: Any) -> None:
        array.zero_()

    def address(self, array: Any) -> int:
        address: int = array.data_ptr()
        return address

    def in_order(self, array: Any) -> Any:
        return array.detach().resolve_conj().resolve_neg().contiguous()

    def copy(self, to: Any, array: Any) -> None:
        to.copy_(array)

    def why_not(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        return not (
            tuple(out.shape) == shape
            and out.dtype == self._dtype(dtype)
            and out.is_contiguous()
            and not (out.requires_grad or out.is_conj() or out.is_neg())
        )

    def spread(self, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        torch = self.torch
        wanted, device = self._dtype(dtype), self._device(place)
        values = torch.as_tensor(values, device=device).detach().to(wanted)
        try:
            spread = values.expand(shape)
        except RuntimeError as error:
            raise ValueError(f"values of shape {tuple(values.shape)} do not fit rows of {shape}") from error
        return spread.contiguous()

    def stream(self, place: Place) -> int:
        try:  # as code that torch.compile makes asks for it: 0.1 us, where an object for the stream takes 2
            handle: int = self.torch._C._cuda_getCurrentRawStream(place.device)
        except AttributeError:
            handle = self.torch.cuda.current_stream(place.device).cuda_stream
        return handle

    def synchronize(self, place: Place) -> None:
        if place is not HOST:
            self.torch.cuda.current_stream(place.device).synchronize()

    def _device(self, place: Place) -> Any:
        found = self._devices.get(place)
        if found is None:
            found = self._devices[place] = self.torch.device("cpu" if place is HOST else f"cuda:{place.device}")
        return found

    def _dtype(self, dtype: np.dtype[Any]) -> Any:
        key = (element_of(dtype), dtype.str)
        found = self._dtypes.get(key)
        if found is None:
            found = self._dtypes[key] = self._find_dtype(dtype)
        return found

    def _find_dtype(self, dtype: np.dtype[Any]) -> Any:
        name = element_of(dtype) or (dtype.name if dtype.isnative and dtype.kind in "biufc" else "")
        found = getattr(self.torch, name, None) if name else None
        if found is None:
            raise TypeError(f"torch has no dtype for {element_of(dtype) or dtype}: index by NumPy's arrays, or slices")
        return found


class CupyLibrary:
    @property
    def cupy(self) -> Any:
        return sys.modules["cupy"]

    def owns(self, array: Any) -> bool:
        return "cupy" in sys.modules and isinstance(array, self.cupy.ndarray)

    def place(self, array: Any) -> Place:
        return place_of("gpu", array.device.id)

    def host(self, array: Any) -> NDArray[Any]:
        numbers: NDArray[Any] = self.cupy.asnumpy(array)
        return numbers

    def numbers(self, index: Any, nrows: int) -> Any:
        if index.dtype.kind == "b":  # as in CuPy, this waits for the device
            check_mask(tuple(index.shape), nrows)
            return self.cupy.flatnonzero(index)
        if index.dtype.kind not in "iu":
            raise IndexError(
                f"rows are named by integers or booleans, not by {index.dtype}: index.astype(int) makes integers"
            )
        return self.cupy.ascontiguousarray(index, dtype=np.int64)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        with self.cupy.cuda.Device(place.device):
            return self.cupy.empty(shape, self._dtype(dtype))

    def like(self, array: Any, shape: tuple[int, ...]) -> Any:
        with self.cupy.cuda.Device(array.device.id):
            return self.cupy.empty(shape, array.dtype)

    def clear(self, array: Any) -> None:
        array.fill(0)

    def address(self, array: Any) -> int:
        address: int = array.__cuda_array_interface__["data"][0]
        return address

    def in_order(self, array: Any) -> Any:
        with self.cupy.cuda.Device(array.device.id):
            return self.cupy.ascontiguousarray(array)

    def copy(self, to: Any, array: Any) -> None:
        with self.cupy.cuda.Device(array.device.id):
            to[...] = array

    def why_not(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        return not (out.shape == shape and out.dtype == dtype and out.flags.c_contiguous)

    def spread(self, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Any:
        with self.cupy.cuda.Device(place.device):
            values = self.cupy.asarray(values).astype(self._dtype(dtype))
            return self.cupy.ascontiguousarray(self.cupy.broadcast_to(values, shape))

    def stream(self, place: Place) -> int:
        with self.cupy.cuda.Device(place.device):
            handle: int = self.cupy.cuda.get_current_stream().ptr
        return handle

    def synchronize(self, place: Place) -> None:
        with self.cupy.cuda.Device(place.device):
            self.cupy.cuda.get_current_stream().synchronize()

    def _dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        if element_of(dtype) or not dtype.isnative or dtype.kind not in "biufc":
            raise TypeError(f"CuPy has no dtype for {element_of(dtype) or dtype}")
        return dtype


NUMPY = NumpyLibrary()
TORCH = TorchLibrary()
LIBRARIES: list[Library] = [TORCH, CupyLibrary()]


def library_of(array: Any) -> Library:
    """Whose array it is, or whose the rows are to be that this index names: NumPy's, of what else is on the host."""
    if isinstance(array, (int, slice, np.ndarray, np.generic, list, tuple)) or array is None:
        return NUMPY
    for library in LIBRARIES:
        if library.owns(array):
            return library
    kind = array.__dlpack_device__()[0] if hasattr(array, "__dlpack_device__") else 1
    if hasattr(array, "__cuda_array_interface__") or kind not in (1, 3):  # the host's memory; pinned
        raise TypeError(
            f"of arrays on a GPU, gpufs knows torch's and CuPy's, not {type(array)}: torch.as_tensor and cupy.asarray "
            "make one of it without a copy"
        )
    return NUMPY


def address_of(array: NDArray[Any]) -> int:
    return array.ctypes.data


def dtype_of(dtype: DTypeLike | Any) -> np.dtype[Any]:
    """A NumPy dtype; of what only torch has, the integer of that size, with its name in the metadata."""
    name = str(dtype).removeprefix("torch.")
    if name in ELEMENTS and not isinstance(dtype, np.dtype):
        return np.dtype(ELEMENTS[name], metadata={"element": name})
    if type(dtype).__module__ == "torch":
        return np.dtype(name)
    return np.dtype(dtype)


def element_of(dtype: np.dtype[Any]) -> str:
    """The name of what NumPy has no dtype for, or ''."""
    metadata = dtype.metadata
    return "" if metadata is None else metadata.get("element", "")


def torch_for(element: str, path: str) -> Any:
    """torch, which elements need that NumPy has no dtype for."""
    try:
        import torch
    except ImportError as error:
        raise GpufsError(
            f"{path} has elements of {element}, which NumPy has no dtype for: install torch, or give as_bits=True, for "
            f"their bits as {np.dtype(ELEMENTS[element]).name}"
        ) from error
    return torch


def host_values(values: Any, dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """What is to be written, in the file's dtype, or in the bits of what NumPy has none for; with its own shape."""
    element = element_of(dtype)
    if element:
        torch_for(element, path)
        values = TORCH.bits(values, element)
    else:
        library = library_of(values)
        if library is not NUMPY:
            values = library.host(values)
        elif not isinstance(values, np.ndarray):  # numbers and lists of them: not by way of what NumPy takes them for
            values = np.asarray(values, dtype)
    if values.dtype != dtype:
        mine = np.empty(values.shape, dtype)
        mine[...] = values  # casts, or refuses, as an assignment in NumPy does
        values = mine
    return values  # type: ignore[no-any-return]

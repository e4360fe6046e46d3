# SPDX-License-Identifier: Apache-2.0
"""Features of a graph's nodes for PyTorch Geometric, in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch_geometric.data
from torch_geometric.data import TensorAttr

from gpufs.arrays import Array
from gpufs.torch.sources import Given, rows_of, source_of

Key: TypeAlias = tuple[Any, str]


class FeatureStore(torch_geometric.data.FeatureStore):
    """A PyG feature store of arrays in files: ``NeighborLoader((FeatureStore({...}), graph_store), ...)``.

    tensors: by name (``{"x": "x.npy"}``, of a graph with one type of nodes) or by type and name
    (``{("paper", "x"): "paper.npy", ("author", "x"): "author.npy"}``). Each is a path, an open :class:`gpufs.Array`,
    or a tensor or NumPy array that is in memory as it is, as labels may be.
    device: where rows go; None: the host. On a GPU ("cuda"), files are read by a kernel in the current stream, and the
    loader needs ``filter_per_worker=False`` where it has workers.
    options: as of :func:`gpufs.open`, for all paths. If it is not given, the engine is "cpu" for rows on the host
    (DataLoader's workers may be forked) and "gpu" for those on a GPU.

    ``store["paper", "x", index]`` are rows; index: what an Array takes, or None, for all. ``store["paper", "x", None] =
    array`` adds an array, in place of what was there under that name, whose file stays as it is; with an index it
    writes these rows, of an array that has mode="r+". Of a graph with one type of nodes the type is None.

    It pickles as paths and options, as a Dataset does. Raises KeyError, of a tensor that there is not, and what
    gpufs.open and Array do.
    """

    def __init__(
        self,
        tensors: Mapping[str | Key, Given] | None = None,
        *,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._device = torch.device("cpu" if device is None else device)
        self._options = {"engine": "cpu" if self._device.type == "cpu" else "gpu"} | options
        if self._device.index is not None and self._device.type == "cuda":
            self._options.setdefault("device", self._device.index)
        self._tensors: dict[Key, Array | torch.Tensor] = {}
        for key, given in (tensors or {}).items():
            self._tensors[(None, key) if isinstance(key, str) else key] = source_of(given, self._options)

    def _put_tensor(self, tensor: Given, attr: TensorAttr) -> bool:
        if _is_all(attr.index):
            self._tensors[attr.group_name, attr.attr_name] = source_of(tensor, self._options)
        else:
            self._find(attr)[attr.index] = torch.as_tensor(tensor)
        return True

    def update_tensor(self, tensor: Given, *args: Any, **kwargs: Any) -> bool:
        """As put_tensor(), of what is there: by default it would be removed before, and have no rows to write."""
        self._find(self._tensor_attr_cls.cast(*args, **kwargs))
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _get_tensor(self, attr: TensorAttr) -> Any:
        return rows_of(self._find(attr), slice(None) if attr.index is None else attr.index, self._device)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self._tensors.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        source = self._tensors.get((attr.group_name, attr.attr_name))
        if source is None:
            return None
        return tuple(source.shape if _is_all(attr.index) else self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """A new one of each, without an index, which loaders set."""
        return [self._tensor_attr_cls(group_name=group, attr_name=name) for group, name in self._tensors]

    def _find(self, attr: TensorAttr) -> Any:
        key = (attr.group_name, attr.attr_name)
        if key not in self._tensors:
            raise KeyError(f"there is no tensor {key}; there are {list(self._tensors)}")
        return self._tensors[key]

    def __repr__(self) -> str:
        return f"<gpufs.torch.FeatureStore {self._tensors}>"


def _is_all(index: Any) -> bool:
    return index is None or (isinstance(index, slice) and index == slice(None))

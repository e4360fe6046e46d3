# SPDX-License-Identifier: Apache-2.0
"""Embedding bags over a file larger than memory, and optimizers that write the rows of a batch back to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufs.arrays import Array
from gpufs.arrays import open as open_array
from gpufs.torch import sources


class EmbeddingBag(torch.nn.Module):
    """torch.nn.EmbeddingBag, with its table in a file: ``EmbeddingBag("table.npy", mode="sum")``.

    array: a path of an array [rows, columns] of floats, or an open :class:`gpufs.Array`.
    mode: of a bag, "sum", "mean" or "max". include_last_offset: as of torch.nn.EmbeddingBag.
    trainable: the path is opened with mode="r+", so that an optimizer may write rows; False: with "r", and rows have
    no gradient, as those of an Array that is read only. options: as of :func:`gpufs.open`, for a path.

    The table is no parameter: ``parameters()`` and ``state_dict()`` have nothing of it, and ``to()`` moves nothing.
    Rows come to the device where the indices are, each once in a forward, however often it is named. A backward adds
    to :attr:`grad`, and one of this module's optimizers (:class:`SparseSGD`, ...), one for each bag, writes rows back.
    The file has them after ``bag.array.flush()``. One process may write a table.

    Raises ValueError, of an array that is no table of floats; IndexError, of rows that there are not (of indices on a
    GPU: zeros now, and the error by the next call, or ``bag.array.check()``).
    """

    def __init__(
        self,
        array: Array | sources.Path,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        trainable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"mode is {mode!r}; it can be 'sum', 'mean' or 'max'")
        self.array = sources.array_of(array, {"mode": "r+" if trainable else "r"} | options)
        dtype = sources.dtype_of(self.array)
        if self.array.ndim != 2 or not dtype.is_floating_point:
            raise ValueError(f"an embedding is a table of floats, with 2 axes, and not {self.array!r}")
        self.mode, self.include_last_offset = mode, include_last_offset
        self._gradients: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.compiler.disable  # how many rows are read depends on the indices' values, and a hook takes the gradient
    def forward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As of torch.nn.EmbeddingBag: [bags, columns], of indices [bags, n], or [n] with the bags' offsets."""
        numbers, places = torch.unique(indices, return_inverse=True)
        if len(numbers) and int(numbers[0]) < 0:
            raise IndexError(f"index {int(numbers[0])}: rows of an embedding are counted from 0")
        rows = self.array[numbers]
        if self.array.writable and torch.is_grad_enabled():
            gradients = self._gradients  # and not self: the rows of a graph that is dropped go with it

            def take_gradient(rows: torch.Tensor) -> None:
                assert rows.grad is not None
                gradients.append((numbers, rows.grad))
                rows.grad = None

            rows.requires_grad_().register_post_accumulate_grad_hook(take_gradient)
        return torch.nn.functional.embedding_bag(
            places,
            rows,
            None if offsets is None else offsets.to(places.dtype),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
        )

    @property
    def grad(self) -> torch.Tensor | None:
        """What backwards added up since zero_grad(): a sparse tensor [rows, columns], coalesced; None: there was none.

        ``grad.indices()[0]`` are the numbers of the rows, ascending, ``grad.values()`` the gradients of these.
        """
        if not self._gradients:
            return None
        numbers, values = (torch.cat(parts) for parts in zip(*self._gradients, strict=True))
        # They are so by construction, and torch warns of what is not said.
        grad = torch.sparse_coo_tensor(numbers[None], values, self.array.shape, check_invariants=False)
        return grad.coalesce()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradient. Its optimizer's zero_grad() does the same; that of a module which contains it, not."""
        self._gradients.clear()

    def extra_repr(self) -> str:
        return f"{self.array!r}, mode={self.mode!r}"


class _RowOptimizer(torch.optim.Optimizer):
    """Writes the rows of one bag that have a gradient. `state` has as many rows as the table, or there is none."""

    def __init__(self, bag: EmbeddingBag, state: Array | None, defaults: dict[str, Any]) -> None:
        if defaults["lr"] < 0:
            raise ValueError(f"lr is {defaults['lr']}; it can be 0 or more")
        if not bag.array.writable:
            raise ValueError(f"{bag.array!r} is read only: open it with mode='r+', or make the bag with trainable=True")
        super().__init__([{"params": []}], defaults)  # schedulers set "lr" there
        self.bag, self.rows_state = bag, state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the rows of :attr:`EmbeddingBag.grad`; others keep their values, and their state.

        Reads and writes each of them once, in the page cache. closure: as of torch's optimizers.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grad = self.bag.grad
        if grad is not None:
            numbers, values = grad.indices()[0], grad.values()
            rows = self.bag.array[numbers]
            if self.rows_state is None:
                self._update(rows, values, None)
            else:
                state = self.rows_state[numbers]
                self._update(rows, values.to(state.dtype), state)
                self.rows_state[numbers] = state
            self.bag.array[numbers] = rows
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.bag.zero_grad()

    def flush(self, durable: bool = False) -> None:
        """Brings the table, and the state, to their files, as gpufs.Array.flush() does."""
        self.bag.array.flush(durable)
        if self.rows_state is not None:
            self.rows_state.flush(durable)

    def _update(self, rows: Any, grad: Any, state: Any) -> None:
        """In place: rows [n, columns], and their state [n, the state's columns]."""
        raise NotImplementedError


class SparseSGD(_RowOptimizer):
    """torch.optim.SGD without momentum, for the rows of an :class:`EmbeddingBag`: row -= lr * gradient."""

    def __init__(self, bag: EmbeddingBag, lr: float = 1e-3) -> None:
        super().__init__(bag, None, {"lr": lr})

    def _update(self, rows: Any, grad: Any, state: Any) -> None:
        rows.sub_(grad * self.param_groups[0]["lr"])


class SparseAdagrad(_RowOptimizer):
    """torch.optim.Adagrad for the rows of an :class:`EmbeddingBag`; its sums of squares lie in a second file.

    state: the path of a .npy file with the table's shape, made of zeros (without taking space) if it is not there; or
    an Array with mode="r+". Its elements are float32, of a float64 table float64.
    options: as of :func:`gpufs.open`, for a path; engine and device are the table's if they are not given.
    """

    def __init__(
        self, bag: EmbeddingBag, state: Array | sources.Path, lr: float = 1e-2, eps: float = 1e-10, **options: Any
    ) -> None:
        super().__init__(bag, _state(bag, state, 1, options), {"lr": lr, "eps": eps})

    def _update(self, rows: Any, grad: Any, state: Any) -> None:
        group = self.param_groups[0]
        state.addcmul_(grad, grad)
        rows.sub_(group["lr"] * grad / (state.sqrt() + group["eps"]))


class SparseAdam(_RowOptimizer):
    """torch.optim.SparseAdam for the rows of an :class:`EmbeddingBag`; their two moments lie in a second file.

    state, options: as of :class:`SparseAdagrad`; of each row the first moment, and behind it the second one, so twice
    the table's columns. The number of steps is in ``state_dict()``, which a checkpoint keeps with both files.
    """

    def __init__(
        self,
        bag: EmbeddingBag,
        state: Array | sources.Path,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(bag, _state(bag, state, 2, options), {"lr": lr, "betas": betas, "eps": eps, "nsteps": 0})

    def _update(self, rows: Any, grad: Any, state: Any) -> None:
        group = self.param_groups[0]
        group["nsteps"] += 1
        (beta1, beta2), nsteps = group["betas"], group["nsteps"]
        first, second = state.chunk(2, dim=1)
        first.lerp_(grad, 1 - beta1)
        second.lerp_(grad * grad, 1 - beta2)
        step = group["lr"] * (1 - beta2**nsteps) ** 0.5 / (1 - beta1**nsteps)
        rows.sub_(step * first / (second.sqrt() + group["eps"]))


def _state(bag: EmbeddingBag, given: Array | sources.Path, times: int, options: dict[str, Any]) -> Array:
    table = bag.array
    shape = (table.shape[0], times * table.shape[1])
    dtype = np.dtype(np.float64 if sources.dtype_of(table) == torch.float64 else np.float32)
    if isinstance(given, Array):
        array = given
    else:
        path = Path(os.fsdecode(given))
        if not path.exists():
            np.lib.format.open_memmap(path, "w+", dtype, shape)
        how: dict[str, Any] = {"engine": table.engine, "device": table.mount.device} | options
        array = open_array(path, mode="r+", **how)
    if (array.shape, array.dtype, array.writable) != (shape, dtype, True):
        raise ValueError(f"the state of {table!r} is {dtype} of shape {shape}, with mode 'r+', and not {array!r}")
    return array

# SPDX-License-Identifier: Apache-2.0
"""gpufs for PyTorch: data sets, graph features and embeddings whose rows lie in files larger than memory.

FeatureStore needs PyTorch Geometric, which is imported when it is first named; the others need torch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpufs.torch.dataset import Dataset
from gpufs.torch.embedding_bag import EmbeddingBag, SparseAdagrad, SparseAdam, SparseSGD
from gpufs.torch.gather import Gather

if TYPE_CHECKING:
    from gpufs.torch.feature_store import FeatureStore

__all__ = ["Dataset", "EmbeddingBag", "FeatureStore", "Gather", "SparseAdagrad", "SparseAdam", "SparseSGD"]


if not TYPE_CHECKING:  # or checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name == "FeatureStore":
            from gpufs.torch.feature_store import FeatureStore

            return FeatureStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

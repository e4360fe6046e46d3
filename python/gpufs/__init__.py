# SPDX-License-Identifier: Apache-2.0
"""Files for code that runs inside a GPU kernel: arrays larger than memory, and a photo collage made with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpufs.errors import GpufsError

if TYPE_CHECKING:
    from gpufs.arrays import Array, open

__all__ = ["Array", "GpufsError", "open"]


def __getattr__(name: str) -> Any:
    """Arrays need NumPy, whose import takes longer than many commands: it is imported when they are first used."""
    if name in ("Array", "open"):
        from gpufs import arrays

        return getattr(arrays, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

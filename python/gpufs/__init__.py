# SPDX-License-Identifier: Apache-2.0
"""Files for code that runs inside a GPU kernel: arrays larger than memory, and a photo collage made with them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpufs.errors import Error, GpufsError

if TYPE_CHECKING:
    from gpufs.arrays import Array, open
    from gpufs.files import read_files
    from gpufs.mounts import Mount, stats
    from gpufs.queries import ColumnSums, QueryResult, query

    __version__: str

__all__ = [
    "Array",
    "ColumnSums",
    "Error",
    "GpufsError",
    "Mount",
    "QueryResult",
    "open",
    "query",
    "read_files",
    "stats",
]

_MODULES = {
    "Array": "gpufs.arrays",
    "open": "gpufs.arrays",
    "read_files": "gpufs.files",
    "Mount": "gpufs.mounts",
    "stats": "gpufs.mounts",
    "ColumnSums": "gpufs.queries",
    "QueryResult": "gpufs.queries",
    "query": "gpufs.queries",
}


if not TYPE_CHECKING:  # or checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Arrays need NumPy, whose import takes longer than many commands: it is imported when they are first used."""
        if name in _MODULES:
            found = getattr(import_module(_MODULES[name]), name)
            for module in _MODULES.values():  # now, when there are descriptors to read it by
                import_module(module)
            return found
        if name == "__version__":
            return import_module("gpufs._machine").version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Also what is imported when it is first used."""
        return sorted({*globals(), *__all__, "__version__"})

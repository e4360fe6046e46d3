# SPDX-License-Identifier: Apache-2.0
"""Rows of arrays in files, for gpufs.open() (apps/arrays/python_module.cpp)."""

import os

import numpy as np
from numpy.typing import NDArray

def engine_missing(engine: str) -> str:
    """Why the engine (cpu, simt, gpu) cannot run here; empty when it can."""

class Rows:
    """An open file with rows of equal size."""

    def __init__(
        self,
        engine: str,
        path: str | bytes | os.PathLike[str],
        begin: int,
        row_nbytes: int,
        nrows: int,
        cache_nbytes: int,
        page_nbytes: int,
    ) -> None: ...
    def read(self, ids: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copies the rows with these numbers (int64 [n]) to out (uint8 [n * row_nbytes]), and waits for them."""

    def way(self) -> str:
        """Which way the bytes take, and why."""

    def stats(self) -> dict[str, int]:
        """The mount's counters; zeros where there is no mount."""

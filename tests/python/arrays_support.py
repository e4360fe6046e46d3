# SPDX-License-Identifier: Apache-2.0
"""What tests of arrays share."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
from gpufs import _rows
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

ENGINES = [e for e in ("cpu", "simt", "gpu") if not _rows.engine_missing(e)]
SMALL: dict[str, Any] = {"cache": 1 << 20}


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.arange(int(np.prod(shape))) * 7919 % 65521).astype(dtype).reshape(shape)


def indices(n: int) -> st.SearchStrategy[Any]:
    """What names rows among n: slices, masks, numbers, arrays of numbers."""
    kinds = [st.slices(n), hnp.arrays(np.bool_, n)]
    if n:
        kinds.append(st.integers(-n, n - 1))
        kinds.append(
            hnp.arrays(
                st.sampled_from([np.int64, np.int8]),
                hnp.array_shapes(max_dims=3, min_side=0, max_side=5),
                elements=st.integers(-n, n - 1),
            )
        )
    return st.one_of(kinds)


def run_python(text: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """The text as a program in a process of its own, with this one's packages. If it crashes, stderr says where."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-X", "faulthandler", "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)

# SPDX-License-Identifier: Apache-2.0
"""What each format says of an array: where it lies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpufs.errors import GpufsError
from gpufs.text import printable

MOST_HEADER_NBYTES = 100 << 20  # as safetensors has it


@dataclass(frozen=True)
class Layout:
    """Of an array in C order: element i of the first axis is at begin + i * its bytes."""

    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def part(self, begin: int, end: int) -> Layout:
        """Of these rows."""
        return Layout(self.begin + begin * self.row_nbytes, (end - begin, *self.shape[1:]), self.dtype)


class NotOneArrayError(GpufsError):
    """A file has several arrays, and none was named, or one that it has not."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


def chosen(names: list[str], name: str | None, path: str) -> str:
    """The array that is meant: the one of that name, or the only one."""
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    if not names:
        raise GpufsError(f"'{printable(path)}' has no arrays")
    known = ", ".join(printable(n) for n in names[:20]) + (", ..." if len(names) > 20 else "")
    wanted = "has several arrays: give one's name" if name is None else f"has no array '{printable(name)}'"
    raise NotOneArrayError(f"'{printable(path)}' {wanted} ({known})", names)

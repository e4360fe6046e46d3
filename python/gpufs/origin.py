# SPDX-License-Identifier: Apache-2.0
"""Where an array comes from: what it takes to open it again, and to see that it is the same one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufs.errors import GpufsError
from gpufs.formats import Layout, find_layout
from gpufs.mounts import Mount
from gpufs.tensors import dtype_of, element_of
from gpufs.text import printable


@dataclass(frozen=True)
class Origin:
    """What an array was opened by, and found: enough to open it again, elsewhere, too."""

    path: str
    mount: Mount | dict[str, Any]
    how: dict[str, Any]
    file: tuple[str, int, int, int, int, int]
    layout: Layout

    @classmethod
    def of(cls, path: str, mount: Mount | dict[str, Any], how: dict[str, Any]) -> Origin:
        """Raises as :func:`gpufs.open` does where the file does not open, or holds no such array."""
        return cls(path, mount, how, _file_id(path), _layout_of(path, how))

    def check(self) -> None:
        """GpufsError: the file holds another array by now, or is another one."""
        file = _file_id(self.path)
        if file == self.file:
            return
        layout = _layout_of(self.path, self.how)
        if layout != self.layout or element_of(layout.dtype) != element_of(self.layout.dtype):
            now, was = (f"{of.shape} of {element_of(of.dtype) or of.dtype.str}" for of in (layout, self.layout))
            what = f"{now}, not {was}" if now != was else "its rows lie elsewhere, or may not be written"
            raise GpufsError(
                f"'{printable(self.path)}' holds another array than the one that was opened: {what}: open it anew"
            )
        if file[:2] == self.file[:2] and file[2] != self.file[2]:
            raise GpufsError(f"'{printable(self.path)}' was replaced since it was opened: open it anew")


def _file_id(path: str) -> tuple[str, int, int, int, int, int]:
    """Which boot of which machine, which file system there (of others files do not compare), which file; its state."""
    status = Path(path).stat()
    return _boot(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _layout_of(path: str, how: dict[str, Any]) -> Layout:
    dtype = None if how["dtype"] is None else dtype_of(how["dtype"])
    return find_layout(path, name=how["name"], dtype=dtype, shape=how["shape"], offset=how["offset"])

# SPDX-License-Identifier: Apache-2.0
"""Paths that callers give, and regular files."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from gpufs.errors import GpufsError
from gpufs.text import printable


def path_of(given: Any, name: str) -> Path:
    """Raises GpufsError where it is no path, or one that no file can have. name: the argument's."""
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise GpufsError(f"{name}: is no path, but {type(given).__name__}") from None
    try:
        is_possible = text != "" and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise GpufsError(f"{name}: no file can have the name '{printable(text)}'")
    return Path(text)


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading. Others are not opened, as that may wait for ever, or do something.

    Raises GpufsError for them; OSError: it does not open, or is a folder.
    """
    _check_regular(path, path.stat())
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(path, os.fstat(number))  # it may be another one by now
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise GpufsError(f"{path}: is no regular file: copy it to one first")

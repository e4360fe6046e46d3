# SPDX-License-Identifier: Apache-2.0
"""Whether a file is the same at the end of what was done with it."""

from __future__ import annotations

import os

from gpufs.errors import GpufsError

Stamp = tuple[int, int, int, int, int]


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """What changes with the file. None: it cannot be asked, and who opens it says why.

    Programs may set the time of its last change (mtime); the one of its state's (ctime) they cannot.
    """
    try:
        now = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def check_unchanged(path: str | os.PathLike[str], before: Stamp | None, verb: str) -> None:
    """Raises GpufsError where the stamp is another one now."""
    if stamp_of(path) != before:
        raise GpufsError(f"{os.fspath(path)}: was changed while it was {verb}: try again")

# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs`. What takes time to load is loaded by main(), so that Control-C is answered meanwhile."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"gpufs: interrupted; nothing was written\n")
    os._exit(130)


@contextmanager
def loading() -> Iterator[None]:
    """Within, Control-C ends the process at once: modules that load may make anything of an exception."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, say
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Runs the command; exit status 0, 1 (it failed, one line says why), 2 (wrong usage), 130 or 143 (interrupted)."""
    if sys.stdout is None:  # else the first file that is opened would be taken for it
        if sys.stderr is not None:
            os.write(2, b"gpufs: standard output is closed: redirect it, as to /dev/null\n")
        sys.exit(1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold what the terminal cannot show
    with loading():
        from gpufs.commands import app
    sys.exit(app(prog_name="gpufs"))

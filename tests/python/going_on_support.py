# SPDX-License-Identifier: Apache-2.0
"""What tests of going on after an interruption share."""

from __future__ import annotations

from collections.abc import Callable


class StoppedError(Exception):
    """Somebody has given up."""


def stop_after(n: int) -> Callable[[int, int], None]:
    """An on_progress that gives up when it is called once more than n times."""

    def stop(done: int, total: int) -> None:
        nonlocal n
        n -= 1
        if n < 0:
            raise StoppedError

    return stop

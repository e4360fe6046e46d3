# SPDX-License-Identifier: Apache-2.0
"""Long work in pieces, between which Python looks for Ctrl-C, and shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

SHORT_NBYTES, _MOST_NBYTES = 4 << 20, 256 << 20
# Of rows that lie anywhere: a disk may take a millisecond for each, and Ctrl-C waits for a piece.
SHORT_NROWS = 512
_SHORT_S, _LONG_S = 0.05, 0.2


def pieces(
    n: int, nbytes_each: int, progress: bool, what: str, *, scattered: bool = False, counts_bytes: bool = True
) -> Iterator[tuple[int, int]]:
    """The first and the end of each piece of n things; pieces that take 0.05 to 0.2 s, as far as that was known before.

    The caller does a piece's work before it asks for the next one. scattered: as at_first's. counts_bytes: progress is
    shown in bytes, else in things, where nbytes_each is but an estimate.
    """
    size, most = at_first(nbytes_each, scattered), max(1, _MOST_NBYTES // max(1, nbytes_each))
    each = nbytes_each if counts_bytes else 1
    with _Bar(n * each, progress, what, "B" if counts_bytes else "") as bar:
        begin = 0
        while begin < n:
            end = min(n, begin + size)
            start = time.monotonic()
            yield begin, end
            took = time.monotonic() - start
            bar.update((end - begin) * each)
            if took < _SHORT_S:
                size = min(2 * size, most)
            elif took > _LONG_S:
                size = max(size // 4, 1)
            begin = end


def at_first(nbytes_each: int, scattered: bool) -> int:
    """How many things are a piece before it is known how long they take. scattered: they lie anywhere in a file."""
    fitting = max(1, SHORT_NBYTES // max(1, nbytes_each))
    return min(fitting, SHORT_NROWS) if scattered else fitting


class _Bar:
    """tqdm's, or none."""

    def __init__(self, total: int, wanted: bool, what: str, unit: str) -> None:
        self._bar: Any = None
        if wanted:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", unit_divisor=1024)

    def update(self, n: int) -> None:
        if self._bar is not None:
            self._bar.update(n)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

# SPDX-License-Identifier: Apache-2.0
"""Long work in pieces, between which Python looks for Ctrl-C, and shows how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

SHORT_NBYTES, _MOST_NBYTES = 4 << 20, 256 << 20
_SHORT_S, _LONG_S = 0.05, 0.2


def pieces(
    n: int, nbytes_each: int, progress: bool, what: str, *, counts_bytes: bool = True
) -> Iterator[tuple[int, int]]:
    """The first and the end of each piece of n things; pieces that take 0.05 to 0.2 s, as far as that was known before.

    The caller does a piece's work before it asks for the next one. counts_bytes: progress is shown in bytes, else in
    things, where nbytes_each is but an estimate.
    """
    nbytes, each = SHORT_NBYTES, nbytes_each if counts_bytes else 1
    with _Bar(n * each, progress, what, "B" if counts_bytes else "") as bar:
        begin = 0
        while begin < n:
            end = min(n, begin + max(1, nbytes // max(1, nbytes_each)))
            start = time.monotonic()
            yield begin, end
            took = time.monotonic() - start
            bar.update((end - begin) * each)
            if took < _SHORT_S:
                nbytes = min(2 * nbytes, _MOST_NBYTES)
            elif took > _LONG_S:
                nbytes = max(nbytes // 4, 1)
            begin = end


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

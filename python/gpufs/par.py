# SPDX-License-Identifier: Apache-2.0
"""Data-parallel operations on files."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpufs.lexing import each_piece, names_of, table_of
from gpufs.mounts import engine_of

__all__ = ["Tokens", "lex"]


class Tokens(NamedTuple):
    """Tokens of a text, in their order.

    Token i begins at byte offsets[i] of the file (uint64 [n]) and is of the kind names[kinds[i]] (uint8 [n]). names[1]
    is "error"; no token has kind 0.
    """

    offsets: NDArray[np.uint64]
    kinds: NDArray[np.uint8]
    names: list[str]


def lex(
    path: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    engine: str = "auto",
    device: int | None = None,
) -> Tokens:
    """The tokens of a file, found by a finite automaton on many threads at once, in memory of the host.

    table: "c", "csv", "json", or the path of a table's file (docs/guide/lex.md). What the table has no place for is a
    token of kind "error", and lexing goes on behind it.
    engine, device: as of :func:`gpufs.open`. All give the same tokens; `gpu` and `simt` read the file through gpufs, by
    pieces, so it may be larger than the device's memory.

    Source: Hillis and Steele, "Data parallel algorithms" (CACM 1986). Raises GpufsError: the table is none, the file
    does not open, is no regular file, or changes meanwhile. Ctrl-C is noticed between pieces.
    """
    of = table_of(table)
    pieces = list(each_piece(path, of, engine_of(engine), device=device))
    offsets, kinds = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Tokens(offsets, kinds, names_of(of))

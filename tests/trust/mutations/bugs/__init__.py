# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: in each place the code would lose bytes, mix them up, hang, or let somebody out of the root."""

from __future__ import annotations

from . import (
    cache,
    data_parallel,
    file,
    graph,
    host,
    lex,
    nvme,
    nvme_files,
    par,
    par_files,
    pointer,
    query,
    spmv,
    vectors,
    words,
    writing,
)
from .bug import Bug, Edit

__all__ = ["BUGS", "Bug", "Edit"]

BUGS = (
    cache.BUGS
    + file.BUGS
    + writing.BUGS
    + pointer.BUGS
    + par.BUGS
    + data_parallel.BUGS
    + lex.BUGS
    + par_files.BUGS
    + graph.BUGS
    + query.BUGS
    + spmv.BUGS
    + vectors.BUGS
    + words.BUGS
    + host.BUGS
    + nvme.BUGS
    + nvme_files.BUGS
)

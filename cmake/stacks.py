#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does ptxas know how much stack each kernel needs? Reads what `nvcc -Xptxas -v` said, from the files that are named.

Calls out of line go through pointers (simt/cold.hpp). ptxas takes each of them for a call of any function whose address
is taken and that has such parameters. Where that leads back to the caller, it does not add stacks up, and the kernel
gets that of its own frame alone: it fails with an illegal address.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '([^']+)'")
FUNCTION = re.compile(r"Function properties for (\S+)")
FRAME = re.compile(r"(\d+) bytes stack frame")
CUMULATIVE = re.compile(r"Used \d+ registers(?:.*?(\d+) bytes cumulative stack size)?")


@dataclass
class Kernel:
    name: str
    largest: int = 0  # frame, of it or of what it calls
    function: str = ""  # whose that is
    cumulative: int = 0


def kernels_in(lines: Iterable[str]) -> list[Kernel]:
    kernels: list[Kernel] = []
    function = ""
    for line in lines:
        if found := ENTRY.search(line):
            kernels.append(Kernel(found[1]))
        elif found := FUNCTION.search(line):
            function = found[1]
        elif not kernels:
            continue
        elif found := FRAME.search(line):
            if int(found[1]) > kernels[-1].largest:
                kernels[-1].largest, kernels[-1].function = int(found[1]), function
        elif found := CUMULATIVE.search(line):
            kernels[-1].cumulative = int(found[1] or 0)
    return kernels


def main(arguments: Sequence[str]) -> int:
    kernels = [kernel for path in arguments for kernel in kernels_in(Path(path).read_text().splitlines())]
    unknown = [kernel for kernel in kernels if kernel.cumulative < kernel.largest]
    for kernel in unknown:
        print(
            f"{kernel.name} has a stack of {kernel.cumulative} bytes, and {kernel.function}, which it calls, a frame "
            f"of {kernel.largest}: does a function call one with the same parameters out of line?"
        )
    most = max((kernel.cumulative for kernel in kernels), default=0)
    print(f"{len(kernels)} kernels, of which {len(unknown)} have too small a stack; the largest has {most} bytes")
    return 1 if unknown or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

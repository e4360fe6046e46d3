#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does ptxas know how much stack each kernel needs? Reads what `nvcc -Xptxas -v` said, from the files that are named.
Of kernels that are linked with relocatable code, what `-Xnvlink -v` said. With --functions-once, of what was compiled
by `-Ofc`: ptxas compiles each function once then, so what it says of one follows no kernel; and it warns of each sum
that it lacks.

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
FILE = re.compile(r"ptxas info +: \d+ bytes gmem")
WARNED = re.compile(r"Stack size for entry function '([^']+)' cannot be statically determined")
LINKED = re.compile(r"nvlink info +: Function properties for '([^']+)'")
LINKED_STACK = re.compile(r"nvlink info +: used \d+ registers.*?(\d+) stack")


@dataclass
class Kernel:
    name: str
    largest: int = 0  # frame, of it or of what it calls
    function: str = ""  # whose that is
    cumulative: int = 0
    warned: bool = False


def kernels_in(lines: Iterable[str]) -> list[Kernel]:
    kernels: list[Kernel] = []
    library = Kernel("")  # functions that are compiled without a kernel: whatever is linked may call them
    current = library
    function = ""
    warned: set[str] = set()
    for line in lines:
        if found := WARNED.search(line):  # before it says more of the file
            warned.add(found[1])
        elif found := ENTRY.search(line):
            current = Kernel(found[1], warned=found[1] in warned)
            warned.discard(found[1])
            kernels.append(current)
        elif FILE.search(line):
            current = library
        elif found := LINKED.search(line):  # ptxas, which may have named it before, did not know what it calls
            current = next((kernel for kernel in kernels if kernel.name == found[1]), Kernel(found[1]))
            if current not in kernels:
                kernels.append(current)
            if library.largest > current.largest:
                current.largest, current.function = library.largest, library.function
        elif found := LINKED_STACK.search(line):
            current.cumulative = int(found[1])
        elif found := FUNCTION.search(line):
            function = found[1]
        elif found := FRAME.search(line):
            if int(found[1]) > current.largest:
                current.largest, current.function = int(found[1]), function
        elif found := CUMULATIVE.search(line):
            current.cumulative = int(found[1] or 0)
    return kernels


def main(arguments: Sequence[str]) -> int:
    once = "--functions-once" in arguments
    logs = [path for path in arguments if path != "--functions-once"]
    kernels = [kernel for path in logs for kernel in kernels_in(Path(path).read_text().splitlines())]
    unknown = [kernel for kernel in kernels if kernel.warned or (not once and kernel.cumulative < kernel.largest)]
    for kernel in unknown:
        what = f"{kernel.function}, which it calls, a frame of {kernel.largest}"
        if kernel.warned:
            what = "ptxas warned that this is no sum"
        print(
            f"{kernel.name} has a stack of {kernel.cumulative} bytes, and {what}: does a function call one with the "
            "same parameters out of line?"
        )
    most = max((kernel.cumulative for kernel in kernels), default=0)
    print(f"{len(kernels)} kernels, of which {len(unknown)} have too small a stack; the largest has {most} bytes")
    return 1 if unknown or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Whether source files name their licence: exits with 1, and names those which do not.

Standard input has the names of the files to look at, one a line. Of these, programs, build files and settings must have
"SPDX-License-Identifier: Apache-2.0" as their first line, or as their second after "#!". Documents, data and what tests
take as input need none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

LINE = "SPDX-License-Identifier: Apache-2.0"
SUFFIXES = {
    **dict.fromkeys((".hpp", ".cpp", ".cu", ".cuh", ".h", ".c", ".pml"), "// "),
    **dict.fromkeys((".py", ".pyi", ".sh", ".cmake", ".toml", ".yml", ".yaml"), "# "),
}
NAMES = {"CMakeLists.txt": "# ", ".clang-format": "# ", ".clang-tidy": "# "}


def comment_of(file: Path, first: str) -> str | None:
    """How a comment begins in a file that needs the line; None for one that needs none. x.hpp.in is as x.hpp."""
    if file.name in NAMES:
        return NAMES[file.name]
    if first.startswith("#!"):
        return "# "
    name = Path(file.name.removesuffix(".in"))
    return SUFFIXES.get(name.suffix)


def lacking(root: Path, names: Iterable[str]) -> list[str]:
    """Those of the names, relative to the root, that need the line and do not have it where it belongs."""
    wrong = []
    for name in names:
        with (root / name).open(errors="replace") as file:
            first, second = file.readline(), file.readline()
        comment = comment_of(Path(name), first)
        if comment is not None and (second if first.startswith("#!") else first).rstrip("\n") != comment + LINE:
            wrong.append(name)
    return wrong


def main() -> int:
    wrong = lacking(Path(__file__).resolve().parents[1], sys.stdin.read().splitlines())
    for name in wrong:
        print(f"{name}: its first line is to be a comment, {LINE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

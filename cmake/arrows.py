# SPDX-License-Identifier: Apache-2.0
"""Whether the parts' includes point down only, and programs include no insides: exits with 1, and says where not.

A file of include/gpufs/<part>/ or src/<part>/ includes its own part's and those below it (docs/design/parts.md).
What lies in include/gpufs/ itself is the mount's. A part that is not in PARTS is an error, so that who adds one says
where it stands. What uses the library lies in other folders of the root, above all of it; programs there include no
header of a part's detail/.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
INCLUDE_OF_INSIDE = re.compile(r'^\s*#\s*include\s+["<]([^">]*gpufs/[^">]*detail/[^">]+)[">]', re.MULTILINE)

# Bottom up: each with the parts that its headers may include, besides its own.
DEVICE_SIDE = {"simt", "nvme", "cache", "source", "names", "transport"}
PARTS: dict[str, set[str]] = {
    "simt": set(),
    "nvme": {"simt"},
    "cache": {"simt"},
    "source": {"simt"},
    "transport": {"simt", "source"},
    "names": {"simt", "source", "transport"},
    "store": {"simt", "nvme", "source", "transport", "names"},  # of transport only what names brings along
    "service": {"simt", "nvme", "source", "names", "transport", "store"},
    "file": DEVICE_SIDE,
    "pointer": DEVICE_SIDE | {"file"},
}
BELOW_MOUNT = set(PARTS)
PARTS["mount"] = BELOW_MOUNT
PARTS["par"] = PARTS["compat"] = PARTS["python"] = BELOW_MOUNT | {"mount"}
PARTS["c_abi"] = PARTS["par"] | {"par"}
# What the parts' host code, in src/, may include besides: `file`'s asks a store and a service.
HOST_CODE = {"file": {"store", "service"}}
# Folders of the root above the library: each may include all of it, and of each other these.
ABOVE: dict[str, set[str]] = {
    "apps": {"tests"},  # for tests of its own
    "bench": {"apps", "tests"},
    "examples": {"tests"},
    "research": {"apps", "bench", "tests"},
    "tests": set(),
}
# What is written as users write programs: it includes what docs/reference/headers.md names. Benches, research and tests
# may look inside.
PROGRAMS = ("apps", "examples", "tests/consumer")
SOURCES = {".c", ".h", ".hpp", ".cpp", ".cu"}
GENERATED = {"gpufs/version.hpp", "targets.hpp"}  # by CMake, of what includes nothing


def part_of(path: str) -> str:
    """Of a path below the root: include/gpufs/cache/detail/x.hpp and src/cache/x.cpp are cache's, apps/x.cpp apps'."""
    folder = path.split("/")[0]
    if folder in ABOVE:
        return folder
    below = path.removeprefix("include/gpufs/").removeprefix("src/")
    return below.split("/")[0] if "/" in below else "mount"


def included(root: Path, file: str, name: str) -> str:
    """The path below the root of what `file` includes as `name`, also where it is not there."""
    beside = os.path.normpath(f"{Path(file).parent.as_posix()}/{name}")
    paths = [beside, name, *(f"{folder}/{name}" for folder in ("src", *ABOVE))]
    return next((path for path in paths if (root / path).is_file()), f"include/{name}")


def upward(root: Path) -> list[str]:
    """A line for each include that points up, and for each part that is not known."""
    wrong = []
    files = [
        file.relative_to(root).as_posix()
        for folder in ("include/gpufs", "src", *ABOVE)
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in SOURCES
    ]
    for file in files:
        part = part_of(file)
        if part not in PARTS and part not in ABOVE:
            wrong.append(f"{file}: cmake/arrows.py does not know where the part '{part}' stands")
            continue
        allowed = {part} | (PARTS[part] if part in PARTS else ABOVE[part] | set(PARTS))
        if file.startswith("src/"):
            allowed = allowed | HOST_CODE.get(part, set())
        for match in INCLUDE.finditer((root / file).read_text()):
            name = match[1]
            if name in GENERATED:
                continue
            other = part_of(included(root, file, name))
            if other not in allowed:
                wrong.append(f"{file} includes {name}: {part} stands below {other}, or beside it")
    return wrong


def inside(root: Path) -> list[str]:
    """A line for each include of a program's that names a header of a part's detail/."""
    return [
        f"{file.relative_to(root).as_posix()} includes {match[1]}, which is not for programs"
        for folder in PROGRAMS
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in SOURCES
        for match in INCLUDE_OF_INSIDE.finditer(file.read_text())
    ]


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    wrong = upward(root) + inside(root)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

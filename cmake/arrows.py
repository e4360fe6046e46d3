# SPDX-License-Identifier: Apache-2.0
"""Whether the parts' includes point down only: exits with 1, and says where they do not.

A file of include/gpufs/<part>/ or src/<part>/ includes its own part's and those below it (docs/design/parts.md).
What lies in include/gpufs/ itself is the mount's. A part that is not in PARTS is an error, so that who adds one says
where it stands.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Bottom up: each with the parts that its headers may include, besides its own.
DEVICE_SIDE = {"simt", "cache", "source", "names", "transport"}
PARTS: dict[str, set[str]] = {
    "simt": set(),
    "cache": {"simt"},
    "source": {"simt"},
    "transport": {"simt", "source"},
    "names": {"simt", "source", "transport"},
    "store": {"simt", "source", "names"},
    "service": {"simt", "source", "names", "transport", "store"},
    "file": DEVICE_SIDE,
    "pointer": DEVICE_SIDE | {"file"},
}
BELOW_MOUNT = set(PARTS)
PARTS["mount"] = BELOW_MOUNT
PARTS["compat"] = BELOW_MOUNT | {"mount"}
# What the parts' host code, in src/, may include besides: `file`'s asks a store and a service.
HOST_CODE = {"file": {"store", "service"}}
# Beside the library: may include all of it.
BESIDE = {"apps", "python"}
# A handler that makes a view of a mount for its pages.
EXCEPTIONS = {("include/gpufs/pointer/aes_ctr.hpp", "gpufs/mount.hpp")}


def part_of(path: str) -> str:
    """Of a path below the root: include/gpufs/cache/frames.hpp and src/cache/x.cpp are cache's."""
    below = path.removeprefix("include/gpufs/").removeprefix("src/")
    return below.split("/")[0] if "/" in below else "mount"


def upward(root: Path) -> list[str]:
    """A line for each include that points up, and for each part that is not known."""
    wrong = []
    files = [
        file.relative_to(root).as_posix()
        for folder in ("include/gpufs", "src")
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in {".hpp", ".cpp", ".cu"}
    ]
    for file in files:
        part = part_of(file)
        if part in BESIDE:
            continue
        if part not in PARTS:
            wrong.append(f"{file}: cmake/arrows.py does not know where the part '{part}' stands")
            continue
        allowed = PARTS[part] | {part}
        if file.startswith("src/"):
            allowed = allowed | HOST_CODE.get(part, set())
        for match in INCLUDE.finditer((root / file).read_text()):
            name = match[1]
            if (file, name) in EXCEPTIONS or name == "gpufs/version.hpp":
                continue
            beside = os.path.normpath(f"{Path(file).parent.as_posix()}/{name}")
            target = beside if (root / beside).is_file() else f"include/{name}"
            if part_of(target) not in allowed:
                wrong.append(f"{file} includes {name}: {part} stands below {part_of(target)}, or beside it")
    return wrong


def main() -> int:
    wrong = upward(Path(__file__).resolve().parents[1])
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

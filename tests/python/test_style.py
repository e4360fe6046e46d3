# SPDX-License-Identifier: Apache-2.0
"""What CONTRIBUTING says of the tree and no compiler sees."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def public_headers() -> set[str]:
    """What docs/reference/headers.md names: in its first column, and where that is declared."""
    found: set[str] = set()
    for line in (ROOT / "docs/reference/headers.md").read_text().splitlines():
        folder = Path("gpufs")
        for name in re.findall(r"`([a-z0-9_/]+\.hp?p?)`", line):
            path = Path(name) if name.startswith("gpufs/") else folder / name
            if not name.startswith("gpufs/") and not (ROOT / "include" / path).exists():
                path = Path("gpufs") / name
            folder = path.parent
            found.add(str(path))
    return found


def test_public_headers_are_there() -> None:
    headers = public_headers()
    assert len(headers) > 15
    made = {"gpufs/version.hpp"}
    assert made < headers
    assert not [name for name in headers - made if not (ROOT / "include" / name).exists()]


def test_what_lies_in_no_detail_is_for_programs() -> None:
    """But for simt, all of whose headers that lie in no detail/ are (docs/reference/simt.md)."""
    outside = {path.relative_to(ROOT / "include") for path in (ROOT / "include").rglob("*.h*")}
    face = {str(path) for path in outside if not {"detail", "simt"} & set(path.parts)}
    assert len(face) > 35
    assert face == {name for name in public_headers() if "/simt/" not in name} - {"gpufs/version.hpp"}


def test_programs_include_public_headers_only() -> None:
    headers = public_headers()
    programs = [path for folder in ("examples", "apps", "tests/consumer") for path in (ROOT / folder).rglob("*.[ch]*")]
    programs += [*(ROOT / "docs/guide").glob("*.md"), ROOT / "README.md"]
    include = re.compile(r'#include [<"](gpufs/[^>"]+)[>"]')
    included = {(path, name) for path in programs for name in include.findall(path.read_text())}
    assert len(included) > 15
    assert not {(str(path), name) for path, name in included if name not in headers}


def test_tests_are_named_in_one_style() -> None:
    name = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(?:DISABLED_)?(\w+)\)", re.MULTILINE)
    sources = [
        path
        for folder in ("tests", "apps/tests", "examples/tests", "research/tests")
        for path in (ROOT / folder).rglob("*.?pp")
    ]
    names = [found for path in sources for found in name.findall(path.read_text())]
    assert len(names) > 700
    assert not [found for found in names if any(re.search("[A-Z]", part) for part in found)]
    assert not [suite for suite, _ in names if suite.endswith(("_", "_test", "_tests", "_fixture"))]

# SPDX-License-Identifier: Apache-2.0
"""cmake/spdx.py: all of our source files name their licence, and one that does not is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "cmake"))

import spdx  # noqa: E402


def test_ours_do() -> None:
    try:
        git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or no clone: nothing says which files are ours")
    ours = [name for name in git.stdout.splitlines() if (ROOT / name).is_file()]
    assert len(ours) > 100
    assert spdx.lacking(ROOT, ours) == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.hpp", "// {}\n#pragma once\n", False),
        ("a.hpp", "#pragma once\n", True),
        ("a.hpp", "// What it is for.\n// {}\n", True),
        ("a.hpp", "# {}\n", True),
        ("a.hpp", "// {} OR MIT\n", True),
        ("a.hpp", "", True),
        ("a.cu", "#pragma once\n", True),
        ("version.cpp.in", "int n;\n", True),
        ("model.pml", "byte n\n", True),
        ("a.py", "# {}", False),
        ("a.py", "#!/usr/bin/env python3\n# {}\n", False),
        ("a.py", "#!/usr/bin/env python3\n\n# {}\n", True),
        ("dev", "#!/usr/bin/env bash\n# {}\n", False),
        ("dev", "#!/usr/bin/env bash\n", True),
        ("CMakeLists.txt", "project(x)\n", True),
        ("tool.cmake", "project(x)\n", True),
        (".clang-tidy", "Checks: x\n", True),
        ("pyproject.toml", "[project]\n", True),
        ("targets.txt", "hot_4k\n", False),
        ("README.md", "# What it is\n", False),
        ("performance.md.in", "# Performance\n", False),
        ("LICENSE", "Apache\n", False),
        ("corpus/escapes", "\x00\x01", False),
    ],
)
def test_what_is_found(tmp_path: Path, name: str, text: str, found: bool) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text.format(spdx.LINE))
    assert spdx.lacking(tmp_path, [name]) == ([name] if found else [])


def test_bytes_that_are_no_text_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "picture.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (tmp_path / "odd.hpp").write_bytes(b"\xff\n")
    assert spdx.lacking(tmp_path, ["picture.jpg", "odd.hpp"]) == ["odd.hpp"]

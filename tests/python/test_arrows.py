# SPDX-License-Identifier: Apache-2.0
"""cmake/arrows.py: the parts' includes point down only, and programs include no insides; one that does is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "cmake"))

import arrows  # noqa: E402


def tree(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_ours_point_down() -> None:
    assert arrows.upward(ROOT) == []


def test_our_programs_include_no_insides() -> None:
    assert arrows.inside(ROOT) == []
    for folder in arrows.PROGRAMS:
        assert any(file.suffix in arrows.SOURCES for file in (ROOT / folder).rglob("*"))


@pytest.mark.parametrize(
    ("file", "line", "is_found"),
    [
        ("examples/01_read_one_file.cpp", '#include "gpufs/cache/detail/frames.hpp"', True),
        ("examples/tests/aes_ctr_test.cpp", '#include "gpufs/simt/detail/cpu_machine.hpp"', True),
        ("apps/collage/match.cu", "  # include <gpufs/pointer/detail/link.hpp>", True),
        ("tests/consumer/read_in_c.c", '#include "../../include/gpufs/file/detail/fill.hpp"', True),
        ("tests/consumer/count_bytes.cpp", "#include <gpufs/gpufs.hpp>", False),
        ("apps/collage/match.hpp", '#include "apps/detail/x.hpp"', False),
        ("bench/hot.cu", '#include "gpufs/cache/detail/frames.hpp"', False),
        ("tests/cache/stress.hpp", '#include "gpufs/cache/detail/frames.hpp"', False),
    ],
)
def test_a_program_that_includes_an_inside_is_found(tmp_path: Path, file: str, line: str, is_found: bool) -> None:
    found = arrows.inside(tree(tmp_path, {file: f"#pragma once\n{line}\n"}))
    assert [text.startswith(f"{file} includes ") for text in found] == [True] * is_found


def test_headers_are_short() -> None:
    nlines = {path: len(path.read_text().splitlines()) for path in (ROOT / "include").rglob("*.h*")}
    assert len(nlines) > 50
    assert not {path: n for path, n in nlines.items() if n > 300}, "split it where it holds two things"


def test_parts_may_use_what_those_below_them_may() -> None:
    for part, below in arrows.PARTS.items():
        assert part not in below
        for other in below:
            assert arrows.PARTS[other] <= below, f"{part} may use {other}, but not all that it uses"


@pytest.mark.parametrize(
    ("file", "include", "found"),
    [
        ("include/gpufs/file/file.hpp", "gpufs/pointer/detail/layout.hpp", "file stands below pointer"),
        ("include/gpufs/transport/detail/requests.hpp", "gpufs/file/detail/layout.hpp", "transport stands below file"),
        ("include/gpufs/cache/detail/frames.hpp", "gpufs/transport/detail/wire.hpp", "cache stands below transport"),
        ("include/gpufs/file/file.hpp", "gpufs/mount.hpp", "file stands below mount"),
        ("include/gpufs/file/file.hpp", "gpufs/service/detail/service.hpp", "file stands below service"),
        ("include/gpufs/pointer/map.hpp", "gpufs/mount.hpp", "pointer stands below mount"),
        ("src/transport/rings.hpp", "../service/core.hpp", "transport stands below service"),
        ("src/cache/make_layout.cpp", "../mount/options.hpp", "cache stands below mount"),
        ("src/file/probe.cpp", "apps/parallel.hpp", "file stands below apps"),
        ("include/gpufs/file/file.hpp", "../../../apps/parallel.hpp", "file stands below apps"),
        ("src/simt/cpu_host.cpp", "file/harness.hpp", "simt stands below tests"),
        ("apps/collage/match.hpp", "bench/harness.hpp", "apps stands below bench"),
        ("src/pointer/make_layout.cpp", "research/baselines/radix_tree.hpp", "pointer stands below research"),
        ("bench/hot.cu", "../research/baselines/radix_tree.hpp", "bench stands below research"),
        ("include/gpufs/stream/sort.hpp", "gpufs/file/file.hpp", "does not know where the part 'stream' stands"),
    ],
)
def test_one_that_points_up_is_found(tmp_path: Path, file: str, include: str, found: str) -> None:
    target = arrows.included(ROOT, file, include)
    root = tree(tmp_path, {file: f'#pragma once\n  #include "{include}"\n', target: ""})
    assert [line for line in arrows.upward(root) if line.startswith(file) and found in line]


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("include/gpufs/pointer/map.hpp", "gpufs/file/file.hpp"),
        ("include/gpufs/file/file.hpp", "gpufs/version.hpp"),
        ("src/file/left_pages.hpp", "gpufs/service/detail/service.hpp"),
        ("src/mount/mount.cpp", "../pointer/make_layout.hpp"),
        ("src/mount/mount.cpp", "leftovers.hpp"),
        ("src/python/machine_module.cpp", "gpufs/gpufs.hpp"),
        ("apps/collage/library.cpp", "gpufs/gpufs.hpp"),
        ("apps/tests/collage_format_test.cpp", "apps/parallel.hpp"),
        ("research/tests/policies_test.cpp", "research/baselines/radix_tree.hpp"),
        ("research/papers/pointer_papers.cu", "bench/pointer_runs.hpp"),
    ],
)
def test_one_that_points_down_is_not(tmp_path: Path, file: str, include: str) -> None:
    target = arrows.included(ROOT, file, include)
    assert arrows.upward(tree(tmp_path, {file: f'#include "{include}"\n', target: ""})) == []

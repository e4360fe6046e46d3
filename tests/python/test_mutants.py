# SPDX-License-Identifier: Apache-2.0
"""tests/trust/mutations/mutants.py: what it draws, and what it says of mutants of a small project."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trust" / "mutations"))

import mutants  # noqa: E402
import rebuild  # noqa: E402
import related  # noqa: E402

CODE = """// a + b in a comment is none
#include "twice.hpp"
#if defined(__CUDA_ARCH__)
int only_cuda() { return 1 + 1; }
#else
int only_host() { return 2 * 2; }
#endif
static_assert(1 < 2);
int look(int a, int b, bool& held) {
  const char* text = "a < b && 3";
  if (a < b && held) return -EINVAL;
  if (const int c = a; c == b) return 0;
  unpin(a);
  held = false;
  a += 10u;
  return std::min(a, b);
}
"""


def drawn_of(tmp_path: Path, code: str) -> list[Any]:
    syntax = pytest.importorskip("syntax", reason="no tree-sitter")
    (tmp_path / "look.cpp").write_text(code)
    found: list[Any] = syntax.all_mutants(tmp_path, "look.cpp")
    return found


def test_every_kind_of_change_and_nothing_else(tmp_path: Path) -> None:
    found = {(one.line, one.operator, one.old, one.new) for one in drawn_of(tmp_path, CODE)}
    assert found == {
        (6, "arithmetic", "*", "/"),
        (6, "constant", "2", "3"),
        (6, "constant", "2", "1"),
        (11, "negated condition", "a < b && held", "!(a < b && held)"),
        (11, "comparison", "<", "<="),
        (11, "logic", "&&", "||"),
        (11, "dropped error", "-EINVAL", "0"),
        (12, "negated condition", "c == b", "!(c == b)"),
        (12, "comparison", "==", "!="),
        (12, "constant", "0", "1"),
        (12, "constant", "0", "-1"),
        (13, "dropped statement", "unpin(a);", ";"),
        (14, "dropped assignment", "held = false;", ";"),
        (14, "constant", "false", "true"),
        (15, "arithmetic", "+=", "-="),
        (15, "dropped assignment", "a += 10u;", ";"),
        (15, "constant", "10u", "11u"),
        (15, "constant", "10u", "9u"),
        (16, "min and max", "std::min", "std::max"),
    }


def test_keys_outlive_moves_within_the_file_and_tell_mutants_apart(tmp_path: Path) -> None:
    before = drawn_of(tmp_path, CODE)
    moved = drawn_of(tmp_path, "int other() { return 5 - 4; }\n" + CODE.replace("\n  a +=", "\n\n    a  +="))
    assert len({one.key for one in before}) == len(before)
    assert {one.key for one in before} < {one.key for one in moved}


def test_the_same_seed_draws_the_same_and_every_mutant_can_be_planted() -> None:
    pytest.importorskip("syntax", reason="no tree-sitter")
    drawn = mutants.draw(30, 5, ["src/store"])
    assert drawn == mutants.draw(30, 5, ["src/store"])
    assert drawn["mutants"] != mutants.draw(30, 6, ["src/store"])["mutants"]
    assert len(drawn["mutants"]) > drawn["wanted"] == 30
    assert len({one["key"] for one in drawn["mutants"]}) == len(drawn["mutants"])
    assert set(drawn["files"]) == {one["file"] for one in drawn["mutants"]}
    for one in drawn["mutants"]:
        text = (ROOT / one["file"]).read_bytes()
        changed = mutants.planted(text, one["start"], one["end"], one["old"], one["new"])
        assert changed != text and len(changed) == len(text) + len(one["new"]) - len(one["old"])
        assert one["diff"].count("\n-") == one["diff"].count("\n+") - 1  # the first line begins with ---
        with pytest.raises(ValueError, match="not 'nonsense'"):
            mutants.planted(text, one["start"], one["end"], "nonsense", "")


def test_each_file_has_test_programs_that_there_are() -> None:
    cmake = "".join(path.read_text() for path in (ROOT / "tests").glob("*/CMakeLists.txt"))
    device = {f"{name}_cpu" for name in re.findall(r"gpufs_device_test\(NAME (\w+)", cmake)}
    assert related.all_programs() <= device | set(re.findall(r"gpufs_host_test\(NAME (\w+)", cmake))
    files = related.sources(ROOT)
    assert "src/store/posix_file.cpp" in files and "include/gpufs/cache/frames.hpp" in files
    assert not [file for file in files if "cuda" in file or "apps" in file]
    for file in files:
        assert related.programs_for(file)


def test_what_is_explained_is_still_in_the_code() -> None:
    syntax = pytest.importorskip("syntax", reason="no tree-sitter")
    keys = {one.key for file in related.sources(ROOT) for one in syntax.all_mutants(ROOT, file)}
    for key, known in mutants.explained().items():
        assert key in keys, f"take {key} out of equivalent.json: the code of {known['file']} has changed"
        assert known["why"]


@pytest.mark.parametrize(
    ("found", "number", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.278), (9, 10, 0.596, 0.982), (270, 300, 0.861, 0.929)],
)
def test_intervals(found: int, number: int, low: float, high: float) -> None:
    assert mutants.wilson(found, number) == pytest.approx((low, high), abs=5e-4)


HEADER = "#pragma once\nint twice(int x);\nint untested(int x);\ninline int slow(int x) { return x - 1; }\n"
SOURCE = '#include "twice.hpp"\nint twice(int x) { return x + x; }\nint untested(int x) { return x * 3; }\n'
FIRST = """#include <cstdio>
#include "twice.hpp"
int main() {
  std::puts("[ RUN      ] a.b");
  return slow(1);
}
"""
PROGRAM = """#include <cstdio>
#include <cstdlib>
#include "twice.hpp"
int main() {
  std::puts("[ RUN      ] numbers.twice");
  if (twice(2) != 4) { std::puts("[  FAILED  ] numbers.twice (0 ms)"); return 1; }
  std::puts("[ RUN      ] numbers.slow");
  for (int x = 3; x != 0; x = slow(x)) {}
  return std::getenv("TMPDIR") == nullptr;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
include_directories("${PROJECT_SOURCE_DIR}/include")
add_library(small STATIC src/twice.cpp src/other.cpp)
add_executable(other tests/other.cpp)
foreach(name IN ITEMS first second broken)
  add_executable(${name} tests/${name}.cpp)
  target_link_libraries(${name} small)
endforeach()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a library, two programs that test it, one that has no part of it, and one that always fails."""
    if not all(map(shutil.which, ("cmake", "ninja", "g++"))):
        pytest.skip("no cmake, ninja or g++")
    root = tmp_path / "project"
    passes = 'int main() { return 0; }\n// "[ RUN      ] "'
    for name, text in {
        "CMakeLists.txt": CMAKE,
        "include/twice.hpp": HEADER,
        "src/twice.cpp": SOURCE,
        "src/other.cpp": "int other() { return 0; }\n",
        "tests/other.cpp": '#include <cstdio>\nint main() { std::puts("[ RUN      ] a.b"); }\n',
        "tests/first.cpp": FIRST,
        "tests/second.cpp": PROGRAM,
        "tests/broken.cpp": passes,
        "bench/nothing": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "OUT", root / "build" / "mutants")
    monkeypatch.setattr(mutants, "EQUIVALENT", root / "equivalent.json")
    monkeypatch.setattr(mutants, "programs_for", lambda file: ("other", "broken", "first", "second"))
    monkeypatch.setattr(mutants, "SHORTEST_DEADLINE", 2.0)
    (root / "equivalent.json").write_text('{"f": {"mutant": "", "file": "src/twice.cpp", "why": "nobody can tell"}}')
    yield root


def mutant_of(root: Path, key: str, file: str, old: str, new: str) -> dict[str, Any]:
    text = (root / file).read_text()
    assert text.count(old) == 1
    start = text.index(old)
    made = {"key": key, "file": file, "line": text[:start].count("\n") + 1, "function": "f", "operator": "arithmetic"}
    return made | {"start": start, "end": start + len(old), "old": old, "new": new, "diff": f"---\n+++\n-{old}\n+{new}"}


def drawn_in(root: Path, wanted: int) -> Path:
    some = [
        mutant_of(root, "f", "src/twice.cpp", "* 3", "* 4"),
        mutant_of(root, "a", "src/twice.cpp", "x + x", "x - x"),
        mutant_of(root, "b", "src/twice.cpp", "x * 3", "x / 3"),
        mutant_of(root, "c", "src/twice.cpp", "twice(int x)", "twice(int y)"),
        mutant_of(root, "d", "include/twice.hpp", "x - 1", "x - 0"),
        mutant_of(root, "e", "src/other.cpp", "0", "1"),
    ]
    files = {
        file: mutants.hashlib.sha256((root / file).read_bytes()).hexdigest() for file in {one["file"] for one in some}
    }
    drawn = {"seed": 1, "wanted": wanted, "population": {}, "files": files, "mutants": some}
    (root / "mutants.json").write_text(json.dumps(drawn))
    return root / "mutants.json"


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_becomes_of_mutants(jobs: int, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn, out = drawn_in(project, 5), project / "results.json"
    mutants.run(drawn, jobs, 5, out, 0)
    whole = json.loads(out.read_text())
    results = {result["key"]: result for result in whole["results"]}
    assert {key: result["status"] for key, result in results.items()} == {
        "a": "found",
        "b": "survived",
        "c": "not compiled",
        "d": "found",
        "e": "survived",
        "f": "explained",
    }
    assert (results["a"]["program"], results["a"]["test"], results["a"]["how"]) == ("second", "numbers.twice", "")
    assert results["b"]["tried"] == ["first", "second"]
    assert "error" in results["c"]["how"]
    assert (results["d"]["program"], results["d"]["test"]) == ("first", "a.b")
    assert whole["failing"] == {"broken": "no test: no test was run"}
    assert (project / "src" / "twice.cpp").read_text() == SOURCE
    assert not list((project / "build" / "mutants" / "work").glob("?/tree"))
    capsys.readouterr()
    assert mutants.report([whole]) == 1  # 3 of 5 is less than nine tenths, however lucky
    said = capsys.readouterr().out
    assert "SURVIVED b: arithmetic in f" in said and "found by: " in said
    mutants.explain("b", "nobody asks for it", [whole])
    mutants.explain("e", "it is not linked", [whole])
    assert mutants.explained()["b"] == {
        "file": "src/twice.cpp",
        "mutant": ["-x * 3", "+x / 3"],
        "why": "nobody asks for it",
    }
    with pytest.raises(SystemExit, match="no mutant a has survived"):
        mutants.explain("a", "", [whole])
    assert mutants.report([whole]) == 0
    assert "found or explained 5 of 5" in capsys.readouterr().out
    # Enough have been tried: nothing is run again, and what is there stays.
    mutants.run(drawn, jobs, 5, out, 0)
    assert json.loads(out.read_text())["results"] == whole["results"]


def test_a_run_goes_on_where_the_last_one_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, out = drawn_in(project, 5), project / "results.json"
    mutants.run(drawn, 1, 0, out, 0)
    assert [result["key"] for result in json.loads(out.read_text())["results"]] == ["f"]
    part = json.loads(out.read_text()) | {"partial": {"b": ["first", "second"]}}
    out.write_text(json.dumps(part))
    mutants.run(drawn, 1, 5, out, 0)
    results = {result["key"]: result for result in json.loads(out.read_text())["results"]}
    assert (results["b"]["status"], results["b"]["tried"]) == ("survived", ["first", "second"])
    assert results["b"]["seconds"] == 0
    (project / "src" / "twice.cpp").write_text(SOURCE + "\n")
    with pytest.raises(SystemExit, match="has changed since"):
        mutants.run(drawn, 1, 5, out, 0)


def test_a_test_that_fails_without_the_mutant_finds_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run again, as it is: here it fails from the second time on."""
    flaky = PROGRAM.replace(
        "int main() {", 'int main() {\n  if (std::FILE* f = std::fopen("COUNT", "a")) std::fclose(f);'
    )
    flaky = flaky.replace("twice(2) != 4", 'std::rename("COUNT", "COUNT") == 0 && std::getenv("LATER")')
    (project / "tests" / "second.cpp").write_text(flaky.replace("COUNT", str(project / "count")))
    drawn, out = drawn_in(project, 2), project / "results.json"
    base_run = mutants.Runner._as_it_is

    def then_fails(self: Any, program: str) -> Any:
        got = base_run(self, program)
        monkeypatch.setenv("LATER", "1")
        return got

    monkeypatch.setattr(mutants.Runner, "_as_it_is", then_fails)
    monkeypatch.setattr(mutants, "programs_for", lambda file: ("second",))
    mutants.run(drawn, 1, 5, out, 0)
    whole = json.loads(out.read_text())
    assert {result["key"]: result["status"] for result in whole["results"]} == {"f": "explained", "a": "survived"}
    assert whole["unsteady"] == {"second numbers.twice": 1}


def test_only_what_depends_on_a_change_is_built_anew(project: Path) -> None:
    base = rebuild.Base(project, project / "build" / "base")
    assert base.build({"first", "second", "other"}, 2, project / "log")
    first = base.program("first").stat().st_mtime_ns
    (project / "src" / "twice.cpp").touch()  # a new time, but nothing new
    base = rebuild.Base(project, project / "build" / "base")
    assert base.build({"first", "second", "other"}, 2, project / "log")
    assert base.program("first").stat().st_mtime_ns == first
    assert base.contains("second", "src/twice.cpp") and not base.contains("other", "src/twice.cpp")
    tree = rebuild.Tree(base, project / "work", "include/twice.hpp", HEADER.replace("x - 1", "x - 2").encode())
    end = time.monotonic() + 60
    made = tree.build("first", end - time.monotonic())
    assert made is not None and made != base.program("first")
    built = sorted(path.name for path in (project / "work" / "made").rglob("*.o"))
    assert built == ["first.cpp.o", "twice.cpp.o"]
    assert tree.build("other", end - time.monotonic()) == base.program("other")
    tree.remove()
    assert not (project / "work").exists()
    (project / "include" / "twice.hpp").write_text(HEADER + "// other\n")
    assert base.build({"first"}, 2, project / "log")
    assert base.program("first").stat().st_mtime_ns != first

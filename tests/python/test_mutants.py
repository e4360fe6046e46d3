# SPDX-License-Identifier: Apache-2.0
"""tests/trust/mutations/mutants.py: what it draws, and what it says of mutants of a small project."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trust" / "mutations"))

import mutants  # noqa: E402
import switched  # noqa: E402

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
constexpr int known = 4 + 4;
int not_while_it_runs(int n) {
  static const int k = n + 2;
  int room[4 * 4];
  if constexpr (sizeof(n) == 4) return k;
  switch (n) {
    case 1 + 1: n++;
  }
  return room[n];
}
constexpr int often(int n) { return n * n; }
struct place {
  int at = known;
  unsigned where = 7;
};
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
        (24, "dropped statement", "n++;", ";"),
        (28, "arithmetic", "*", "/"),
        (31, "constant", "7", "8"),
        (31, "constant", "7", "6"),
    }


def test_keys_outlive_moves_within_the_file_and_tell_mutants_apart(tmp_path: Path) -> None:
    before = drawn_of(tmp_path, CODE)
    moved = drawn_of(tmp_path, "int other() { return 5 - 4; }\n" + CODE.replace("\n  a +=", "\n\n    a  +="))
    assert len({one.key for one in before}) == len(before)
    assert {one.key for one in before} < {one.key for one in moved}


def test_each_is_behind_a_switch_of_its_own(tmp_path: Path) -> None:
    def switched_on(code: str) -> Any:
        found = [dataclasses.asdict(one) | {"number": i} for i, one in enumerate(drawn_of(tmp_path, code), 1)]
        text = switched.planted(code.encode(), found).decode().replace("gpufs_mutants::", "")
        assert sorted({int(number) for number in re.findall(r"on(?:_constexpr)?\((\d+)\)", text)}) == list(
            range(1, len(found) + 1)
        )
        return text.splitlines()

    assert switched_on("int f(int a) { return a + b; }") == ["int f(int a) { return (on(1) ? (a - b) : (a + b)); }"]
    assert switched_on("constexpr bool f() { return true; }") == [
        "constexpr bool f() { return (on_constexpr(1) ? (false) : (true)); }"
    ]
    assert switched_on("void f() {\n  if (x) g();\n  else h = k;\n}") == [
        "void f() {",
        "  if ((on(1) != static_cast<bool>(x))) { if (!on(2)) { g(); } }",
        "  else { if (!on(3)) { h = k; } }",
        "}",
    ]
    assert switched_on("int f() { return -EIO; }") == ["int f() { { if (on(1)) { return 0; } return -EIO; } }"]
    # One within the other, and two of one place.
    inner = "((on(2) ? (a || b) : (a && b)))"
    assert switched_on("int f() { return (a && b) || c; }") == [
        f"int f() {{ return (on(1) ? ({inner} && c) : ({inner} || c)); }}"
    ]
    assert switched_on("int f() { return 7; }") == ["int f() { return (on(1) ? (8) : ((on(2) ? (6) : (7)))); }"]
    with pytest.raises(ValueError, match="not 'nonsense'"):
        switched.planted(b"1 + 1", [{"start": 0, "end": 1, "old": "nonsense", "outer": 0, "outer_end": 5, "number": 1}])


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
        lines_less = one["old"].count("\n") - one["new"].count("\n")
        assert one["diff"].count("\n-") == one["diff"].count("\n+") - 1 + lines_less  # the first line begins with ---
        with pytest.raises(ValueError, match="not 'nonsense'"):
            mutants.planted(text, one["start"], one["end"], "nonsense", "")


def test_what_is_drawn_from() -> None:
    files = mutants.sources(ROOT)
    assert "src/store/posix_file.cpp" in files and "include/gpufs/cache/detail/frames.hpp" in files
    assert not [file for file in files if "cuda" in file or "apps" in file]
    for part in mutants.PARTS:
        assert (ROOT / "tests" / part / "CMakeLists.txt").exists()


def test_what_is_explained_is_still_in_the_code() -> None:
    syntax = pytest.importorskip("syntax", reason="no tree-sitter")
    keys = {one.key for file in mutants.sources(ROOT) for one in syntax.all_mutants(ROOT, file)}
    for key, known in mutants.explained().items():
        assert key in keys, f"take {key} out of equivalent.json: the code of {known['file']} has changed"
        assert known["why"]


@pytest.mark.parametrize(
    ("found", "number", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.278), (9, 10, 0.596, 0.982), (270, 300, 0.861, 0.929)],
)
def test_intervals(found: int, number: int, low: float, high: float) -> None:
    assert mutants.wilson(found, number) == pytest.approx((low, high), abs=5e-4)


HEADER = """#pragma once
int twice(int x);
int untested(int x);
inline int slow(int x) { return x - 1; }
constexpr int known(int x) { return x * 8; }
"""
SOURCE = """#include "twice.hpp"
int twice(int x) { return x + x; }
int untested(int x) { return x * 3; }
const char* name(int x) { return "abc" + x; }
"""
# A program that knows what mutants.py asks of GoogleTest.
PROGRAM = """#include <cstdio>
#include <cstdlib>
#include <string>
#include "twice.hpp"
static int room[known(2)];
static bool twice_is_right() { return twice(2) == 4; }
static bool slow_is_right() {
  for (int x = 3; x != 0; x = slow(x)) {}
  return true;
}
static bool known_is_right() { return sizeof room / sizeof room[0] == 16 && untested(1) != 0 && known(1) != 0; }
int main(int argc, char** argv) {
  const std::string asked = argv[1];
  if (asked == "--gtest_list_tests") {
    std::puts("Running main()\\nnumbers.\\n  twice\\n  slow  # a comment\\n  known\\n  DISABLED_not");
    return 0;
  }
  struct { const char* name; bool (*is_right)(); } const tests[] = {
      {"numbers.twice", twice_is_right}, {"numbers.slow", slow_is_right}, {"numbers.known", known_is_right}};
  for (const auto& test : tests) {
    if ((asked + ":").find(test.name + std::string(":")) == asked.npos) continue;
    std::printf("[ RUN      ] %s\\n", test.name);
    std::fflush(stdout);
    if (BROKEN || !test.is_right()) {
      std::printf("[  FAILED  ] %s (0 ms)\\n", test.name);
      return 1;
    }
  }
  return std::getenv("TMPDIR") == nullptr;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
enable_testing()
add_subdirectory(tests)
"""
TESTS = """include_directories("${PROJECT_SOURCE_DIR}/include")
add_library(small STATIC ../src/twice.cpp)
foreach(name IN ITEMS numbers broken)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} small)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
add_test(NAME no_program COMMAND numbers --version)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a library, a program that tests it, and one that always fails."""
    if not all(map(shutil.which, ("cmake", "ninja", "g++"))):
        pytest.skip("no cmake, ninja or g++")
    root = tmp_path / "project"
    for name, text in {
        "CMakeLists.txt": CMAKE,
        "include/twice.hpp": HEADER,
        "src/twice.cpp": SOURCE,
        "tests/CMakeLists.txt": "add_subdirectory(file)",
        "tests/file/CMakeLists.txt": TESTS.replace("../src", "../../src"),
        "tests/file/numbers.cpp": PROGRAM.replace("BROKEN", "false"),
        "tests/file/broken.cpp": PROGRAM.replace("BROKEN", "true"),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    out = root / "build" / "mutants"
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "OUT", out)
    monkeypatch.setattr(mutants, "TESTS", out / "tests.json")
    monkeypatch.setattr(mutants, "EQUIVALENT", root / "equivalent.json")
    monkeypatch.setattr(mutants, "PARTS", ("file",))
    monkeypatch.setattr(mutants, "PATIENCE", 1.0)
    (root / "equivalent.json").write_text('{"f": {"mutant": "", "file": "src/twice.cpp", "why": "nobody can tell"}}')
    yield root


def mutant_of(root: Path, key: str, file: str, line: str, old: str, new: str) -> dict[str, Any]:
    text = (root / file).read_text()
    outer = text.index(line)
    start = text.index(old, outer)
    return {
        **{"key": key, "file": file, "line": text[:start].count("\n") + 1, "function": "f", "operator": "arithmetic"},
        **{"start": start, "end": start + len(old), "old": old, "new": new, "diff": f"---\n+++\n-{old}\n+{new}"},
        **{"form": "expression", "outer": outer, "outer_end": outer + len(line), "in_constexpr": line == "x * 8"},
    }


def drawn_in(root: Path, wanted: int) -> Path:
    some = [
        mutant_of(root, "f", "src/twice.cpp", "x * 3", "3", "4"),
        mutant_of(root, "a", "src/twice.cpp", "x + x", "+", "-"),
        mutant_of(root, "b", "src/twice.cpp", "x * 3", "*", "+"),
        mutant_of(root, "c", "src/twice.cpp", '"abc" + x', "+", "*"),
        mutant_of(root, "d", "include/twice.hpp", "x - 1", "1", "0"),
        mutant_of(root, "e", "include/twice.hpp", "x * 8", "8", "7"),
        mutant_of(root, "g", "src/twice.cpp", "x * 3", "3", "2"),
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
        "e": "survived",  # the size of an array stays what it is without the mutant
        "f": "explained",
    }
    assert (results["a"]["program"], results["a"]["test"], results["a"]["how"]) == ("numbers", "numbers.twice", "")
    assert (results["b"]["tried"], results["b"]["reached"]) == (1, 1)
    assert "error" in results["c"]["how"]
    assert results["d"]["test"] == "numbers.slow" and results["d"]["how"].startswith("hangs")
    assert whole["failing"] == dict.fromkeys(
        ("broken numbers.twice", "broken numbers.slow", "broken numbers.known"), "fails"
    )
    assert (project / "src" / "twice.cpp").read_text() == SOURCE
    capsys.readouterr()
    assert mutants.report([whole]) == 1  # 3 of 5 is less than nine tenths, however lucky
    said = capsys.readouterr().out
    assert "SURVIVED b: arithmetic in f; 1 of 1 tests that reach it" in said and "found by: " in said
    mutants.explain("b", "nobody asks for it", [whole])
    mutants.explain("e", "it is not linked", [whole])
    assert mutants.explained()["b"] == {"file": "src/twice.cpp", "mutant": ["-*", "++"], "why": "nobody asks for it"}
    with pytest.raises(SystemExit, match="no mutant a has survived"):
        mutants.explain("a", "", [whole])
    assert mutants.report([whole]) == 0
    assert "found or explained 5 of 5" in capsys.readouterr().out
    # Enough have been tried: nothing is run again, and what is there stays.
    mutants.run(drawn, jobs, 5, out, 0)
    assert json.loads(out.read_text())["results"] == whole["results"]


def test_a_run_goes_on_where_the_last_one_ended(project: Path) -> None:
    drawn, out = drawn_in(project, 5), project / "results.json"
    mutants.run(drawn, 1, 0, out, 0)
    first = {result["key"]: result["status"] for result in json.loads(out.read_text())["results"]}
    assert first == {"f": "explained", "c": "not compiled"}
    object_file = next((project / "build").rglob("twice.cpp.o"))
    made = object_file.stat().st_mtime_ns
    mutants.run(drawn, 1, 5, out, 0)
    assert object_file.stat().st_mtime_ns == made  # nothing is compiled again
    assert len(json.loads(out.read_text())["results"]) == 6
    (project / "src" / "twice.cpp").write_text(SOURCE + "\n")
    with pytest.raises(SystemExit, match="has changed since"):
        mutants.run(drawn, 1, 5, out, 0)


def test_no_more_seconds_of_tests_than_asked_for(project: Path) -> None:
    drawn, out = drawn_in(project, 5), project / "results.json"
    mutants.run(drawn, 2, 5, out, 1e-9)  # one program is always tried
    results = {result["key"]: result for result in json.loads(out.read_text())["results"]}
    assert results["a"]["status"] == "found" and results["b"]["tried"] == 1


def test_a_test_that_fails_without_the_mutant_finds_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run again, as it is: here it fails from the second time on."""
    flaky = PROGRAM.replace("BROKEN", "false").replace("twice(2) == 4", 'std::getenv("LATER") == nullptr')
    (project / "tests" / "file" / "numbers.cpp").write_text(flaky.replace("untested(1) != 0", "twice(0) == 0"))
    drawn, out = drawn_in(project, 2), project / "results.json"
    as_they_are = mutants.Runner._run_all_as_they_are

    def then_fails(self: Any) -> None:
        as_they_are(self)
        # What reaches the second mutant is taken for reaching the first.
        self.tests = [dataclasses.replace(test, reaches=[2, 3]) for test in self.tests]
        monkeypatch.setenv("LATER", "1")

    monkeypatch.setattr(mutants.Runner, "_run_all_as_they_are", then_fails)
    mutants.run(drawn, 1, 5, out, 0)
    whole = json.loads(out.read_text())
    assert {result["key"]: result["status"] for result in whole["results"] if result["key"] in "fa"} == {
        "f": "explained",
        "a": "survived",
    }
    assert whole["unsteady"] == {"numbers numbers.twice": 1}

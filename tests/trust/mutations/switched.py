# SPDX-License-Identifier: Apache-2.0
"""Many mutants in one build, each behind a switch that the environment turns on when a program starts.

So compilers run once, not once for each mutant, and a program can say which mutants it reaches, so that only tests that
reach one run on it (mutant schemata: Untch, Offutt, Harrold, ISSTA 1993). Each expression with a mutant becomes
`(on(7) ? (a <= b) : (a < b))`. What does not compile so is found by the compiler's errors, and taken out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Json = dict[str, Any]

COPIED = ("include", "src", "tests", "apps", "bench", "research", "cmake", "CMakeLists.txt", "pyproject.toml", "python")
LEFT_OUT = {"results", "__pycache__"}
OPTIONS = (
    *("-DGPUFS_CUDA=OFF", "-DGPUFS_INSTALL=OFF", "-DGPUFS_EXAMPLES=OFF", "-DGPUFS_PYTHON=OFF", "-DGPUFS_TESTS=ON"),
    "-DCMAKE_BUILD_TYPE=Release",
)
FLAGS = "-O1 -w"  # Assertions stay. What a switch makes of code is not warned of.
CHOSEN, REACHED = "GPUFS_MUTANT", "GPUFS_MUTANTS_REACHED"  # a mutant's number; a file of a byte for each
HEADER = """#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gpufs_mutants {
// A byte for each mutant: 0: off, 1: off, and to become 0 once it is reached, 2: on.
inline unsigned char* load() {
  static unsigned char bytes[@SIZE@];
  if (const char* chosen = getenv("@CHOSEN@")) bytes[atoi(chosen) % @SIZE@] = 2;
  const char* path = getenv("@REACHED@");
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return bytes;
  void* shared = mmap(nullptr, @SIZE@, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);  // outlives crashes and forks
  close(file);
  return shared == MAP_FAILED ? bytes : static_cast<unsigned char*>(shared);
}
inline unsigned char* const state = load();
inline bool look(unsigned mutant) {
  if (state[mutant] == 2) return true;
  state[mutant] = 0;
  return false;
}
inline bool on(unsigned mutant) { return state[mutant] != 0 && look(mutant); }
constexpr bool on_constexpr(unsigned mutant) { return !__builtin_is_constant_evaluated() && on(mutant); }
}  // namespace gpufs_mutants
"""
SWITCH = re.compile(r"gpufs_mutants::on(?:_constexpr)?\((\d+)\)")
WHERE = re.compile(r"^(\S+?):(\d+):(?:\d+:)?", re.MULTILINE)


@dataclasses.dataclass
class _Span:
    mutant: Json
    inner: list[_Span]

    @property
    def range(self) -> tuple[int, int]:
        return self.mutant["outer"], self.mutant["outer_end"]


def planted(text: bytes, mutants: Iterable[Json]) -> bytes:
    """The file with all of its mutants, which have numbers, behind their switches."""
    outermost: list[_Span] = []
    path: list[_Span] = []
    for mutant in sorted(mutants, key=lambda one: (one["outer"], -one["outer_end"], one["number"])):
        if text[mutant["start"] : mutant["end"]] != mutant["old"].encode():
            raise ValueError(f"there is {text[mutant['start'] : mutant['end']]!r}, not {mutant['old']!r}")
        while path and path[-1].range[1] <= mutant["outer"]:
            path.pop()
        span = _Span(mutant, [])
        (path[-1].inner if path else outermost).append(span)
        path.append(span)
    return _between(text, 0, len(text), outermost)


def _between(text: bytes, start: int, end: int, spans: list[_Span]) -> bytes:
    made = b""
    for span in spans:
        begins, ends = span.range
        made += text[start:begins] + _both(text, span)
        start = ends
    return made + text[start:end]


def _both(text: bytes, span: _Span) -> bytes:
    one = span.mutant
    begins, ends = span.range
    name = "on_constexpr" if one["in_constexpr"] else "on"
    on = f"gpufs_mutants::{name}({one['number']})".encode()
    as_it_is = _between(text, begins, ends, span.inner)
    if one["form"] == "condition":
        return b"(%s != static_cast<bool>(%s))" % (on, as_it_is)
    if one["form"] == "statement":
        return b"{ if (!%s) { %s } }" % (on, as_it_is)
    # Other mutants stay possible in what this one leaves as it is.
    inner = span.inner
    while inner and inner[0].range == span.range:
        inner = inner[0].inner
    before = [other for other in inner if other.range[1] <= one["start"]]
    after = [other for other in inner if other.range[0] >= one["end"]]
    changed = _between(text, begins, one["start"], before) + one["new"].encode()
    changed += _between(text, one["end"], ends, after)
    if one["form"] == "return":
        return b"{ if (%s) { %s } %s }" % (on, changed, as_it_is)
    return b"(%s ? (%s) : (%s))" % (on, changed, as_it_is)


def write(to: Path, text: bytes) -> None:
    """Writes a file that is not so already: it need not be compiled again then."""
    if not to.exists() or to.read_bytes() != text:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(text)


class Build:
    """A copy of the sources with all mutants in it, and its build."""

    def __init__(self, root: Path, folder: Path, mutants: list[Json], refused: dict[int, str], jobs: int) -> None:
        self.root, self.folder, self.jobs = root, folder, jobs
        self.tree, self.made = folder / "tree", folder / "made"
        self.mutants = {mutant["number"]: mutant for mutant in mutants}
        self.refused = refused  # number -> the compiler's error
        self.programs: dict[str, Path] = {}

    def make(self, parts: tuple[str, ...]) -> None:
        """Builds the test programs of these folders below tests/; mutants that do not compile are in `refused`."""
        header = self.folder / "mutants.hpp"
        words = {"SIZE": str(max(self.mutants, default=0) + 1), "CHOSEN": CHOSEN, "REACHED": REACHED}
        write(header, re.sub("@([A-Z]+)@", lambda match: words[match[1]], HEADER).encode())
        self._plant()
        configure = ["cmake", "-S", str(self.tree), "-B", str(self.made), "-G", "Ninja", *OPTIONS]
        configure += [f"-DCMAKE_CXX_FLAGS_RELEASE={FLAGS} -include {header}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
        if deps := os.environ.get("GPUFS_DEPS"):
            configure.append(f"-DGPUFS_DEPS={Path(deps).resolve()}")
        done = subprocess.run(configure, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"cmake failed:\n{done.stdout}{done.stderr}")
        while errors := self._look() or self._compile(parts):
            self._refuse(errors)
            self._plant()
        shown = subprocess.run(
            ["ctest", "--test-dir", str(self.made), "--show-only=json-v1"], check=True, capture_output=True, text=True
        )
        folders = tuple(f"{self.made}/tests/{part}/" for part in parts)
        for test in json.loads(shown.stdout)["tests"]:
            command = test.get("command", [])
            if len(command) == 1 and command[0].startswith(folders):  # else no GoogleTest program
                self.programs[test["name"]] = Path(command[0])

    def _plant(self) -> None:
        left: dict[str, list[Json]] = {}
        for number, mutant in self.mutants.items():
            of_file = left.setdefault(mutant["file"], [])
            if number not in self.refused:
                of_file.append(mutant)
        for name in COPIED:
            top = self.root / name
            for path in [top] if top.is_file() else top.rglob("*"):
                file = path.relative_to(self.root)
                if path.is_file() and not LEFT_OUT & set(file.parts):
                    write(self.tree / file, planted(path.read_bytes(), left.get(file.as_posix(), ())))

    def _look(self) -> str:
        """Errors of a few sources that include most headers: most mutants that do not compile are found so."""
        largest: dict[str, Json] = {}
        for entry in json.loads((self.made / "compile_commands.json").read_text()):
            file = Path(entry["file"])
            if self.tree not in file.parents:
                continue
            folder = str(file.parent) if "tests" in file.parts else str(file)  # all of src
            before = largest.get(folder)
            if before is None or file.stat().st_size > Path(before["file"]).stat().st_size:
                largest[folder] = entry

        def check(entry: Json) -> str:
            command = [*shlex.split(entry["command"]), "-fsyntax-only", "-fdiagnostics-color=never"]
            return subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True).stderr

        with ThreadPoolExecutor(self.jobs) as pool:
            said = pool.map(check, largest.values())
            return "".join(words for words in said if "error:" in words)

    def _compile(self, parts: tuple[str, ...]) -> str:
        make = [
            "ninja",
            "-C",
            str(self.made),
            "-j",
            str(self.jobs),
            "-k",
            "0",
            *(f"tests/{part}/all" for part in parts),
        ]
        done = subprocess.run(make, capture_output=True, text=True)
        (self.folder / "build.log").write_text(done.stdout + done.stderr)
        return "" if done.returncode == 0 else done.stdout

    def _refuse(self, errors: str) -> None:
        """Takes out what stands where the compiler complains: on its line, else on those around."""
        lines: dict[str, list[list[int]]] = {}
        before = len(self.refused)
        # An error with all that leads to it: from where it is included or instantiated on.
        for block in re.split(r"(?<=\n)(?=In file included|\S+: In |\S+: At )", errors):
            error = re.search(r"^.*error:.*$", block, re.MULTILINE)
            if error is None:
                continue
            places = [(match[1], int(match[2])) for match in WHERE.finditer(block)]
            for distance in range(8):
                found = set()
                for path, line in places:
                    file = os.path.relpath(Path(self.made, path).resolve(), self.tree.resolve())
                    if file not in lines and not file.startswith(".."):
                        text = (self.tree / file).read_text()
                        lines[file] = [[int(n) for n in SWITCH.findall(words)] for words in text.split("\n")]
                    around = lines.get(file, [])[max(0, line - 1 - distance) : line + distance]
                    found |= {number for some in around for number in some}
                found -= set(self.refused)
                if found:
                    self.refused |= dict.fromkeys(found, error[0])
                    break
        if len(self.refused) == before:
            raise RuntimeError(f"the build failed, and no mutant is near:\n{errors[-4000:]}")

# SPDX-License-Identifier: Apache-2.0
"""Builds a test program anew for a changed file, beside many others that do the same with other changes.

One build has everything as it is. A change is in a copy of the sources, and only what depends on it is compiled, by
the commands of that build with other paths; all else is linked from there. So a change costs some megabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

FOLDERS = ("include", "src", "tests", "bench")
OPTIONS = (
    *("-DGPUFS_CUDA=OFF", "-DGPUFS_INSTALL=OFF", "-DGPUFS_EXAMPLES=OFF", "-DGPUFS_PYTHON=OFF"),
    # -O1: most of the time goes into building. Assertions stay.
    *("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"),
)


class Base:
    """The build without a change."""

    def __init__(self, root: Path, build: Path) -> None:
        self.root, self.folder = root, build
        self._outputs: dict[str, str] = {}  # program -> its path, relative to the build
        self._commands: dict[str, list[str]] = {}  # program -> all commands that make it, in order
        self._deps: dict[str, set[str]] = {}  # object -> the sources that it was made from, relative to root

    def build(self, programs: set[str], jobs: int, log: Path) -> bool:
        """Builds the programs, where that was not done of equal sources before. False when it fails: see the log."""
        known = self.folder / "built.json"
        configure = ["cmake", "-S", str(self.root), "-B", str(self.folder), "-G", "Ninja", *OPTIONS]
        if deps := os.environ.get("GPUFS_DEPS"):
            configure.append(f"-DGPUFS_DEPS={Path(deps).resolve()}")
        # By contents, not by time: on a machine that a tree is sent to for each run, all files are new.
        sources = self._hash_of_sources(" ".join(configure))
        before = json.loads(known.read_text()) if known.exists() else {}
        built = set(before.get("programs", ())) if before.get("sources") == sources else set()
        if not programs <= built:
            known.unlink(missing_ok=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            make = ["cmake", "--build", str(self.folder), "-j", str(jobs), "--target", *sorted(programs)]
            with log.open("w") as out:
                for command in (configure, make):
                    if subprocess.run(command, stdout=out, stderr=out).returncode != 0:
                        return False
            known.write_text(json.dumps({"sources": sources, "programs": sorted(programs | built)}))
        self._read_deps()
        for program in programs:
            self._commands[program] = self._ninja("commands", program).splitlines()
            self._outputs[program] = output_of(self._commands[program][-1])
        return True

    def _hash_of_sources(self, options: str) -> str:
        digest = hashlib.sha256(options.encode())
        files = [path for name in (*FOLDERS, "cmake") for path in (self.root / name).rglob("*") if path.is_file()]
        for path in sorted([*files, self.root / "CMakeLists.txt"]):
            digest.update(f"{path}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def program(self, program: str) -> Path:
        return self.folder / self._outputs[program]

    def commands(self, program: str) -> list[str]:
        return self._commands[program]

    def contains(self, program: str, file: str) -> bool:
        """Whether the program is made of this file, too."""
        return any(self.depends(output_of(command), file) for command in self._commands[program])

    def depends(self, output: str, file: str) -> bool:
        return file in self._deps.get(output, ())

    def _ninja(self, *arguments: str) -> str:
        return subprocess.run(
            ["ninja", "-C", str(self.folder), "-t", *arguments], check=True, capture_output=True, text=True
        ).stdout

    def _read_deps(self) -> None:
        deps: dict[str, set[str]] = {}
        output = ""
        for line in self._ninja("deps").splitlines():
            if line.startswith("    "):
                path = os.path.normpath(self.folder / line.strip())
                if path.startswith(f"{self.root}/"):
                    deps[output].add(path[len(str(self.root)) + 1 :])
            elif line and "#deps" in line:
                output = line.split(":", 1)[0]
                deps[output] = set()
        self._deps = deps


def output_of(command: str) -> str:
    """What a compiler, linker or archiver makes."""
    found = re.search(r"(?:^|\s)(?:-o|qc)\s+(\S+)", command)
    return found[1] if found else ""


class Tree:
    """A copy of the sources with one file changed, and what is built from it. Several threads may build programs."""

    def __init__(self, base: Base, folder: Path, file: str, text: bytes) -> None:
        self.base, self.folder, self.file = base, folder, file
        self.error = ""  # the compiler's first
        self._sources, self._made = folder / "tree", folder / "made"
        shutil.rmtree(folder, ignore_errors=True)
        for name in FOLDERS:
            shutil.copytree(base.root / name, self._sources / name, ignore=shutil.ignore_patterns("results", "python"))
        (self._sources / file).write_bytes(text)
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}  # of each output, while it is made
        self._rebuilt: dict[str, Path] = {}  # output, as the base names it -> where it is now
        # Not what is below the build, or holds dependencies, which may be in the root, too.
        self._root = re.compile(re.escape(f"{base.root}/") + rf"(?=(?:{'|'.join(FOLDERS)})(?:/|\s|$|\"))")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def build(self, program: str, seconds: float) -> Path | None:
        """The program with the change; the base's where that is no part of it; None when it cannot be compiled."""
        end = time.monotonic() + seconds
        for command in self.base.commands(program):
            output = output_of(command)
            if " -c " in command:
                needed = self.base.depends(output, self.file)
            else:
                needed = any(name in self._rebuilt for name in command.split())
            if output and needed and not self._make(command, output, end):
                return None
        path = self.base.program(program)
        return self._rebuilt.get(str(path.relative_to(self.base.folder)), path)

    def _make(self, command: str, output: str, end: float) -> bool:
        with self._lock:
            lock = self._locks.setdefault(output, threading.Lock())
        with lock:
            if output in self._rebuilt:
                return True
            to = self._made / output
            to.parent.mkdir(parents=True, exist_ok=True)
            log = to.with_name(f"{to.name}.log")
            if not self._run(self._elsewhere(command, output, to), log, end - time.monotonic()):
                lines = log.read_text(errors="replace").splitlines()
                self.error = next((line for line in lines if "error" in line), (lines or ["it took too long"])[-1])
                return False
            with self._lock:
                self._rebuilt[output] = to
            return True

    def _elsewhere(self, command: str, output: str, to: Path) -> str:
        with self._lock:
            moved = self._rebuilt | {output: to}

        def path(match: re.Match[str]) -> str:
            word = match[0]
            if word in moved:
                return str(moved[word])
            if word.endswith(".d") and word[:-2] in moved:  # the compiler's list of what it read
                return f"{moved[word[:-2]]}.d"
            return word

        return self._root.sub(lambda _: f"{self._sources}/", re.sub(r"\S+", path, command))

    def _run(self, command: str, log: Path, seconds: float) -> bool:
        with log.open("w") as out:
            try:
                run = subprocess.run(
                    command, shell=True, cwd=self.base.folder, stdout=out, stderr=out, timeout=max(1.0, seconds)
                )
            except subprocess.TimeoutExpired:
                return False
        return run.returncode == 0

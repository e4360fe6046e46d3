# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the files that standard input names, but for those that it found good before: BUILD CACHE JOBS.

BUILD has compile_commands.json. CACHE ("": none) is a folder with an empty file for each file that was found good. Its
name hashes all that clang-tidy's answer depends on here: its version and settings, the file's command, and the text
of the file and of every header of ours that it includes, directly or not.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@cache
def text_of(file: Path) -> bytes:
    return file.read_bytes()


def with_headers(source: Path) -> list[Path]:
    """The file and all of ours that it includes. What is included by <...> is not ours."""
    found: set[Path] = set()
    todo = [source]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found.add(file)
        for match in INCLUDE.finditer(text_of(file)):
            name = match[1].decode()
            todo += [
                path for path in (file.parent / name, ROOT / "include" / name, ROOT / "src" / name) if path.is_file()
            ]
    return sorted(found)


def main(build: str, known: str, jobs: str) -> int:
    sources = [ROOT / line for line in sys.stdin.read().split()]
    commands = {
        Path(entry["directory"], entry["file"]): entry["command"]
        for entry in json.loads(Path(build, "compile_commands.json").read_text())
    }
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    settings = version + text_of(ROOT / ".clang-tidy") + Path(__file__).read_bytes()

    def name_of(source: Path) -> str:
        digest = hashlib.sha256(settings)
        digest.update(commands.get(source, "").replace(str(ROOT), "").encode())
        for file in with_headers(source):
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + text_of(file) + b"\0")
        return digest.hexdigest()

    def is_good(source: Path) -> bool:
        command = ["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option", "-p", build, str(source)]
        got = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        sys.stdout.write(got.stdout.decode(errors="replace"))
        if got.returncode == 0 and known:
            Path(known, name_of(source)).touch()
        return got.returncode == 0

    if known:
        Path(known).mkdir(parents=True, exist_ok=True)
    todo = [source for source in sources if not known or not Path(known, name_of(source)).exists()]
    print(f"   {len(todo)} of {len(sources)} files have changed since it last found nothing in them")
    with ThreadPoolExecutor(int(jobs)) as pool:
        return 0 if all(list(pool.map(is_good, todo))) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

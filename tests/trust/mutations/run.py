# SPDX-License-Identifier: Apache-2.0
"""Plants each bug of bugs/ in a copy of the tree and runs the test that is to find it: ./dev mutations [NAME...].

Nothing is changed outside of build/mutations: tree/ is the copy, release/ and tsan/ its builds, logs/ what tests said.
Before, every command must pass in the copy as it is, else a failure would prove nothing.
--list: the names. --check: only that each bug can still be planted, in no time.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bugs import BUGS, Bug
from trial import Outcome, run_program

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "mutations"
TREE = OUT / "tree"


def planted(tree: Path, bug: Bug) -> dict[Path, str]:
    """The changed files' text."""
    texts: dict[Path, str] = {}
    for edit in bug.edits:
        file = tree / edit.file
        text = texts.get(file) or file.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{bug.name}: not once, but {text.count(edit.old)} times in {edit.file}:\n{edit.old}")
        texts[file] = text.replace(edit.old, edit.new)
    return texts


def check() -> int:
    """How many bugs cannot be planted any more, or name a test that is gone."""
    folders = [*(ROOT / "tests").iterdir(), ROOT / "apps/tests", ROOT / "research/tests"]
    sources = "".join(path.read_text() for folder in folders for path in folder.glob("*_test.cpp"))
    cmake = "".join(path.read_text() for folder in folders for path in folder.glob("CMakeLists.txt"))
    wrong = []
    for bug in BUGS:
        try:
            planted(ROOT, bug)
        except (ValueError, OSError) as error:
            wrong.append(str(error))
        # A suite's name has a number behind it where it is one of a list of types.
        suite, name = re.sub(r"/\d+\.", ".", bug.test.removeprefix("*/")).split("/")[0].split(".")
        if re.search(rf"\({suite}, {name}\)", sources) is None:
            wrong.append(f"{bug.name}: there is no test {suite}.{name}")
        if re.search(rf"NAME {bug.program.removesuffix('_cpu')} ", cmake) is None:
            wrong.append(f"{bug.name}: there is no program {bug.program}")
    if len({bug.name for bug in BUGS}) != len(BUGS):
        wrong.append("two bugs have one name")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return len(wrong)


def copy_tree() -> None:
    """Makes TREE equal to the working tree; what is equal stays as it is, so that it need not be built again."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for old in [path for path in TREE.rglob("*") if path.is_file() and str(path.relative_to(TREE)) not in wanted]:
        old.unlink()
    for name in wanted:
        to = TREE / name
        if not to.exists() or not filecmp.cmp(ROOT / name, to, shallow=False):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to)


def configure(kind: str) -> None:
    # -O1: most of the time goes into building, and every test of the list is quick.
    options = ["-DGPUFS_CUDA=OFF", "-DGPUFS_INSTALL=OFF", "-DGPUFS_TESTS=ON"]
    options += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
    if kind == "tsan":
        options.append("-DGPUFS_SANITIZE=thread")
    if deps := os.environ.get("GPUFS_DEPS"):
        options.append(f"-DGPUFS_DEPS={Path(deps).resolve()}")
    command = ["cmake", "-S", str(TREE), "-B", str(OUT / kind), "-G", "Ninja", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def build(kind: str, programs: set[str], log: Path) -> bool:
    jobs = os.environ.get("GPUFS_JOBS") or str(os.cpu_count() or 1)
    with log.open("w") as out:
        command = ["cmake", "--build", str(OUT / kind), "-j", jobs, "--target", *sorted(programs)]
        return subprocess.run(command, stdout=out, stderr=out).returncode == 0


def run(bug: Bug, log: Path, deadline: float) -> Outcome:
    program = next(path for path in (OUT / bug.kind).rglob(bug.program) if path.is_file())
    got = run_program([str(program), f"--gtest_filter={bug.test}"], log, deadline, {"TSAN_OPTIONS": "halt_on_error=1"})
    if got.good and "[  SKIPPED ]" in log.read_text(errors="replace"):
        return got._replace(good=False, how="was not run")
    return got


def seconds_since(begin: float) -> str:
    return f"{time.monotonic() - begin:.0f} s"


def report(name: str, words: str) -> None:
    print(f"   {name:<34} {words}", flush=True)


def as_it_is(kind: str, bugs: list[Bug], logs: Path) -> dict[str, float]:
    """Builds and runs all commands of this kind without a bug. How long each took that passes."""
    begin = time.monotonic()
    configure(kind)
    if not build(kind, {bug.program for bug in bugs}, logs / f"{kind}.build.log"):
        sys.exit(f"the build failed; all it said is in {logs}/{kind}.build.log")
    built = seconds_since(begin)
    begin = time.monotonic()
    took: dict[str, float] = {}
    for bug in {bug.command: bug for bug in bugs}.values():
        got = run(bug, logs / f"{bug.name}.unchanged.log", 600)
        if got.good:
            took[bug.command] = got.seconds
        else:
            report(bug.command, f"FAILS WITHOUT A BUG: {got.says}")
    print(f"   {kind}, without a bug: built in {built}, {len(took)} tests passed in {seconds_since(begin)}", flush=True)
    return took


def try_bug(bug: Bug, logs: Path, usual_seconds: float) -> bool:
    """Whether it was found."""
    texts = planted(TREE, bug)
    before = {file: file.read_text() for file in texts}
    begin = time.monotonic()
    try:
        for file, text in texts.items():
            file.write_text(text)
        if not build(bug.kind, {bug.program}, logs / f"{bug.name}.build.log"):
            report(bug.name, f"DOES NOT COMPILE; see {logs}/{bug.name}.build.log")
            return False
        built = seconds_since(begin)
        got = run(bug, logs / f"{bug.name}.log", max(15.0, 10 * usual_seconds))
    finally:
        for file, text in before.items():
            file.write_text(text)  # a new time: what has the bug is built again
    if got.good:
        report(bug.name, f"NOT FOUND by {bug.command} in {got.seconds:.1f} s")
    else:
        report(bug.name, f"found in {got.seconds:.1f} s (built in {built}) by {got.says}")
    return not got.good


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        for bug in BUGS:
            report(bug.name, bug.says)
        return 0
    wrong = check()
    if wrong or arguments == ["--check"]:
        print(f"   {len(BUGS)} bugs; {wrong} things to put right" if wrong else f"   {len(BUGS)} bugs can be planted")
        return int(wrong != 0)
    if unknown := set(arguments) - {bug.name for bug in BUGS}:
        sys.exit(f"there is no bug {', '.join(sorted(unknown))}; --list names all")
    begin = time.monotonic()
    logs = OUT / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    TREE.mkdir(exist_ok=True)
    copy_tree()
    wanted = [bug for bug in BUGS if not arguments or bug.name in arguments]
    found = 0
    for kind in sorted({bug.kind for bug in wanted}):
        # Those of one program together: each build then makes anew what the one before has spoilt, and no more.
        bugs = sorted((bug for bug in wanted if bug.kind == kind), key=lambda bug: bug.program)
        usual = as_it_is(kind, bugs, logs)
        found += sum([try_bug(bug, logs, usual[bug.command]) for bug in bugs if bug.command in usual])
    print(f"   {found} of {len(wanted)} planted bugs were found, in {seconds_since(begin)}")
    return int(found != len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

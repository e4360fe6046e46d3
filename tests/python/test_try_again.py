# SPDX-License-Identifier: Apache-2.0
"""Which programs are tried again, by ctest's own results of programs that fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[2] / "cmake" / "try_again.py"
FAILS = "echo '[  FAILED  ] about.time'\necho '[==========] 3 tests from 1 test suite ran. (5 ms total)'\nexit 1\n"


def run_ctest(tree: Path, programs: dict[str, str], results: str = "ctest.xml", pattern: str = ".") -> int:
    lines = []
    for name, text in programs.items():
        (tree / name).write_text("#!/bin/sh\n" + text)
        (tree / name).chmod(0o755)
        lines.append(f'add_test({name} "{tree / name}")')
    (tree / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
    command = ["ctest", "--test-dir", tree, "--output-junit", results, "-R", pattern]
    return subprocess.run(command, capture_output=True, check=False).returncode


def try_again(verb: str, tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, verb, tree], capture_output=True, text=True, check=False)


def statuses(tree: Path) -> dict[str | None, str | None]:
    return {
        case.get("name"): case.get("status")
        for case in ElementTree.parse(tree / "ctest.xml").getroot().iter("testcase")
    }


def test_who_fails_once_is_tried_again_and_counts_as_then(tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/tried ] && exit 0\ntouch {tmp_path}/tried\n{FAILS}"
    programs = {"good": "exit 0\n", "once": once, "ever": FAILS}
    assert run_ctest(tmp_path, programs) != 0
    said = try_again("names", tmp_path)
    assert (said.returncode, said.stdout) == (0, "^(once|ever)$\n")
    assert run_ctest(tmp_path, programs, "ctest-again.xml", said.stdout.strip()) != 0
    assert try_again("merge", tmp_path).returncode == 0
    assert statuses(tmp_path) == {"good": "run", "once": "run", "ever": "fail"}


@pytest.mark.parametrize(
    "text",
    [
        "echo 'WARNING: ThreadSanitizer: data race'\n" + FAILS,
        "echo 'a.cpp:3: runtime error: shift exponent'\n" + FAILS,
        "echo '[ RUN      ] it.crashes'\nkill -SEGV $$\n",
        "echo '[ RUN      ] it.ends'\nexit 3\n",
        "echo '[==========] 3 tests from 1 test suite ran. (5 ms total)'\nkill -SEGV $$\n",
    ],
)
def test_what_is_no_bad_luck_stays_a_failure(text: str, tmp_path: Path) -> None:
    assert run_ctest(tmp_path, {"bad": text, "luck": FAILS}) != 0
    said = try_again("names", tmp_path)
    assert (said.returncode, said.stdout) == (1, "")


def test_nor_many_that_fail(tmp_path: Path) -> None:
    assert run_ctest(tmp_path, {f"t{i}": FAILS for i in range(4)}) != 0
    assert try_again("names", tmp_path).returncode == 1


def test_nor_what_is_missing(tmp_path: Path) -> None:
    assert run_ctest(tmp_path, {"luck": FAILS, "skips": "exit 77\n"}) != 0
    with (tmp_path / "CTestTestfile.cmake").open("a") as tests:
        tests.write("set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)\n")
    command = ["ctest", "--test-dir", tmp_path, "--output-junit", "ctest.xml"]
    subprocess.run(command, capture_output=True, check=False)
    assert try_again("names", tmp_path).stdout == "^(luck)$\n", "one that skips itself is not missing"
    with (tmp_path / "CTestTestfile.cmake").open("a") as tests:
        tests.write(f'add_test(missing "{tmp_path}/no_such_program")\n')
    subprocess.run(command, capture_output=True, check=False)
    assert try_again("names", tmp_path).returncode == 1

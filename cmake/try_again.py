# SPDX-License-Identifier: Apache-2.0
"""Test programs that failed beside others, and may be tried again alone, as some of their tests are about time.

`names TREE` prints a pattern for ctest that names those that failed in TREE's ctest.xml. Only programs that ran to
their end count, few of them, and none of which a sanitizer has said anything: else the status is 1. `merge TREE` enters
into ctest.xml what came of that (in ctest-again.xml).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

MOST = 3  # that fail by bad luck
SANITIZERS = re.compile(r"Sanitizer|runtime error:")
FAILED = re.compile(r"^\[  FAILED  \] ", re.MULTILINE)  # or it crashed after all had passed
ENDED = re.compile(r"^\[==========\] .* ran\.", re.MULTILINE)


def failed_cases(results: ElementTree.Element) -> list[ElementTree.Element]:
    return [case for case in results.iter("testcase") if case.get("status") == "fail"]


def may_be_luck(case: ElementTree.Element) -> bool:
    output = case.findtext("system-out") or ""
    return bool(ENDED.search(output) and FAILED.search(output)) and not SANITIZERS.search(output)


def is_missing(case: ElementTree.Element) -> bool:
    skipped = case.find("skipped")
    return case.get("status") == "notrun" and "SKIP_" not in (
        skipped.get("message") or "" if skipped is not None else ""
    )


def names_to_try(tree: Path) -> list[str] | None:
    results = ElementTree.parse(tree / "ctest.xml").getroot()
    cases = failed_cases(results)
    if (
        any(map(is_missing, results.iter("testcase")))
        or not cases
        or len(cases) > MOST
        or not all(map(may_be_luck, cases))
    ):
        return None
    return [case.get("name", "") for case in cases]


def merge(tree: Path) -> None:
    first, again = (ElementTree.parse(tree / name) for name in ("ctest.xml", "ctest-again.xml"))
    status = {case.get("name"): case.get("status", "fail") for case in again.getroot().iter("testcase")}
    for case in failed_cases(first.getroot()):
        case.set("status", status.get(case.get("name"), "fail"))
    first.write(tree / "ctest.xml")


def main() -> int:
    verb, tree = sys.argv[1], Path(sys.argv[2])
    if verb == "merge":
        merge(tree)
        return 0
    names = names_to_try(tree)
    if names is None:
        return 1
    print(f"^({'|'.join(map(re.escape, names))})$")
    return 0


if __name__ == "__main__":
    sys.exit(main())

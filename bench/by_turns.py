#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the benches, measured by turns in one run: is the new one slower?

    bench/by_turns.py [--pairs 10] [--seconds S] OLD NEW OUT PROGRAM [OPTION...] [+ PROGRAM [OPTION...]]...

OLD and NEW are build folders. A pair is one run of a program of each, in an order that changes from pair to pair. For
each case that both have: the median over the pairs of new speed over old, with its 95 % interval, which assumes no
distribution (order statistics; with fewer than six pairs there is none, and all that came is shown). Where that
interval ends below 0.99 the case is slower, and the exit status 1. A run whose answers are not right ends everything,
with status 2. OUT gets by_turns.json: every pair's figures.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from report_data import Bench, ReportError, load_results, markdown_table

SLOWER_BELOW = 0.99
Key = tuple[str, str, str]  # program, name, case


@dataclass
class Compared:
    unit: str
    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def more_is_better(self) -> bool:
        return "/s" in self.unit

    def ratios(self) -> list[float]:
        """New speed over old, a pair each."""
        pairs = zip(self.old, self.new, strict=True)
        return [new / old if self.more_is_better else old / new for old, new in pairs]


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The narrowest interval, as many samples from either end, that holds the median as surely as that."""
    ordered, n = sorted(samples), len(samples)
    outside = 0.0
    k = 0
    while k < n // 2:
        outside += 2 * math.comb(n, k) / 2**n  # P(the median lies beyond the k+1-th from either end)
        if outside > 1 - confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def figures(bench: Bench) -> dict[Key, tuple[float, str]]:
    wrong = [f"{case.name}, {case.label}" for case in bench.cases if not case.verified]
    if wrong:
        raise ReportError(f"{bench.name}: answers are wrong: {'; '.join(wrong)}")
    return {(bench.name, case.name, case.label): (case.measured, case.unit) for case in bench.cases}


def run(build: Path, program: str, options: list[str]) -> dict[Key, tuple[float, str]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(build / "bench" / program), "--out", f"{folder}/{program}.json", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ReportError(
                f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        (bench,) = load_results(Path(folder))
        return figures(bench)


def measure(
    run_one: Callable[[Path, str, list[str]], dict[Key, tuple[float, str]]],
    builds: tuple[Path, Path],
    jobs: list[list[str]],
    pairs: int,
    seconds: float,
) -> dict[Key, Compared]:
    compared: dict[Key, Compared] = {}
    begin = time.monotonic()
    for pair in range(pairs):
        for program, *options in jobs:
            found: dict[Path, dict[Key, tuple[float, str]]] = {}
            for build in builds if pair % 2 == 0 else builds[::-1]:
                found[build] = run_one(build, program, options)
            old, new = (found[build] for build in builds)
            for key in old.keys() & new.keys():
                if min(old[key][0], new[key][0]) <= 0:
                    continue  # what has no ratio
                at = compared.setdefault(key, Compared(old[key][1]))
                at.old.append(old[key][0])
                at.new.append(new[key][0])
        print(f"pair {pair + 1} of {pairs}: {time.monotonic() - begin:.0f} s", flush=True)
        if (time.monotonic() - begin) * (pair + 2) / (pair + 1) > seconds:
            break
    return compared


def table(compared: dict[Key, Compared]) -> tuple[str, bool]:
    """The table, and whether no case is slower."""
    rows, fine = [], True
    for (program, name, label), case in sorted(compared.items()):
        ratios = case.ratios()
        low, high = median_interval(ratios)
        slower = high < SLOWER_BELOW
        fine = fine and not slower
        rows.append(
            [
                program,
                name,
                label,
                f"{statistics.median(case.old):.5g}",
                f"{statistics.median(case.new):.5g} {case.unit}",
                f"{statistics.median(ratios):.3f}",
                f"{low:.3f} to {high:.3f}" + (" slower" if slower else ""),
                str(len(ratios)),
            ]
        )
    return markdown_table(["bench", "name", "case", "old", "new", "new speed / old", "95 %", "pairs"], rows), fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no pair that would not end by then")
    parser.add_argument("programs", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    jobs: list[list[str]] = [[]]
    for word in given.programs:
        if word == "+":
            jobs.append([])
        else:
            jobs[-1].append(word)
    if given.pairs < 1 or not all(jobs):
        parser.error("name at least one PROGRAM, and at least one pair")
    try:
        compared = measure(run, (given.old, given.new), jobs, given.pairs, given.seconds)
    except (OSError, ReportError) as error:
        print(f"by_turns: {error}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    cases = [
        {"bench": program, "name": name, "case": label, "unit": case.unit, "old": case.old, "new": case.new}
        for (program, name, label), case in sorted(compared.items())
    ]
    (given.out / "by_turns.json").write_text(json.dumps(cases, indent=1) + "\n")
    text, fine = table(compared)
    print(text)
    return 0 if fine and compared else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""bench/by_turns.py: two builds, whose benches here are scripts that write what a bench writes."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # as for the script, which finds its parts beside it
by_turns: Any = importlib.import_module("by_turns")

SCRIPT = """#!{python}
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
log = pathlib.Path({log!r})
with log.open("a") as f:
    f.write({name!r} + " " + " ".join(sys.argv[3:]) + "\\n")
runs = sum(line.startswith({name!r}) for line in log.read_text().splitlines())
cases = [
    {{"name": n, "case": "all", "figure": 1, "measured": m * (1 + 0.001 * (runs % 3)), "unit": u, "ceiling": None,
      "ceiling_is": "", "spread": [1, 1], "samples": 1, "verified": {verified}, "cause": "", "details": {{}}}}
    for n, m, u in {figures!r}
]
out.write_text(json.dumps({{"bench": "hot", "machine": {{}}, "driver": "", "commit": "", "command": "hot", "date": "",
    "quick": False, "ceilings": [], "cases": cases, "notes": []}}))
"""


def build(folder: Path, name: str, figures: list[tuple[str, float, str]], verified: bool = True) -> Path:
    program = folder / name / "bench" / "hot"
    program.parent.mkdir(parents=True)
    program.write_text(
        SCRIPT.format(python=sys.executable, log=str(folder / "log"), name=name, figures=figures, verified=verified)
    )
    program.chmod(0o755)
    return program.parents[1]


def test_one_that_got_slower_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = build(tmp_path, "old", [("rate", 100, "GB/s"), ("time", 10, "ms"), ("gone", 1, "ms")])
    new = build(tmp_path, "new", [("rate", 90, "GB/s"), ("time", 10, "ms"), ("fresh", 1, "ms")])
    assert by_turns.main(["--pairs", "7", str(old), str(new), str(tmp_path / "out"), "hot", "--only", "rate"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| hot")]
    assert len(rows) == 2  # what only one has is left out
    assert "0.900" in rows[0] and "slower" in rows[0]
    assert "1.000" in rows[1] and "slower" not in rows[1]
    cases = json.loads((tmp_path / "out" / "by_turns.json").read_text())
    assert [len(case["old"]) for case in cases] == [7, 7]
    log = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in log[:4]] == ["old", "new", "new", "old"]
    assert all(line.endswith(" --only rate") for line in log)


def test_times_that_fell_and_rates_that_rose_are_no_fault(tmp_path: Path) -> None:
    old = build(tmp_path, "old", [("rate", 100, "M pages/s"), ("time", 10, "cycles a step")])
    new = build(tmp_path, "new", [("rate", 110, "M pages/s"), ("time", 9, "cycles a step")])
    assert by_turns.main(["--pairs", "2", str(old), str(new), str(tmp_path / "out"), "hot", "+", "hot", "--quick"]) == 0
    assert sum(" --quick" in line for line in (tmp_path / "log").read_text().splitlines()) == 4


def test_wrong_answers_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = build(tmp_path, "old", [("rate", 1, "GB/s")])
    new = build(tmp_path, "new", [("rate", 2, "GB/s")], verified=False)
    assert by_turns.main([str(old), str(new), str(tmp_path / "out"), "hot"]) == 2
    assert "answers are wrong: rate, all" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_program_that_is_missing_or_none_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert by_turns.main([str(tmp_path), str(tmp_path), str(tmp_path / "out"), "hot"]) == 2
    assert "by_turns: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        by_turns.main([str(tmp_path), str(tmp_path), str(tmp_path / "out")])


def test_no_pair_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    old = build(tmp_path, "old", [("rate", 1, "GB/s")])
    assert by_turns.main(["--seconds", "0", "--pairs", "5", str(old), str(old), str(tmp_path / "out"), "hot"]) == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_intervals_of_the_median_are_the_textbooks() -> None:
    ranks = {n: by_turns.median_interval(range(1, n + 1)) for n in (1, 5, 6, 8, 9, 10, 20)}
    # Conover, Practical Nonparametric Statistics, table A3: the binomial with p = 1/2.
    assert ranks == {1: (1, 1), 5: (1, 5), 6: (1, 6), 8: (1, 8), 9: (2, 8), 10: (2, 9), 20: (6, 15)}


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    low, high = by_turns.median_interval(samples)
    assert min(samples) <= low <= statistics.median(samples) <= high <= max(samples)

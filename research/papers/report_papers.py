# SPDX-License-Identifier: Apache-2.0
"""The papers' tables and figures, remade: the reports of papers_cuda with the papers' own values, and plots as theirs.

For bench/report.py, which puts them into docs/performance.md, and makes docs/reproduction.md of reproduction.md.in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report_data import Bench, Case, Draw, Reader, ReportError, markdown_table, number, read_json, with_unit

CPU_MACHINE = "cpu"  # what reports of papers_cpu say of their machine


@dataclass(frozen=True)
class Paper:
    """A table or figure of a paper, remade (research/papers), with the paper's own values."""

    name: str
    title: str
    machine: str
    commit: str
    command: str
    verified: bool
    columns: list[str]
    rows: list[list[Any]]
    paper_columns: list[str]
    paper_rows: list[list[Any]]
    notes: list[str]


def load_paper(path: Path) -> tuple[Paper, Case | None]:
    """A report of research/papers, and its case where it has a figure that is bounded."""
    top = read_json(path)
    theirs = Reader(f"{path.name}, paper", top.value.get("paper") or {"columns": [], "rows": []})
    paper = Paper(
        name=top.text("name"),
        title=top.text("title"),
        machine=top.text("machine"),
        commit=top.text("commit"),
        command=top.text("command"),
        verified=top.flag("verified"),
        columns=[str(column) for column in top.list("columns")],
        rows=top.list("rows"),
        paper_columns=[str(column) for column in theirs.list("columns")],
        paper_rows=theirs.list("rows"),
        notes=[str(note) for note in top.list("notes")],
    )
    if "figure" not in top.value:
        return paper, None
    low, _, high = top.text("spread").partition(" to ")
    case = Case(
        bench="papers",
        name=paper.name,
        label=top.text("measured"),
        figure=top.number("figure"),
        measured=top.number("figure"),
        unit="times" if top.text("bound").startswith(">=") else "of the time",
        ceiling=None,
        ceiling_is="",
        spread=(float(low), float(high or low)),
        samples=len(paper.rows),
        verified=paper.verified,
        cause="",
        details={},
        commit=paper.commit,
        command=paper.command,
        quick=paper.machine == CPU_MACHINE,
    )
    return paper, case


def load_papers(folder: Path) -> tuple[list[Paper], list[Bench]]:
    """The reports in the results' subfolder `papers`, and a bench of those that are bounded. Those of the CPU machine
    only check answers: they are no reports, and their figures not quoted.
    """
    loaded = [load_paper(path) for path in sorted((folder / "papers").glob("*.json"))]
    papers = [paper for paper, _ in loaded if paper.machine != CPU_MACHINE]
    cases = [case for _, case in loaded if case is not None]
    if not cases:
        return papers, []
    first = next(paper for paper, case in loaded if case is not None)
    quick = first.machine == CPU_MACHINE
    machine = {"gpu": "" if quick else re.sub(r" \(number \d+\)$", "", first.machine), "host_threads": 0}
    bench = Bench("papers", machine, "", first.commit, first.command, "", quick, [], cases, [])
    return papers, [bench]


def papers_value(case: Case) -> str:
    """What the paper has for this case, as the case's own figure, and what that is made of where it is known."""
    if "paper" not in case.details:
        return ""
    made_of = ""
    if "paper_measured" in case.details and "paper_base" in case.details:
        measured, base = (with_unit(case.details[key], case.unit) for key in ("paper_measured", "paper_base"))
        made_of = f" ({measured} by {base})"
    return number(case.details["paper"]) + made_of


def beside_table(benches: list[Bench], names: list[str]) -> str:
    """Cases with the paper's value beside ours."""
    rows = []
    for case in (c for b in benches for c in b.cases if c.name in names and not c.quick):
        base = with_unit(case.ceiling, case.unit) + (f", {case.ceiling_is}" if case.ceiling else "")
        figure = number(case.figure) if case.verified else "wrong answers"
        spread = f"{number(case.spread[0])} to {number(case.spread[1])}"
        name = f"`{case.name}`: {case.label}" if len(names) > 1 else case.label
        rows.append((name, figure, papers_value(case), spread, with_unit(case.measured, case.unit), base))
    if not rows:
        return "*Not measured yet.*"
    return markdown_table(("case", "ours", "the paper's", "spread", "measured", "held against"), rows)


def workloads_plot(benches: list[Bench], name: str, base: str = "raw pointers") -> Draw | None:
    """Extra time of each workload by blocks: every detail of a case but `blocks` and `paper` is a workload."""
    cases = [
        c
        for b in benches
        for c in b.cases
        if c.name in (name, f"{name}_by_blocks") and not c.quick and c.verified and "blocks" in c.details
    ]
    if not cases:
        return None
    cases.sort(key=lambda c: c.details["blocks"])

    def draw(axes: Any) -> None:
        blocks = [c.details["blocks"] for c in cases]
        for workload in [key for key in cases[-1].details if key not in ("blocks", "paper")]:
            extra = [100 * c.details.get(workload, math.nan) for c in cases]
            axes.plot(blocks, extra, "o-", markersize=3, linewidth=1, label=workload)
        axes.plot(blocks, [100 * c.figure for c in cases], "k--", linewidth=1.5, label="mean")
        axes.set_xscale("log", base=2)
        axes.set_xticks(blocks, [f"{n:.0f}" for n in blocks])
        axes.set_xlabel("blocks of 1,024 threads")
        axes.set_ylabel(f"% more time than {base}")
        axes.legend(fontsize=8)

    return draw


def tlb_plot(benches: list[Bench]) -> Draw | None:
    cases = [c for b in benches for c in b.cases if c.name == "ap_figure_7" and not c.quick and c.verified]
    if not cases:
        return None

    def draw(axes: Any) -> None:
        for entries in sorted({c.details["tlb_entries"] for c in cases}):
            line = sorted((c.details["pages"], c.measured) for c in cases if c.details["tlb_entries"] == entries)
            label = f"TLB of {entries:.0f}" if entries else "no TLB"
            axes.plot([x for x, _ in line], [y for _, y in line], "o-", markersize=3, linewidth=1, label=label)
        axes.set_xscale("log", base=2)
        ticks = sorted({c.details["pages"] for c in cases})
        axes.set_xticks(ticks, [f"{n:.0f}" for n in ticks])
        axes.set_xlabel("pages that the block shares")
        axes.set_ylabel(cases[0].unit)
        axes.legend(fontsize=8)

    return draw


# --- docs/reproduction.md ---

NOT_MEASURED = "*not measured yet*"
MARKER = re.compile(r"\{\{(.*?)\}\}")


def names_in_sources(root: Path) -> set[str]:
    """What benches and reports call their results: all names that stand as texts in their sources."""
    folders = {"bench": ("cu", "hpp"), "bench/python": ("py",), "research/papers": ("cu", "cpp")}
    files = [file for folder, ends in folders.items() for end in ends for file in (root / folder).glob(f"*.{end}")]
    return {name for file in files for name in re.findall(r'"([a-z][a-z0-9_]*)"', file.read_text())}


class Remade:
    """Fills in the markers of reproduction.md.in, each with one value of a result; what nobody has measured is said so.

    Of a case of a bench, `{{figure NAME; CASE}}`, `percent`: the same in percent, `measured` and `ceiling` with their
    unit, and `{{detail NAME; CASE; KEY}}`; CASE may be left out where there is one. Of a report in `papers`,
    `{{report NAME; ROW; COLUMN}}`, and `share`: the same in percent; ROW is its first values, with commas between.
    ((Words with markers)) are one: where one of them is not measured, all are.
    """

    def __init__(self, benches: Iterable[Bench], papers: Iterable[Paper], known: set[str]) -> None:
        self.cases = [case for bench in benches for case in bench.cases if not case.quick]
        self.papers = {paper.name: paper for paper in papers}
        self.known = known

    def fill(self, template: str, name: str) -> str:
        def value(match: re.Match[str]) -> str:
            try:
                return self._value(match.group(1))
            except ReportError as error:
                raise ReportError(f"{name}: {match.group(0)}: {error}") from error

        def words(match: re.Match[str]) -> str:
            made = MARKER.sub(value, match.group(1))
            return NOT_MEASURED if NOT_MEASURED in made else made

        return MARKER.sub(value, re.sub(r"\(\((.*?)\)\)", words, template))

    def _value(self, marker: str) -> str:
        kind, _, rest = marker.partition(" ")
        words = [word.strip() for word in rest.split(";")]
        if kind in ("report", "share") and len(words) == 3:
            return self._of_report(kind, *words)
        if kind == "detail" and len(words) == 3:
            case = self._case(words[0], words[1])
            if case is not None and words[2] not in case.details:
                raise ReportError(f"the case has no detail '{words[2]}'")
            return NOT_MEASURED if case is None else number(case.details[words[2]])
        if kind in ("figure", "measured", "ceiling", "percent") and len(words) in (1, 2):
            case = self._case(words[0], words[1] if len(words) == 2 else None)
            if case is None:
                return NOT_MEASURED
            if not case.verified:
                return "wrong answers"
            texts = {
                "figure": number(case.figure),
                "measured": with_unit(case.measured, case.unit),
                "ceiling": with_unit(case.ceiling, case.unit),
                "percent": percent(case.figure),
            }
            return texts[kind]
        raise ReportError("there is no such marker")

    def _case(self, name: str, label: str | None) -> Case | None:
        """None where nobody has measured what a bench would."""
        named = [case for case in self.cases if case.name == name]
        if not named:
            self._must_be_known(name)
            return None
        found = [case for case in named if label in (None, case.label)]
        if len(found) != 1:
            labels = "; ".join(case.label for case in named)
            raise ReportError(f"{len(found)} cases are this one, of: {labels}")
        return found[0]

    def _of_report(self, kind: str, name: str, row: str, column: str) -> str:
        paper = self.papers.get(name)
        if paper is None:
            self._must_be_known(name)
            return NOT_MEASURED
        if not paper.verified:
            return "wrong answers"
        if column not in paper.columns:
            raise ReportError(f"the report has no column '{column}', but {', '.join(paper.columns)}")
        keys = row.split(", ")
        found = [values for values in paper.rows if [str(value) for value in values[: len(keys)]] == keys]
        if len(found) != 1:
            raise ReportError(f"the report has {len(found)} rows '{row}'")
        value = found[0][paper.columns.index(column)]
        if not isinstance(value, (int, float)):
            raise ReportError(f"'{column}' is no number there: {value!r}")
        return percent(value) if kind == "share" else number(value)

    def _must_be_known(self, name: str) -> None:
        if name not in self.known:
            raise ReportError(f"nothing measures '{name}'")


def percent(x: float) -> str:
    return f"{100 * x:.3g} %"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the benches measured: prints the table, writes headline.json, and makes docs/performance.md.

    bench/report.py RESULTS                  the table, and RESULTS/headline.json
    bench/report.py RESULTS --docs docs      also docs/performance.md and docs/performance/*.svg (needs matplotlib)

RESULTS holds the JSON files that the benches write, in any number: benches that were not run are rows "not measured".
A name with several cases is worth its worst one. Runs with --quick, and on the CPU machine, check answers; their
figures are not quoted.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class ReportError(Exception):
    """Input that cannot be used; says which file, and what is wrong with it."""


@dataclass(frozen=True)
class Target:
    name: str
    bound: str  # ">= 0.95" or "<= 0.01"
    figure_is: str
    what: str

    @property
    def at_least(self) -> bool:
        return self.bound.startswith(">=")

    @property
    def limit(self) -> float:
        return float(self.bound[2:])

    def met_by(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit

    def of_target(self, figure: float) -> float:
        """1 where the target is met exactly, more where it is passed."""
        if self.at_least:
            return figure / self.limit
        return self.limit / figure if figure > 0 else float("inf")


@dataclass(frozen=True)
class Case:
    bench: str
    name: str
    label: str
    figure: float
    measured: float
    unit: str
    ceiling: float | None
    ceiling_is: str
    spread: tuple[float, float]
    samples: int
    verified: bool
    cause: str
    details: dict[str, float]
    commit: str
    command: str
    quick: bool


@dataclass(frozen=True)
class Bench:
    name: str
    machine: dict[str, Any]
    driver: str
    commit: str
    command: str
    date: str
    quick: bool
    ceilings: list[dict[str, Any]]
    cases: list[Case]
    notes: list[str]


@dataclass(frozen=True)
class Paper:
    """A table or figure of a paper, remade (bench/papers), with the paper's own values."""

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


def load_targets(path: Path = HERE / "targets.txt") -> list[Target]:
    targets: list[Target] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not re.fullmatch(r"[<>]= \d+(\.\d+)?", fields[1]):
            raise ReportError(f"{path.name}, line {number}: not 'name | >= 0.9 | figure | what'")
        targets.append(Target(*fields))
    return targets


class Reader:
    """Takes members out of a JSON object, and says where one is missing or of another kind."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise ReportError(f"{where}: not a JSON object")
        self.where, self.value = where, value

    def _get(self, key: str, kind: str, is_kind: Callable[[Any], bool]) -> Any:
        if key not in self.value:
            raise ReportError(f"{self.where}: has no '{key}'")
        if not is_kind(self.value[key]):
            raise ReportError(f"{self.where}: '{key}' is not {kind}: {self.value[key]!r}")
        return self.value[key]

    def text(self, key: str) -> str:
        return str(self._get(key, "a text", lambda x: isinstance(x, str)))

    def flag(self, key: str) -> bool:
        return bool(self._get(key, "true or false", lambda x: isinstance(x, bool)))

    def number(self, key: str) -> float:
        return float(self._get(key, "a number", _is_number))

    def number_or_null(self, key: str) -> float | None:
        value = self._get(key, "a number or null", lambda x: x is None or _is_number(x))
        return None if value is None else float(value)

    def numbers(self, key: str) -> dict[str, float]:
        items: dict[str, float | None] = self._get(
            key,
            "an object of numbers",
            lambda x: isinstance(x, dict) and all(v is None or _is_number(v) for v in x.values()),
        )
        return {name: float(value) for name, value in items.items() if value is not None}

    def pair(self, key: str) -> tuple[float, float]:
        low, high = self._get(
            key, "two numbers", lambda x: isinstance(x, list) and len(x) == 2 and all(map(_is_number, x))
        )
        return float(low), float(high)

    def list(self, key: str) -> list[Any]:
        return list(self._get(key, "a list", lambda x: isinstance(x, list)))

    def object(self, key: str) -> dict[str, Any]:
        return dict(self._get(key, "an object", lambda x: isinstance(x, dict)))


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def read_json(path: Path) -> Reader:
    try:
        return Reader(path.name, json.loads(path.read_text()))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path.name}: not JSON: {error}") from error


def load_bench(path: Path) -> Bench:
    top = read_json(path)
    bench, commit, command, quick = top.text("bench"), top.text("commit"), top.text("command"), top.flag("quick")
    cases = []
    for i, value in enumerate(top.list("cases")):
        case = Reader(f"{path.name}, case {i}", value)
        cases.append(
            Case(
                bench=bench,
                name=case.text("name"),
                label=case.text("case"),
                figure=case.number("figure"),
                measured=case.number("measured"),
                unit=case.text("unit"),
                ceiling=case.number_or_null("ceiling"),
                ceiling_is=case.text("ceiling_is"),
                spread=case.pair("spread"),
                samples=int(case.number("samples")),
                verified=case.flag("verified"),
                cause=case.text("cause"),
                details=case.numbers("details"),
                commit=commit,
                command=command,
                quick=quick,
            )
        )
    ceilings = top.list("ceilings")
    for i, value in enumerate(ceilings):
        ceiling = Reader(f"{path.name}, ceiling {i}", value)
        for key in ("measured", "low", "high"):
            ceiling.number(key)
        for key in ("name", "unit"):
            ceiling.text(key)
    return Bench(
        name=bench,
        machine=top.object("machine"),
        driver=top.text("driver"),
        commit=commit,
        command=command,
        date=top.text("date"),
        quick=quick,
        ceilings=ceilings,
        cases=cases,
        notes=[str(note) for note in top.list("notes")],
    )


def load_results(folder: Path) -> list[Bench]:
    """All JSON files of the folder but headline.json, by name."""
    if not folder.is_dir():
        raise ReportError(f"{folder}: not a folder")
    return [load_bench(path) for path in sorted(folder.glob("*.json")) if path.name != "headline.json"]


def load_paper(path: Path) -> tuple[Paper, Case | None]:
    """A report of bench/papers, and its case where it has a figure that is bounded."""
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
        quick=False,
    )
    return paper, case


def load_papers(folder: Path) -> tuple[list[Paper], list[Bench]]:
    """The reports in the results' subfolder `papers`, and a bench of those that are bounded."""
    loaded = [load_paper(path) for path in sorted((folder / "papers").glob("*.json"))]
    papers = [paper for paper, _ in loaded]
    cases = [case for _, case in loaded if case is not None]
    if not cases:
        return papers, []
    first = next(paper for paper, case in loaded if case is not None)
    machine = {"gpu": re.sub(r" \(number \d+\)$", "", first.machine), "host_threads": 0}
    bench = Bench("papers", machine, "", first.commit, first.command, "", False, [], cases, [])
    return papers, [bench]


def worst_cases(targets: Iterable[Target], benches: Iterable[Bench]) -> dict[str, Case]:
    """The worst case of each target's name; one with wrong answers is worse than any other. Quick runs do not count,
    but for what does not depend on the machine.
    """
    cases = [c for b in benches for c in b.cases if not c.quick or c.name == "metadata"]
    worst: dict[str, Case] = {}
    for target in targets:
        own = [c for c in cases if c.name == target.name]
        if any(not c.quick for c in own):
            own = [c for c in own if not c.quick]
        if own:
            worst[target.name] = min(own, key=lambda c: (c.verified, c.figure if target.at_least else -c.figure))
    return worst


def number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def with_unit(x: float | None, unit: str) -> str:
    return "" if x is None else f"{number(x)} {unit}"


def headline(targets: Iterable[Target], worst: dict[str, Case]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for target in targets:
        case = worst.get(target.name)
        if case is None:
            continue
        rows[target.name] = {
            "figure": case.figure if case.verified else None,
            "bound": target.bound,
            "met": case.verified and target.met_by(case.figure),
            "case": case.label,
            "measured": with_unit(case.measured, case.unit),
            "ceiling": with_unit(case.ceiling, case.unit),
            "spread": list(case.spread),
            "samples": case.samples,
            "verified": case.verified,
            "cause": cause_of_miss(target, case),
            "commit": case.commit,
            "command": case.command,
        }
    return rows


def outcome(target: Target, case: Case | None) -> str:
    if case is None:
        return "not measured"
    if not case.verified:
        return "WRONG ANSWERS"
    return "yes" if target.met_by(case.figure) else "no"


def cause_of_miss(target: Target | None, case: Case) -> str:
    """What is known of why a target is missed; empty where it is met, or there is none."""
    if not case.verified:
        return "wrong answers"
    return case.cause if target is not None and not target.met_by(case.figure) else ""


TABLE_HEAD = ("name", "figure", "wanted", "met", "spread", "measured", "ceiling", "worst case")


def table_rows(targets: Iterable[Target], worst: dict[str, Case]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for target in targets:
        case = worst.get(target.name)
        if case is None:
            rows.append((target.name, "", target.bound, "not measured", "", "", "", ""))
            continue
        ceiling = with_unit(case.ceiling, case.unit) + (f" ({case.ceiling_is})" if case.ceiling else "")
        spread = f"{number(case.spread[0])} to {number(case.spread[1])}"
        measured = with_unit(case.measured, case.unit)
        rows.append(
            (
                target.name,
                number(case.figure),
                target.bound,
                outcome(target, case),
                spread,
                measured,
                ceiling,
                case.label,
            )
        )
    return rows


def print_table(targets: list[Target], benches: list[Bench], worst: dict[str, Case]) -> None:
    rows = table_rows(targets, worst)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(row[i]) for row in [TABLE_HEAD, *rows]) for i in range(len(TABLE_HEAD))]
        for row in [TABLE_HEAD, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        colours = {"yes": "green", "no": "yellow", "not measured": "dim", "WRONG ANSWERS": "bold red"}
        table = Table(*TABLE_HEAD)
        for row in rows:
            table.add_row(*row, style=colours[row[3]])
        console = Console()
        Console(width=None if console.is_terminal else 200).print(table)
    for bench in benches:
        wrong = [case for case in bench.cases if not case.verified]
        if bench.quick:
            print(
                f"{bench.name}: {'quick' if bench.machine.get('gpu') else 'the CPU machine'}, figures not quoted;",
                end=" ",
            )
            print(f"{len(bench.cases) - len(wrong)} of {len(bench.cases)} cases gave right answers")
        for case in wrong:
            print(f"{bench.name}: WRONG ANSWERS in {case.name}, {case.label}")
        for note in bench.notes:
            print(f"{bench.name}: {note}")


# --- docs/performance.md ---


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def summary_table(targets: list[Target], worst: dict[str, Case]) -> str:
    rows = []
    for target in targets:
        case = worst.get(target.name)
        figure, measured, ceiling = "", "", ""
        if case is not None:
            figure = f"{number(case.figure)} ({number(case.spread[0])} to {number(case.spread[1])})"
            measured = with_unit(case.measured, case.unit)
            ceiling = with_unit(case.ceiling, case.unit)
        rows.append(
            (
                f"`{target.name}`",
                target.what,
                target.figure_is,
                figure,
                target.bound,
                outcome(target, case),
                measured,
                ceiling,
            )
        )
    return markdown_table(("name", "what", "figure", "worst case", "wanted", "met", "measured", "ceiling"), rows)


def cases_table(targets: list[Target], benches: list[Bench], names: list[str]) -> str:
    rows = []
    known = {target.name: target for target in targets}
    for case in (c for b in benches for c in b.cases if c.name in names and not c.quick):
        ceiling = with_unit(case.ceiling, case.unit) + (f", {case.ceiling_is}" if case.ceiling else "")
        rows.append(
            (
                f"`{case.name}`",
                case.label,
                number(case.figure) if case.verified else "wrong answers",
                f"{number(case.spread[0])} to {number(case.spread[1])}",
                with_unit(case.measured, case.unit),
                ceiling,
                cause_of_miss(known.get(case.name), case),
            )
        )
    if not rows:
        return "*Not measured yet.*"
    return markdown_table(("name", "case", "figure", "spread", "measured", "ceiling", "cause of a miss"), rows)


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


def ceilings_table(benches: list[Bench]) -> str:
    rows = [
        (bench.name, c["name"], with_unit(c["measured"], c["unit"]), f"{number(c['low'])} to {number(c['high'])}")
        for bench in benches
        if not bench.quick
        for c in bench.ceilings
    ]
    return markdown_table(("bench", "ceiling", "measured", "spread"), rows) if rows else "*Not measured yet.*"


def provenance(benches: list[Bench]) -> str:
    rows = [
        (
            b.name,
            str(b.machine.get("gpu")),
            b.driver,
            str(b.machine.get("host_threads")),
            b.commit,
            f"`{b.command}`",
            b.date,
        )
        for b in benches
        if not b.quick
    ]
    if not rows:
        return "*Not measured yet.*"
    return markdown_table(("bench", "GPU", "driver", "host threads", "commit", "command", "date"), rows)


Draw = Callable[[Any], None]  # draws on matplotlib axes


def target_plot(targets: list[Target], worst: dict[str, Case]) -> Draw | None:
    known = [(t, worst[t.name]) for t in targets if t.name in worst and worst[t.name].verified]
    if not known:
        return None

    def draw(axes: Any) -> None:
        known_up = known[::-1]
        values = [min(t.of_target(c.figure), 2.0) for t, c in known_up]
        colours = ["#2a7f62" if t.met_by(c.figure) else "#c9762b" for t, c in known_up]
        axes.barh([t.name for t, _ in known_up], values, color=colours)
        for i, (target, case) in enumerate(known_up):
            axes.text(
                0.02, i, f"{number(case.figure)}  (wanted {target.bound})", va="center", color="white", fontsize=8
            )
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xlabel("part of the target reached (cut off at 2)")

    return draw


def case_plot(benches: list[Bench], names: list[str], unit: str) -> Draw | None:
    cases = [c for b in benches for c in b.cases if c.name in names and not c.quick and c.verified and c.unit == unit]
    if not cases:
        return None

    def draw(axes: Any) -> None:
        shown = cases[::-1]
        labels = [f"{c.name}: {c.label}" for c in shown]
        axes.barh(labels, [c.measured for c in shown], color="#33658a")
        ceilings = {(c.ceiling, c.ceiling_is) for c in shown if c.ceiling and c.ceiling_is not in names}
        for i, (value, what) in enumerate(sorted(ceilings)):
            axes.axvline(
                value, color="black", linewidth=1, linestyle=("-", "--", ":")[i % 3], label=f"{what}: {number(value)}"
            )
        if ceilings:
            axes.legend(loc="lower left", fontsize=8)
        axes.set_xlabel(unit)

    return draw


def staged_plot(benches: list[Bench]) -> Draw | None:
    cases = [c for b in benches for c in b.cases if c.name == "staged_4k" and not c.quick and c.verified and c.ceiling]
    if not cases:
        return None

    def draw(axes: Any) -> None:
        places = range(len(cases))
        axes.bar(
            [p - 0.2 for p in places], [c.ceiling for c in cases], 0.4, label="pread and nothing else", color="#bbbbbb"
        )
        axes.bar(
            [p + 0.2 for p in places], [c.measured for c in cases], 0.4, label="served to the GPU", color="#33658a"
        )
        axes.set_xticks(list(places), [c.label for c in cases])
        axes.set_ylabel(cases[0].unit)
        axes.legend(fontsize=8)

    return draw


def scaling_plot(benches: list[Bench]) -> Draw | None:
    lines = {
        name: [
            c for b in benches for c in b.cases if c.name == name and not c.quick and c.verified and "sms" in c.details
        ]
        for name in ("cold_4k_by_sms", "hot_4k_by_sms")
    }
    if not any(lines.values()):
        return None

    def draw(axes: Any) -> None:
        for (name, cases), colour in zip(lines.items(), ("#33658a", "#c9762b"), strict=True):
            cases.sort(key=lambda c: c.details["sms"])
            if not cases:
                continue
            axes.plot([c.details["sms"] for c in cases], [c.measured for c in cases], "o-", color=colour, label=name)
            if cases[-1].ceiling:
                axes.axhline(cases[-1].ceiling, color=colour, linewidth=1, linestyle="--", label=cases[-1].ceiling_is)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({int(c.details["sms"]) for cases in lines.values() for c in cases})
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xlabel("SMs")
        axes.set_ylabel("GB/s")
        axes.legend(fontsize=8)

    return draw


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


def plots(targets: list[Target], benches: list[Bench], worst: dict[str, Case]) -> dict[str, tuple[str, Draw | None]]:
    return {
        "targets": ("Figures against their targets", target_plot(targets, worst)),
        "misses": ("Misses", case_plot(benches, ["cold_4k", "cold_64k", "seq_read"], "GB/s")),
        "hits": ("Hits", case_plot(benches, ["hot_4k", "hot_64k", "hot_skewed", "hot_one_page"], "GB/s")),
        "workloads_4": ("Workloads through pointers, 4-byte reads", workloads_plot(benches, "ap_workloads_4")),
        "workloads_16": ("Workloads through pointers, 16-byte reads", workloads_plot(benches, "ap_workloads_16")),
        "figure_6a": ("Figure 6a: 4-byte reads, no faults", workloads_plot(benches, "ap_figure_6a")),
        "figure_6b": ("Figure 6b: 16-byte reads, no faults", workloads_plot(benches, "ap_figure_6b")),
        "figure_6c": ("Figure 6c: 4-byte reads, minor faults", workloads_plot(benches, "ap_figure_6c", "map_page")),
        "figure_7": ("Figure 7: minor faults of one block", tlb_plot(benches)),
        "staged": ("Random 4 KiB served by host threads", staged_plot(benches)),
        "scaling": ("Misses and hits by the number of SMs", scaling_plot(benches)),
    }


def save_plot(path: Path, title: str, draw: Draw) -> None:
    """The same input gives the same bytes (with one version of matplotlib)."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "gpufs", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
        axes.set_title(title)
        draw(axes)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "gpufs"})
        pyplot.close(figure)


def papers_text(papers: list[Paper]) -> str:
    """Each table or figure with the paper's values under ours."""

    def cell(value: object) -> str:
        return number(value) if isinstance(value, float) else str(value)

    parts = []
    for paper in papers:
        parts.append(f"### {paper.title}" + ("" if paper.verified else " (WRONG ANSWERS)"))
        parts.append(markdown_table(paper.columns, [[cell(v) for v in row] for row in paper.rows]))
        if paper.paper_rows:
            parts.append("The paper:")
            parts.append(markdown_table(paper.paper_columns, [[cell(v) for v in row] for row in paper.paper_rows]))
        parts.append("\n".join(f"- {note}" for note in [*paper.notes, f"Commit {paper.commit}, `{paper.command}`."]))
    return "\n\n".join(parts) if parts else "*Not measured yet.*"


def make_docs(
    docs: Path,
    template: Path,
    targets: list[Target],
    benches: list[Bench],
    papers: list[Paper],
    worst: dict[str, Case],
) -> None:
    """Fills in the markers: {{summary}}, {{cases NAME...}}, {{beside NAME...}}, {{ceilings}}, {{provenance}},
    {{papers}}, {{plot NAME}}.
    """
    known = plots(targets, benches, worst)
    folder = docs / "performance"

    def fill(match: re.Match[str]) -> str:
        kind, *words = match.group(1).split()
        if kind == "summary" and not words:
            return summary_table(targets, worst)
        if kind == "cases" and words:
            return cases_table(targets, benches, words)
        if kind == "beside" and words:
            return beside_table(benches, words)
        if kind == "ceilings" and not words:
            return ceilings_table(benches)
        if kind == "papers" and not words:
            return papers_text(papers)
        if kind == "provenance" and not words:
            return provenance([bench for bench in benches if bench.name != "papers"])
        if kind == "plot" and len(words) == 1 and words[0] in known:
            title, draw = known[words[0]]
            if draw is None:
                return f"*{title}: not measured yet.*"
            folder.mkdir(parents=True, exist_ok=True)
            save_plot(folder / f"{words[0]}.svg", title, draw)
            return f"![{title}](performance/{words[0]}.svg)"
        raise ReportError(f"{template.name}: there is nothing to put for {match.group(0)}")

    if folder.is_dir():
        for old in folder.glob("*.svg"):
            old.unlink()
    text = re.sub(r"\{\{(.*?)\}\}", fill, template.read_text())
    note = f"<!-- Made by bench/report.py from bench/{template.name} and the results: change these. -->\n"
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "performance.md").write_text(note + text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder with the benches' JSON files")
    parser.add_argument("--docs", type=Path, help="folder for performance.md and performance/*.svg")
    parser.add_argument(
        "--text", type=Path, default=HERE / "performance.md.in", help="the hand-written part of performance.md"
    )
    options = parser.parse_args(arguments)
    try:
        targets, benches = load_targets(), load_results(options.results)
        papers, bounded = load_papers(options.results)
        benches += bounded
        worst = worst_cases(targets, benches)
        print_table(targets, benches, worst)
        rows = headline(targets, worst)
        if rows:
            (options.results / "headline.json").write_text(json.dumps(rows, indent=2) + "\n")
        if options.docs is not None:
            make_docs(options.docs, options.text, targets, benches, papers, worst)
    except ImportError as error:
        print(f"report.py: --docs needs matplotlib: {error}", file=sys.stderr)
        return 1
    except (ReportError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

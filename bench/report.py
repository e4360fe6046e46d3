#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the benches measured: prints the table, writes headline.json, and makes docs/performance.md.

    bench/report.py RESULTS                  the table, and RESULTS/headline.json
    bench/report.py RESULTS --docs docs      also docs/performance.md, docs/performance/*.svg (needs matplotlib),
                                             docs/reproduction.md, and the table of comparisons in README.md beside docs

RESULTS holds the JSON files that the benches write, in any number: benches that were not run are rows "not measured".
A name with several cases is worth its worst one. Runs with --quick, and on the CPU machine, check answers; their
figures are not quoted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "research" / "papers"))

from report_data import Bench, Case, Draw, ReportError, load_results, markdown_table, number, with_unit
from report_papers import (
    Paper,
    Remade,
    beside_table,
    load_papers,
    names_in_sources,
    tlb_plot,
    workloads_plot,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REPRODUCTION = ROOT / "research" / "papers" / "reproduction.md.in"


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


def load_targets(path: Path = HERE / "targets.txt") -> list[Target]:
    targets: list[Target] = []
    for n, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not re.fullmatch(r"[<>]= \d+(\.\d+)?", fields[1]):
            raise ReportError(f"{path.name}, line {n}: not 'name | >= 0.9 | figure | what'")
        targets.append(Target(*fields))
    return targets


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


def rows_plot(benches: list[Bench]) -> Draw | None:
    """Batches by their rows' size: ours, and the ceilings of the same run whose names end in a size; of host threads
    the better way."""
    lines: dict[str, dict[int, float]] = {}

    def size_in(words: str) -> int | None:
        said = re.search(r"rows of (\d+) (B|KiB)$", words)
        return int(said[1]) * (1024 if said[2] == "KiB" else 1) if said else None

    for bench in benches:
        if bench.quick:
            continue
        threads = None  # the last ceiling by host threads: (its line, its size)
        for ceiling in bench.ceilings:
            name, _, rows = ceiling["name"].rpartition(", ")
            if ceiling["name"] == "the same that prefetch" and threads is not None:
                line, of = threads
                lines[line][of] = max(lines[line][of], ceiling["measured"])
            size = size_in(rows)
            threads = None
            if name and size and "Zipf" not in name and ceiling["unit"] == "GB/s":
                lines.setdefault(name, {})[size] = ceiling["measured"]
                threads = (name, size) if "threads" in name else None
        for c in bench.cases:
            if c.name == "batch_vs_best_rival" and c.verified and (size := size_in(c.label)):
                lines.setdefault("row_batch::gather", {})[size] = c.measured
    if "row_batch::gather" not in lines:
        return None

    def draw(axes: Any) -> None:
        ours = "row_batch::gather"
        for name in [ours, *(name for name in lines if name != ours)]:
            sizes = sorted(lines[name])
            style = "o-" if name == ours else "--" if "sorted" in name else ".-"
            axes.plot(sizes, [lines[name][n] for n in sizes], style, label=name)
        sizes = sorted({size for line in lines.values() for size in line})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes a row")
        axes.set_ylabel("GB/s")
        axes.legend(fontsize=8)

    return draw


def plots(targets: list[Target], benches: list[Bench], worst: dict[str, Case]) -> dict[str, tuple[str, Draw | None]]:
    return {
        "targets": ("Figures against their targets", target_plot(targets, worst)),
        "misses": ("Misses", case_plot(benches, ["cold_4k", "cold_4k_pull", "cold_64k", "seq_read"], "GB/s")),
        "hits": ("Hits", case_plot(benches, ["hot_4k", "hot_64k", "hot_skewed", "hot_one_page"], "GB/s")),
        "workloads_4": ("Workloads through pointers, 4-byte reads", workloads_plot(benches, "ap_workloads_4")),
        "workloads_16": ("Workloads through pointers, 16-byte reads", workloads_plot(benches, "ap_workloads_16")),
        "figure_6a": ("Figure 6a: 4-byte reads, no faults", workloads_plot(benches, "ap_figure_6a")),
        "figure_6b": ("Figure 6b: 16-byte reads, no faults", workloads_plot(benches, "ap_figure_6b")),
        "figure_6c": ("Figure 6c: 4-byte reads, minor faults", workloads_plot(benches, "ap_figure_6c", "map_page")),
        "figure_7": ("Figure 7: minor faults of one block", tlb_plot(benches)),
        "rows": ("Random rows of a file in memory by their size", rows_plot(benches)),
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


def make_docs(
    docs: Path,
    template: Path,
    targets: list[Target],
    benches: list[Bench],
    papers: list[Paper],
    worst: dict[str, Case],
) -> None:
    """Fills in the markers of performance.md: {{summary}}, {{cases NAME...}}, {{beside NAME...}}, {{ceilings}},
    {{provenance}}, {{plot NAME}}; those of reproduction.md are Remade's.
    """
    note = "<!-- Made by bench/report.py from research/papers/reproduction.md.in and the results: change these. -->\n"
    remade = Remade(benches, papers, names_in_sources(ROOT))
    reproduction = note + remade.fill(REPRODUCTION.read_text(), REPRODUCTION.name)
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
    (docs / "reproduction.md").write_text(reproduction)


def comparisons(targets: list[Target], worst: dict[str, Case], path: Path = HERE / "comparisons.txt") -> str:
    """The README's table: each name's worst case against its rival."""
    known = {target.name for target in targets if target.figure_is == "times as fast" or "share of" in target.figure_is}
    rows = []
    for n, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        name, *words = [field.strip() for field in line.split("|")]
        if name not in known or len(words) != 4:
            raise ReportError(f"{path.name}, line {n}: not 'name of a ratio | what | rival | memory | program'")
        what, rival, memory, program = words
        case = worst.get(name)
        if case is None or not case.verified:
            rows.append([what, "", rival, "", "not measured yet", memory, program])
            continue
        ours, theirs = with_unit(case.measured, case.unit), with_unit(case.ceiling, case.unit)
        rows.append([what, ours, rival, theirs, number(case.figure), memory, f"{program}, `{name}`"])
    return markdown_table(["what", "gpufs", "rival", "it has", "times", "memory of the host", "program"], rows)


def with_comparisons(text: str, table: str) -> str:
    begin, end = "<!-- made by bench/report.py of bench/comparisons.txt -->\n", "\n<!-- to here -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ReportError(f"README.md: there is no place for the comparisons: {begin.strip()} and {end.strip()}")
    before, _, rest = text.partition(begin)
    return before + begin + table + end + rest.partition(end)[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder with the benches' JSON files")
    parser.add_argument("--docs", type=Path, help="folder for performance.md, performance/*.svg and reproduction.md")
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
            readme = options.docs.parent / "README.md"
            if readme.exists():
                readme.write_text(with_comparisons(readme.read_text(), comparisons(targets, worst)))
    except ImportError as error:
        print(f"report.py: --docs needs matplotlib: {error}", file=sys.stderr)
        return 1
    except (ReportError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

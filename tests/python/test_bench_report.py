# SPDX-License-Identifier: Apache-2.0
"""bench/report.py: what it makes of the benches' JSON, also where some are missing or wrong."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # as for the script, which finds its parts beside it
report: Any = importlib.import_module("report")


@pytest.fixture(autouse=True)
def no_reproduction(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its markers name cases of the results on record, which these are not; test_papers.py has its own tests."""
    template = tmp_path_factory.mktemp("template") / "reproduction.md.in"
    template.write_text("# Remade\n")
    monkeypatch.setattr(report, "REPRODUCTION", template)


def case(name: str, figure: float, /, **changes: Any) -> dict[str, Any]:
    one = {
        "name": name,
        "case": f"{name} at {figure}",
        "figure": figure,
        "bound": ">= 0.95",
        "measured": figure * 55.6,
        "unit": "GB/s",
        "ceiling": 55.6,
        "ceiling_is": "pinned copy",
        "spread": [figure * 0.99, figure * 1.01],
        "samples": 5,
        "verified": True,
        "cause": "the bus",
        "details": {},
    }
    return one | changes


def bench(cases: list[dict[str, Any]], /, **changes: Any) -> dict[str, Any]:
    whole = {
        "bench": "cold",
        "machine": {"gpu": "A GPU", "processors": 132, "host_threads": 16, "host_memory_gib": 128},
        "driver": "580.1, CUDA 13.0",
        "commit": "1234567",
        "command": "cold --dir DIR",
        "date": "2026-01-02",
        "quick": False,
        "ceilings": [{"name": "pinned copy", "measured": 55.6, "unit": "GB/s", "low": 55, "high": 56, "samples": 7}],
        "cases": cases,
        "notes": [],
    }
    return whole | changes


def write(folder: Path, **benches: Any) -> Path:
    for name, value in benches.items():
        (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def headline(folder: Path) -> dict[str, Any]:
    assert report.main([str(folder)]) == 0
    rows: dict[str, Any] = json.loads((folder / "headline.json").read_text())
    return rows


def test_a_name_is_worth_its_worst_case_also_over_several_files(tmp_path: Path) -> None:
    first = bench([case("cold_4k_pull", 0.999), case("cold_4k_pull", 0.99, case="pread"), case("cold_64k", 0.99)])
    rows = headline(write(tmp_path, cold=first, disk=bench([case("cold_4k_pull", 0.991)])))
    assert rows["cold_4k_pull"]["figure"] == 0.99
    assert rows["cold_4k_pull"]["case"] == "pread"
    assert rows["cold_4k_pull"]["met"] is True
    assert rows["cold_64k"]["figure"] == 0.99
    assert rows["cold_4k_pull"]["cause"] == ""  # there is no miss to explain


def test_where_less_is_better_the_worst_is_the_largest(tmp_path: Path) -> None:
    rows = headline(write(tmp_path, host=bench([case("host_cpu_idle", 0.002), case("host_cpu_idle", 0.02)])))
    assert rows["host_cpu_idle"]["figure"] == 0.02
    assert rows["host_cpu_idle"]["bound"] == "<= 0.01"
    assert rows["host_cpu_idle"]["met"] is False


def test_the_headline_has_what_its_readers_expect(tmp_path: Path) -> None:
    row = headline(write(tmp_path, cold=bench([case("cold_4k_pull", 0.92, ceiling=None)])))["cold_4k_pull"]
    assert row["bound"] == ">= 0.99"
    assert row["measured"] == "51.2 GB/s"
    assert row["ceiling"] == ""
    assert row["spread"] == [0.92 * 0.99, 0.92 * 1.01]
    assert (row["commit"], row["command"]) == ("1234567", "cold --dir DIR")
    assert (row["met"], row["cause"]) == (False, "the bus")


@pytest.mark.parametrize(
    ("bound", "figure", "met"),
    [(">= 0.95", 0.95, True), (">= 0.95", 0.9499, False), ("<= 0.01", 0.01, True), ("<= 0.01", 0.0101, False)],
)
def test_bounds_include_their_limit(bound: str, figure: float, met: bool) -> None:
    assert report.Target("x", bound, "", "").met_by(figure) is met


def test_wrong_answers_are_worse_than_any_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case("cold_4k_pull", 0.1), case("cold_4k_pull", 0.99, case="fast and wrong", verified=False)]
    row = headline(write(tmp_path, cold=bench(cases)))["cold_4k_pull"]
    assert row["figure"] is None
    assert (row["met"], row["verified"], row["cause"]) == (False, False, "wrong answers")
    assert "WRONG ANSWERS in cold_4k_pull, fast and wrong" in capsys.readouterr().out


def test_missing_benches_are_rows_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = headline(write(tmp_path, cold=bench([case("cold_4k_pull", 0.96)])))
    assert set(rows) == {"cold_4k_pull"}
    lines = capsys.readouterr().out.splitlines()
    assert all("not measured" in line for line in lines if "hot_4k" in line or "small_open" in line)
    assert any("hot_4k" in line for line in lines)


def test_no_results_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path)]) == 0
    assert not (tmp_path / "headline.json").exists()
    assert report.main([str(tmp_path / "nowhere")]) == 1
    assert "nowhere: not a folder" in capsys.readouterr().err


def test_quick_runs_are_not_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = bench([case("cold_4k_pull", 0.99), case("metadata", 0.008, unit="bytes per byte")], quick=True)
    rows = headline(write(tmp_path, cold=quick))
    assert set(rows) == {"metadata"}  # the same on every machine
    assert "figures not quoted; 2 of 2 cases gave right answers" in capsys.readouterr().out


def test_names_of_its_own_are_shown_but_bounded_by_nothing(tmp_path: Path) -> None:
    rows = headline(write(tmp_path, cold=bench([case("mount", 0.2, bound=None), case("cold_4k_pull", 0.96)])))
    assert set(rows) == {"cold_4k_pull"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "bad.json: not JSON"),
        ("", "bad.json: not JSON"),
        ("[]", "bad.json: not a JSON object"),
        ("{}", "bad.json: has no 'bench'"),
        (bench([]) | {"cases": {}}, "bad.json: 'cases' is not a list"),
        (bench([]) | {"quick": 1}, "bad.json: 'quick' is not true or false: 1"),
        (bench(["x"]), "bad.json, case 0: not a JSON object"),  # type: ignore[list-item]
        (bench([case("cold_4k_pull", 0.9, figure="0.9")]), "bad.json, case 0: 'figure' is not a number: '0.9'"),
        (bench([case("cold_4k_pull", 0.9, figure=None)]), "bad.json, case 0: 'figure' is not a number: None"),
        (bench([case("cold_4k_pull", 0.9, verified="yes")]), "bad.json, case 0: 'verified' is not true or false"),
        (bench([case("a", 1), case("b", 1, spread=[1])]), "bad.json, case 1: 'spread' is not two numbers: [1]"),
        (bench([case("a", 1, details={"x": "y"})]), "bad.json, case 0: 'details' is not an object of numbers"),
        (bench([], ceilings=[{"name": "x"}]), "bad.json, ceiling 0: has no 'measured'"),
    ],
)
def test_malformed_input_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, complaint: str
) -> None:
    write(tmp_path, bad=content, good=bench([case("cold_4k_pull", 0.96)]))
    assert report.main([str(tmp_path)]) == 1
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "headline.json").exists()


def test_a_figure_that_is_not_finite_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, bad=json.dumps(bench([case("cold_4k_pull", float("nan"))])))
    assert report.main([str(tmp_path)]) == 1
    assert "'figure' is not a number" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["cold_4k | 0.95 | share | what", "cold_4k | >= 0.95 | share"])
def test_malformed_targets_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "targets.txt").write_text("# a comment\n" + line + "\n")
    with pytest.raises(report.ReportError, match=r"targets\.txt, line 2"):
        report.load_targets(tmp_path / "targets.txt")


def test_the_targets_are_those_of_the_benches() -> None:
    """Every bounded name is measured by a bench, or by a program that somebody else writes."""
    sources = "".join(path.read_text() for path in (*BENCH.glob("*.cu"), *BENCH.glob("python/*.py")))
    names = {target.name for target in report.load_targets()} - {"original_slowdown", "pointer_collage"}
    assert len(names) >= 76
    assert {name for name in names if f'"{name}"' not in sources} == set()


def test_every_bounded_name_has_its_cases_shown() -> None:
    """What is bounded, and measured by a bench, is not only a line of the summary."""
    markers = re.findall(r"\{\{cases (.*?)\}\}", (BENCH / "performance.md.in").read_text())
    shown = {name for names in markers for name in names.split()}
    names = {target.name for target in report.load_targets()} - {"original_slowdown", "pointer_collage"}
    assert names - shown == set()


def everything() -> list[dict[str, Any]]:
    cases = [case(target.name, target.limit * 0.9) for target in report.load_targets()]
    for n in (1, 16, 132):
        cases += [case(name, n / 132, details={"sms": n}) for name in ("cold_4k_by_sms", "hot_4k_by_sms")]
        cases += [
            case(f"ap_workloads_{nbytes}_by_blocks", 1 / n, details={"blocks": n, "add": 2 / n}) for nbytes in (4, 16)
        ]
        cases += [
            case(f"ap_figure_{figure}", 1 / n, details={"blocks": n, "read": 1 / n, "paper": 0.2})
            for figure in ("6a", "6b", "6c")
        ]
        cases += [case("ap_figure_7", n, details={"pages": n, "tlb_entries": entries}) for entries in (0, 32)]
    cases += [case("batch_vs_best_rival", 1.4, case=f"4 Mi rows of {size}") for size in ("512 B", "4 KiB")]
    cases += [case(f"ap_table_{table}", 0.1 * table, details={"paper": 0.2}) for table in (1, 2, 3)]
    return cases


def make_docs(results: Path, docs: Path, *more: str) -> dict[str, bytes]:
    assert report.main([str(results), "--docs", str(docs), *more]) == 0
    return {str(path.relative_to(docs)): path.read_bytes() for path in docs.rglob("*") if path.is_file()}


def test_the_docs_are_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "results").mkdir()
    results = write(tmp_path / "results", all=bench(everything()))
    first = make_docs(results, tmp_path / "first")
    assert first == make_docs(results, tmp_path / "second")
    assert set(first) == {"performance.md", "reproduction.md"} | {
        f"performance/{name}.svg"
        for name in (
            *("targets", "misses", "hits", "workloads_4", "workloads_16", "rows", "staged", "scaling"),
            *("figure_6a", "figure_6b", "figure_6c", "figure_7"),
        )
    }
    text = first["performance.md"].decode()
    assert "{{" not in text
    assert not re.search(r"not measured", text)
    for picture in re.findall(r"\]\((performance/.*?)\)", text):
        assert picture in first


def test_rows_stand_by_their_size_beside_rivals_and_the_limit(tmp_path: Path) -> None:
    matplotlib_figure = pytest.importorskip("matplotlib.figure")
    measured = {
        "a kernel over the mapping, rows of 512 B": 16,
        "16 host threads and copies, rows of 512 B": 36,
        "the same that prefetch": 37,
        "a kernel over sorted rows, rows of 512 B": 51,
        "a kernel over the mapping, Zipf 0.99, rows of 512 B": 99,
        "a kernel over the mapping, rows of 4 KiB": 49,
    }
    ceilings = [
        {"name": name, "measured": value, "unit": "GB/s", "low": value, "high": value, "samples": 3}
        for name, value in measured.items()
    ]
    cases = [
        case("batch_vs_best_rival", 1.4, measured=50, case="4 Mi rows of 512 B"),
        case("batch_vs_best_rival", 1.1, measured=48, case="4 Mi rows of 4 KiB"),
        case("batch_vs_best_rival", 9.9, measured=999, case="4 Mi rows of 1 KiB", verified=False),
    ]
    draw = report.rows_plot(report.load_results(write(tmp_path, batches=bench(cases, ceilings=ceilings))))
    axes = matplotlib_figure.Figure().add_subplot()
    assert draw is not None
    draw(axes)
    lines = {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}
    assert lines == {
        "row_batch::gather": {512: 50, 4096: 48},
        "a kernel over the mapping": {512: 16, 4096: 49},
        "16 host threads and copies": {512: 37},
        "a kernel over sorted rows": {512: 51},
    }
    assert report.rows_plot([]) is None


def test_docs_of_a_part_say_what_is_missing_and_leave_no_old_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "results").mkdir()
    results = write(tmp_path / "results", all=bench(everything()))
    make_docs(results, tmp_path / "docs")
    write(results, all=bench([case("cold_4k_pull", 0.92), case("cold_64k", 0.5, verified=False)]))
    files = make_docs(results, tmp_path / "docs")
    assert set(files) == {
        *("performance.md", "reproduction.md"),
        *("performance/targets.svg", "performance/misses.svg"),
    }
    text = files["performance.md"].decode()
    assert "| `hot_4k` |" in text and "not measured" in text
    assert "*Hits: not measured yet.*" in text
    assert "the bus" in text  # the cause of a missed target
    assert "WRONG ANSWERS" in text


def paper(**changes: Any) -> dict[str, Any]:
    whole = {
        "name": "table_9",
        "title": "Table 9: of a test",
        "machine": "A GPU (number 0)",
        "driver": "CUDA 13.0",
        "commit": "7654321",
        "command": "papers table_9",
        "verified": True,
        "columns": ["image", "ms"],
        "rows": [["512x384", 12.3456]],
        "paper": {"columns": ["image", "ms"], "rows": [["512x384", 291.0]]},
        "notes": ["a note"],
    }
    return whole | changes


SLOWDOWN = {
    "name": "original_slowdown",
    "figure": 7.5,
    "bound": ">= 5.6",
    "measured": "75 ms against 10 ms",
    "spread": "7 to 8",
}


def test_a_papers_figure_that_is_bounded_is_in_the_headline(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    write(tmp_path / "papers", table_9=paper(), original_slowdown=paper(**SLOWDOWN))
    row = headline(tmp_path)["original_slowdown"]
    assert (row["figure"], row["met"], row["spread"], row["case"]) == (7.5, True, [7, 8], "75 ms against 10 ms")
    assert list(headline(tmp_path)) == ["original_slowdown"]
    write(tmp_path / "papers", original_slowdown=paper(**SLOWDOWN, verified=False))
    assert headline(tmp_path)["original_slowdown"]["figure"] is None


def test_papers_of_the_cpu_machine_are_not_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "papers").mkdir()
    write(tmp_path / "papers", table_9=paper(machine="cpu"), original_slowdown=paper(**SLOWDOWN, machine="cpu"))
    (tmp_path / "text.in").write_text("nothing")
    make_docs(tmp_path, tmp_path / "docs", "--text", str(tmp_path / "text.in"))
    assert not (tmp_path / "headline.json").exists()
    assert "papers: the CPU machine, figures not quoted; 1 of 1 cases gave right answers" in capsys.readouterr().out


def test_the_papers_values_stand_beside_ours(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = [
        case(
            "ap_table_1",
            0.1,
            case="read",
            unit="cycles",
            details={"paper": 0.2, "paper_measured": 271, "paper_base": 225},
        ),
        case("ap_table_1", 0.3, case="of our own"),
        case("ap_table_1", 0.4, case="wrong", verified=False),
        case("ap_table_3", 0.05, case="minor", details={"paper": 0}),
    ]
    (tmp_path / "results").mkdir()
    write(tmp_path / "results", pointer_papers=bench(cases), quick=bench([case("ap_table_1", 9)], quick=True))
    (tmp_path / "text.in").write_text(
        "{{beside ap_table_1}}\n\n{{beside ap_table_3 ap_table_1}}\n\n{{beside ap_table_2}}"
    )
    files = make_docs(tmp_path / "results", tmp_path / "docs", "--text", str(tmp_path / "text.in"))
    text = files["performance.md"].decode()
    assert "| read | 0.1 | 0.2 (271 cycles by 225 cycles) | 0.099 to 0.101 | 5.56 cycles |" in text
    assert "| of our own | 0.3 |  |" in text and "| wrong | wrong answers |" in text
    assert "| `ap_table_3`: minor | 0.05 | 0 |" in text and "at 9" not in text
    assert text.count("*Not measured yet.*") == 1


@pytest.mark.parametrize("changes", [{"rows": 3}, {"verified": "yes"}, {"paper": [1]}, SLOWDOWN | {"figure": "7"}])
def test_a_malformed_report_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    (tmp_path / "papers").mkdir()
    write(tmp_path / "papers", table_9=paper(**changes))
    assert report.main([str(tmp_path)]) == 1
    assert "table_9.json" in capsys.readouterr().err


def test_a_template_with_an_unknown_marker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, cold=bench([case("cold_4k_pull", 0.96)]))
    (tmp_path / "text.in").write_text("{{plot nothing}}")
    assert report.main([str(tmp_path), "--docs", str(tmp_path / "docs"), "--text", str(tmp_path / "text.in")]) == 1
    assert "text.in: there is nothing to put for {{plot nothing}}" in capsys.readouterr().err


def test_comparisons_stand_in_the_readme(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text(
        "# a comment\nvector_add | a sum | a loop | all | `p`\npy_vs_memmap | rows | a map | x | `q`\n"
    )
    write(tmp_path, write=bench([case("vector_add", 0.5, measured=1, ceiling=2)]))
    targets, benches = report.load_targets(), report.load_results(tmp_path)
    table = report.comparisons(targets, report.worst_cases(targets, benches), tmp_path / "c.txt")
    assert "| a sum | 1 GB/s | a loop | 2 GB/s | 0.5 | all | `p`, `vector_add` |" in table
    assert "| rows |  | a map |  | not measured yet | x | `q` |" in table
    begin, end = "<!-- made by bench/report.py of bench/comparisons.txt -->", "<!-- to here -->"
    text = report.with_comparisons(f"a\n{begin}\nold\n{end}\nz\n", table)
    assert text == f"a\n{begin}\n{table}\n{end}\nz\n"
    with pytest.raises(report.ReportError, match="no place"):
        report.with_comparisons("nothing", table)
    (tmp_path / "c.txt").write_text("hot_4k | no ratio of two | x | y | z\n")
    with pytest.raises(report.ReportError, match="line 1"):
        report.comparisons([t for t in targets if t.name != "hot_4k"], {}, tmp_path / "c.txt")

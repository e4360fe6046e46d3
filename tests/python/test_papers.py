# SPDX-License-Identifier: Apache-2.0
"""The papers' tables and figures: docs/reproduction.md has all of them, its markers say only what is there, and
research/papers/remake.py runs what remakes them, part by part."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "research" / "papers")]
report_data: Any = importlib.import_module("report_data")
report_papers: Any = importlib.import_module("report_papers")
spec = importlib.util.spec_from_file_location("papers_remake", ROOT / "research" / "papers" / "remake.py")
assert spec is not None and spec.loader is not None
papers_remake: Any = importlib.util.module_from_spec(spec)
sys.modules["papers_remake"] = papers_remake  # dataclasses look there
spec.loader.exec_module(papers_remake)

# Section of docs/reproduction.md: what the paper has.
IN_THE_PAPERS = {
    "GPUfs": [*(f"Figure {n}" for n in (1, 2, 3)), "Table 1", "Table 2"],
    "SYSTOR'16": [*(f"Figure {n}" for n in range(1, 11)), *(f"Table {n}" for n in (1, 2, 3)), "Algorithm 1"],
    "ISCA'16": [
        *(f"Figure {n}" for n in (1, 2, 3, 4, 5, "6a", "6b", "6c", 7, 8, 9)),
        *("Table I", "Table II", "Table III", "Listing 1"),
    ],
    "BaM": [*(f"Figure {n}" for n in range(1, 14)), *(f"Table {n}" for n in (1, 2, 3)), "Listing 1", "Section 5.4"],
}


def rows_of_reproduction() -> dict[str, list[list[str]]]:
    """By section: the cells of its tables' rows."""
    sections = re.split(r"^## ", (ROOT / "docs" / "reproduction.md").read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| |")]
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
        found[section.splitlines()[0]] = [row for row in cells if row[0] != "---"]
    return found


def test_every_table_and_figure_is_there() -> None:
    rows = rows_of_reproduction()
    assert list(rows) == list(IN_THE_PAPERS)
    for section, wanted in IN_THE_PAPERS.items():
        named = [row[0] for row in rows[section]]
        assert sorted(named) == sorted({*named}), f"{section}: twice"
        assert sorted(set(wanted) - set(named)) == [], section
        for row in rows[section]:
            assert len(row) == 5 and all(row), f"{section}: {row} lacks a cell"


def test_the_parts_are_those_of_the_program() -> None:
    named = {part.strip("`") for rows in rows_of_reproduction().values() for row in rows for part in row[4].split(", ")}
    assert named - {"none"} == set(papers_remake.PARTS)
    targets = (ROOT / "bench" / "CMakeLists.txt").read_text() + (ROOT / "research/papers/CMakeLists.txt").read_text()
    for program in papers_remake.programs_of(list(papers_remake.PARTS)):
        assert re.search(rf"\b{program}(_cpu)?\b", targets), f"there is no program {program}"
    reports = re.findall(r'\{"(\w+)", \w+\}', (ROOT / "research" / "papers" / "main.cpp").read_text())
    collages = [job for jobs in papers_remake.PARTS.values() for job in jobs if isinstance(job, papers_remake.Collage)]
    assert sorted(name for job in collages for name in job.reports) == sorted(reports)


def case(name: str, label: str, /, **changes: Any) -> Any:
    whole: dict[str, Any] = {
        **{
            "bench": "b",
            "name": name,
            "label": label,
            "figure": 0.125,
            "measured": 50.0,
            "unit": "GB/s",
            "ceiling": 400,
        },
        **{"ceiling_is": "", "spread": (0, 1), "samples": 3, "verified": True, "cause": "", "details": {"theirs": 7.0}},
        **{"commit": "", "command": "", "quick": False},
    }
    return report_data.Case(**(whole | changes))


def remade() -> Any:
    cases = [
        case("hot", "small"),
        case("hot", "large", figure=-1.5),
        case("one", "x"),
        case("bad", "x", verified=False),
    ]
    cases += [case("fast", "x", quick=True)]
    bench = report_data.Bench("b", {}, "", "", "", "", False, [], cases, [])
    columns, rows = ["image", "page", "share", "what"], [["512x384", 4096, 0.5, "x"], ["512x384", 8192, 1500.0, "y"]]
    reports = [
        report_papers.Paper("table", "", "", "", "", right, columns, rows, [], [], []) for right in (True, False)
    ]
    reports[1] = report_papers.Paper("wrong", "", "", "", "", False, columns, rows, [], [], [])
    return report_papers.Remade([bench], reports, {"hot", "later", "fast", "figure_9"})


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{{figure hot; small}}, {{percent hot; large}}", "0.125, -150 %"),
        ("{{measured one}} of {{ceiling one}}, {{detail one; x; theirs}}", "50 GB/s of 400 GB/s, 7"),
        ("{{report table; 512x384, 8192; share}} and {{share table; 512x384, 4096; share}}", "1,500 and 50 %"),
        ("{{figure later}} {{measured later; any}}", "*not measured yet* *not measured yet*"),
        ("{{report figure_9; 1x1; us}} {{detail later; x; y}}", "*not measured yet* *not measured yet*"),
        ("{{figure fast}}", "*not measured yet*"),  # of a quick run nothing is quoted
        ("a ((b {{figure one}} c)) d ((e {{figure later}} f)).", "a b 0.125 c d *not measured yet*."),
        ("{{figure bad}} {{report wrong; 512x384, 4096; share}}", "wrong answers wrong answers"),
    ],
)
def test_markers_are_filled_in(text: str, made: str) -> None:
    assert remade().fill(text, "text.in") == made


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{{figure hot}}", "2 cases are this one, of: small; large"),
        ("{{figure hot; medium}}", "0 cases are this one, of: small; large"),
        ("{{figure nothing}}", "nothing measures 'nothing'"),
        ("{{report nothing; a; b}}", "nothing measures 'nothing'"),
        ("{{detail one; x; ours}}", "the case has no detail 'ours'"),
        ("{{report table; 512x384; share}}", "the report has 2 rows '512x384'"),
        ("{{report table; 512x384, 4096; ms}}", "the report has no column 'ms', but image, page, share, what"),
        ("{{report table; 512x384, 4096; what}}", "'what' is no number there: 'x'"),
        ("{{plot one}}", "there is no such marker"),
        ("{{figure}}", "nothing measures ''"),
    ],
)
def test_markers_that_name_nothing_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(report_data.ReportError, match=r"text\.in: \{\{") as error:
        remade().fill(text, "text.in")
    assert complaint in str(error.value)


def program(build: Path, name: str, script: str) -> None:
    path = build / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_parts(tmp_path: Path, *parts: str) -> int:
    memory = tmp_path / "memory"
    memory.mkdir(exist_ok=True)
    status: int = papers_remake.main(
        [*parts, "--build", str(tmp_path / "build"), "--out", str(tmp_path / "out"), "--dir", str(memory)]
    )
    assert list(memory.iterdir()) == []  # nothing stays there
    return status


SAYS_ITS_ARGUMENTS = 'echo "$@"; [ "$1" != --out ] || echo "{}" > "$2"'


def test_a_part_runs_its_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("products_cpu", "hot_cpu", "cold_cpu", "write_cpu"):
        program(tmp_path / "build" / "bench", name, SAYS_ITS_ARGUMENTS)
    assert run_parts(tmp_path, "cache", "vector-add") == 0
    said = capsys.readouterr().out
    assert "cache: hot: right" in said and "cache: cold: right" in said and "for the CPU machine" in said
    assert {path.name for path in (tmp_path / "out").glob("*.json")} == {"hot.json", "cold.json", "write.json"}
    assert "--only vector_add" in (tmp_path / "out" / "write.log").read_text()


def test_programs_for_the_gpu_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(tmp_path / "build" / "bench", "products", SAYS_ITS_ARGUMENTS)
    program(tmp_path / "build" / "bench", "products_cpu", "exit 1")
    assert run_parts(tmp_path, "products") == 0
    assert "CPU machine" not in capsys.readouterr().out


def test_what_fails_is_said_and_keeps_nothing_from_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(tmp_path / "build" / "bench", "hot_cpu", "echo WRONG: a sum; exit 3")
    program(tmp_path / "build" / "bench", "cold_cpu", SAYS_ITS_ARGUMENTS)
    assert run_parts(tmp_path, "cache", "words") == 1
    said = capsys.readouterr().out
    assert "cache: FAILED: hot: exit status 3, WRONG: a sum; see " in said
    assert "cache: cold: right" in said
    assert "words: FAILED: words: there is no " in said and "GPUFS_BENCH=ON" in said


def test_a_part_is_stopped_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers_remake, "PART_SECONDS", 0.3)
    program(tmp_path / "build" / "bench", "graphs_cpu", 'touch "$4/left"; exec sleep 60')
    assert run_parts(tmp_path, "graphs") == 1
    assert "graphs: FAILED: graphs: stopped, as the part has had its" in capsys.readouterr().out


def test_the_collage_gets_a_library_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images: Any = pytest.importorskip("PIL.Image")
    photos = tmp_path / "photos"
    photos.mkdir()
    images.new("RGB", (640, 480), "red").save(photos / "collage-2048x1536.jpg")
    images.new("RGB", (64, 48), "blue").save(photos / "collage-512x384.jpg")
    (tmp_path / "memory").mkdir()
    program(tmp_path / "build" / "research" / "papers", "papers_cpu", 'echo "$@"; cp "$5" "$OUT_PPM"')
    monkeypatch.setenv("OUT_PPM", str(tmp_path / "first.ppm"))
    called = []
    call = papers_remake.Runner.call

    def without_library(self: Any, name: str, command: list[str], deadline: float) -> None:
        called.append(command)
        if command[0] != "gpufs":
            call(self, name, command, deadline)

    monkeypatch.setattr(papers_remake.Runner, "call", without_library)
    folders = ["--build", str(tmp_path / "build"), "--out", str(tmp_path / "out"), "--dir", str(tmp_path / "memory")]
    assert papers_remake.main(["collage-tables", *folders, "--photos", str(photos), "--images", "123"]) == 0
    library, papers = called[-2:]
    assert library[:4] == ["gpufs", "collage", "synth", "123"] and library[4] == str(photos)
    assert papers[1] == "table_1,table_2,table_3" and papers.count("--photo") == 4
    with images.open(tmp_path / "first.ppm") as first:
        assert first.size == (32, 32) and first.getpixel((0, 0))[2] > 200  # the picture of its name, not the largest
    (tmp_path / "none").mkdir()
    assert papers_remake.main(["collage-tables", *folders, "--photos", str(tmp_path / "none")]) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["tables"], "there is no part 'tables'; the parts are words "), (["--photos", "/no/where"], "not a folder")],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert papers_remake.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_dev_names_the_parts() -> None:
    done = subprocess.run([ROOT / "dev", "bench", "papers", "--list"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(papers_remake.PARTS)
    done = subprocess.run([ROOT / "dev", "bench", "papers", "tables"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "there is no part 'tables'" in done.stderr


def test_the_results_on_record_are_those_of_names_in_sources() -> None:
    """So that a name that is measured is never taken for one that nothing measures."""
    known = report_papers.names_in_sources(ROOT)
    for path in (ROOT / "bench" / "results" / "h200" / "papers").glob("*.json"):
        assert json.loads(path.read_text())["name"] in known
    assert {"systor_figure_10", "matrix_vector", "figure_9", "graph_by_cache", "py_vs_kvikio"} <= known

# SPDX-License-Identifier: Apache-2.0
"""The documents: links lead somewhere, what sources name is there; two of them are made of the results."""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
FOLDERS = (".ci", "apps", "bench", "cmake", "docs", "examples", "include", "python", "research", "src", "tests")
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *(file for name in FOLDERS for file in sorted((ROOT / name).rglob("*.md")))]
SUFFIXES = {".md", ".in", ".h", ".hpp", ".c", ".cpp", ".cu", ".py", ".pyi", ".pml", ".sh", ".cmake", ".txt"}

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
# docs/design/writing.md, "Stores in place" as sources have it, or [writing.md](writing.md), "Stores in place".
MENTION = re.compile(r"\b(docs/[\w./-]+?\.md)\b")
SECTION = re.compile(r'(?:\]\(([^()\s]+\.md)\)|\b(docs/[\w./-]+\.md)), "([^"]+)"')


def words(text: str) -> str:
    """In one line, without the marks of comments that begin lines."""
    return re.sub(r"\s*\n\s*(?://|#)?\s*", " ", text)


def slug(heading: str) -> str:
    """As GitHub makes a heading's anchor."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def headings(document: Path) -> list[str]:
    plain = FENCE.sub("", document.read_text())
    return [line.lstrip("#").strip() for line in plain.splitlines() if line.startswith("#")]


def broken_links(document: Path, text: str) -> list[str]:
    wrong = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not target.exists():
            wrong.append(f"{link} is not there")
        elif anchor and target.suffix == ".md" and anchor not in map(slug, headings(target)):
            wrong.append(f"{link}: there is no such heading")
    return wrong


def lost_sections(document: Path, text: str) -> list[str]:
    """Sections that the text names, and that no heading, nor a bold beginning, of that document has."""
    wrong = []
    for link, mention, section in SECTION.findall(words(text)):
        target = document.parent / link if link else ROOT / mention
        if not target.exists():
            continue  # told by others
        bold = re.findall(r"\*\*(.+?)\*\*", words(target.read_text()))
        if not any(title.startswith(section) for title in [*headings(target), *bold]):
            wrong.append(f'{link or mention} has no "{section}"')
    return wrong


def sources() -> list[Path]:
    found = [ROOT / "dev", ROOT / "CMakeLists.txt"]
    for name in FOLDERS:
        found += [file for file in (ROOT / name).rglob("*") if file.suffix in SUFFIXES and file.is_file()]
    return [file for file in found if file != Path(__file__)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text()) == []


def test_what_sources_name_is_there() -> None:
    missing, lost = set(), set()
    for source in [*sources(), *ROOT.glob("*.md")]:
        text = source.read_text(errors="replace")
        name = source.relative_to(ROOT).as_posix()
        missing |= {f"{name}: {found}" for found in MENTION.findall(text) if not (ROOT / found).exists()}
        lost |= {f"{name}: {line}" for line in lost_sections(source, text)}
    assert sorted(missing) == []
    assert sorted(lost) == []


def test_the_index_has_every_document() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert {file for file in (ROOT / "docs").rglob("*.md") if file != index} - named == set()


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One thing\n\n## `Another`, and more\n\n**A third.** It is so.\n")
    text = """[a](there.md) [b](gone.md) [c](there.md#one-thing) [d](there.md#no-thing) [e](https://example.org/gone)
`[f](gone_as_code)` [there.md](there.md), "A third" and [there.md](there.md), "A
fourth"
```
[g](gone_in_a_fence.md)
```
[h](there.md#another-and-more) [i](#my-own)
"""
    document = tmp_path / "text.md"
    document.write_text(text + "\n# My own\n")
    assert broken_links(document, text) == [
        "gone.md is not there",
        "there.md#no-thing: there is no such heading",
    ]
    assert lost_sections(document, text) == ['there.md has no "A fourth"']


def test_performance_is_made_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text; what plots look like depends on matplotlib."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "report", raising=False)
    report: Any = importlib.import_module("report")
    monkeypatch.setattr(report, "save_plot", lambda path, *_: path.touch())
    shutil.copytree(BENCH / "results" / "h200", tmp_path / "h200")
    readme = (ROOT / "README.md").read_text()
    (tmp_path / "README.md").write_text(report.with_comparisons(readme, "no table"))
    assert report.main([str(tmp_path / "h200"), "--docs", str(tmp_path / "docs")]) == 0
    made = (tmp_path / "README.md").read_text()
    assert readme == made, "bench/report.py bench/results/h200 --docs docs makes it anew"
    for name in (
        "docs/performance.md",
        *(f"docs/performance/{plot.name}" for plot in (tmp_path / "docs").rglob("*.svg")),
    ):
        assert (ROOT / name).exists(), f"bench/report.py bench/results/h200 --docs docs makes {name}"
    for name in ("performance.md", "reproduction.md"):
        ours, theirs = (root / "docs" / name for root in (ROOT, tmp_path))
        assert ours.read_text() == theirs.read_text(), "bench/report.py bench/results/h200 --docs docs makes it anew"

# SPDX-License-Identifier: Apache-2.0
"""What the benches wrote: their JSON files, read and checked, and how its figures are put as text.

For report.py and research/papers/report_papers.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Draw = Callable[[Any], None]  # draws on matplotlib axes


class ReportError(Exception):
    """Input that cannot be used; says which file, and what is wrong with it."""


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


def number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def with_unit(x: float | None, unit: str) -> str:
    return "" if x is None else f"{number(x)} {unit}"


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)

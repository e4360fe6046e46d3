# SPDX-License-Identifier: Apache-2.0
"""The native modules' .pyi files, which mypy and editors believe, say what is in the modules that are built."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import gpufs
import pytest

stubgen = pytest.importorskip("nanobind.stubgen")

MODULES = sorted(path.stem for path in Path(gpufs.__file__).parent.glob("_*.pyi"))
PLAIN = ("int", "str", "bytes", "bool", "float")  # what nanobind says of a parameter as a stub should


def native_stub(name: str) -> str:
    module = importlib.import_module(f"gpufs.{name}")
    generator = stubgen.StubGen(module)
    generator.put(module)
    text: str = generator.get()
    return text


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Of each: its name, its annotation, and whether it may be left out; those by name only behind a *."""
    of = function.args
    places = [*of.posonlyargs, *of.args]
    required = len(places) - len(of.defaults)
    found = [(a.arg, a.annotation, i >= required) for i, a in enumerate(places)]
    found += [("*", None, False)] if of.kwonlyargs else []
    found += [(a.arg, a.annotation, d is not None) for a, d in zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    return [(name, "" if kind is None else ast.unparse(kind), optional) for name, kind, optional in found]


def contents(text: str) -> dict[str, Any]:
    """Functions and methods by their full names with their parameters; values with none."""
    found: dict[str, Any] = {}

    def visit(body: list[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                if all(ast.unparse(base) != "TypedDict" for base in node.bases):  # the native side has a dict
                    found[within + node.name] = "class"
                    visit(node.body, f"{within}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                if any(ast.unparse(d) == "property" for d in node.decorator_list):
                    found[within + node.name] = "property"
                elif node.name != "__init__" or len(parameters(node)) > 1:  # each class has one that takes nothing
                    found[within + node.name] = parameters(node)
            elif isinstance(node, ast.AnnAssign):
                found[within + ast.unparse(node.target)] = "value"

    visit(ast.parse(text).body, "")
    return found


def differences(written: dict[str, Any], native: dict[str, Any]) -> list[str]:
    wrong = [f"{name} is not in the module" for name in written.keys() - native.keys()]
    wrong += [f"{name} is not in the stub" for name in native.keys() - written.keys()]
    for name in sorted(written.keys() & native.keys()):
        mine, its = written[name], native[name]
        if isinstance(mine, str) or isinstance(its, str):
            wrong += [] if mine == its else [f"{name} is a {mine}, and in the module a {its}"]
        elif [(p, o) for p, _, o in mine] != [(p, o) for p, _, o in its]:
            wrong.append(f"{name} takes {mine}, and in the module {its}")
        else:
            wrong += [
                f"{name}: {p} is {kind}, and in the module {other}"
                for (p, kind, _), (_, other, _) in zip(mine, its, strict=True)
                if other in PLAIN and kind != other
            ]
    return wrong


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_says_what_the_module_has(name: str) -> None:
    written = (Path(gpufs.__file__).parent / f"{name}.pyi").read_text()
    assert differences(contents(written), contents(native_stub(name))) == []


def test_there_is_a_stub_for_each_module() -> None:
    built = {path.name.partition(".")[0] for path in Path(gpufs.__file__).parent.glob("_*.so")}
    assert built == set(MODULES) and len(built) >= 3


def test_differences_are_found() -> None:
    native = contents(
        "A: int = 1\ndef f(a: int, b: str = '') -> None: ...\nclass C:\n    def m(self, *, x: int = 0): ..."
    )
    assert differences(native, native) == []
    for text, word in (
        (
            "def f(a: int, b: str = '') -> None: ...\nclass C:\n    def m(self, *, x: int = 0): ...",
            "A is not in the stub",
        ),
        ("A: int\ndef f(a: int, b: str) -> None: ...\nclass C:\n    def m(self, *, x: int = 0): ...", "f takes"),
        (
            "A: int\ndef f(a: str, b: str = '') -> None: ...\nclass C:\n    def m(self, *, x: int = 0): ...",
            "f: a is str",
        ),
        ("A: int\ndef f(a: int, b: str = '') -> None: ...\nclass C:\n    def m(self, x: int = 0): ...", "C.m takes"),
        ("A: int\ndef f(a: int, b: str = '') -> None: ...\nclass C: ...\ndef g(): ...", "g is not in the module"),
    ):
        assert any(word in one for one in differences(contents(text), native)), text

# SPDX-License-Identifier: Apache-2.0
"""What the package promises its users, in public_api.txt: each name with its types, which mypy checks in the sources.

What is changed on purpose is written anew by ``python tests/python/test_public_api.py``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import gpufs
import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "python" / "gpufs"
GOLDEN = HERE / "public_api.txt"
# gpufs.collage is a program's inside. gpufs.numba also has the C calls, by their names (tests/c_abi/symbols.txt).
MODULES = ("gpufs", "gpufs.c", "gpufs.cupy", "gpufs.numba", "gpufs.par", "gpufs.ray", "gpufs.torch", "gpufs.vectors")


def source_of(module: str) -> ast.Module:
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def listed(tree: ast.Module) -> list[str] | None:
    """What __all__ has, where it is a list of texts."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            assert isinstance(node.value, ast.List)
            names = [ast.literal_eval(name) for name in node.value.elts if not isinstance(name, ast.Starred)]
            return [str(name) for name in names]
    return None


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Of each name that comes from a module of gpufs: which, and its name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gpufs")
        for alias in node.names
    }


def definition(module: str, name: str) -> ast.stmt:
    """With what a class has of those of its bases whose names are private."""
    tree = source_of(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                if ast.unparse(base).startswith("_"):
                    above = definition(module, ast.unparse(base))
                    assert isinstance(above, ast.ClassDef)
                    mine = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
                    node.body += [each for each in above.body if getattr(each, "name", "") not in mine]
            return node
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node
    where, as_name = imports(tree)[name]
    return definition(where, as_name)


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def lines_of(node: ast.stmt, indent: str = "") -> Iterator[str]:
    """A class with its public methods, a function, or a value."""
    if isinstance(node, ast.ClassDef):
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        yield f"{indent}class {node.name}{bases}:"
        members = [member for member in node.body if isinstance(member, ast.FunctionDef) and is_public(member.name)]
        for member in members:
            yield from lines_of(member, indent + "    ")
        if not members:
            yield f"{indent}    ..."
    elif isinstance(node, ast.FunctionDef):
        kinds = [
            word for d in node.decorator_list if (word := ast.unparse(d)) in ("property", "classmethod", "staticmethod")
        ]
        head = "".join(f"@{kind} " for kind in kinds)
        returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
        yield f"{indent}{head}def {node.name}({ast.unparse(node.args)}){returns}"
    else:
        assert isinstance(node, ast.Assign)
        yield f"{indent}{ast.unparse(node.targets[0])} = ..."


def public_api() -> str:
    lines: list[str] = []
    for module in MODULES:
        tree = source_of(module)
        names = listed(tree)
        if names is None:
            found = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
            names = [name for name in found if not name.startswith("_")]
        lines.append(f"# {module}")
        for name in sorted(names):
            lines += lines_of(definition(module, name))
        lines.append("")
    return "\n".join(lines)


def test_what_is_promised_is_there_with_its_types() -> None:
    assert public_api() == GOLDEN.read_text(), "if that is meant: python tests/python/test_public_api.py"


def test_each_parameter_and_result_has_a_type() -> None:
    for line in public_api().splitlines():
        text = line.strip().removeprefix("@property ").removeprefix("@classmethod ")
        if text.startswith("def "):
            (function,) = ast.parse(text + ": ...").body
            assert isinstance(function, ast.FunctionDef)
            of = function.args
            every = [*of.posonlyargs, *of.args, *of.kwonlyargs, *filter(None, (of.vararg, of.kwarg))]
            untyped = [a.arg for a in every if a.annotation is None and a.arg not in ("self", "cls")]
            assert untyped == [] and function.returns is not None, line


def test_the_modules_have_what_is_promised() -> None:
    """Those whose libraries are here."""
    for module in MODULES:
        try:
            found = __import__(module, fromlist=["_"])
        except ImportError:
            assert module in ("gpufs.cupy", "gpufs.numba", "gpufs.ray", "gpufs.torch")
            continue
        except gpufs.GpufsError as none:  # a build without the C calls has not their headers either
            assert module in ("gpufs.cupy", "gpufs.numba") and "this build of gpufs has no" in str(none)
            continue
        for name in listed(source_of(module)) or []:
            if name != "FeatureStore":  # which needs PyTorch Geometric, too
                assert hasattr(found, name), f"{module}.{name}"


@pytest.mark.parametrize(
    "was, now", [("indices: Any", "indices: int"), ("def shard", "def part"), ("i: int, n: int", "i: int, n")]
)
def test_a_change_is_noticed(was: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self: read(self).replace(was, now) if self.name == "arrays.py" else read(self)
    )
    assert public_api() != read(GOLDEN)


if __name__ == "__main__":
    GOLDEN.write_text(public_api())
    sys.exit(0)

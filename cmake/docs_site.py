# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml does with the documents: hooks that mkdocs calls."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "reference/python-package.md"
_NO_MEMBERS = "\n    options:\n      members: []"
# Public names of the package's modules; mkdocstrings takes what is said of them from the sources.
MODULES = {
    "PyTorch": tuple(
        f"gpufs.torch.{name}"
        for name in ("Dataset", "Gather", "FeatureStore", "EmbeddingBag", "SparseSGD", "SparseAdagrad", "SparseAdam")
    ),
    "Mounts for kernels": ("gpufs.c.Mount",),
    "Numba": ("gpufs.numba", "gpufs.numba.path", "gpufs.numba.view"),
    "CuPy": ("gpufs.cupy.link", "gpufs.cupy.load", "gpufs.cupy.path"),
    "Ray": ("gpufs.ray.read_array",),
    "Tokens of files": ("gpufs.par.lex", "gpufs.par.Tokens"),
    "Regions of images": ("gpufs.par.label", "gpufs.par.Labels"),
    "Nearest vectors": tuple(f"gpufs.vectors.{name}" for name in ("build", "search", "Index", "Synthetic", "check")),
    "Tests of an installation": ("gpufs.selftest.main",),
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def exported() -> tuple[str, ...]:
    """What `import gpufs` gives, in the package's own order."""
    for node in ast.parse((ROOT / "python/gpufs/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(f"gpufs.{name}" for name in ast.literal_eval(node.value))
    raise ValueError("the package has no __all__")


def reference() -> str:
    """The page's text."""
    lines = ["# The Python package"]
    for title, names in ({"gpufs": exported()} | MODULES).items():
        lines.append(f"## {title}")
        for name in names:
            lines.append(f"::: {name}{_NO_MEMBERS if name == 'gpufs.numba' else ''}")
    return "\n\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: a page that there is no file of."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, REFERENCE, content=reference()))
    return files


def inside(markdown: str, page: Path) -> str:
    """The page with links as words where they lead out of docs/, to sources: there are no pages of these."""
    docs = ROOT / "docs"

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2].partition("#")[0]
        if re.match(r"\w+:", found[2]) or not target:
            return found[0]
        where = (docs / page).parent.joinpath(target).resolve()
        if where.is_file() and where.is_relative_to(docs):
            return found[0]
        return text if where.exists() else found[0]  # what is not there, mkdocs finds

    return _LINK.sub(link, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs: what a page is made of."""
    return inside(markdown, Path(page.file.src_uri))

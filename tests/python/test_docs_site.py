# SPDX-License-Identifier: Apache-2.0
"""cmake/docs_site.py: which links stay on the pages, and what the reference of the Python package has."""

from __future__ import annotations

import sys
from pathlib import Path

import gpufs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import docs_site  # noqa: E402


def test_links_out_of_docs_become_words() -> None:
    stay = "[c](c.md) [web](https://a.b/c) [own](#a) [lost](../none.c) [docs](../README.md)"
    text = "[x\n[1]](../../examples/16_kernel_in_c.c#a) " + stay
    assert docs_site.inside(text, Path("guide/python.md")) == "x\n[1] " + stay


def test_the_reference_has_all_that_the_package_exports() -> None:
    assert docs_site.exported() == tuple(f"gpufs.{name}" for name in gpufs.__all__)
    text = docs_site.reference()
    assert all(f"::: gpufs.{name}\n" in text for name in gpufs.__all__) and "::: gpufs.c.Mount\n" in text

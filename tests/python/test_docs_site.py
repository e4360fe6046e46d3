# SPDX-License-Identifier: Apache-2.0
"""cmake/docs_site.py: which links stay on the pages, and what the references of Python and of calls have."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gpufs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import calls  # noqa: E402
import docs_site  # noqa: E402


def test_links_out_of_docs_become_words() -> None:
    stay = "[c](c.md) [web](https://a.b/c) [own](#a) [lost](../none.c) [docs](../README.md)"
    text = "[x\n[1]](../../examples/16_kernel_in_c.c#a) " + stay
    assert docs_site.inside(text, Path("guide/python.md")) == "x\n[1] " + stay


def test_the_reference_has_all_that_the_package_exports() -> None:
    assert docs_site.exported() == tuple(f"gpufs.{name}" for name in gpufs.__all__)
    text = docs_site.reference()
    assert all(f"::: gpufs.{name}\n" in text for name in gpufs.__all__) and "::: gpufs.c.Mount\n" in text


def test_the_reference_of_calls_is_what_the_headers_say() -> None:
    page = (ROOT / "docs/reference/calls.md").read_text()
    assert page == calls.page(), "./dev docs makes it anew, or cmake/calls.py > docs/reference/calls.md"
    named = {name for title in re.findall("^### (.*)", page, re.MULTILINE) for name in title.split(", ")}
    listed = (ROOT / "docs/reference/headers.md").read_text()
    assert len(named) > 35
    assert {"open", "pread", "map_page", "append_each", "map", "fetch_add_at", "gather", "read_directory"} <= named
    assert not [name for name in named - {"padded", "discard"} if f"`{name}`" not in listed], "headers.md lacks it"


def test_a_call_is_what_has_a_comment_and_lies_in_no_detail() -> None:
    header = """namespace gpufs {
inline constexpr int most = 1;  // of a thing
namespace detail {
// Not this.
GPUFS_DEVICE int inside(int a) {
  return a;
}
}  // namespace detail

GPUFS_DEVICE int unsaid() { return 0; }

// Two calls
// of one kind.
template <simt::group Group>
GPUFS_DEVICE int first(Group group,
                       int a = 1) {
  return a;
}
inline GPUFS_DEVICE_COLD int second();

// A class.
struct other {
  // A member.
  GPUFS_DEVICE int third() const;
};
}  // namespace gpufs
"""
    signatures = ["template <simt::group Group>\nint first(Group group, int a = 1)", "inline int second()"]
    assert calls.declarations(header) == [(["// Two calls", "// of one kind."], signatures)]
    assert calls.prose(["// a<b> `c<d>` *e", "//", "// [f]"]) == "a&lt;b> `c<d>` \\*e\n\n\\[f\\]"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/reference/calls.md: the calls of kernels, each with what stands above it in its header.

cmake/calls.py > docs/reference/calls.md

A call is a function of namespace gpufs that has a comment and runs in kernels. Those right below it, without a comment
of their own, share it. What is in a namespace `detail`, or is a class's, is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "include"
PARTS = ("file", "pointer", "par")
NOTE = "<!-- Made by cmake/calls.py from the headers: change these. -->\n"
TITLE = """# Calls in kernels

What each takes, gives and waits for, as it stands in its header; [headers](headers.md) says which one to include. The
members of `ptr`, `file` and `mapped_page` are in `pointer/ptr.hpp` and `file/handles.hpp`, groups and atomics in
[simt](simt.md).
"""
DEVICE = re.compile(r"\bGPUFS_(?:HOST_)?DEVICE(?:_COLD|_IN_TEMPLATES)?\b ?")
VERB = re.compile(r"GPUFS_(VERB|FUNCTION)\((.+?), (\w+),\s*\(([^()]*)\)")


def prose(comment: list[str]) -> str:
    """A comment as Markdown: its paragraphs are those of the text, and code in backticks stays."""
    text = "\n".join(line.removeprefix("//").removeprefix(" ") for line in comment).strip()
    parts = text.split("`")
    parts[::2] = [re.sub(r"[*\[\]]", r"\\\g<0>", part.replace("<", "&lt;")) for part in parts[::2]]
    return "`".join(parts)


def signature(declaration: str) -> str:
    """The declaration of a function in a kernel, its template on a line of its own."""
    text = re.sub(r"\s+", " ", declaration).strip().rstrip(";{ ")
    before, after = DEVICE.split(text, maxsplit=1)
    return re.sub(r"^(template <.*?>) (?=requires|constexpr|inline|$)|^(template <.*>) $", r"\1\2\n", before) + after


def without_note(line: str) -> str:
    return re.sub(r" *//.*", "", line)


def declarations(text: str) -> list[tuple[list[str], list[str]]]:
    """The header's calls: comment, and the signatures of the functions below it."""
    found: list[tuple[list[str], list[str]]] = []
    inside: list[str] = []  # the namespaces
    comment: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("//"):
            comment.append(line)
        elif named := re.match(r"(?:inline )?namespace (\S+) \{", line):
            inside.append(named[1])
        elif line.startswith("}  // namespace"):
            inside.pop()
        elif not line or line[0] in "#} ":
            comment = []
        else:
            whole = without_note(line)
            while not whole.endswith((";", "{", "}")):
                whole += "\n" + without_note(next(lines))
            if whole.endswith("{"):
                while not next(lines).startswith("}"):
                    pass
            head = whole.partition("{")[0]
            is_class = re.match(r"(template <.*>\s)?(class|struct|enum)\b", head)
            if comment and "detail" not in inside and DEVICE.search(head) and not is_class:
                if not found or found[-1][0] is not comment:
                    found.append((comment, []))
                found[-1][1].append(signature(head))
    return found


def section(header: Path) -> str:
    """What the page has of a header; empty where kernels call nothing of it."""
    text = header.read_text()
    calls = declarations(text)
    if not calls:
        return ""
    top = text.partition("#pragma once")[0].splitlines()[1:]
    out = [f"## {header.relative_to(INCLUDE)}", prose(top)]
    for comment, signatures in calls:
        names = dict.fromkeys(name for s in signatures for name in re.findall(r"(\w+)\(", s)[:1])
        code = "".join(s + ";\n" for s in signatures)
        out += ["### " + ", ".join(names), prose(comment), f"```cpp\n{code}```"]
    return "\n\n".join(out) + "\n"


def verbs() -> str:
    """The calls in C."""
    out = ["## gpufs/gpufs_verbs.h", "`_GROUP` stands for `_thread`, `_warp` and `_block`."]
    for block in re.split(r"\n\n", (INCLUDE / "gpufs/gpufs_verbs.h").read_text()):
        lines = block.splitlines()
        comment = [line for line in lines if line.startswith("//") and "SPDX" not in line]
        out.append(prose(comment))
        made = [
            f"{result} gpufs_{name}{'_GROUP' if kind == 'VERB' else ''}({parameters});"
            for kind, result, name, parameters in VERB.findall(re.sub(r"\n//.*", "", block))
        ]
        if made:
            out.append("```c\n" + "\n".join(made) + "\n```")
    return "\n\n".join(out) + "\n"


def page() -> str:
    headers = [header for part in PARTS for header in sorted((INCLUDE / "gpufs" / part).glob("*.hpp"))]
    return NOTE + TITLE + "\n" + "\n".join(filter(None, (*map(section, headers), verbs())))


if __name__ == "__main__":
    sys.stdout.write(page())

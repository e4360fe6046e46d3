#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes letters.inc: which characters belong to words, and how they fold. make_letters.py > letters.inc"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator

LAST = 0x10FFFF


def is_word(code: int) -> bool:
    """Whether it is a letter, a mark, a number, or '_'."""
    return code == ord("_") or unicodedata.category(chr(code))[0] in "LMN"


def folded(code: int) -> int:
    """Simple case folding: casefold() where that is one character, else lower() where that is one, else itself."""
    for text in (chr(code).casefold(), chr(code).lower()):
        if len(text) == 1:
            return ord(text)
    return code


def word_ranges() -> Iterator[tuple[int, int]]:
    """First and last code of each run of word characters."""
    begin = None
    for code in range(LAST + 2):
        inside = code <= LAST and is_word(code)
        if inside and begin is None:
            begin = code
        if not inside and begin is not None:
            yield begin, code - 1
            begin = None


def folds() -> Iterator[tuple[int, int]]:
    """Word characters beyond ASCII, or that fold from there, that are not their folded form."""
    for code in range(0x80, LAST + 1):
        if is_word(code) and folded(code) != code:
            assert is_word(folded(code)) and folded(folded(code)) == folded(code), hex(code)
            yield code, folded(code)


def rows(pairs: Iterator[tuple[int, int]]) -> str:
    """The pairs as C++ has them."""
    lines, line = [], ""
    for a, b in pairs:
        item = f"{{0x{a:x}, 0x{b:x}}},"
        if len(line) + len(item) > 118:
            lines.append(line.rstrip())
            line = ""
        line += item + " "
    return "\n".join([*lines, line.rstrip()])


def main() -> None:
    """Writes the file."""
    sys.stdout.write(
        "// SPDX-License-Identifier: Apache-2.0\n"
        f"// Made by make_letters.py, of Unicode {unicodedata.unidata_version}.\n"
        "// clang-format off\n"
        f"constexpr code_pair word_ranges[] = {{\n{rows(word_ranges())}\n}};\n"
        f"constexpr code_pair case_folds[] = {{\n{rows(folds())}\n}};\n"
        "// clang-format on\n"
    )


if __name__ == "__main__":
    main()

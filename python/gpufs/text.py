# SPDX-License-Identifier: Apache-2.0
"""Names of files as text."""

from __future__ import annotations

import os
import unicodedata

# Control characters, invisible ones that turn the direction of text, what is no character, ends of lines.
ESCAPED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str | os.PathLike[str]) -> str:
    """The text on one line: what could command a terminal is escaped, as in \\x1b; so are bytes that are no text."""

    def shown(c: str) -> str:
        if unicodedata.category(c) not in ESCAPED:
            return c
        if "\udc80" <= c <= "\udcff":  # how Python has a byte that is no text
            return f"\\x{ord(c) - 0xDC00:02x}"
        return c.encode("unicode_escape").decode()

    return "".join(map(shown, os.fspath(text)))

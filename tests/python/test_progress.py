# SPDX-License-Identifier: Apache-2.0
"""Commands that may take long show how far they are where standard error is a terminal, and nothing elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

# What each of them shows, of files in the folder: what it does, and how much of it is done, in bytes or in steps.
COMMANDS = {
    "scan of numbers, 200000/200000": ["scan", "--op", "add", "--type", "u32", "--piece", "4KiB", "numbers", "sums"],
    "sort of numbers, 400000/400000": ["sort", "--key", "u32", "--memory", "64KiB", "numbers", "sorted"],
    "lexing text, 50000/50000": ["lex", "--table", "json", "text", "--out", "tokens.npy"],
    "labelling image.npy, 80/80": ["label", "image.npy", "--out", "labels.npy", "--memory", "9600"],  # twice 40 rows
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.arange(50_000, dtype=np.uint32)[::-1].tofile(tmp_path / "numbers")
    (tmp_path / "text").write_text("[1, true]\n" * 5000)
    np.save(tmp_path / "image.npy", np.zeros((40, 50), np.uint8))
    return tmp_path


def shown_by(arguments: list[str], folder: Path, is_terminal: bool) -> str:
    """Standard error of `gpufs`, which succeeds."""
    main, other = pty.openpty() if is_terminal else os.pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TERM": "xterm"}
    command = [sys.executable, "-m", "gpufs", *arguments, "--engine", "cpu"]
    text, end = b"", time.monotonic() + 60
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=other, env=environment) as process:
        os.close(other)
        while time.monotonic() < end:
            if select.select([main], [], [], 0.05)[0]:
                try:
                    piece = os.read(main, 1 << 16)
                except OSError:  # a terminal that nobody has any more
                    break
                if not piece:
                    break
                text += piece
        if time.monotonic() >= end:
            process.kill()
    os.close(main)
    assert process.returncode == 0, text
    return text.decode()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_terminal_is_shown_how_far_a_command_is(words: str, folder: Path) -> None:
    shown = shown_by(COMMANDS[words], folder, True)
    stage, count = words.split(", ")
    assert stage in shown, shown
    assert re.search(rf"\b(?<!\d){count}\b", re.sub(r"\x1b\[[0-9;]*m", " ", shown)), shown
    assert shown_by(COMMANDS[words], folder, False) == ""

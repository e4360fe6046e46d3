# SPDX-License-Identifier: Apache-2.0
"""cmake/stacks.py, on what ptxas says of kernels whose stack it knows, or does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
import stacks

KNOWN = """\
ptxas info    : Compiling entry function 'kernel' for 'sm_90'
ptxas info    : Function properties for kernel
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 48 registers, used 0 barriers, 360 bytes cumulative stack size
ptxas info    : Function properties for out_of_line
    344 bytes stack frame, 472 bytes spill stores, 712 bytes spill loads
"""
UNKNOWN = KNOWN.replace(", 360 bytes cumulative stack size", "")
OWN_ALONE = KNOWN.replace("360 bytes cumulative", "16 bytes cumulative")
WITHOUT_CALLS = """\
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
# As -Ofc has it: the largest frame is of a function of another kernel.
FUNCTIONS_ONCE = """\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for out_of_line
    344 bytes stack frame, 472 bytes spill stores, 712 bytes spill loads
ptxas info    : Compiling entry function 'kernel' for 'sm_90'
ptxas info    : Function properties for kernel
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 48 registers, used 0 barriers, 360 bytes cumulative stack size
ptxas info    : Function properties for called_by_another
    500 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
WARNED = "ptxas warning : Stack size for entry function 'kernel' cannot be statically determined\n"
# Functions in an object of their own, and a kernel that nvlink links with them.
LIBRARY = """\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for verb
    344 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
LINKED = """\
ptxas info    : 4 bytes gmem
ptxas info    : Compiling entry function 'caller' for 'sm_90'
ptxas info    : Function properties for caller
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 42 registers, used 0 barriers
nvlink info    : Function properties for 'caller':
nvlink info    : used 64 registers, used 1 barriers, 360 stack, 64 bytes smem, 536 bytes cmem[0], 0 bytes lmem
"""


@pytest.mark.parametrize(
    ("said", "bad"),
    [
        (KNOWN, 0),
        (WITHOUT_CALLS, 0),
        (KNOWN + WITHOUT_CALLS, 0),
        (UNKNOWN, 1),
        (OWN_ALONE, 1),
        (WARNED + KNOWN, 1),
        (WITHOUT_CALLS + UNKNOWN + KNOWN, 1),
        (WITHOUT_CALLS + LIBRARY + LINKED, 0),
        (LIBRARY + LINKED.replace("360 stack", "16 stack"), 1),
        (LINKED[: LINKED.index("nvlink")], 1),
    ],
)
def test_finds_kernels_whose_stack_is_not_added_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, bad: int
) -> None:
    log = tmp_path / "build.log"
    log.write_text(said)
    assert stacks.main([str(log)]) == (1 if bad else 0)
    assert f"of which {bad} have" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "bad"),
    [
        (FUNCTIONS_ONCE, 0),
        (WARNED + FUNCTIONS_ONCE, 1),
        (WARNED + FUNCTIONS_ONCE + FUNCTIONS_ONCE, 1),
        (FUNCTIONS_ONCE + WARNED + FUNCTIONS_ONCE, 1),
    ],
)
def test_where_each_function_is_compiled_once_warnings_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, bad: int
) -> None:
    log = tmp_path / "build.log"
    log.write_text(said)
    assert stacks.main(["--functions-once", str(log)]) == (1 if bad else 0)
    assert f"of which {bad} have" in capsys.readouterr().out


def test_a_log_without_kernels_shows_nothing(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("[1/2] Building\n")
    assert stacks.main([str(log)]) == 1

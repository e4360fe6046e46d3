# SPDX-License-Identifier: Apache-2.0
"""Running a test program whose code has a bug: it may fail, crash or hang, and leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    good: bool  # the tests passed
    test: str  # which test did not
    how: str  # it failed, when it did not just say so
    seconds: float

    @property
    def says(self) -> str:
        return f"{self.test}: {self.how}" if self.how else self.test


def run_program(command: list[str], log: Path, deadline: float, environment: dict[str, str] | None = None) -> Outcome:
    """Runs a GoogleTest program until its first failure. deadline: seconds, then it counts as hung."""
    # As many seeds as the test has by itself.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUFS_TEST_")}
    begin = time.monotonic()
    hung = False
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--gtest_fail_fast"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=clean | (environment or {}),
            start_new_session=True,
        )
        # A bug may take all memory there is: that it ends then, and nobody else.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            hung = True
        # What a test that was killed or has died leaves behind, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    seconds = time.monotonic() - begin
    with log.open(errors="replace") as said:
        text = said.read(16 << 20)
    started = re.findall(r"^\[ RUN      \] (\S+)", text, re.MULTILINE)
    failed = re.findall(r"^\[  FAILED  \] (\S+?),? ", text, re.MULTILINE)
    test = (failed or started[-1:] or ["no test"])[0]
    passed = process.returncode == 0 and not hung
    how = ""
    if hung:
        how = f"hangs (killed after {deadline:.0f} s)"
    elif kind := re.search(r"WARNING: ThreadSanitizer: ([\w ]+?) \(", text):
        how = kind[1]
    elif process.returncode < 0:
        how = signal.Signals(-process.returncode).name
    elif passed and not started:
        passed, how = False, "no test was run"
    return Outcome(passed, test, how, seconds)

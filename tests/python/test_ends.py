# SPDX-License-Identifier: Apache-2.0
"""A program ends while its daemon threads are inside gpufs: its status is 0, and what was written is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arrays_support import ENGINES, run_python

# The interpreter's end takes a while, so that threads ask for Python's lock meanwhile, and when there is none any more.
_ENDS = """
import sys, threading, time, gpufs
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)
slow = Slow()
def beside(run):
    def go():
        while True:
            run()
    for _ in range(3):
        threading.Thread(target=go, daemon=True).start()
"""

_READ = (
    _ENDS
    + """
how = {"dtype": "u1", "shape": (-1, 4096), "engine": sys.argv[2], "cache": 1 << 20}
x = gpufs.open(sys.argv[1], mode="r+", **how)
beside(lambda: gpufs.open(sys.argv[1], **how)[[1, 2, 3] * 9])
x[3] = 7
time.sleep(0.2)
"""
)


@pytest.mark.parametrize("engine", ENGINES)
def test_beside_threads_that_read(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"a" * (20 * 4096))
    for _ in range(3):
        done = run_python(_READ, str(path), engine)
        assert done.returncode == 0 and path.read_bytes()[3 * 4096] == 7, done.stderr


_QUERY = (
    _ENDS
    + """
inside = threading.Event()
def told(done, total):
    inside.set()
    time.sleep(float(sys.argv[3]))
def query():
    gpufs.query(sys.argv[1], "a > 5", ["a"], engine=sys.argv[2], cache="64K", page=1024, threads=2, on_progress=told)
beside(query)
inside.wait()
"""
)


@pytest.mark.parametrize("seconds", [0, 0.1])  # threads are in the engine, or in Python, when the end comes
@pytest.mark.parametrize("engine", ENGINES)
def test_beside_threads_that_are_told_how_far_they_are(engine: str, seconds: float, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(2000.0))
    for _ in range(3):
        done = run_python(_QUERY, str(tmp_path), engine, str(seconds))
        assert (done.returncode, done.stderr) == (0, "")


_LOOKS = (
    _ENDS
    + """
from gpufs import _words
def find():
    tree, string = _words.Tree([sys.argv[1] + "/tree"], 2), _words.WantedString(b"a")
    _words.LinesWith(sys.argv[2], tree, string, 2, 64, 0, sys.argv[1])
    found.set()
found = threading.Event()
beside(find)
found.wait()
"""
)


@pytest.mark.parametrize("engine", ENGINES)
def test_beside_threads_that_look_for_signals(engine: str, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for i in range(20):
        (tmp_path / "tree" / str(i)).write_bytes(b"b\na\n" * 500)
    for _ in range(3):
        done = run_python(_LOOKS, str(tmp_path), engine)
        assert (done.returncode, done.stderr) == (0, "")


_PROBE = (
    _ENDS
    + """
from gpufs import _machine
probed = threading.Event()
beside(lambda: (_machine.probe_path(sys.argv[1].encode()), probed.set()))
probed.wait()
"""
)


def test_beside_threads_that_ask_how_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"a" * 4096)
    for _ in range(3):
        done = run_python(_PROBE, str(tmp_path / "raw"))
        assert (done.returncode, done.stderr) == (0, "")

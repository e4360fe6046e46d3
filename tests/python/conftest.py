# SPDX-License-Identifier: Apache-2.0
"""Pictures, libraries and arrays that the tests share."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from arrays_support import numbers
from device_arrays import device as device  # a fixture of several files
from gpufs import publish
from gpufs.collage import IndexOptions, TileOptions, build_library
from gpufs.commands import app
from PIL import Image
from typer.testing import CliRunner, Result
from watching_support import ROW_NBYTES

# A shell that runs tests in the background ignores SIGINT for them and their children; these shall notice it.
signal.signal(signal.SIGINT, signal.default_int_handler)

Bytes = npt.NDArray[np.uint8]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes each failure to the file GPUFS_PYTEST_FAILURES at once: a run that is cut has no end that tells."""
    if report.failed and (path := os.environ.get("GPUFS_PYTEST_FAILURES")) and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a") as file:
            file.write(f"{report.nodeid}\n{report.longreprtext}\n\n")


def paint(rng: np.random.Generator, height: int, width: int) -> Bytes:
    """A picture with smooth areas, edges and some noise, in a few related colours."""
    y, x = np.mgrid[0:height, 0:width]
    base = rng.integers(0, 256, 3)
    picture = np.empty((height, width, 3))
    for c in range(3):
        slope = rng.normal(0, 0.8, 2)
        wave = rng.uniform(0, 60) * np.sin(
            (x * rng.uniform(0.02, 0.2) + y * rng.uniform(0.02, 0.2)) + rng.uniform(0, 6)
        )
        picture[..., c] = base[c] + slope[0] * x + slope[1] * y + wave
    left, top = rng.integers(0, max(1, width - 8)), rng.integers(0, max(1, height - 8))
    picture[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    picture += rng.normal(0, rng.uniform(0, 12), picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def ask(*arguments: str | Path | int) -> Result:
    """What the command gpufs does, in this process."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def told(*arguments: str | Path | int) -> dict[str, Any]:
    """The facts of a command that has --json."""
    said = ask(*arguments, "--json")
    assert said.exit_code == 0, said.stderr
    result: dict[str, Any] = json.loads(said.stdout)
    return result


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 8 photographs of odd sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(7)
    for i in range(8):
        height, width = rng.integers(60, 200, 2)
        Image.fromarray(paint(rng, int(height), int(width))).save(folder / f"photo{i}.png")
    return folder


@pytest.fixture(scope="session")
def photo() -> Bytes:
    """A photograph whose sides are no multiples of 32."""
    rng = np.random.default_rng(99)
    halves = [paint(rng, 75, 100), paint(rng, 75, 100)]
    return np.ascontiguousarray(np.concatenate(halves, axis=1)[:, :170])


@pytest.fixture(scope="session")
def library(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of some thousand tiles."""
    path = tmp_path_factory.mktemp("library") / "tiles.lib"
    build_library([pictures], path, IndexOptions(tiles=TileOptions(scales=(1, 2, 4), stride=8), workers=1))
    return path


@pytest.fixture(scope="session")
def packed_library(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images, histograms without gaps."""
    path = tmp_path_factory.mktemp("packed") / "packed.lib"
    options = IndexOptions(tiles=TileOptions(scales=(1, 2, 4), stride=8), workers=1, packed=True)
    build_library([pictures], path, options)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `gpufs ARGS...` in tmp_path."""
    return _running([], tmp_path)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Run:
    """Runs `gpufs ARGS...` in tmp_path by who may not read all files, as root may."""
    if os.geteuid() != 0:
        return _running([], tmp_path)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may read all files, and there is no setpriv")
    return _running([setpriv, "--bounding-set", "-all", "--inh-caps", "-all"], tmp_path)


def _running(by: list[str], tmp_path: Path) -> Run:
    def start(*arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [*by, sys.executable, "-m", "gpufs", *(os.fspath(argument) for argument in arguments)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            errors="surrogateescape",
        )

    return start


@pytest.fixture
def features(tmp_path: Path) -> tuple[Path, Any]:
    """A file, and what it has."""
    array = numbers(1000, 5, 7)
    np.save(tmp_path / "features.npy", array)
    return tmp_path / "features.npy", array


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes publish in this test; the one of the tests does not."""
    base = tmp_path / "run"
    base.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setattr(publish, "_wanted", False)
    publish._end()
    return base / "gpufs"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", numbers(64, ROW_NBYTES // 4))
    return tmp_path / "rows.npy"


def change_and_put_back(path: Path) -> None:
    """Changes the first byte, and sets the time of the last change to what it was."""
    was = path.stat()
    time.sleep(0.05)  # a file system may have one time for all changes of some milliseconds
    with path.open("r+b") as stream:
        stream.write(b"\x07")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_mtime_ns == was.st_mtime_ns

# SPDX-License-Identifier: Apache-2.0
"""How much memory large pictures take: docs/guide/collage.md has the bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import paint
from PIL import Image

SIDE = 3000
NPIXELS = SIDE * SIDE

KINDS = ("RGB", "RGBA", "I;16", "F", "P", "turned")


# Not wait4: it also counts what the process had of its parent before it became the command.
COMMAND = """
import atexit, pathlib, re
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print("\\npeak", re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]))
from gpufs.cli import main
main()
"""


def peak(folder: Path, *arguments: str | Path) -> int:
    """Bytes of memory that the command had at most; it must succeed."""
    command = [sys.executable, "-c", COMMAND, "collage", *map(os.fspath, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return int(run.stdout.split()[-1]) * 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A square picture of 9 million pixels for each kind, uncompressed where that is quick, and a small one."""
    folder = tmp_path_factory.mktemp("large")
    tile = Image.fromarray(paint(np.random.default_rng(3), 1000, 1000))
    picture = Image.new("RGB", (SIDE, SIDE))
    for x in range(0, SIDE, 1000):
        for y in range(0, SIDE, 1000):
            picture.paste(tile, (x, y))
    paths = {kind: folder / f"{kind.replace(';', '')}.png" for kind in KINDS} | {"small": folder / "small.png"}
    paths["F"] = folder / "F.tif"
    fast = {"compress_level": 1}
    picture.save(paths["RGB"], **fast)
    with_alpha = picture.copy()
    with_alpha.putalpha(200)
    with_alpha.save(paths["RGBA"], **fast)
    grey = np.asarray(picture.convert("L"))
    Image.fromarray(grey.astype(np.uint16) * 257).save(paths["I;16"], **fast)
    Image.fromarray(grey.astype(np.float32)).save(paths["F"])
    picture.quantize(64, dither=Image.Dither.NONE).save(paths["P"], **fast)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(paths["turned"], exif=exif, **fast)
    tile.resize((100, 100)).save(paths["small"])
    return paths


@pytest.mark.parametrize("tiles", [(), ("--tiles", "--max-tiles", "2000")])
def test_of_an_index(tiles: tuple[str, ...], large: dict[str, Path], tmp_path: Path) -> None:
    common = ("-o", "l", "--workers", "1", *tiles)
    least = peak(tmp_path, "index", large["small"], *common)
    for kind in KINDS if not tiles else ("RGB", "RGBA"):
        nbytes = (peak(tmp_path, "index", large[kind], *common) - least) / NPIXELS
        assert nbytes < (5 if kind in ("RGB", "P") else 9), f"{kind}: {nbytes:.1f} bytes a pixel"


def test_of_a_synthetic_library(large: dict[str, Path], tmp_path: Path) -> None:
    common = ("-o", "l", "--workers", "1")
    least = peak(tmp_path, "synth", "100", large["small"], *common)
    for kind in ("RGB", "RGBA", "turned"):
        nbytes = (peak(tmp_path, "synth", "100", large[kind], *common) - least) / NPIXELS
        assert nbytes < 16, f"{kind}: {nbytes:.1f} bytes a pixel"


def test_of_a_collage(library: Path, large: dict[str, Path], tmp_path: Path) -> None:
    # Each thread has its strips besides.
    common = ("-l", library, "-o", "out.png", "--engine", "cpu", "--sample", "0", "--threads", "2")
    least = peak(tmp_path, large["small"], *common)
    for kind in ("RGB", "F"):
        nbytes = (peak(tmp_path, large[kind], *common) - least) / NPIXELS
        assert nbytes < 11, f"{kind}: {nbytes:.1f} bytes a pixel"

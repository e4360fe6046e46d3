#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gpufs collage` as a command, on this machine: whole processes, as a user waits for them, by each engine.

The library is made of the photographs in --photos (default: of noise), and lies in memory. Engines take turns, and
their pictures are compared.

collage_auto: of each photograph, --engine auto's whole process over the faster of cpu's and gpu's; the worst.
collage_many_vs_cpu: many large photographs by one command: matching by cpu over matching by gpu, its start included.
collage_write: the largest picture, put together and written as PNG.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gpufs import _native
from gpufs.collage import SynthOptions, synthesize_library
from gpufs.doctor import gpus_from_driver
from harness import Options, Results, Size, parse, spread_of
from PIL import Image

NAMES = ("collage_auto", "collage_many_vs_cpu", "collage_write")
SIZES = {
    "images": Size(2_000_000, 100_000, 2_000, "images of the library"),
    "large": Size(8192, 2048, 256, "pixels, the longer side of the largest photograph, where --photos has none"),
    "many": Size(12, 4, 2, "large photographs by one command"),
    "runs": Size(3, 1, 1, "of each way, by turns"),
    "threads": Size(16, 16, 2, "of cpu's, and of who writes"),
}


def photographs(folder: Path, options: Options) -> list[Path]:
    """Three of them, from the smallest to the largest: those of --dir's folder `photos`, else noise."""
    given = sorted((options.dir / "photos").glob("*.jpg"), key=lambda path: path.stat().st_size)
    if given:
        return given
    made, random = [], np.random.default_rng(1)
    for k in (16, 4, 1):
        width = max(64, options["large"] // k)
        coarse = random.integers(0, 256, (width * 3 // 4 // 16 + 2, width // 16 + 2, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, width * 3 // 4), Image.Resampling.BICUBIC)
        made.append(folder / f"{width}.jpg")
        image.save(made[-1], quality=92)
    return made


class Commands:
    """Runs `gpufs collage make` in processes of their own."""

    def __init__(self, folder: Path, library: Path, options: Options) -> None:
        self.folder, self.library, self.options = folder, library, options

    def run(self, photos: list[Path], engine: str, to: Path) -> tuple[float, list[dict[str, Any]]]:
        """Seconds of the whole process, and what it says of each photograph."""
        how = ["--engine", engine, "--sample", "0", "--threads", str(self.options["threads"]), "--json"]
        command = [sys.executable, "-m", "gpufs", "collage", "make", *map(str, photos), "-l", str(self.library)]
        begin = time.perf_counter()
        done = subprocess.run([*command, "-o", str(to), *how], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        if done.returncode != 0:
            raise RuntimeError(f"gpufs collage --engine {engine}: {done.stderr[-500:]}")
        return seconds, [json.loads(line) for line in done.stdout.splitlines()]


def variants(photo: Path, n: int, folder: Path) -> Iterator[Path]:
    """The photograph shifted by some pixels, and mirrored, so that its blocks are others."""
    with Image.open(photo) as image:
        rgb = np.asarray(image.convert("RGB"))
    for k in range(n):
        shifted = np.roll(rgb, (5 * k, 11 * k), axis=(0, 1))[:, :: -1 if k % 2 else 1]
        path = folder / f"variant{k}.jpg"
        Image.fromarray(np.ascontiguousarray(shifted)).save(path, quality=92)
        yield path


def compare_engines(commands: Commands, photos: list[Path], engines: list[str], results: Results) -> None:
    options, folder = commands.options, commands.folder
    worst: list[float] = []
    right, details = True, {}
    for photo in photos:
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        written: list[float] = []
        pictures = set()
        for run in range(options["runs"]):
            first = run % len(engines)  # what ran before leaves its traces: each engine follows each other one
            for engine in engines[first:] + engines[:first]:
                took, (said,) = commands.run([photo], engine, folder / f"{engine}.png")
                seconds[engine].append(took)
                pictures.add((folder / f"{engine}.png").read_bytes())
                written.append(said["seconds"]["picture"])
                details[f"{photo.stem} {engine} match"] = said["seconds"]["match"]
        right = right and len(pictures) == 1
        medians = {engine: spread_of(times)[0] for engine, times in seconds.items()}
        details |= {f"{photo.stem} {engine}": took for engine, took in medians.items()}
        best = min(took for engine, took in medians.items() if engine != "auto")
        ratios = [took / best for took in seconds["auto"]]
        worst = max(worst, ratios, key=lambda samples: spread_of(samples)[0] if samples else 0.0)
    if options.wants("collage_auto"):
        label = f"{len(photos)} photographs, {options['images']} images"
        results.add("collage_auto", label, worst, "times the better", share=False, verified=right, details=details)
    if options.wants("collage_write"):
        label = f"{photos[-1].stem}, {options['threads']} threads"
        results.add("collage_write", label, written, "s", share=False, verified=right)


def compare_many(commands: Commands, photo: Path, results: Results) -> None:
    options, folder = commands.options, commands.folder
    many = list(variants(photo, options["many"], folder))
    matched: dict[str, float] = {}
    pictures: dict[str, list[bytes]] = {}
    for engine in ("cpu", "gpu"):
        to = folder / engine
        to.mkdir()
        _, said = commands.run(many, engine, to)
        matched[engine] = sum(each["seconds"]["match"] for each in said)
        pictures[engine] = [path.read_bytes() for path in sorted(to.iterdir())]
    label = f"{len(many)} photographs of {photo.stem}, {options['images']} images"
    results.add(
        "collage_many_vs_cpu",
        label,
        [len(many) / matched["gpu"]],
        "photographs/s",
        ceiling=len(many) / matched["cpu"],
        ceiling_is=f"the engine cpu, {options['threads']} threads",
        verified=pictures["cpu"] == pictures["gpu"],
    )


def main(arguments: list[str]) -> int:
    no_gpu = _native.engine_missing("gpu")

    def choose(choice: str) -> str:
        return "host" if choice == "host" or no_gpu else "gpu"

    options = parse(arguments, __doc__ or "", NAMES, choose, "collage.py", SIZES)
    names, _ = gpus_from_driver()
    results = Results(options, names[0] if names else None, 0, "collage")
    with tempfile.TemporaryDirectory(prefix="gpufs-bench-", dir=options.dir) as name:
        folder = Path(name)
        photos = photographs(folder, options)
        library = folder / "library.lib"
        begin = time.perf_counter()
        workers = len(os.sched_getaffinity(0))
        synthesize_library(options["images"], library, photos, SynthOptions(seed=1, workers=workers))
        results.note(f"the library of {options['images']} images was made in {time.perf_counter() - begin:.1f} s")
        commands = Commands(folder, library, options)
        engines = ["cpu", "auto"] if choose(options.device) == "host" else ["cpu", "gpu", "auto"]
        if options.wants("collage_auto", "collage_write"):
            compare_engines(commands, photos, engines, results)
        if options.wants("collage_many_vs_cpu"):
            if no_gpu:
                results.skip(["collage_many_vs_cpu"], no_gpu)
            else:
                compare_many(commands, photos[-1], results)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

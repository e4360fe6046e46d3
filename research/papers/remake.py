#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Remakes the tables and figures of the papers, part by part; docs/reproduction.md says which part remakes which.

  research/papers/remake.py [PART...] --build BUILD --out OUT

BUILD is a build with GPUFS_BENCH=ON: its programs for the GPU are run, or, where it has none, those for the CPU machine
with small sizes, which only check answers. OUT gets a JSON file for each program, as bench/report.py reads them, and
their words in NAME.log. A part takes eight minutes at most: what is not done then is stopped, and counts as failed;
what was measured before is in OUT. Parts on the collage need Pillow, and gpufs as a Python package, which makes the
library of images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PART_SECONDS = 480.0

# The papers' images. 1024x768 and 4096x3072 are the next larger ones, scaled down.
IMAGES = {
    "512x384": "512x384",
    "1024x768": "2048x1536",
    "2048x1536": "2048x1536",
    "4096x3072": "8192x6144",
    "8192x6144": "8192x6144",
}
UP_TO_4096 = list(IMAGES)[:4]


@dataclass(frozen=True)
class Bench:
    """A program of bench/, or that lies there in the build."""

    name: str
    only: str = ""  # of its results


@dataclass(frozen=True)
class Collage:
    """Reports of papers_cuda. Those that are of one image take the last."""

    reports: list[str]
    images: list[str]


PARTS: dict[str, list[Bench | Collage]] = {
    "words": [Bench("words")],
    "products": [Bench("products")],
    "image-search": [Bench("image_search")],
    "collage-tables": [Collage(["table_1", "table_2", "table_3"], UP_TO_4096)],
    "collage-figures": [
        Collage(["figure_4", "figure_5"], list(IMAGES)),
        Collage(["figure_6", "figure_7"], ["4096x3072"]),
        Collage(["figure_8"], ["8192x6144"]),
    ],
    "collage-times": [
        Collage(["original_slowdown", "pointer_collage"], ["2048x1536"]),
        Collage(["figure_9"], list(IMAGES)),
    ],
    "pointers": [Bench("pointer_papers"), Bench("pointers", "ap_registers")],
    "cache": [Bench("hot"), Bench("cold")],
    "graphs": [Bench("graphs")],
    "bfs": [Bench("bfs")],
    "vector-add": [Bench("write", "vector_add")],
    "nvme": [Bench("nvme")],
    "queries": [Bench("query")],
}


def programs_of(parts: list[str]) -> list[str]:
    """By name: benches, and `papers`, whose programs are papers_cuda and papers_cpu."""
    jobs = [job for part in parts for job in PARTS[part]]
    return list(dict.fromkeys(job.name if isinstance(job, Bench) else "papers" for job in jobs))


class Photographs:
    """The papers' images as PPM files: of collage-WxH.jpg in a folder, else of its largest picture, else noise."""

    def __init__(self, given: Path | None, folder: Path, on_gpu: bool) -> None:
        self.given, self.folder, self.on_gpu = given, folder, on_gpu

    def source(self, image: str) -> Path:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = None
        if self.given is not None:
            exact = self.given / f"collage-{IMAGES[image]}.jpg"
            pictures = [path for path in self.given.iterdir() if path.suffix.lower() in {".jpg", ".jpeg", ".png"}]
            if exact.is_file():
                return exact
            if not pictures:
                raise RuntimeError(f"{self.given} has no pictures (.jpg, .png); leave --photos out, and noise is taken")
            return max(pictures, key=lambda path: path.stat().st_size)
        noise = self.folder / "noise.png"
        if not noise.exists():
            coarse = Image.effect_noise((256, 192), 96).convert("RGB")
            coarse.resize((2048, 1536) if self.on_gpu else (256, 192), Image.Resampling.BICUBIC).save(noise)
        return noise

    def ppm(self, image: str) -> Path:
        from PIL import Image

        made = self.folder / f"{image}.ppm"
        if not made.exists():
            width, height = (int(side) if self.on_gpu else max(32, int(side) // 32) for side in image.split("x"))
            with Image.open(self.source(image)) as photo:
                rgb = photo.convert("RGB")
            if rgb.size != (width, height):
                rgb = rgb.resize((width, height), Image.Resampling.LANCZOS)
            rgb.save(made)
        return made


class Runner:
    def __init__(self, build: Path, out: Path, memory: Path, photos: Path | None, images: int) -> None:
        self.build, self.out = build, out
        self.on_gpu = any(self.program(name, True).exists() for name in programs_of(list(PARTS)))
        self.scratch = tempfile.TemporaryDirectory(prefix="gpufs-papers-", dir=memory)
        self.folder = Path(self.scratch.name)
        self.photographs = Photographs(photos, self.folder, self.on_gpu)
        self.images = images or (1_000_000 if self.on_gpu else 2_000)
        (out / "papers").mkdir(parents=True, exist_ok=True)

    def program(self, name: str, for_gpu: bool) -> Path:
        if name == "papers":
            return self.build / "research" / "papers" / f"papers_{'cuda' if for_gpu else 'cpu'}"
        return self.build / "bench" / (name if for_gpu else f"{name}_cpu")

    def library(self, deadline: float) -> Path:
        made = self.folder / "library"
        if not made.exists():
            pictures = self.photographs.given or self.photographs.source("2048x1536")
            options = ["-o", str(made), "--seed", "1"]
            self.call("library", ["gpufs", "collage", "synth", str(self.images), str(pictures), *options], deadline)
        return made

    def command(self, job: Bench | Collage, deadline: float) -> tuple[str, list[str]]:
        """Its name in OUT, and how it is run."""
        if isinstance(job, Bench):
            program, out = self.program(job.name, self.on_gpu), self.out / f"{job.name}.json"
            command = [str(program), "--out", str(out), "--dir", str(self.folder)]
            return job.name, command + (["--only", job.only] if job.only else [])
        program, library = self.program("papers", self.on_gpu), self.library(deadline)
        command = [str(program), ",".join(job.reports), "--library", str(library)]
        for image in job.images:
            command += ["--photo", str(self.photographs.ppm(image))]
        sizes = ("3", "2048", "16384") if self.on_gpu else ("1", "4", "64")
        options = ["--repeats", sizes[0], "--cache-mib", sizes[1], "--big-cache-mib", sizes[2]]
        return job.reports[0], [*command, "--out", str(self.out / "papers"), *options]

    def call(self, name: str, command: list[str], deadline: float) -> None:
        """Raises RuntimeError when it fails, or is not done at the deadline."""
        log = self.out / f"{name}.log"
        if command[0] == "gpufs":
            command = [sys.executable, "-m", *command]
        elif not Path(command[0]).exists():
            raise RuntimeError(f"{name}: there is no {command[0]}; build it with GPUFS_BENCH=ON")
        with log.open("w") as words:
            try:
                seconds = max(0.1, deadline - time.monotonic())
                done = subprocess.run(command, stdout=words, stderr=subprocess.STDOUT, timeout=seconds, check=False)
            except subprocess.TimeoutExpired:
                why = f"stopped, as the part has had its {PART_SECONDS:.0f} s"
                raise RuntimeError(f"{name}: {why}; see {log}") from None
        if done.returncode != 0:
            said = log.read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else "not a word"
            raise RuntimeError(f"{name}: exit status {done.returncode}, {last}; see {log}")

    def part(self, part: str) -> bool:
        """True when all of it was measured. What fails does not keep the rest of the part from running."""
        begin = time.monotonic()
        failed = False
        for job in PARTS[part]:
            try:
                name, command = self.command(job, begin + PART_SECONDS)
                self.call(name, command, begin + PART_SECONDS)
                print(f"{part}: {name}: right", flush=True)
            except (RuntimeError, OSError) as error:
                failed = True
                print(f"{part}: FAILED: {error}", flush=True)
        print(f"{part} took {time.monotonic() - begin:.0f} s", flush=True)
        return not failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {' '.join(PARTS)}; default: all, one after another"
    )
    parser.add_argument("--build", type=Path, default=Path("build-gpu"), help="a build's folder (build-gpu)")
    parser.add_argument("--out", type=Path, default=Path("papers-results"), help="where results go (papers-results)")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where files are made, in memory (28 GiB)")
    parser.add_argument("--photos", type=Path, help="pictures for the collage; default: noise")
    parser.add_argument(
        "--images", type=int, default=0, help="of the collage's library (1,000,000; CPU machine: 2,000)"
    )
    parser.add_argument("--parts", dest="names_parts", action="store_true", help="only print the parts' names")
    parser.add_argument("--programs", action="store_true", help="only print which programs the parts need")
    options = parser.parse_args(arguments)
    parts = options.parts or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"run.py: there is no part '{unknown[0]}'; the parts are {' '.join(PARTS)}", file=sys.stderr)
        return 2
    if options.names_parts:
        print(*parts, sep="\n")
        return 0
    if options.programs:
        print(*programs_of(parts), sep="\n")
        return 0
    if options.photos is not None and not options.photos.is_dir():
        print(f"run.py: {options.photos}: not a folder", file=sys.stderr)
        return 2
    if "GPUFS_COMMIT" not in os.environ:
        here = Path(__file__).resolve().parent
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
        )
        os.environ["GPUFS_COMMIT"] = found.stdout.strip() or "unknown"
    runner = Runner(options.build, options.out, options.dir, options.photos, options.images)
    with runner.scratch:
        if not runner.on_gpu:
            print(
                "no programs for a GPU: those for the CPU machine check their answers, and their figures mean nothing"
            )
        right = [runner.part(part) for part in parts]  # what fails does not keep the others from running
        return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

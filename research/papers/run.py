#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the papers' tables and figures with the photographs they are made of.

  research/papers/run.py PAPERS_PROGRAM LIBRARY PHOTO_DIR OUT_DIR [--only NAME,NAME] [--repeats 5]

PHOTO_DIR holds collage-512x384.jpg, collage-2048x1536.jpg and collage-8192x6144.jpg; 1024x768 and 4096x3072 are
scaled down from the next larger one. LIBRARY should be in memory (tmpfs, or read once). Needs Pillow.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

SIZES = {
    "512x384": "512x384",
    "1024x768": "2048x1536",
    "2048x1536": "2048x1536",
    "4096x3072": "8192x6144",
    "8192x6144": "8192x6144",
}

# What each is made of; the last image is the one that figures 6 to 8, original_slowdown and pointer_collage take.
TABLE_IMAGES = ["512x384", "1024x768", "2048x1536", "4096x3072"]
RUNS = [
    (["original_slowdown", "pointer_collage"], ["2048x1536"]),
    (["table_1", "table_2", "table_3"], TABLE_IMAGES),
    (["figure_4", "figure_5"], [*TABLE_IMAGES, "8192x6144"]),
    (["figure_6", "figure_7"], ["4096x3072"]),
    (["figure_8"], ["8192x6144"]),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="names of tables and figures, with commas between them")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache-mib", type=int, default=2048)
    parser.add_argument("--big-cache-mib", type=int, default=16384)
    arguments = parser.parse_args()
    only = set(arguments.only.split(",")) if arguments.only else None
    arguments.out.mkdir(parents=True, exist_ok=True)

    environment = dict(os.environ)
    if "GPUFS_COMMIT" not in environment:
        here = Path(__file__).resolve().parent
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
        environment["GPUFS_COMMIT"] = found.stdout.strip() or "unknown"

    Image.MAX_IMAGE_PIXELS = None
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for names, sizes in RUNS:
            wanted = [name for name in names if only is None or name in only]
            if not wanted:
                continue
            command = [str(arguments.program), ",".join(wanted), "--library", str(arguments.library)]
            for size in sizes:
                ppm = Path(folder) / f"{size}.ppm"
                if not ppm.exists():
                    photo = Image.open(arguments.photos / f"collage-{SIZES[size]}.jpg").convert("RGB")
                    width, height = map(int, size.split("x"))
                    if photo.size != (width, height):
                        photo = photo.resize((width, height), Image.Resampling.LANCZOS)
                    photo.save(ppm)
                command += ["--photo", str(ppm)]
            command += ["--out", str(arguments.out), "--repeats", str(arguments.repeats)]
            command += ["--cache-mib", str(arguments.cache_mib), "--big-cache-mib", str(arguments.big_cache_mib)]
            failed |= subprocess.run(command, env=environment, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

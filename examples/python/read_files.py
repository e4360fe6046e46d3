# SPDX-License-Identifier: Apache-2.0
"""Reads thousands of small files at once, and counts the words in each, without a loop over the files.

read_files.py [ENGINE [FILES]]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gpufs
import numpy as np


def write_texts(folder: Path, n: int) -> list[Path]:
    """Of no word to 99 each."""
    words = np.random.default_rng(1).integers(0, 100, n)
    paths = [folder / f"{i % 16}" / f"{i}.txt" for i in range(n)]
    for path, nwords in zip(paths, words.tolist(), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"word{k} " for k in range(nwords)))
    return paths


def main(engine: str = "auto", n: str = "3000") -> int:
    with tempfile.TemporaryDirectory() as folder:
        paths = write_texts(Path(folder), int(n))
        data, offsets = gpufs.read_files(paths, engine=engine, cache="16MiB")
        before = np.concatenate([[0], np.cumsum(data == ord(" "))])  # how many words end before each byte
        nwords = before[offsets[1:]] - before[offsets[:-1]]

        rows, lengths = gpufs.read_files(paths, pad_to=1024, engine=engine, cache="16MiB")
        in_rows = (rows == ord(" ")).sum(axis=1)  # behind each file its row has zeros

        wanted = [len(path.read_text().split()) for path in paths]
    right = nwords.tolist() == in_rows.tolist() == wanted and lengths.tolist() == np.diff(offsets).tolist()
    print(f"{len(paths)} files of {data.size} bytes, {nwords.sum()} words: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

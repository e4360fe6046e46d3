# SPDX-License-Identifier: Apache-2.0
"""PNG files written by several threads: any reader understands them, and they are the same by any number of threads."""

from __future__ import annotations

import errno
import io
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from gpufs.collage import png
from gpufs.collage.making import save_collage
from gpufs.errors import GpufsError
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image


def written(picture: np.ndarray, nthreads: int, unit: int = 1) -> bytes:
    stream = io.BytesIO()

    def rows(first: int, n: int) -> np.ndarray:
        assert first % unit == 0 and first + n <= len(picture)
        return picture[first : first + n]

    png.write_png(stream, (picture.shape[1], picture.shape[0]), rows, nthreads=nthreads, unit=unit)
    return stream.getvalue()


def read(file: bytes) -> np.ndarray:
    """As Pillow reads it, which looks at no checksum of the pixels: so all are compared before."""
    at, pixels = len(png.SIGNATURE), b""
    while at < len(file):
        nbytes, kind = struct.unpack_from(">I4s", file, at)
        content = file[at + 8 : at + 8 + nbytes]
        assert struct.unpack_from(">I", file, at + 8 + nbytes)[0] == zlib.crc32(kind + content)
        pixels += content if kind == b"IDAT" else b""
        at += nbytes + 12
    zlib.decompress(pixels)
    with Image.open(io.BytesIO(file)) as image:
        assert image.format == "PNG" and image.mode == "RGB"
        return np.asarray(image)


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    kind=st.sampled_from(["noise", "smooth", "flat", "rows", "extremes"]),
    strip=st.sampled_from([1, 700, 5000, png.STRIP_NBYTES]),
    unit=st.sampled_from([1, 3, 32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_picture_is_read_back(height: int, width: int, kind: str, strip: int, unit: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    y, x, channel = np.mgrid[:height, :width, :3]
    picture = {
        "noise": random.integers(0, 256, (height, width, 3)),
        "smooth": 3 * y + 2 * x + 40 * channel,
        "flat": np.full((height, width, 3), 77),
        "rows": np.repeat(random.integers(0, 256, (1, width, 3)), height, axis=0),
        "extremes": random.choice([0, 127, 128, 255], (height, width, 3)),
    }[kind].astype(np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "STRIP_NBYTES", strip)
        files = {written(picture, nthreads, unit) for nthreads in (1, 3)}
    assert len(files) == 1
    assert np.array_equal(read(files.pop()), picture)


def test_files_are_no_larger_than_pillows() -> None:
    y, x = np.mgrid[:512, :1024]
    picture = np.stack([y // 2, x // 4, (x + y) // 6], axis=-1).astype(np.uint8)
    picture += np.random.default_rng(1).integers(0, 8, picture.shape, np.uint8)
    by_pillow = io.BytesIO()
    Image.fromarray(picture).save(by_pillow, "PNG", compress_level=png.LEVEL)
    assert len(written(picture, 2)) < 1.05 * len(by_pillow.getvalue())


def test_few_strips_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "STRIP_NBYTES", 300)
    lock, taken, ahead = threading.Lock(), 0, []

    class Slow(io.BytesIO):
        def write(self, content: bytes) -> int:  # type: ignore[override]
            with lock:
                ahead.append(taken - len(ahead))
            return super().write(content)

    def rows(_: int, n: int) -> np.ndarray:
        nonlocal taken
        with lock:
            taken += 1
        return np.zeros((n, 100, 3), np.uint8)

    png.write_png(Slow(), (100, 200), rows, nthreads=2)
    assert taken == 200 and max(ahead) <= 5


def test_what_fails_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    def rows(first: int, n: int) -> np.ndarray:
        if first >= 64:
            raise GpufsError("the library is damaged")
        return np.zeros((n, 40, 3), np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "STRIP_NBYTES", 1)
        with pytest.raises(GpufsError, match="the library is damaged"):
            save_collage(rows, (40, 320), tmp_path / "out.png", threads=2)
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("png")]


def test_a_full_disk_is_said() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    with full.open("wb", buffering=0) as stream, pytest.raises(OSError) as raised:
        png.write_png(stream, (8, 8), lambda _, n: np.zeros((n, 8, 3), np.uint8), nthreads=1)
    assert raised.value.errno == errno.ENOSPC

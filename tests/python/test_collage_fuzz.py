# SPDX-License-Identifier: Apache-2.0
"""Random damage: every file is either refused with a GpufsError or gives the right picture; nothing crashes."""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import paint
from gpufs import GpufsError, _native
from gpufs.collage.images import UnreadableImageError, read_rgb
from PIL import Image

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library of 20 images."""
    path = tmp_path_factory.mktemp("tiny") / "l"
    rng = np.random.default_rng(0)
    builder = _native.LibraryBuilder(path)
    builder.add_source(b"name")
    builder.add(np.stack([paint(rng, 32, 32) for _ in range(20)]), np.zeros((20, 4), np.uint32))
    builder.finish()
    return path.read_bytes()


def use(data: bytes) -> None:
    """What a user does with a library."""
    with tempfile.NamedTemporaryFile() as stream:
        stream.write(data)
        stream.flush()
        try:
            library = _native.Library(stream.name)
            library.source_name(0)
            library.origin(0)
            picture = paint(np.random.default_rng(1), 64, 64)
            matches = library.matcher("cpu", nthreads=1).find(picture)["matches"]
            library.thumbnails(np.ascontiguousarray(matches[:, 0]))
            library.check_contents()
        except GpufsError as error:
            assert str(error).startswith(stream.name)


@SETTINGS
@given(offset=st.integers(0, 1343), value=st.binary(min_size=1, max_size=9))
def test_headers_with_right_checksums(tiny: bytes, offset: int, value: bytes) -> None:
    head = bytearray(tiny[:4096])
    head[offset : offset + len(value)] = value
    head[4092:] = struct.pack("<I", zlib.crc32(head[:4092]))
    use(bytes(head) + tiny[4096:])


@SETTINGS
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=64)), min_size=1, max_size=8
    )
)
def test_damage_anywhere(tiny: bytes, changes: list[tuple[float, bytes]]) -> None:
    data = bytearray(tiny)
    for part, value in changes:
        offset = int(part * len(data))
        data[offset : offset + len(value)] = value[: len(data) - offset]
    use(bytes(data))
    if bytes(data) != tiny:
        with tempfile.NamedTemporaryFile() as stream:
            stream.write(data)
            stream.flush()
            with pytest.raises(GpufsError):
                _native.Library(stream.name).check_sums()


@SETTINGS
@given(length=st.floats(0, 1, exclude_max=True))
def test_truncation_anywhere(tiny: bytes, length: float) -> None:
    with tempfile.NamedTemporaryFile() as stream:
        stream.write(tiny[: int(length * len(tiny))])
        stream.flush()
        with pytest.raises(GpufsError):
            _native.Library(stream.name)


@SETTINGS
@given(kind=st.sampled_from(["png", "jpeg", "webp", "gif", "tiff", "bmp"]), data=st.data())
def test_broken_pictures(kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{kind}"
        Image.fromarray(paint(np.random.default_rng(3), 40, 40)).save(path)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        try:
            image, size = read_rgb(path)
        except UnreadableImageError:
            return
        assert image.mode == "RGB" and image.size == size

# SPDX-License-Identifier: Apache-2.0
"""Library files: what is written is what docs/reference/collage-library-format.md says, and damage is found."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import reference
from conftest import Bytes
from gpufs import GpufsError, _native
from gpufs.collage import IndexOptions, build_library


@pytest.mark.parametrize("which", ["library", "packed_library"])
def test_a_library_is_as_specified(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    library = reference.Library(path)
    library.check()
    assert library.n > 1000
    opened = _native.Library(path)
    opened.check_sums()
    opened.check_contents()
    info = opened.info()
    assert info["nimages"] == library.n
    assert info["histogram_stride"] == (3072 if which == "packed_library" else 4096)
    ids = np.array([0, library.n - 1, 5, 5], np.uint32)
    assert np.array_equal(opened.thumbnails(ids), library.thumbnails[ids])
    assert opened.origin(7) == tuple(library.origins[7])
    assert opened.source_name(3) == library.name(3)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 64, 130])
def test_small_libraries_are_as_specified(n: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(n)
    builder = _native.LibraryBuilder(tmp_path / "l", seed=n, shortlist_goal=1 + n, nthreads=2)
    source = builder.add_source(b"noise \xff")
    pixels = rng.integers(0, 256, (n, 32, 32, 3), np.uint8)
    origins = np.full((n, 4), source, np.uint32)
    assert builder.add(pixels, origins) == n
    assert builder.add(pixels, origins) == 0  # all are there already
    builder.finish()
    library = reference.Library(tmp_path / "l")
    library.check()
    assert np.array_equal(library.thumbnails, pixels)
    assert library.name(0) == b"noise \xff"
    _native.Library(tmp_path / "l").check_contents()


def test_full_buckets_keep_their_first_32(tmp_path: Path) -> None:
    """Pictures that differ in their pixels' places only have equal histograms, so equal keys."""
    rng = np.random.default_rng(1)
    pixels = np.stack([rng.permutation(np.arange(1024)) for _ in range(50)]).astype(np.uint8)
    pictures = np.repeat(pixels.reshape(50, 32, 32, 1), 3, axis=3)
    builder = _native.LibraryBuilder(tmp_path / "l")
    builder.add_source(b"x")
    builder.add(np.ascontiguousarray(pictures), np.zeros((50, 4), np.uint32))
    builder.finish()
    library = reference.Library(tmp_path / "l")
    library.check()
    assert all(len(entries) == 32 for entries in library.entries)
    picture = np.ascontiguousarray(pictures[0])
    assert _native.Library(tmp_path / "l").matcher().find(picture)["matches"].tolist() == [[0, 0, 32, 32]]


def section_names() -> list[str]:
    tables = [f"table {t}" for t in range(32)]
    return ["thumbnails", "histograms", "projections", "reference", *tables, "origins", "sources"]


@pytest.mark.parametrize("number", range(38), ids=section_names())
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_damage_to_each_section_is_found(number: int, where: str, library: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.lib"
    shutil.copyfile(library, damaged)
    section = reference.Library(library).sections[number]
    at = {"first": 0, "middle": section.nbytes // 2, "last": section.nbytes - 1}[where]
    with damaged.open("r+b") as stream:
        stream.seek(section.offset + at)
        byte = stream.read(1)[0]
        stream.seek(section.offset + at)
        stream.write(bytes([byte ^ 0x10]))
    with pytest.raises(GpufsError, match=f"damaged.lib: section {section_names()[number]} is damaged"):
        _native.Library(damaged).check_sums()


def test_damage_between_sections_is_found(library: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.lib"
    shutil.copyfile(library, damaged)
    section = reference.Library(library).find(reference.REFERENCE)
    with damaged.open("r+b") as stream:
        stream.seek(section.offset + section.nbytes + 1)
        stream.write(b"x")
    with pytest.raises(GpufsError, match="gap before section table 0"):
        _native.Library(damaged).check_sums()


@pytest.mark.parametrize("part", [0, 1, 7, 8, 100, 4095, 4096, 5000, 0.5, -1])
def test_truncation_is_found_at_once(part: float, library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    nbytes = int(part * len(data)) if isinstance(part, float) else part if part >= 0 else len(data) + part
    (tmp_path / "short.lib").write_bytes(data[:nbytes])
    expected = "is truncated" if nbytes >= 8 else f"is not a collage library \\(only {nbytes} bytes\\)"
    with pytest.raises(GpufsError, match=f"short.lib: {expected}"):
        _native.Library(tmp_path / "short.lib")
    (tmp_path / "long.lib").write_bytes(data + b"\0")
    with pytest.raises(GpufsError, match=r"long.lib: is too long"):
        _native.Library(tmp_path / "long.lib")


def with_header(data: bytes, changes: dict[int, bytes]) -> bytes:
    """The file with bytes of its header changed and the header's checksum made right again."""
    head = bytearray(data[:4096])
    for offset, value in changes.items():
        head[offset : offset + len(value)] = value
    head[4092:] = struct.pack("<I", zlib.crc32(head[:4092]))
    return bytes(head) + data[4096:]


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"PK", "is not a collage library"),
        (8, b"\x02", "has format version 2; this program reads version 1"),
        (12, b"\x25", "values that this program does not know"),
        (16, b"\xff\xff\xff\xff\xff", "is truncated"),
        (24, b"\x00\x00\x00\x00", "does not know"),
        (40, b"\x01", "does not know"),
        (44, b"\x1f", "does not know"),
        (48, b"\x1d", "does not know"),
        (52, b"\x21", "does not know"),
        (64, b"\x00\x00", "does not know"),
        (72, b"\x02", "does not know"),
        (90, b"\x02", "does not know"),
        (2000, b"\x02", "does not know"),
        (128, b"\x02", "section histograms"),
        (128, b"\x09", "section of kind 9"),
        (132, b"\x01", "bad entry"),
        (136, b"\x00\x20", "does not lie where it must"),
        (144, b"\x01", "section thumbnails has a size that cannot be"),
        (128 + 4 * 32 + 16, b"\x01", "section table 0 has a size that cannot be"),
        (128 + 4 * 32 + 4, b"\x01", "section table 1 occurs twice"),
    ],
)
def test_wrong_headers_are_refused(offset: int, value: bytes, message: str, library: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.lib").write_bytes(with_header(library.read_bytes(), {offset: value}))
    with pytest.raises(GpufsError, match=message):
        _native.Library(tmp_path / "wrong.lib")


def test_a_damaged_header_is_found(library: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    data[68] ^= 1
    (tmp_path / "wrong.lib").write_bytes(data)
    with pytest.raises(GpufsError, match="its header is damaged"):
        _native.Library(tmp_path / "wrong.lib")


def with_section(data: bytes, number: int, at: int, value: bytes) -> bytes:
    """The file with bytes of a section changed and all checksums made right again."""
    entry = 128 + 32 * number
    offset, nbytes = struct.unpack_from("<QQ", data, entry + 8)
    changed = bytearray(data)
    changed[offset + at : offset + at + len(value)] = value
    crc = zlib.crc32(changed[offset : offset + nbytes])
    return with_header(bytes(changed), {entry + 24: struct.pack("<I", crc)})


@pytest.mark.parametrize(
    ("number", "at", "value", "message"),
    [
        (1, 3072, b"\x01", "histogram of image 0"),
        (1, 4096, struct.pack("<f", -1.0), "histogram of image 1"),
        (4, 4, struct.pack("<I", 2**31), "its directory is not in order"),
        (4, "entries", struct.pack("<I", 0xFFFFFFFF), "table 0 is damaged"),
        (5, "id", struct.pack("<I", 0xFFFFFFFF), "table 1 is damaged"),
        (36, 0, struct.pack("<I", 8), "origins is damaged"),
        (37, 8, struct.pack("<Q", 2**40), "a name lies outside"),
    ],
)
def test_wrong_contents_with_right_checksums_are_found(
    number: int, at: int | str, value: bytes, message: str, library: Path, tmp_path: Path
) -> None:
    cells = 1 << int(reference.Library(library).head["cell_nbits"])
    place = at if isinstance(at, int) else reference.align(4 * cells + 4) + (4 if at == "id" else 0)
    (tmp_path / "wrong.lib").write_bytes(with_section(library.read_bytes(), number, place, value))
    opened = _native.Library(tmp_path / "wrong.lib")
    opened.check_sums()
    with pytest.raises(GpufsError, match=message):
        opened.check_contents()


@pytest.mark.parametrize("engine", ["cpu", "simt"])
@pytest.mark.parametrize("kind", ["directory", "entries", "not a number", "infinite"])
def test_engines_do_not_trust_what_they_read(
    engine: str, kind: str, library: Path, photo: Bytes, tmp_path: Path
) -> None:
    """Damage that the checksums hide ends in an error or in a wrong picture, never in a crash."""
    if _native.engine_missing(engine):
        pytest.skip(_native.engine_missing(engine))
    parsed = reference.Library(library)
    data = bytearray(library.read_bytes())
    for section in parsed.sections:
        directory = reference.align(4 * (1 << int(parsed.head["cell_nbits"])) + 4)
        begin, end = section.offset, section.offset + section.nbytes
        if section.kind == reference.TABLE and kind == "directory":
            data[begin : begin + directory] = b"\xff\x00\x00\x80" * (directory // 4)
        if section.kind == reference.TABLE and kind == "entries":
            ids = np.frombuffer(data, "<u4", section.nbytes // 4, begin).copy()
            ids[directory // 4 + 1 :: 2] = 2**32 - 1
            data[begin:end] = ids.tobytes()
        if section.kind == reference.HISTOGRAMS and kind in ("not a number", "infinite"):
            word = struct.pack("<f", float("nan" if kind == "not a number" else "inf"))
            data[begin:end] = word * (section.nbytes // 4)
    for number, section in enumerate(parsed.sections):
        crc = zlib.crc32(data[section.offset : section.offset + section.nbytes])
        data[128 + 32 * number + 24 : 128 + 32 * number + 28] = struct.pack("<I", crc)
    (tmp_path / "wrong.lib").write_bytes(with_header(bytes(data), {}))
    opened = _native.Library(tmp_path / "wrong.lib")
    blocks = np.ascontiguousarray(photo[:64, :64])
    with pytest.raises(GpufsError, match=r"wrong.lib: is damaged, found while .* \(block 0: column 0, row 0\)"):
        opened.matcher(engine, nthreads=1).find(blocks)


def test_a_library_does_not_depend_on_the_number_of_workers(pictures: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        build_library([pictures], tmp_path / f"{workers}.lib", IndexOptions(workers=workers))
    assert (tmp_path / "1.lib").read_bytes() == (tmp_path / "2.lib").read_bytes() == (tmp_path / "5.lib").read_bytes()


def test_keys_get_longer_with_the_library(tmp_path: Path) -> None:
    """More images of one kind need longer keys for shortlists of some dozens."""
    rng = np.random.default_rng(3)
    lengths = []
    for n in (200, 6000):
        builder = _native.LibraryBuilder(tmp_path / "l")
        builder.add_source(b"x")
        colours = rng.integers(40, 215, (n, 1, 1, 3)) + rng.normal(0, 10, (n, 32, 32, 3))
        builder.add(np.clip(colours, 0, 255).astype(np.uint8), np.zeros((n, 4), np.uint32))
        info = builder.finish()
        lengths.append(info["key_nbits"])
        assert info["mean_shortlist"] >= 48
    assert lengths[0] < lengths[1]

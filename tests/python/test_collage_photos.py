# SPDX-License-Identifier: Apache-2.0
"""Photographs of any size and kind become collages of the right size; what is none gets a clear message."""

from __future__ import annotations

import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import reference
from conftest import Bytes, names_in, paint
from gpufs import GpufsError, _native
from gpufs.collage import (
    CollageOptions,
    IndexOptions,
    SynthOptions,
    build_library,
    make_collage,
    synthesize_library,
)
from gpufs.collage.images import UnreadableImageError, read_rgb
from gpufs.collage.tiles import thumbnail
from PIL import EpsImagePlugin, Image

CPU = CollageOptions(engine="cpu")
SIZES = [(32, 32), (33, 32), (32, 63), (65, 97), (31 + 32 * 3, 40), (200, 33)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["library", "packed_library"])
def test_any_size(size: tuple[int, int], which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    picture = paint(np.random.default_rng(5), *size)
    Image.fromarray(picture).save(tmp_path / "photo.png")
    report = make_collage(tmp_path / "photo.png", path, tmp_path / "out.png", CPU)
    collage = np.asarray(Image.open(tmp_path / "out.png"))
    assert collage.shape == picture.shape
    assert report.size == (size[1], size[0])
    library = reference.Library(path)
    matches = library.match(reference.to_blocks(picture))
    columns = reference.align32(size[1]) // 32
    for block, image in enumerate(matches[:, 0]):
        y, x = block // columns * 32, block % columns * 32
        shown = collage[y : y + 32, x : x + 32]
        assert np.array_equal(shown, library.thumbnails[image][: shown.shape[0], : shown.shape[1]])
    assert report.quality.nblocks == len(matches)
    assert report.quality.mean_distance == pytest.approx(np.sqrt(matches[:, 1]).mean())
    assert report.quality.ratio is not None and report.quality.ratio >= 1


@pytest.mark.parametrize("size", [(31, 32), (32, 31), (1, 1), (1, 500)])
def test_too_small_photographs(size: tuple[int, int], library: Path, tmp_path: Path) -> None:
    Image.new("RGB", size).save(tmp_path / "small.png")
    with pytest.raises(
        GpufsError, match=rf"small.png: has {size[0]} x {size[1]} pixels; a collage needs at least 32 x 32"
    ):
        make_collage(tmp_path / "small.png", library, tmp_path / "out.png", CPU)
    assert names_in(tmp_path) == ["small.png"]


def test_a_picture_of_its_own_tiles_is_found_again(tmp_path: Path) -> None:
    """Blocks that are in the library are found, whatever their neighbours."""
    rng = np.random.default_rng(8)
    picture = paint(rng, 96, 128)
    builder = _native.LibraryBuilder(tmp_path / "l")
    builder.add_source(b"x")
    blocks = reference.to_blocks(picture)
    others = np.stack([paint(rng, 32, 32) for _ in range(200)])
    builder.add(np.concatenate([others, blocks]), np.zeros((200 + len(blocks), 4), np.uint32))
    builder.finish()
    Image.fromarray(picture).save(tmp_path / "photo.png")
    make_collage(tmp_path / "photo.png", tmp_path / "l", tmp_path / "out.png", CPU)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), picture)


@pytest.fixture
def colours() -> Bytes:
    return paint(np.random.default_rng(21), 40, 50)


def rgb(path: Path) -> Bytes:
    return np.asarray(read_rgb(path)[0])


def test_greyscale(tmp_path: Path, colours: Bytes) -> None:
    grey = Image.fromarray(colours).convert("L")
    grey.save(tmp_path / "grey.png")
    assert np.array_equal(rgb(tmp_path / "grey.png"), np.repeat(np.asarray(grey)[..., np.newaxis], 3, axis=2))


def test_sixteen_bit_greyscale_keeps_its_high_byte(tmp_path: Path) -> None:
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16 + 3
    for name in ("grey.png", "grey.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert np.array_equal(rgb(tmp_path / name)[..., 1], (values >> 8).astype(np.uint8))


def test_floats(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
    values[0, 0] = np.nan
    Image.fromarray(values).save(tmp_path / "float.tif")
    assert np.array_equal(rgb(tmp_path / "float.tif")[..., 0], np.rint(np.nan_to_num(values.astype(float)) * 255))


@pytest.mark.parametrize("mode", ["1", "P", "CMYK", "RGBX", "LA", "RGBA"])
def test_other_modes(mode: str, tmp_path: Path, colours: Bytes) -> None:
    image = Image.fromarray(colours).convert(mode)
    name = tmp_path / ("a.tif" if mode in ("CMYK", "RGBX") else "a.png")
    image.save(name)
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(rgb(name), expected)


def test_transparency_goes_over_white(tmp_path: Path, colours: Bytes) -> None:
    alpha = np.zeros(colours.shape[:2], np.uint8)
    alpha[10:20] = 255
    alpha[20:30] = 128
    Image.fromarray(np.dstack([colours, alpha])).save(tmp_path / "a.png")
    read = rgb(tmp_path / "a.png").astype(int)
    assert (read[:10] == 255).all() and np.array_equal(read[10:20], colours[10:20])
    assert np.abs(read[20:30] - (colours[20:30].astype(int) + 255) / 2).max() <= 1
    palette = Image.fromarray(colours).convert("P")
    palette.info["transparency"] = palette.getpixel((3, 2))
    palette.save(tmp_path / "p.png", transparency=palette.getpixel((3, 2)))
    assert (rgb(tmp_path / "p.png")[2, 3] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, tmp_path: Path, library: Path) -> None:
    """All eight ways in which a camera can store one scene."""
    scene = paint(np.random.default_rng(2), 40, 70)
    stored = {
        1: scene,
        2: scene[:, ::-1],
        3: scene[::-1, ::-1],
        4: scene[::-1],
        5: scene.transpose(1, 0, 2),
        6: scene.transpose(1, 0, 2)[::-1],
        7: scene.transpose(1, 0, 2)[::-1, ::-1],
        8: scene.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned.png", exif=exif)
    image, size = read_rgb(tmp_path / "turned.png")
    assert size == (70, 40)
    assert np.array_equal(np.asarray(image), scene)
    report = make_collage(tmp_path / "turned.png", library, tmp_path / "out.png", CPU)
    assert report.size == (70, 40)
    assert report.matches is not None
    assert np.array_equal(report.matches, reference.Library(library).match(reference.to_blocks(scene)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_that_is_nearly_square(orientation: int, tmp_path: Path) -> None:
    """A JPEG may be decoded at a fraction of its size, at which its sides are equal."""
    stored = (800, 793)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", stored, (10, 20, 30)).save(tmp_path / "a.jpg", exif=exif)
    size = stored if orientation < 5 else stored[::-1]
    for smallest_side in (0, 96):
        image, full_size = read_rgb(tmp_path / "a.jpg", smallest_side=smallest_side)
        assert full_size == size
        assert image.size == (size if smallest_side == 0 else (100, 100))
    _, squares = thumbnail(image, full_size)
    assert squares.tolist() == [[(size[0] - 793) // 2, (size[1] - 793) // 2, 793]]


def test_broken_exif_data_is_no_reason_to_refuse(tmp_path: Path, colours: Bytes) -> None:
    Image.fromarray(colours).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken")
    assert rgb(tmp_path / "a.jpg").shape == colours.shape


def test_enlarging(tmp_path: Path, library: Path) -> None:
    Image.fromarray(paint(np.random.default_rng(4), 40, 50)).save(tmp_path / "a.png")
    report = make_collage(tmp_path / "a.png", library, tmp_path / "o.png", CollageOptions(engine="cpu", enlarge=3))
    assert report.size == (150, 120) and report.quality.nblocks == 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.png", b"", "is not a picture that Pillow can read"),
        ("text.jpg", b"hello", "is not a picture that Pillow can read"),
        ("cut.png", b"cut", "truncated|broken"),
        ("missing.png", None, "No such file or directory"),
    ],
)
def test_unreadable_photographs(
    name: str, content: bytes | None, message: str, tmp_path: Path, library: Path, colours: Bytes
) -> None:
    if content == b"cut":
        Image.fromarray(colours).save(tmp_path / "whole.png")
        (tmp_path / name).write_bytes((tmp_path / "whole.png").read_bytes()[:800])
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(GpufsError, match=f"{name}: .*({message})"):
        make_collage(tmp_path / name, library, tmp_path / "out.png", CPU)
    assert not (tmp_path / "out.png").exists()


def test_no_waiting_for_fifos(tmp_path: Path, library: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    with pytest.raises(UnreadableImageError, match="not a regular file"):
        read_rgb(tmp_path / "fifo.png")
    with pytest.raises(UnreadableImageError, match="is a directory"):
        read_rgb(tmp_path)
    os.mkfifo(tmp_path / "fifo.lib")
    with pytest.raises(GpufsError, match="not a regular file"):
        _native.Library(tmp_path / "fifo.lib")
    with pytest.raises(GpufsError, match="is a directory, not a collage library"):
        _native.Library(tmp_path)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 40 40
%%EndComments
0 0 40 40 rectfill
showpage
%%EOF
"""


@pytest.mark.parametrize("name", ["photo.png", "photo.eps"])
def test_no_other_program_is_started(name: str, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript is a program; Pillow would have Ghostscript run it, whatever the file's name is."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("gs", "gswin32c", "gswin64c"):
        (programs / program).write_text(f"#!/bin/sh\necho >{tmp_path}/started\nexit 1\n")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it remembers where it is
    (tmp_path / "in").mkdir()
    photo = tmp_path / "in" / name
    photo.write_bytes(EPS)
    with Image.open(photo) as image, pytest.raises((OSError, subprocess.SubprocessError)):
        image.load()
    (tmp_path / "started").unlink()  # that is what must not come again
    with pytest.raises(GpufsError, match=f"{name}: is not a picture"):
        make_collage(photo, library, tmp_path / "out.png", CPU)
    for inputs in ([photo], [tmp_path / "in"]):
        for make in (
            lambda inputs: build_library(inputs, tmp_path / "l", IndexOptions(workers=1)),
            lambda inputs: synthesize_library(10, tmp_path / "l", inputs, SynthOptions(workers=1)),
        ):
            with pytest.raises(GpufsError, match="there are no usable pictures"):
                make(inputs)
    assert names_in(tmp_path) == ["bin", "in"]


def test_decompression_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (300, 300)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    with pytest.raises(UnreadableImageError, match="has too many pixels"):
        read_rgb(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 80_000)  # over the limit, but not twice: no reason to say anything
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_rgb(tmp_path / "bomb.png")[1] == (300, 300)


def test_no_output_is_left_behind(tmp_path: Path, library: Path, colours: Bytes) -> None:
    """Whatever goes wrong, what was there before stays, and nothing else is there."""
    photo = tmp_path / "photo.png"
    Image.fromarray(colours).save(photo)
    out = tmp_path / "out.png"
    out.write_bytes(b"precious")
    before = names_in(tmp_path)

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_collage(photo, library, out, CPU, on_progress=stop)
    cases = [
        (photo, tmp_path / "missing.lib", out, "missing.lib: No such file or directory"),
        (photo, photo, out, "photo.png: is not a collage library"),
        (photo, library, tmp_path / "nowhere" / "out.png", "there is no folder"),
        (photo, library, tmp_path / "out.xyz", "'.xyz' is no picture's extension"),
        (photo, library, tmp_path / "out", "'' is no picture's extension"),
        (photo, library, tmp_path, "is a folder"),
        (photo, library, photo, "is the photograph itself"),
    ]
    for picture, lib, output, message in cases:
        with pytest.raises(GpufsError, match=message):
            make_collage(picture, lib, output, CPU)
    with pytest.raises(GpufsError, match="is the library itself"):
        make_collage(photo, library, library, CPU)
    assert names_in(tmp_path) == before
    assert out.read_bytes() == b"precious"


def test_a_damaged_library_is_found_before_use(tmp_path: Path, library: Path, colours: Bytes) -> None:
    Image.fromarray(colours).save(tmp_path / "photo.png")
    data = bytearray(library.read_bytes())
    data[5000] ^= 1
    (tmp_path / "damaged.lib").write_bytes(data)
    with pytest.raises(GpufsError, match="section thumbnails is damaged"):
        make_collage(tmp_path / "photo.png", tmp_path / "damaged.lib", tmp_path / "out.png", CPU)
    assert not (tmp_path / "out.png").exists()
    quick = CollageOptions(engine="cpu", check="quick")
    make_collage(tmp_path / "photo.png", tmp_path / "damaged.lib", tmp_path / "out.png", quick)


def test_every_picture_format(tmp_path: Path, library: Path, colours: Bytes) -> None:
    Image.fromarray(colours).save(tmp_path / "photo.bmp")
    for suffix in (".png", ".jpg", ".webp", ".tif", ".bmp", ".PNG"):
        make_collage(tmp_path / "photo.bmp", library, tmp_path / f"out{suffix}", CPU)
        assert Image.open(tmp_path / f"out{suffix}").size == (50, 40)

# SPDX-License-Identifier: Apache-2.0
"""Building libraries: which files count, what is left out, and that nothing half-built ever has the library's name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import reference
from conftest import names_in, paint
from gpufs import GpufsError, _native
from gpufs.collage import IndexOptions, IndexReport, TileOptions, build_library, indexing
from gpufs.collage import tiles as tiles_module
from gpufs.collage.images import Pixels
from gpufs.collage.indexing import find_pictures
from gpufs.collage.tiles import Squares, cut, thumbnail
from PIL import Image

ONE = IndexOptions(workers=1)


def save(path: Path, seed: int = 0, size: tuple[int, int] = (40, 60)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(paint(np.random.default_rng(seed), *size)).save(path)
    return path


def test_files_are_found_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ["b.png", "a/z.JPG", "a/b/c.png", "a.png", "é.png", "B.png", "a b.png", "notes.txt", "a/Thumbs.db"]
    for i, name in enumerate(names):
        save(tmp_path / name, i) if name.lower().endswith(("png", "jpg")) else (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    report = IndexReport()
    found = [os.path.relpath(path, tmp_path) for path in find_pictures([tmp_path], report)]
    assert found == ["B.png", "a/b/c.png", "a/z.JPG", "a b.png", "a.png", "b.png", "é.png"]
    assert report.nignored == 3  # the link to a folder too
    library = tmp_path / "out.lib"
    build_library([tmp_path / "b.png", tmp_path / "a"], library, ONE)
    parsed = reference.Library(library)
    assert [parsed.name(i) for i in range(3)] == [os.fsencode(tmp_path / n) for n in ("b.png", "a/b/c.png", "a/z.JPG")]


@pytest.mark.parametrize("workers", [1, 2])
def test_unreadable_files_are_named_and_left_out(workers: int, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    good = [save(folder / f"{i}.png", i) for i in range(3)]
    (folder / "empty.png").touch()
    (folder / "text.jpg").write_text("this is no picture")
    (folder / "cut.png").write_bytes(good[0].read_bytes()[:500])
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    os.mkfifo(folder / "fifo.png")
    (folder / "notes.txt").write_text("ignored")
    seen: list[tuple[str, str]] = []
    report = build_library(
        [folder, folder / "notes.txt"],
        tmp_path / "l",
        IndexOptions(workers=workers),
        on_unreadable=lambda path, why: seen.append((Path(path).name, why)),
    )
    assert [name for name, _ in seen] == ["cut.png", "empty.png", "fifo.png", "gone.png", "text.jpg", "notes.txt"]
    assert dict(seen)["gone.png"] == "No such file or directory"
    assert dict(seen)["fifo.png"] == "is not a regular file"
    assert (report.nfiles, len(report.unreadable), report.nignored) == (3, 6, 1)
    reference.Library(tmp_path / "l").check()


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.png").touch()
    (tmp_path / "in" / "a.txt").touch()
    with pytest.raises(GpufsError, match=r"no usable pictures \(1 could not be used, 1 have no picture's extension\)"):
        build_library([tmp_path / "in"], tmp_path / "l", ONE)
    with pytest.raises(GpufsError, match="nowhere: there is no such file or folder"):
        build_library([tmp_path / "nowhere"], tmp_path / "l", ONE)
    assert names_in(tmp_path) == ["in"]


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    picture = save(tmp_path / "a.png")
    for output, message in (
        (tmp_path / "nowhere" / "l", "there is no folder"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "no regular file"),
    ):
        with pytest.raises(GpufsError, match=message):
            build_library([picture], output, ONE)


def test_equal_images_are_kept_once(tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / "in" / f"{i}.png", seed=i % 2)
    report = build_library([tmp_path / "in", tmp_path / "in"], tmp_path / "l", ONE)
    assert report.info is not None and report.info["nimages"] == 2
    assert report.nthumbnails == 8
    assert reference.Library(tmp_path / "l").origins[:, 0].tolist() == [0, 1]


def test_thumbnails_show_the_middle_square(tmp_path: Path) -> None:
    picture = np.zeros((100, 300, 3), np.uint8)
    picture[:, 100:200] = (10, 200, 30)
    pixels, squares = thumbnail(Image.fromarray(picture), (300, 100))
    assert squares.tolist() == [[100, 0, 100]]
    assert (np.abs(pixels[0].astype(int) - (10, 200, 30)) <= 1).all()
    Image.fromarray(picture.repeat(8, axis=0).repeat(8, axis=1)).save(tmp_path / "large.jpg", quality=95)
    build_library([tmp_path / "large.jpg"], tmp_path / "l", ONE)  # decoded at a fraction of its size
    library = reference.Library(tmp_path / "l")
    assert library.origins.tolist() == [[0, 800, 0, 800]]
    assert (np.abs(library.thumbnails[0].astype(int) - (10, 200, 30)) <= 6).all()


def test_tiles_are_the_squares_that_they_say(tmp_path: Path) -> None:
    picture = paint(np.random.default_rng(1), 150, 201)
    pixels, squares = cut(Image.fromarray(picture), TileOptions(scales=(1, 2, 4), stride=16))
    assert len(pixels) == len(squares) == 1 + 8 * 11 + 3 * 5 + 1 * 2
    for tile, (x, y, side) in list(zip(pixels, squares, strict=True))[1:]:
        square = picture[y : y + side, x : x + side].astype(float)
        assert square.shape == (side, side, 3)
        scale = side // 32
        mean = square.reshape(32, scale, 32, scale, 3).mean(axis=(1, 3))
        assert np.abs(tile - mean).max() <= 0.5 + 1e-9


def test_a_handful_of_photographs_gives_thousands_of_tiles(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / f"{i}.png", i, (400, 600))
    report = build_library([tmp_path], tmp_path / "l", IndexOptions(tiles=TileOptions(), workers=2))
    assert report.info is not None and report.info["nimages"] > 2500
    assert report.info["tiles"]
    few = build_library([tmp_path], tmp_path / "l", IndexOptions(tiles=TileOptions(most=100), workers=2))
    assert few.info is not None and 100 < few.info["nimages"] <= 300


@pytest.mark.parametrize("size", [(5, 5), (31, 400), (33, 33), (64, 32)])
def test_tiles_of_small_pictures(size: tuple[int, int]) -> None:
    pixels, squares = cut(Image.fromarray(paint(np.random.default_rng(0), *size)), TileOptions())
    assert len(pixels) == len(squares) >= 1


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "in" / f"{i}.png", i)
    (tmp_path / "l").write_bytes(b"GPUFSCOL, precious")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for callbacks in ({"on_file": interrupt}, {"on_finish": interrupt}):
        for workers in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                build_library([tmp_path / "in"], tmp_path / "l", IndexOptions(workers=workers), **callbacks)
    assert names_in(tmp_path) == ["in", "l"]
    assert (tmp_path / "l").read_bytes() == b"GPUFSCOL, precious"


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_in_the_middle_leaves_nothing(number: signal.Signals, status: int, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    out.mkdir()
    (out / "l").write_bytes(b"GPUFSCOL, precious")
    picture = save(folder / "0.png", 1, (700, 700))
    for i in range(1, 1000):
        (folder / f"{i}.png").hardlink_to(picture)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "gpufs",
        "collage",
        "index",
        folder,
        "-o",
        out / "l",
        "--tiles",
        "--workers",
        "3",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(workers := children_of(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert process.poll() is None  # it is at it
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert output == ""
    assert errors == ("" if number == signal.SIGKILL else "gpufs: interrupted; nothing was written\n")
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(worker) for worker in workers)
    assert names_in(out) == ["l"]
    assert (out / "l").read_bytes() == b"GPUFSCOL, precious"


@pytest.mark.parametrize("tiles", [None, TileOptions()])
def test_pictures_that_crash_their_decoder_are_left_out(
    tiles: TileOptions | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(80):
        save(tmp_path / "in" / f"{i}.png", i)

    def load(path: str, options: TileOptions | None) -> tuple[Pixels, Squares]:
        if Path(path).name == "7.png":
            os.kill(os.getpid(), signal.SIGKILL)
        if Path(path).name == "8.png":
            os._exit(3)
        return tiles_module.load(path, options)

    monkeypatch.setattr(indexing, "load", load)
    others = children_of(os.getpid())  # multiprocessing's own, of tests that spawned
    report = build_library([tmp_path / "in"], tmp_path / "l", IndexOptions(tiles=tiles, workers=2))
    assert report.nfiles == 78
    assert [(Path(path).name, why) for path, why in report.unreadable] == [
        ("7.png", "the process that decoded it died (signal SIGKILL)"),
        ("8.png", "the process that decoded it died (exit status 3)"),
    ]
    reference.Library(tmp_path / "l").check()
    assert children_of(os.getpid()) == others


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \n.png")
    save(tmp_path / "a.png").rename(name)
    library = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.lib")
    build_library([tmp_path], library, ONE)
    assert _native.Library(library).source_name(0) == os.fsencode(name)
    with pytest.raises(GpufsError) as caught:
        _native.Library(library + "x")
    assert "\udcff.libx: No such file" in str(caught.value)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    picture = save(tmp_path / "a.png")
    for options, message in (
        (IndexOptions(workers=1, key_nbits=3), "4 to 30 bits"),
        (IndexOptions(workers=1, key_nbits=31), "4 to 30 bits"),
        (IndexOptions(workers=1, shortlist_goal=257), "1 to 256"),
    ):
        with pytest.raises(GpufsError, match=message):
            build_library([picture], tmp_path / "l", options)

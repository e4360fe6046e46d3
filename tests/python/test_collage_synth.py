# SPDX-License-Identifier: Apache-2.0
"""Synthetic libraries: what is drawn, that it is always the same, and nothing half-built has the library's name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import reference
from conftest import Bytes, Run, names_in, paint
from gpufs import GpufsError, _native
from gpufs.collage import SynthOptions, synth, synthesize_library
from gpufs.collage.making import whole_blocks
from gpufs.collage.synth import BUNDLED_PHOTOS, bundled_photos, reduction_for
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

U64 = 2**64 - 1


def splitmix64(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & U64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & U64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & U64
    return z ^ (z >> 31)


def drawn(photos: list[Bytes], seed: int, index: int, attempt: int = 0) -> tuple[Bytes, tuple[int, int, int, int]]:
    """Written from docs/guide/collage.md alone."""
    own, calls = splitmix64(seed, index), iter(range(attempt * 256, attempt * 256 + 256))

    def below(n: int) -> int:
        return splitmix64(own, next(calls)) * n >> 64

    def part(sizes: list[int]) -> int:
        return int(np.searchsorted(np.cumsum(sizes), below(sum(sizes)), side="right"))

    source = part([photo.shape[0] * photo.shape[1] for photo in photos])
    height, width, _ = photos[source].shape
    side = 32 + part([2**40 // side for side in range(32, min(height, width) + 1)])
    x, y = below(width - side + 1), below(height - side + 1)
    mirrored = below(2)
    # weights[i, p]: how many 32nds of pixel p lie in part i
    edges = np.arange(33) * side
    pixels = np.arange(side) * 32
    overlap = np.minimum(edges[1:, None], pixels + 32) - np.maximum(edges[:-1, None], pixels)
    weights = np.maximum(overlap, 0)
    square = photos[source][y : y + side, x : x + side].astype(np.int64)
    sums = (weights @ square.transpose(2, 0, 1) @ weights.T).transpose(1, 2, 0).copy()
    for c in range(3):
        gain, offset = 3072 + below(2049), below(49) - 24
        scaled = sums[..., c] * ((gain << 36) // side**2) >> 32  # in 65536ths
        sums[..., c] = (scaled + (offset << 16) + 32768) >> 16
    tile = np.clip(sums, 0, 255).astype(np.uint8)
    return tile[:, ::-1] if mirrored else tile, (source, x, y, side)


def synthesizer(photos: list[Bytes], seed: int) -> _native.Synthesizer:
    images = _native.Synthesizer(seed)
    for source, photo in enumerate(photos):
        images.add_photo(photo, source)
    return images


sizes = st.tuples(st.integers(32, 150), st.integers(32, 150))
seeds = st.integers(0, U64)


@settings(max_examples=60, deadline=None)
@given(shapes=st.lists(sizes, min_size=1, max_size=4), seed=seeds, index=seeds, attempt=st.integers(0, 63))
def test_images_are_what_the_documentation_says(
    shapes: list[tuple[int, int]], seed: int, index: int, attempt: int
) -> None:
    rng = np.random.default_rng(len(shapes))
    photos = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]
    tile, origin = synthesizer(photos, seed).draw(index, attempt)
    expected, where = drawn(photos, seed, index, attempt)
    assert origin == where
    assert np.array_equal(tile, expected)


def test_large_white_squares_do_not_overflow() -> None:
    images = synthesizer([np.full((4096, 4096, 3), 255, np.uint8)], 1)
    found = [images.draw(i) for i in range(300)]
    assert max(origin[3] for _, origin in found) > 3900
    for tile, _ in found:
        assert (tile == tile[0, 0]).all()
        assert tile.min() >= int(255 * 0.75) - 24
    with pytest.raises(GpufsError, match="32 to 4096 pixels in its shorter side"):
        images.add_photo(np.zeros((4097, 4097, 3), np.uint8), 0)
    with pytest.raises(GpufsError, match="32 to 4096 pixels in its shorter side"):
        images.add_photo(np.zeros((31, 4000, 3), np.uint8), 0)
    with pytest.raises(GpufsError, match="no photographs"):
        _native.Synthesizer(1).draw(0)


def test_draws_are_spread_as_the_documentation_says() -> None:
    gradient = np.repeat(np.linspace(60, 180, 512)[np.newaxis, :, np.newaxis], 512, axis=0).repeat(3, axis=2)
    photos = [gradient.astype(np.uint8), gradient[:256, :256].astype(np.uint8)]
    images = synthesizer(photos, 5)
    n = 4000
    tiles, origins = zip(*(images.draw(i) for i in range(n)), strict=True)
    where = np.array(origins)
    first = where[where[:, 0] == 0]
    assert abs(len(first) / n - 0.8) < 0.03  # by area: 4 to 1
    doublings = np.log2(first[:, 3] / 32)
    assert np.abs(np.histogram(doublings, 4, (0, 4))[0] / len(first) - 0.25).max() < 0.04
    room = 512 - first[:, 3]
    for axis in (1, 2):
        assert abs((first[:, axis] / np.maximum(room, 1))[room > 0].mean() - 0.5) < 0.02
    rising = np.mean([tile[:, 31].mean() > tile[:, 0].mean() for tile in tiles])
    assert abs(rising - 0.5) < 0.03  # the others are mirrored
    assert (where[:, 1] + where[:, 3] <= [photos[s].shape[1] for s in where[:, 0]]).all()


def save(path: Path, picture: Bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(3)
    for i in range(4):
        save(folder / f"{i}.png", paint(rng, 90 + 20 * i, 150))
    return folder


def thumbnails(path: Path) -> npt.NDArray[np.uint8]:
    opened = _native.Library(path)
    return opened.thumbnails(np.arange(opened.info()["nimages"], dtype=np.uint32))


def test_a_synthetic_library_is_as_specified(photos: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = synthesize_library(
        1500, tmp_path / "l", [photos], SynthOptions(seed=9), on_cut=lambda done, total: calls.append((done, total))
    )
    library = reference.Library(tmp_path / "l")
    library.check()
    opened = _native.Library(tmp_path / "l")
    opened.check_sums()
    opened.check_contents()
    assert library.n == 1500 and report.nfiles == 4 and report.info is not None and report.info["tiles"]
    assert library.name(2) == os.fsencode(photos / "2.png")
    assert calls[-1] == (1500, 1500)
    pictures = [np.asarray(Image.open(photos / f"{i}.png")) for i in range(4)]
    for i in range(0, 1500, 100):
        tile, origin = drawn(pictures, 9, i)
        assert np.array_equal(library.thumbnails[i], tile) and tuple(library.origins[i]) == origin


@pytest.mark.parametrize("options", [{}, {"packed": True, "key_nbits": 9, "shortlist_goal": 7}])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    options: dict[str, int], photos: Path, tmp_path: Path
) -> None:
    for workers in (1, 2, 5):
        synthesize_library(
            9000, tmp_path / str(workers), [photos], SynthOptions(seed=4, workers=workers, **options)
        )  # more than the builder takes at once
    one = (tmp_path / "1").read_bytes()
    assert one == (tmp_path / "2").read_bytes() == (tmp_path / "5").read_bytes()


def test_seeds_give_other_images_and_longer_runs_begin_alike(photos: Path, tmp_path: Path) -> None:
    for name, n, seed in (("a", 200, 1), ("b", 8500, 1), ("c", 200, 2)):
        synthesize_library(n, tmp_path / name, [photos], SynthOptions(seed=seed))
    a, b, c = (thumbnails(tmp_path / name) for name in "abc")
    assert np.array_equal(a, b[:200])
    assert not (a == c).all(axis=(1, 2, 3)).any()


@pytest.fixture(scope="module")
def black(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives 25^3 = 15625 different images only, an eighth of the draws one of them."""
    return save(tmp_path_factory.mktemp("black") / "black.png", np.zeros((32, 32, 3), np.uint8))


@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 150), more=st.integers(1, 150), seed=seeds)
def test_images_like_one_before_are_drawn_again(
    n: int, more: int, seed: int, black: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("again")
    synthesize_library(n, folder / "a", [black], SynthOptions(seed=seed, workers=1))
    synthesize_library(n + more, folder / "b", [black], SynthOptions(seed=seed, workers=3))
    longer = thumbnails(folder / "b")
    assert np.array_equal(thumbnails(folder / "a"), longer[:n])
    before: set[bytes] = set()
    picture = np.zeros((32, 32, 3), np.uint8)
    for i in range(n + more):
        attempts = (drawn([picture], seed, i, attempt)[0] for attempt in range(64))
        tile = next(tile for tile in attempts if tile.tobytes() not in before)
        assert np.array_equal(longer[i], tile)
        before.add(tile.tobytes())


def test_more_images_than_the_photographs_give(run: Run, black: Path, tmp_path: Path) -> None:
    result = run("collage", "synth", "15626", black, "-o", "l")
    assert result.returncode == 1
    assert result.stderr.startswith(
        "gpufs: the photographs are too small or too uniform for 15626 different images: image "
    )
    assert result.stderr.count("\n") == 1
    assert names_in(tmp_path) == []


def test_engines_agree_on_a_synthetic_library(run: Run, photos: Path, photo: Bytes, tmp_path: Path) -> None:
    made = run("collage", "synth", "3000", photos, "-o", "l", "--seed", "3")
    assert (made.returncode, made.stderr) == (0, "")
    assert "images in the library" in made.stdout and "3,000" in made.stdout
    assert run("collage", "verify", "l").returncode == 0
    save(tmp_path / "photo.png", photo)
    engines = [engine for engine in ("cpu", "simt", "gpu") if not _native.engine_missing(engine)]
    for engine in engines:
        result = run("collage", "photo.png", "-l", "l", "-o", f"{engine}.png", "--engine", engine)
        assert (result.returncode, result.stderr) == (0, "")
        assert (tmp_path / f"{engine}.png").read_bytes() == (tmp_path / "cpu.png").read_bytes()
    expected = reference.Library(tmp_path / "l").match(reference.to_blocks(photo))
    assert np.array_equal(_native.Library(tmp_path / "l").matcher().find(whole_blocks(photo))["matches"], expected)


def test_bad_pictures_are_named_and_left_out(run: Run, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    save(folder / "a.png", np.asarray(Image.open(photos / "0.png")))
    save(folder / "small.png", np.zeros((31, 400, 3), np.uint8))
    (folder / "text.jpg").write_text("this is no picture")
    (folder / "notes.txt").write_text("ignored")
    for workers in ("1", "2"):
        result = run("collage", "synth", "10", "in", "-o", "l", "--workers", workers)
        assert result.returncode == 0
        assert result.stderr.splitlines() == [
            "gpufs: skipped: in/small.png: has 400 x 31 pixels; at least 32 x 32 are needed",
            "gpufs: skipped: in/text.jpg: is not a picture that Pillow can read",
        ]
    (folder / "a.png").unlink()
    result = run("collage", "synth", "10", "in", "-o", "m")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "gpufs: in: there are no usable pictures (2 could not be used, 1 have no picture's extension)"
    )
    assert names_in(tmp_path) == ["in", "l"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("0", "-o", "l"), 1, "gpufs: a library holds 1 to 2,147,483,648 images, not 0"),
        (("2147483649", "-o", "l"), 1, "gpufs: a library holds 1 to 2,147,483,648 images, not 2,147,483,649"),
        (("--", "-1", "PHOTOS"), 2, "Missing option '--output'"),
        (("-o", "l", "--", "-1"), 1, "gpufs: a library holds 1 to 2,147,483,648 images, not -1"),
        (("10", "nowhere", "-o", "l"), 1, "gpufs: nowhere: there is no such file or folder"),
        (("10", "PHOTOS", "-o", "x/l"), 1, "gpufs: x/l: there is no folder x"),
        (("10", "PHOTOS", "-o", "."), 1, "gpufs: .: is a folder"),
        (("10", "PHOTOS", "-o", "/dev/null"), 1, "gpufs: /dev/null: is there already and is no regular file"),
        (("10", "PHOTOS", "-o", "l", "--key-bits", "3"), 1, "gpufs: keys have 4 to 30 bits"),
        (("many", "PHOTOS", "-o", "l"), 2, "Invalid value for"),
        (("10", "PHOTOS"), 2, "Missing option '--output'"),
        (("10", "PHOTOS", "-o", "l", "--seed", "-1"), 2, "Invalid value for '--seed'"),
        (("10", "PHOTOS", "-o", "l", "--seed", "18446744073709551616"), 2, "Invalid value for '--seed'"),
    ],
)
def test_bad_input_is_one_clear_message(
    arguments: tuple[str, ...], status: int, message: str, run: Run, photos: Path, tmp_path: Path
) -> None:
    result = run("collage", "synth", *(photos if a == "PHOTOS" else a for a in arguments))
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr and "Traceback" not in result.stderr
    if status == 1:
        assert result.stderr.startswith(message) and result.stderr.count("\n") == 1
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(run: Run, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    result = run("collage", "synth", "10", photos, "-o", "closed/l")
    assert (result.returncode, result.stderr) == (1, "gpufs: closed/l: no permission to write in closed\n")


def test_a_library_that_does_not_fit_is_not_begun(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synth.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 30))
    with pytest.raises(GpufsError, match=r"l: 1,000,000 images take 6\.7 GiB; .* has 3\.0 free"):
        synthesize_library(1_000_000, tmp_path / "l", [photos])
    assert names_in(tmp_path) == []
    synthesize_library(10, tmp_path / "l", [photos])


def test_an_old_library_is_replaced(run: Run, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"GPUFSCOL, old")
    assert run("collage", "synth", "10", photos, "-o", "l").returncode == 0
    assert _native.Library(tmp_path / "l").info()["nimages"] == 10


def test_the_photographs_of_the_demo_are_the_default(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (Path(__file__).parents[2] / "dev").read_text()
    listed = script.split("for photo in ", 1)[1].split("; do", 1)[0].replace("\\\n", " ").split()
    assert tuple(listed) == BUNDLED_PHOTOS
    package = tmp_path / "site" / "skimage"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('this must not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(GpufsError, match="name pictures or folders of them to cut images from"):
        bundled_photos()
    for name in ("coins.png", "brick.png", "astronaut.png"):
        save(package / "data" / name, paint(np.random.default_rng(1), 40, 50))
    assert [path.name for path in bundled_photos()] == ["brick.png", "coins.png"]
    result = run("collage", "synth", "20", "-o", "l")
    assert (result.returncode, result.stderr) == (0, "")
    assert _native.Library(tmp_path / "l").info()["nsources"] == 2


def test_no_photographs_at_all(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first skimage that is found has no photographs."""
    (tmp_path / "site" / "skimage").mkdir(parents=True)
    (tmp_path / "site" / "skimage" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    result = run("collage", "synth", "20", "-o", "l")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("gpufs: no photographs: name pictures or folders of them")
    assert names_in(tmp_path) == ["site"]


@given(
    size=st.tuples(st.integers(32, 60_000), st.integers(32, 60_000)),
    nphotos=st.integers(1, 1_000_000),
)
def test_photographs_are_made_smaller_to_fit(size: tuple[int, int], nphotos: int) -> None:
    factor = reduction_for(size, nphotos)
    shorter, longer = sorted(side // factor for side in size)
    assert 32 <= shorter <= 4096
    assert shorter < 64 or shorter * longer <= synth.MOST_PIXELS // nphotos
    if factor > 1:
        larger = [side / (factor - 1) for side in size]
        assert min(larger) > 4096 or larger[0] * larger[1] > synth.MOST_PIXELS // nphotos


def test_images_of_reduced_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = paint(np.random.default_rng(2), 201, 305)
    path = save(tmp_path / "a.png", picture)
    monkeypatch.setattr(synth, "MOST_PIXELS", 10_000)
    report = synthesize_library(300, tmp_path / "l", [path], SynthOptions(seed=3, workers=1))
    assert report.nreduced == 1
    library = reference.Library(tmp_path / "l")
    library.check()
    reduced = np.asarray(Image.fromarray(picture).reduce(3))[:67, :101]
    means = picture[:201, :303].reshape(67, 3, 101, 3, 3).mean(axis=(1, 3))
    assert np.abs(reduced - means).max() < 1
    for i in range(300):
        tile, (_, x, y, side) = drawn([reduced], 3, i)
        assert np.array_equal(library.thumbnails[i], tile)
        assert library.origins[i].tolist() == [0, 3 * x, 3 * y, 3 * side]


def test_photographs_that_crash_their_decoder_are_left_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = synth.load_photo

    def crash(path: str, nphotos: int) -> tuple[Bytes, int]:
        if Path(path).name == "1.png":
            os.kill(os.getpid(), signal.SIGKILL)
        return load(path, nphotos)

    monkeypatch.setattr(synth, "load_photo", crash)
    report = synthesize_library(50, tmp_path / "l", [photos], SynthOptions(workers=2))
    assert report.nfiles == 3
    assert report.unreadable == [(str(photos / "1.png"), "the process that decoded it died (signal SIGKILL)")]


def test_an_exception_leaves_nothing(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"GPUFSCOL, precious")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for callbacks in ({"on_file": interrupt}, {"on_cut": interrupt}, {"on_finish": interrupt}):
        for workers in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                synthesize_library(100, tmp_path / "l", [photos], SynthOptions(workers=workers), **callbacks)
    assert names_in(tmp_path) == ["l"]
    assert (tmp_path / "l").read_bytes() == b"GPUFSCOL, precious"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("after", [0.2, 1.0])
def test_a_signal_in_the_middle_leaves_nothing(
    number: signal.Signals, status: int, after: float, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "l").write_bytes(b"GPUFSCOL, precious")
    command = [sys.executable, "-m", "gpufs", "collage", "synth", "500000", str(photos), "-o", str(tmp_path / "l")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any("(deleted)" in target for target in open_files(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)  # until the file without a name is there
    time.sleep(after)
    assert process.poll() is None  # it is at it
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert output == ""
    assert errors == ("" if number == signal.SIGKILL else "gpufs: interrupted; nothing was written\n")
    assert names_in(tmp_path) == ["l"]
    assert (tmp_path / "l").read_bytes() == b"GPUFSCOL, precious"


def open_files(pid: int) -> list[str]:
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.append(str(entry.readlink()))
    except OSError:  # it ends, or has just closed one
        pass
    return found


def test_a_builder_takes_synthetic_images_first(tmp_path: Path) -> None:
    pixels = paint(np.random.default_rng(0), 40, 40)
    images = synthesizer([pixels], 0)
    builder = _native.LibraryBuilder(tmp_path / "l")
    with pytest.raises(GpufsError, match="an image has no source"):
        builder.add_synthetic(images, 5)
    builder = _native.LibraryBuilder(tmp_path / "l")
    builder.add_source(b"x")
    for n in (0, 2**31 + 1):
        with pytest.raises(GpufsError, match=r"1 to 2\^31 images"):
            builder.add_synthetic(images, n)
    with pytest.raises(GpufsError, match="no photographs"):
        builder.add_synthetic(_native.Synthesizer(0), 5)
    builder.add_synthetic(images, 5)
    with pytest.raises(GpufsError, match="images in the library already"):
        builder.add_synthetic(images, 5)
    assert builder.nimages == 5 and images.nphotos == 1
    builder.finish()
    assert names_in(tmp_path) == ["l"]


def test_the_bar_moves(photos: Path, tmp_path: Path) -> None:
    """On a terminal, more is drawn of a stage than its beginning."""
    parent, child = os.openpty()
    command = [sys.executable, "-m", "gpufs", "collage", "synth", "60000", str(photos), "-o", str(tmp_path / "l")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=child)
    os.close(child)
    drawn_text = b""
    while True:
        try:
            some = os.read(parent, 65536)
        except OSError:  # the terminal's other end is closed
            break
        drawn_text += some
    os.close(parent)
    assert process.wait(timeout=60) == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", drawn_text)
    shown = {int(done) for done in re.findall(rb"cutting images\D*(\d+)/60000", plain)}
    assert shown - {0}

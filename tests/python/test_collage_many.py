# SPDX-License-Identifier: Apache-2.0
"""Many photographs by one command: each gets the picture that it would get alone, and the engine starts once."""

from __future__ import annotations

import json
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import Run, names_in, paint
from gpufs import GpufsError, _native
from gpufs.collage import CollageOptions, make_collage, make_collages, making
from PIL import Image

CPU = CollageOptions(engine="cpu", sample=0)
SIMT = CollageOptions(engine="simt", sample=0, seed=3)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"photo{i}.png" for i in range(3)]
    for i, path in enumerate(paths):
        Image.fromarray(paint(np.random.default_rng(i), 40 + 32 * i, 100)).save(path)
    return paths


@pytest.mark.parametrize("options", [CPU, SIMT], ids=["cpu", "simt"])
def test_each_is_as_it_is_alone(options: CollageOptions, photos: list[Path], library: Path, tmp_path: Path) -> None:
    if why := _native.engine_missing(options.engine):
        pytest.skip(why)
    jobs = [(photo, tmp_path / f"{photo.stem}-out.png") for photo in photos]
    reports = list(make_collages(jobs, library, options))
    for (photo, output), report in zip(jobs, reports, strict=True):
        alone = make_collage(photo, library, tmp_path / "alone.png", CPU)
        assert report.matches is not None and np.array_equal(report.matches, alone.matches)
        assert output.read_bytes() == (tmp_path / "alone.png").read_bytes()
    assert ["check" in report.seconds for report in reports] == [True, False, False]
    if options is SIMT:  # counters are each photograph's own
        counters = [report.counters for report in reports]
        assert all(each is not None and each["faults"] + each["hits"] > 0 for each in counters)
        again = list(make_collages([jobs[2], (photos[2], tmp_path / "again.png")], library, options))[1].counters
        assert again is not None and again["faults"] == 0 and again["hits"] > 0


def test_what_cannot_be_written_is_found_before_the_first(photos: list[Path], library: Path, tmp_path: Path) -> None:
    good = (photos[0], tmp_path / "good.png")
    for job, message in (
        ((photos[1], tmp_path / "good.png"), rf"good.png: would be written for {photos[0]}, and again for {photos[1]}"),
        ((photos[1], tmp_path / "in" / ".." / "good.png"), "and again for"),
        ((photos[1], photos[2]), "is a photograph"),
        ((photos[1], library), "is the library itself"),
        ((photos[1], tmp_path / "none" / "x.png"), "there is no folder"),
        ((photos[1], tmp_path / "x"), "is no picture's extension"),
    ):
        with pytest.raises(GpufsError, match=message):
            make_collages([good, job, (photos[2], tmp_path / "third.png")], library, CPU)
        assert names_in(tmp_path) == ["in"]


def test_pictures_before_one_that_fails_stay(photos: list[Path], library: Path, tmp_path: Path) -> None:
    photos[1].write_text("no picture")
    made = make_collages([(photo, tmp_path / photo.name) for photo in photos], library, CPU)
    before = signal.getsignal(signal.SIGTERM)
    assert next(made).size[0] == 100
    assert signal.getsignal(signal.SIGTERM) is before, "nothing is kept while it is suspended"
    with pytest.raises(GpufsError, match=r"photo1.png: is not a picture"):
        next(made)
    assert (tmp_path / "photo0.png").exists()
    assert not (tmp_path / "photo1.png").exists() and not (tmp_path / "photo2.png").exists()


def test_no_photographs_are_no_error(library: Path) -> None:
    assert list(make_collages([], library, CPU)) == []


def test_by_the_command(run: Run, photos: list[Path], library: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = run("collage", *photos, "-l", library, "-o", "out", "--engine", "cpu", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["output"] for line in lines] == [f"out/photo{i}.png" for i in range(3)]
    assert [(line["width"], line["height"]) for line in lines] == [(100, 40 + 32 * i) for i in range(3)]
    assert all(line["engine"] == "cpu" and line["quality"]["nblocks"] == 4 * (i + 2) for i, line in enumerate(lines))
    assert names_in(tmp_path / "out") == [f"photo{i}.png" for i in range(3)]
    one = run("collage", photos[0], "-l", library, "-o", "out", "--engine", "cpu")
    assert one.returncode == 0 and "collage out/photo0.png" in one.stdout
    refused = run("collage", *photos, "-l", library, "-o", "one.png")
    assert refused.returncode == 1
    assert refused.stderr == "gpufs: one.png: is no folder; the pictures of several photographs want one\n"


def test_auto_takes_the_engine_that_is_done_first(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    info = _native.Library(library).info()
    auto = CollageOptions(threads=16)
    asked: list[str] = []
    monkeypatch.setattr(_native, "engine_missing", lambda engine: asked.append(engine) or "")
    monkeypatch.setattr(making, "is_gpu_up", lambda: False)
    engine, why = making.choose_engine(auto, info, 192)
    assert engine == "cpu" and "192 blocks take about" in why and "of them its start" in why
    assert asked == [], "to ask for a GPU is to start CUDA"
    assert making.choose_engine(auto, info, 50 * 49152)[0] == "gpu"
    monkeypatch.setattr(making, "is_gpu_up", lambda: True)
    assert making.choose_engine(CollageOptions(threads=1), info, 192)[0] == "gpu", "no start is left"
    monkeypatch.setattr(_native, "engine_missing", lambda engine: "there is none" if engine == "gpu" else "")
    assert making.choose_engine(auto, info, 10**9) == ("cpu", "no gpu: there is none")


def test_a_gpu_that_torch_uses_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_started_gpu", False)
    for used in (False, True):
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda used=used: used))
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert making.is_gpu_up() is used


def test_blocks_are_counted_without_decoding(photos: list[Path], tmp_path: Path) -> None:
    assert [making.count_blocks(photo) for photo in photos] == [8, 12, 16]
    assert making.count_blocks(photos[0], 3) == 10 * 4
    (tmp_path / "broken.png").write_text("x")
    assert making.count_blocks(tmp_path / "broken.png") == making.count_blocks(tmp_path / "none.png") == 0

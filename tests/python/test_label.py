# SPDX-License-Identifier: Apache-2.0
"""The regions of images against a search in Python, and the command `gpufs label`."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, names_in
from gpufs import label_cli, labelling, par
from gpufs.commands import app
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from label_support import searched
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner, Result

fuzzed = settings(max_examples=25, deadline=None)


def check(image: NDArray[Any], corners: bool, background: Any, wanted_background: Any) -> None:
    want = searched(image, corners, wanted_background)
    for engine in ENGINES:
        got = par.label(image, corners=corners, background=background, engine=engine)
        assert got.labels.dtype == np.int32 and got.nregions == want.max(initial=0)
        np.testing.assert_array_equal(got.labels, want)


dtypes = st.sampled_from(["?", "i1", "u1", "<u2", ">u2", "<i4", ">i4", "u4", "<i8", ">u8"])


@fuzzed
@given(st.data(), dtypes, st.booleans())
def test_regions_are_what_a_search_finds(data: st.DataObject, dtype: str, corners: bool) -> None:
    of = np.dtype(dtype)
    some = [0, 1] if of.kind == "b" else [0, 1, np.iinfo(of).max, np.iinfo(of).min]
    shape = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12)
    image = data.draw(arrays.arrays(of, shape, elements=st.sampled_from(some)))
    background = data.draw(st.sampled_from([None, *some]))
    check(image, corners, background, None if background is None else (np.array(background, of).item(),))


@fuzzed
@given(st.data(), st.integers(1, 4), st.booleans())
def test_colours_are_kinds(data: st.DataObject, nchannels: int, corners: bool) -> None:
    shape = st.tuples(st.integers(0, 8), st.integers(0, 8), st.just(nchannels))
    image = data.draw(arrays.arrays(np.uint8, shape, elements=st.sampled_from([0, 255])))
    colour = tuple(data.draw(st.lists(st.sampled_from([0, 255]), min_size=nchannels, max_size=nchannels)))
    check(image, corners, colour, colour)
    check(image, corners, 255, (255,) * nchannels)


def test_views_are_labelled_as_they_look() -> None:
    image = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 1]], np.uint16)
    for view in (image.T, image[::-1], image[:, ::2], np.asfortranarray(image)):
        check(view, False, 0, (0,))
        check(view, True, 0, (0,))


@pytest.mark.parametrize(
    "image, background, words",
    [
        (np.zeros(3, np.uint8), 0, "is no image"),
        (np.zeros((3, 3), np.float32), 0, "is no image"),
        (np.zeros((3, 3, 5), np.uint8), 0, "is no image"),
        (np.zeros((3, 3, 3), np.uint16), 0, "is no image"),
        (np.zeros((3, 3), np.uint8), 256, "background 256 is no value of uint8 pixels"),
        (np.zeros((3, 3), bool), 2, "background 2 is no value of bool pixels"),
        (np.zeros((3, 3), np.uint8), (1, 2), "is a colour, and the image has one number a pixel"),
        (np.zeros((3, 3, 3), np.uint8), (1, 2), "is no colour of 3 bytes"),
        (np.zeros((3, 3, 3), np.uint8), -1, "is no colour of 3 bytes"),
        (np.zeros((3, 3, 3), np.uint8), (1.5, 2, 3), "is no colour of 3 bytes"),
        (np.zeros((3, 3, 4), np.uint8), (1, 2, 3), "is no colour of 4 bytes"),
        (np.zeros((3, 3, 3), np.uint8), 1.0, "background 1.0 is no colour of 3 bytes"),
        ([[1], [1, 2]], 0, "this is no image"),
        (np.broadcast_to(np.uint8(0), (1, 1 << 30)), 0, "rows of 1073741824 pixels are too long to be labelled"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(image: NDArray[Any], background: Any, words: str) -> None:
    with pytest.raises(gpufs.GpufsError, match=words):
        par.label(image, background=background, engine="cpu")


def test_corners_are_wanted_or_not() -> None:
    with pytest.raises(gpufs.GpufsError, match="corners: is True or False, and no int"):
        par.label(np.zeros((3, 3), np.uint8), corners=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dtype, pixels, threshold, bright",
    [
        ("i8", [2**53, 2**53 + 1], "9007199254740993", [0, 1]),
        (">i8", [2**53, 2**53 + 1], "9007199254740992.5", [0, 1]),
        ("u8", [2**64 - 2, 2**64 - 1], "18446744073709551615", [0, 1]),
        ("u8", [2**64 - 2, 2**64 - 1], "18446744073709551616", [0, 0]),
        ("u1", [0, 255], "-1", [1, 1]),
        ("u1", [127, 128], "127.001", [0, 1]),
        ("i1", [-5, -4], "-4.5", [0, 1]),
        ("?", [0, 1], "1", [0, 1]),
        ("i4", [0, 1], "1e-999999", [0, 1]),
        ("i4", [0, 1], "1e999999", [0, 0]),
        ("i4", [-1, 1], "-inf", [1, 1]),
        ("f4", [0.7, np.inf], "0.7", [1, 1]),
        ("f2", [60000, np.inf], "1e400", [0, 1]),
    ],
)
def test_a_threshold_is_compared_exactly(dtype: str, pixels: list[Any], threshold: str, bright: list[int]) -> None:
    image = labelling.Image.of(np.array([pixels], dtype))
    got = labelling.above(image, label_cli._parse_threshold(threshold)).rows(0, 1)
    assert got.dtype == bool and got.tolist() == [[bool(each) for each in bright]]


# --- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with images: two regions and a hole, by several kinds of files."""
    image = np.zeros((6, 8), np.uint8)
    image[1:5, 1:5] = 200
    image[2:4, 2:4] = 0
    image[5, 7] = 100
    np.save(tmp_path / "a.npy", image)
    Image.fromarray(image).save(tmp_path / "a.png")
    Image.fromarray(np.stack([image, image * 0, image], axis=2)).save(tmp_path / "colour.png")
    Image.fromarray(image).convert("P").save(tmp_path / "palette.gif")
    np.save(tmp_path / "floats.npy", image.astype(np.float32))
    (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    (tmp_path / "text").write_text("no image")
    np.save(tmp_path / "objects.npy", np.array([[1, "a"], [None, 2]], object))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:40])
    (tmp_path / "broken.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-4])
    return tmp_path


def invoke(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["label", *arguments])


INPUTS = [
    *("a.npy", "a.png", "broken.npy", "broken.png", "colour.png"),
    *("cut.npy", "floats.npy", "objects.npy", "palette.gif", "text"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["a.npy", "a.png", "colour.png", "palette.gif"])
def test_the_command_writes_labels(engine: str, name: str, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = invoke(pictures, monkeypatch, name, "--out", "labels.npy", "--engine", engine)
    assert said.exit_code == 0 and said.stderr == "", said.stderr
    assert said.stdout == f"{name}: 2 regions in 8 x 6 pixels\n"
    labels = np.load(pictures / "labels.npy")
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, searched(np.load(pictures / "a.npy"), False, (0,)))


def test_the_command_tells_programs(pictures: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.loads(run("label", "a.png", "--json", "--engine", "cpu").stdout)
    seconds = said.pop("seconds")
    assert seconds >= 0 and said == {
        "path": "a.png", "out": None, "height": 6, "width": 8, "nregions": 2, "background_pixels": 35, "engine": "cpu",
    }  # fmt: skip

    def count(*arguments: str) -> int:
        said = invoke(pictures, monkeypatch, *arguments, "--json", "--engine", "cpu")
        return int(json.loads(said.stdout)["nregions"])

    assert count("a.png", "--background", "none") == 4  # the two, what is around them, and the hole
    assert count("a.png", "--background", "200") == 3
    assert count("colour.png", "--background", "#c800c8") == 3
    assert count("a.png", "--threshold", "150") == 1
    assert count("floats.npy", "--threshold", "99.5") == 2
    np.save(pictures / "long.npy", np.array([[2**53, 2**53 + 1]]))
    said = json.loads(run("label", "long.npy", "--threshold", str(2**53 + 1), "--json").stdout)
    assert said["background_pixels"] == 1 and said["nregions"] == 1
    Image.fromarray(np.eye(4, dtype=np.uint8)).save(pictures / "diagonal.png")
    assert count("diagonal.png") == 4 and count("diagonal.png", "--corners") == 1


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["label"], 2, "IMAGE"),
        (["label", "none.png"], 1, "none.png: No such file or directory"),
        (["label", "."], 1, "is a directory"),
        (["label", "text"], 1, "text: is not a picture that Pillow can read"),
        (["label", "broken.png"], 1, "broken.png: "),
        (["label", "broken.npy"], 1, "broken.npy: is no array that can be read"),
        (["label", "floats.npy"], 1, "floats.npy: an array of shape (6, 8) and float32 is no image"),
        (["label", "colour.png", "--threshold", "3"], 1, "a threshold is for grey images"),
        (["label", "a.png", "--background", "300"], 1, "a.png: background 300 is no value of uint8 pixels"),
        (["label", "a.png", "--background", "#ff"], 1, "is a colour"),
        (["label", "a.png", "--background", "red"], 2, "'red' is no background"),
        (["label", "a.png", "--threshold", "x"], 2, "--threshold: 'x' is no number"),
        (["label", "a.png", "--threshold", "nan"], 2, "--threshold: 'nan' is no number"),
        (["label", "a.png", "--threshold", "-sNaN1"], 2, "--threshold: '-sNaN1' is no number"),
        (["label", "a.png", "-o", "a.png"], 1, "is the image"),
        (["label", "a.png", "-o", "no/labels.npy"], 1, "there is no folder"),
        (["label", "a.png", "--engine", "tpu"], 2, "tpu"),
        (["label", "a.png", "--memory", "much"], 2, "'much' is no size"),
        (["label", "a.png", "--memory", "383"], 1, "a.png: a row of 8 pixels takes 384 bytes of memory to be labelled"),
        (["label", "cut.npy"], 1, "cut.npy: is no array that can be read: EOF"),
        (["label", "objects.npy"], 1, "objects.npy: an array of shape (2, 2) and object is no image"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(
    arguments: list[str], status: int, words: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (pictures / name).read_bytes() for name in INPUTS}
    said = invoke(pictures, monkeypatch, *arguments[1:])
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert names_in(pictures) == INPUTS
    assert before == {name: (pictures / name).read_bytes() for name in before}


def test_a_full_disk_leaves_nothing(pictures: Path) -> None:
    np.save(pictures / "large.npy", np.zeros((300, 300), np.uint8))
    (pictures / "labels.npy").write_bytes(b"what was there before")
    command = f"ulimit -f 64; exec {sys.executable} -m gpufs label large.npy -o labels.npy --engine cpu"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=pictures, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert names_in(pictures) == sorted([*INPUTS, "labels.npy", "large.npy"])
    assert (pictures / "labels.npy").read_bytes() == b"what was there before"


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused = pytest.raises(gpufs.GpufsError, match="fifo: is not a regular file")
    with refused, labelling.opened_image(tmp_path / "fifo"):
        pass


def test_a_file_that_may_not_be_read_is_no_wrong_usage(pictures: Path, unprivileged: Run) -> None:
    (pictures / "a.png").chmod(0)
    said = unprivileged("label", "a.png")
    assert said.returncode == 1 and said.stderr == "gpufs: a.png: Permission denied\n"

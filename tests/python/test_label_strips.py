# SPDX-License-Identifier: Apache-2.0
"""Images that are labelled strip by strip have the regions of the whole, whatever the strips are."""

from __future__ import annotations

import json
import math
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, change_and_put_back, names_in
from gpufs import _label, labelling, par
from gpufs.commands import app
from gpufs.labelling import FileOfLabels, Found, How, Image
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from label_support import searched
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

fuzzed = settings(max_examples=60, deadline=None)


def memory_for(image: NDArray[Any], nrows: int) -> int:
    """Which strips of so many rows take."""
    return nrows * image.shape[1] * _label.NBYTES_A_PIXEL


def check(image: NDArray[Any], nrows: int, *, engines: list[str] = ENGINES, **how: Any) -> None:
    """Strips of so many rows have the labels that one strip has."""
    want = par.label(image, engine="cpu", **how)
    for engine in engines:
        got = par.label(image, engine=engine, memory=memory_for(image, nrows), **how)
        assert got.nregions == want.nregions == want.labels.max(initial=0)
        assert got.labels.dtype == np.int32
        np.testing.assert_array_equal(got.labels, want.labels)


@fuzzed
@given(st.data(), st.sampled_from(["?", "u1", ">u2", "<i4", "<i8", ">u8"]), st.booleans())
def test_strips_have_the_regions_of_the_whole(data: st.DataObject, dtype: str, corners: bool) -> None:
    of = np.dtype(dtype)
    some = [0, 1] if of.kind == "b" else [0, 1, np.iinfo(of).max]
    shape = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14)
    image = data.draw(arrays.arrays(of, shape, elements=st.sampled_from(some), fill=st.nothing()))
    background = data.draw(st.sampled_from([None, *some]))
    nrows = data.draw(st.integers(1, image.shape[0]))
    check(image, nrows, corners=corners, background=background)
    want = searched(image, corners, None if background is None else (np.array(background, of).item(),))
    got = par.label(image, corners=corners, background=background, engine="cpu", memory=memory_for(image, nrows))
    np.testing.assert_array_equal(got.labels, want)


@fuzzed
@given(st.data(), st.integers(1, 4), st.booleans())
def test_colours_go_by_strips(data: st.DataObject, nchannels: int, corners: bool) -> None:
    shape = st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(nchannels))
    image = data.draw(arrays.arrays(np.uint8, shape, elements=st.sampled_from([0, 255]), fill=st.nothing()))
    nrows = data.draw(st.integers(1, len(image)))
    check(image, nrows, corners=corners, background=data.draw(st.sampled_from([0, 255, None])))


def snake(n: int) -> NDArray[np.uint8]:
    """One way to and fro through all of it."""
    image = np.zeros((n, n), np.uint8)
    image[::2] = 1
    image[1::4, -1] = image[3::4, 0] = 1
    return image


def spiral(n: int) -> NDArray[np.uint8]:
    """One way from a corner to the middle."""
    image = np.zeros((n, n), np.uint8)
    row, column, down, on = 0, 0, 0, 1
    image[0, 0] = 1

    def is_free(steps: int) -> bool:
        there = row + steps * down, column + steps * on
        return not (0 <= there[0] < n and 0 <= there[1] < n) or not image[there]

    while True:
        ahead = row + down, column + on
        if not (0 <= ahead[0] < n and 0 <= ahead[1] < n) or image[ahead] or not is_free(2):
            down, on = on, -down
            ahead = row + down, column + on
            if image[ahead] or not is_free(2):
                return image
        row, column = ahead
        image[ahead] = 1


def comb(n: int) -> NDArray[np.uint8]:
    """Teeth that hang together in the last row alone."""
    image = np.zeros((n, n), np.uint8)
    image[:, ::2] = image[-1] = 1
    return image


def rings(n: int) -> NDArray[np.uint8]:
    """In rings, by turns of two kinds."""
    rows, columns = np.indices((n, n))
    return (np.minimum.reduce([rows, columns, n - 1 - rows, n - 1 - columns]) % 2).astype(np.uint8)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("shape", [snake, spiral, comb, rings, lambda n: comb(n)[::-1], lambda n: spiral(n).T])
def test_shapes_that_go_through_all_strips(shape: Any, corners: bool) -> None:
    image = shape(29)
    for background in (0, None):
        for nrows in range(1, 30):
            check(image, nrows, corners=corners, background=background, engines=["cpu"])
        for nrows in (1, 4, 28):
            check(image, nrows, corners=corners, background=background)
    assert par.label(snake(29), engine="cpu", memory=memory_for(image, 3)).nregions == 1
    assert par.label(spiral(29), engine="cpu", memory=memory_for(image, 3)).nregions == 1


def test_many_regions_are_joined_late() -> None:
    image = np.zeros((40, 2001), np.uint8)
    image[:, ::2] = 1
    image[-1] = 1
    got = par.label(image, engine="cpu", memory=memory_for(image, 7))
    assert got.nregions == 1
    np.testing.assert_array_equal(got.labels, image)
    image[-1] = 0
    assert par.label(image, engine="cpu", memory=memory_for(image, 7)).nregions == 1001


def test_numbers_of_64_bits_are_the_same_in_each_strip() -> None:
    """The kinds of a strip are the places of its pixels' values among its own: here they differ by strip."""
    image = np.empty((12, 6), np.int64)
    image[:] = (np.arange(12) << 40)[:, None] + (np.arange(6) << 33)  # all are different
    image[:, 1] = -1  # in each strip the least
    image[:, 4] = 1 << 62  # the greatest, of as many as a strip happens to have
    image[5:8, 5] = 1 << 62
    image[::2, 2] = 7
    for nrows in range(1, 13):
        for background in (0, -1, 7, None):
            check(image, nrows, background=background)
    labels = par.label(image, engine="cpu", memory=memory_for(image, 2)).labels
    assert len(np.unique(labels[:, 1])) == 1 and len(np.unique(labels[:, 4])) == 1
    assert (labels[5:8, 5] == labels[0, 4]).all()


def test_labels_have_64_bits_where_there_are_many_pixels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = spiral(21)
    want = par.label(image, engine="cpu", background=None)
    monkeypatch.setattr(labelling, "_INT32_NPIXELS", 21 * 21)
    for memory in (0, memory_for(image, 4)):
        got = par.label(image, engine="cpu", background=None, memory=memory)
        assert got.labels.dtype == np.int64 and got.nregions == want.nregions
        np.testing.assert_array_equal(got.labels, want.labels)
        with (tmp_path / "labels.npy").open("w+b") as stream:
            label_regions(image, FileOfLabels(stream), memory_nbytes=memory, background=None)
        stored = np.load(tmp_path / "labels.npy")
        assert stored.dtype == np.int64
        np.testing.assert_array_equal(stored, want.labels)


def label_regions(image: NDArray[Any] | Image, to: FileOfLabels | None, **how: Any) -> Found:
    of = image if isinstance(image, Image) else Image.of(image)
    return labelling.label_regions(of, How(**{"corners": False, "background": 0, "engine": "cpu"} | how), to)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (0, 1 << 40)])
def test_images_without_pixels_have_no_regions(shape: tuple[int, int]) -> None:
    got = par.label(np.zeros(shape, np.int64), engine="cpu", memory=1)
    assert got.nregions == 0 and got.labels.shape == shape and got.labels.size == 0


def test_a_row_needs_room() -> None:
    image = np.zeros((3, 100), np.uint8)
    words = "a row of 100 pixels takes 4800 bytes of memory to be labelled, and 4799 may be taken"
    for engine in ENGINES:
        with pytest.raises(gpufs.GpufsError, match=words):
            par.label(image, engine=engine, memory=4799)
        assert par.label(image, engine=engine, memory="4800", background=None).nregions == 1
    with pytest.raises(gpufs.GpufsError, match="'much' is no number of bytes"):
        par.label(image, memory="much")


def test_maps_of_files_are_labelled(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", rings(33))
    image = np.load(tmp_path / "image.npy", mmap_mode="r")
    check(image, 5, background=None)


def test_tensors_are_labelled() -> None:
    torch = pytest.importorskip("torch")
    image = comb(20)
    want = par.label(image, engine="cpu")
    got = par.label(torch.from_numpy(image), engine="cpu", memory=memory_for(image, 3))
    np.testing.assert_array_equal(got.labels, want.labels)
    with pytest.raises(gpufs.GpufsError, match=r"this is no image: .*meta"):
        par.label(torch.zeros((3, 3), dtype=torch.uint8, device="meta"), engine="cpu")


def test_arrays_on_a_gpu_are_labelled(device: Any) -> None:
    """device_arrays.py has what stands in for one."""
    image = comb(20)
    want = par.label(image, corners=True, engine="cpu")
    for engine in ENGINES:
        got = par.label(device.of(image), corners=True, engine=engine)
        assert got.nregions == want.nregions
        np.testing.assert_array_equal(got.labels, want.labels)


@pytest.mark.skipif("gpu" not in ENGINES, reason="no GPU")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_on_a_real_gpu_are_labelled(library: str) -> None:
    module: Any = pytest.importorskip(library)
    image = comb(20)
    there = module.as_tensor(image, device="cuda") if library == "torch" else module.asarray(image)
    got, want = par.label(there), par.label(image, engine="cpu")
    assert got.nregions == want.nregions
    np.testing.assert_array_equal(got.labels, want.labels)


def test_arrays_that_numpy_does_not_reach_are_refused_by_one_line() -> None:
    class OnGpu:
        """As tensors and CuPy's arrays are for NumPy."""

        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.\nMore of it.")

    with pytest.raises(gpufs.GpufsError) as refused:
        par.label(OnGpu(), engine="cpu")  # type: ignore[arg-type]
    words = "this is no image: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first."
    assert str(refused.value) == words


# --- The command ----------------------------------------------------------------------------------------------------


def invoke(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["label", *arguments, "--engine", "cpu"])


@pytest.fixture
def image(tmp_path: Path) -> NDArray[np.uint16]:
    """Clouds of two brightnesses, in files of the folder; of 20 rows a strip has by `--memory` of STRIPS."""
    draw = np.random.default_rng(5)
    image = np.kron(draw.integers(0, 3, (101, 67)), np.ones((3, 5), np.uint16)).astype(np.uint16)
    image[draw.random(image.shape) < 0.1] = 1
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(image))
    np.save(tmp_path / "turned.npy", image.astype(">u2"))
    np.save(tmp_path / "colours.npy", np.stack([image, image // 2], axis=2).astype(np.uint8))
    np.save(tmp_path / "fortran_colours.npy", np.asfortranarray(np.load(tmp_path / "colours.npy")))
    return image


STRIPS = ("--memory", str(20 * 335 * 48))
FILES = ["image.npy", "fortran.npy", "turned.npy", "colours.npy", "fortran_colours.npy"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("options", [(), ("--corners",), ("--background", "none"), ("--threshold", "1.5")])
def test_the_command_goes_by_strips(
    name: str, options: tuple[str, ...], image: NDArray[np.uint16], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "colours" in name and "--threshold" in options:
        return
    background = None if "none" in options else 0
    of = image >= 2 if "--threshold" in options else image
    want = par.label(of, corners="--corners" in options, background=background, engine="cpu")
    said = invoke(tmp_path, monkeypatch, name, *options, *STRIPS, "--out", "labels.npy", "--json")
    assert said.exit_code == 0 and said.stderr == "", said.stderr
    labels = np.load(tmp_path / "labels.npy")
    assert labels.dtype == np.int32 and labels.flags.c_contiguous
    np.testing.assert_array_equal(labels, want.labels)
    told = json.loads(said.stdout)
    assert (told["nregions"], told["height"], told["width"]) == (want.nregions, *image.shape)
    assert told["background_pixels"] == (want.labels == 0).sum()
    counted = json.loads(invoke(tmp_path, monkeypatch, name, *options, *STRIPS, "--json").stdout)
    differ = ("out", "seconds")
    assert [told.pop(each) for each in differ] and [counted.pop(each) for each in differ] and told == counted


def test_the_memory_that_files_take_is_a_strips(tmp_path: Path) -> None:
    height, width, nrows = 3000, 500, 20
    np.save(tmp_path / "image.npy", np.kron(np.indices((height // 5, width // 5)).sum(0) % 2, np.ones((5, 5))) > 0)
    with labelling.opened_image(tmp_path / "image.npy") as image, (tmp_path / "labels.npy").open("w+b") as stream:
        tracemalloc.start()
        try:
            memory = nrows * width * _label.NBYTES_A_PIXEL
            found = label_regions(image, FileOfLabels(stream), memory_nbytes=memory)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found == Found(height, width, height * width // 50, height * width // 2)
    assert most < memory < height * width


@pytest.mark.parametrize("change, words", [("bytes", "was changed"), ("end", "was changed"), ("stop", "interrupted")])
def test_what_happens_between_strips_leaves_nothing(
    change: str, words: str, image: NDArray[np.uint16], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels.npy").write_bytes(b"what was there before")
    kinds_of, seen = labelling._kinds_of, 0

    def kinds_of_and_more(*arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 4:  # of the second strip its seam and itself, of the third its seam
            if change == "bytes":
                change_and_put_back(tmp_path / "image.npy")
            elif change == "end":
                with (tmp_path / "image.npy").open("r+b") as stream:
                    stream.truncate(math.prod(image.shape))
            else:
                signal.raise_signal(signal.SIGINT)
        return kinds_of(*arguments)

    monkeypatch.setattr(labelling, "_kinds_of", kinds_of_and_more)
    said = invoke(tmp_path, monkeypatch, "image.npy", *STRIPS, "-o", "labels.npy")
    assert seen >= 4 and said.exit_code == (130 if change == "stop" else 1), said.stderr
    assert words in said.stderr and said.stderr.count("\n") == 1 and said.stdout == ""
    if change != "stop":
        assert said.stderr == "gpufs: image.npy: was changed while it was read: try again\n"
    assert names_in(tmp_path) == sorted([*FILES, "labels.npy"])
    assert (tmp_path / "labels.npy").read_bytes() == b"what was there before"


@pytest.mark.parametrize("shape", [(2**62, 0), (0, 2**62), (10**30, 0), (True, 4)])
def test_a_shape_that_no_array_of_labels_has_is_an_error(shape: tuple[int, int], tmp_path: Path, run: Run) -> None:
    with (tmp_path / "lies.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        stream.write(bytes(4))
    done = run("label", "lies.npy", "--out", "labels.npy", "--engine", "cpu")
    assert done.returncode == 1 and "lies.npy: an array of shape" in done.stderr and done.stderr.count("\n") == 1
    assert names_in(tmp_path) == ["lies.npy"]


def test_an_array_of_more_pixels_than_memory_could_have_labels_is_an_error() -> None:
    with pytest.raises(gpufs.GpufsError, match=r"an array of shape \(1099511627776, 1048576\) is no image"):
        par.label(np.broadcast_to(np.uint8(1), (2**40, 2**20)), engine="cpu")


def test_a_link_to_what_is_open_is_not_replaced(tmp_path: Path, run: Run) -> None:
    np.save(tmp_path / "image.npy", np.eye(3, dtype="u1"))
    (tmp_path / "labels.npy").symlink_to("/proc/self/exe")
    done = run("label", "image.npy", "--out", "labels.npy", "--engine", "cpu")
    assert done.returncode == 1 and "labels.npy: names what is open" in done.stderr
    assert (tmp_path / "labels.npy").is_symlink()

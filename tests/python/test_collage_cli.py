# SPDX-License-Identifier: Apache-2.0
"""The command: messages of one line, exit statuses, no tracebacks."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Bytes, Run, names_in
from gpufs import _native
from PIL import Image


@pytest.fixture
def photo_path(photo: Bytes, tmp_path: Path) -> Path:
    Image.fromarray(photo).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_index_then_collage_then_verify(run: Run, pictures: Path, photo_path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_text("x")
    made = run("collage", "index", pictures, "broken.png", "-o", "my.lib", "--tiles")
    assert made.returncode == 0
    assert made.stderr == "gpufs: skipped: broken.png: is not a picture that Pillow can read\n"
    assert "pictures read" in made.stdout and "8" in made.stdout
    result = run("collage", photo_path, "--library", "my.lib", "-o", "out.png", "--engine", "cpu")
    assert (result.returncode, result.stderr) == (0, "")
    assert "against exhaustive search (18 blocks)" in result.stdout
    assert Image.open(tmp_path / "out.png").size == (170, 75)
    verified = run("collage", "verify", "my.lib")
    assert verified.returncode == 0 and "my.lib: sound," in verified.stdout
    described = run("collage", "info", "my.lib")
    assert described.returncode == 0 and "cut into tiles" in described.stdout
    one = run("collage", "info", "my.lib", "--image", "0")
    assert one.returncode == 0 and "photo0.png: the square of" in one.stdout
    none = run("collage", "info", "my.lib", "--image", "99999999")
    assert (none.returncode, none.stderr) == (1, "gpufs: my.lib: has no image 99999999\n")


@pytest.mark.skipif(bool(_native.engine_missing("simt")), reason=_native.engine_missing("simt"))
def test_engines_give_the_same_file(run: Run, library: Path, photo_path: Path, tmp_path: Path) -> None:
    common = ("collage", photo_path, "-l", library)
    assert run(*common, "-o", "cpu.png", "--engine", "cpu").returncode == 0
    small = ("--cache-size", "256K", "--page-size", "4K")
    for i, options in enumerate([("--seed", "1"), ("--seed", "2", "--order", "reversed", *small)]):
        result = run(*common, "-o", f"{i}.png", "--engine", "simt", *options)
        assert result.returncode == 0 and "pages brought in" in result.stdout
        assert (tmp_path / f"{i}.png").read_bytes() == (tmp_path / "cpu.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("collage", "no.png", "-l", "no.lib", "-o", "o.png"), 1, "gpufs: no.lib: No such file or directory"),
        (("collage", "no.png", "-l", "LIBRARY", "-o", "o.png"), 1, "gpufs: no.png: No such file or directory"),
        (("collage", "no.png", "-l", "LIBRARY", "-o", "x/o.png"), 1, "gpufs: x/o.png: there is no folder x"),
        (("collage", "--library", "LIBRARY", "-o", "o.png", "no.png"), 1, "gpufs: no.png: No such file or directory"),
        (("collage", "a\nb", "-l", "LIBRARY", "-o", "o.png"), 1, r"gpufs: a\nb: No such file or directory"),
        (("collage", "index", "nowhere", "-o", "l"), 1, "gpufs: nowhere: there is no such file or folder"),
        (("collage", "verify", "."), 1, "gpufs: .: is a directory, not a collage library"),
        (("collage", "info", "/dev/null"), 1, "gpufs: /dev/null: is not a regular file"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], status: int, message: str, run: Run, library: Path, tmp_path: Path
) -> None:
    result = run(*(library if a == "LIBRARY" else a for a in arguments))
    assert (result.returncode, result.stdout, result.stderr) == (status, "", message + "\n")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("collage", "photo.png"),
        ("collage", "photo.png", "-l", "x", "-o", "y.png", "--engine", "tpu"),
        ("collage", "photo.png", "-l", "x", "-o", "y.png", "--page-size", "1000"),
        ("collage", "photo.png", "-l", "x", "-o", "y.png", "--page-size", "4M"),
        ("collage", "photo.png", "-l", "x", "-o", "y.png", "--cache-size", "lots"),
        ("collage", "index", "x", "-o", "y", "--scales", "1,two"),
        ("collage", "index", "x", "-o", "y", "--key-bits", "99"),
        ("collage", "index", "-o", "y"),
        ("colage",),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], run: Run) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "Usage: gpufs" in result.stderr and "Traceback" not in result.stderr


def test_help(run: Run) -> None:
    for arguments in (
        ("--help",),
        ("collage", "--help"),
        ("collage", "index", "--help"),
        ("collage", "make", "--help"),
    ):
        result = run(*arguments)
        assert result.returncode == 0 and "Usage: gpufs" in result.stdout


def test_a_damaged_library_is_reported(run: Run, library: Path, photo_path: Path, tmp_path: Path) -> None:
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "bad.lib").write_bytes(data)
    for arguments in (("collage", photo_path, "-l", "bad.lib", "-o", "o.png"), ("collage", "verify", "bad.lib")):
        result = run(*arguments)
        assert result.returncode == 1
        assert result.stderr.startswith("gpufs: bad.lib: section ") and result.stderr.count("\n") == 1
    assert not (tmp_path / "o.png").exists()


def test_a_missing_engine_is_said(run: Run, library: Path, photo_path: Path) -> None:
    why = _native.engine_missing("gpu")
    if not why:
        pytest.skip("there is a gpu")
    result = run("collage", photo_path, "-l", library, "-o", "o.png", "--engine", "gpu")
    assert result.returncode == 1 and result.stderr.startswith("gpufs: engine gpu: ")
    result = run("collage", photo_path, "-l", library, "-o", "o.png", "--sample", "0")
    assert result.returncode == 0 and "cpu (" in result.stdout


def test_progress_does_not_reach_files(run: Run, library: Path, photo_path: Path) -> None:
    """Standard error that is no terminal gets messages only."""
    assert run("collage", photo_path, "-l", library, "-o", "o.png").stderr == ""


def test_names_that_the_terminal_cannot_show(
    run: Run, library: Path, photo_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = run("collage", photo_path, "-l", library, "-o", "\u00fc.png")
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "\u00fc.png").exists()
    result = run("collage", "\u00fc\udcff.jpg", "-l", library, "-o", "o.png")
    assert result.returncode == 1 and "Traceback" not in result.stderr


def test_the_stub_names_what_the_module_has() -> None:
    stub = ast.parse(Path(_native.__file__ or "").with_name("_native.pyi").read_text())
    described: dict[str, set[str]] = {
        node.name: {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        for node in stub.body
        if isinstance(node, ast.ClassDef) and not node.bases
    }
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    constants = {ast.unparse(node.target) for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in vars(_native) if not name.startswith("_")} == functions | constants | set(described)
    for name, methods in described.items():
        members = {m for m in vars(getattr(_native, name)) if not m.startswith("_")}
        assert members | {"__init__"} == methods


def test_a_source_picture_is_not_overwritten(run: Run, pictures: Path, photo_path: Path, tmp_path: Path) -> None:
    """Nor by a link to it, by either command that makes libraries, or by a collage."""
    folder = tmp_path / "in"
    shutil.copytree(pictures, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "soft").symlink_to(folder / "photo1.png")
    (tmp_path / "hard").hardlink_to(folder / "photo2.png")
    (tmp_path / "lib").write_bytes(b"GPUFSCOL")
    (tmp_path / "link").symlink_to("lib")
    other = "is there already and is no library; choose another name, or remove it first"
    own = "is one of the inputs"
    for arguments, message in (
        (("index", "in", "-o", "in/photo0.png"), f"in/photo0.png: {other}"),
        (("index", "in", "-o", "soft"), f"soft: {other}"),
        (("index", "in", "-o", "hard"), f"hard: {other}"),
        (("index", "in/photo0.png", "in/photo1.png", "-o", "soft"), f"soft: {own}"),
        (("index", "hard", "-o", "in/photo2.png"), f"in/photo2.png: {own}"),
        (("index", "in", "lib", "-o", "link"), f"link: {own}"),
        (("synth", "10", "in", "-o", "in/photo3.png"), f"in/photo3.png: {other}"),
        (("synth", "10", "soft", "-o", "in/photo1.png"), f"in/photo1.png: {own}"),
        (("in/photo2.png", "-l", "lib", "-o", "hard"), "hard: is the photograph itself"),
        (("in/photo2.png", "-l", "link", "-o", "lib"), "lib: is the library itself"),
    ):
        result = run("collage", *arguments)
        assert (result.returncode, result.stdout, result.stderr) == (1, "", f"gpufs: {message}\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert names_in(tmp_path) == ["hard", "in", "lib", "link", photo_path.name, "soft"]


def test_libraries_and_empty_files_are_replaced(run: Run, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"GPUFSCOL, damaged")
    (tmp_path / "empty").touch()
    for name in ("old", "empty"):
        assert run("collage", "index", pictures, "-o", name).returncode == 0
        assert _native.Library(tmp_path / name).info()["nimages"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("make", "p.png", "-l", "l", "-o", "o.png", "--engine", "simt", "--cache-size", "99999999999T"),
        ("make", "p.png", "-l", "l", "-o", "o.png", "--cache-size", "9" * 400),
        ("make", "p.png", "-l", "l", "-o", "o.png", "--page-size", "99999999999T"),
        ("make", "p.png", "-l", "l", "-o", "o.png", "--grid", "99999999999"),
        ("make", "p.png", "-l", "l", "-o", "o.png", "--seed", str(2**64)),
        ("make", "p.png", "-l", "l", "-o", "o.png", "--resident-blocks", "99999999999"),
        ("index", "p.png", "-o", "new", "--tiles", "--stride", "9" * 40),
        ("info", "l", "--image", "9" * 40),
    ],
)
def test_numbers_that_no_machine_has(
    arguments: tuple[str, ...], run: Run, library: Path, photo_path: Path, tmp_path: Path
) -> None:
    paths: dict[str, str | Path] = {"l": library, "p.png": photo_path}
    result = run("collage", *(paths.get(a, a) for a in arguments))
    assert result.returncode == 2
    assert "Usage: gpufs" in result.stderr and "Traceback" not in result.stderr
    assert names_in(tmp_path) == [photo_path.name]


@pytest.mark.skipif(bool(_native.engine_missing("simt")), reason=_native.engine_missing("simt"))
@pytest.mark.parametrize("size", ["8191P", "1000T"])
def test_a_cache_that_does_not_fit(size: str, run: Run, library: Path, photo_path: Path, tmp_path: Path) -> None:
    result = run("collage", photo_path, "-l", library, "-o", "o.png", "--engine", "simt", "--cache-size", size)
    assert result.returncode in (1, 2) and "Traceback" not in result.stderr
    assert result.returncode == 2 or result.stderr.count("\n") == 1
    assert names_in(tmp_path) == [photo_path.name]


@pytest.mark.parametrize("module", ["typer", "numpy", "PIL"])
@pytest.mark.parametrize("arguments", [("collage", "info", "x"), ("doctor",)])
def test_interrupted_while_modules_load(module: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A module of that name says that it is being loaded, and waits to be interrupted."""
    (tmp_path / f"{module}.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path(__file__).with_suffix('.loads').touch()\n"
        "try:\n"
        "    time.sleep(60)\n"
        "except BaseException as error:\n"
        "    raise ImportError('as some modules tell it') from error\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpufs", *arguments], env=environment, stdout=-1, stderr=-1, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / f"{module}.loads").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=60)
    assert (process.returncode, output, said) == (130, "", "gpufs: interrupted; nothing was written\n")


def test_names_are_printed_escaped(run: Run, pictures: Path, photo_path: Path, library: Path, tmp_path: Path) -> None:
    """Whatever is said of a file, its name cannot command the terminal, or turn the line's direction."""
    evil, shown = "\x1b[2J\u202e\n\u009b1m\udcff.png", r"\x1b[2J\u202e\n\x9b1m\xff.png"
    shutil.copy(photo_path, tmp_path / evil)
    (tmp_path / f"bad{evil}").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / evil).touch()
    made = run("collage", "index", evil, f"bad{evil}", "-o", f"lib{evil}")
    assert (made.returncode, made.stderr) == (0, f"gpufs: skipped: bad{shown}: is not a picture that Pillow can read\n")
    assert f"library lib{shown}" in made.stdout
    where = run("collage", "info", f"lib{evil}", "--image", "0")
    assert where.stdout.startswith(f"{shown}: the square of ")
    said = run("collage", "verify", f"lib{evil}").stdout
    assert said.startswith(f"lib{shown}: sound")
    said += run("collage", "info", f"lib{evil}").stdout + run("doctor", evil, folder).stdout
    assert said.count(shown) == 4 and "\x1b" not in said and "\u202e" not in said and "\u009b" not in said
    said = run("collage", evil, "-l", library, "-o", f"out{evil}").stdout
    assert f"collage out{shown}" in said and (tmp_path / f"out{evil}").exists()
    wrong = run("collage", photo_path, "-l", "x", "-o", "y.png", "--cache-size", evil).stderr
    assert "\x1b" not in wrong and "\u202e" not in wrong

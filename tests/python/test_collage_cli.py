# SPDX-License-Identifier: Apache-2.0
"""The command: messages of one line, exit statuses, no tracebacks."""

from __future__ import annotations

import ast
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
        (("collage", "a\nb", "-l", "LIBRARY", "-o", "o.png"), 1, "gpufs: a?b: No such file or directory"),
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
    assert result.returncode == 0 and "cpu (no gpu: " in result.stdout


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

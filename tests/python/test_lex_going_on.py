# SPDX-License-Identifier: Apache-2.0
"""Lexing that goes on after an interruption: the same tokens, counts and errors, and whose it is what is kept."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, change_and_put_back, names_in
from going_on_support import StoppedError, stop_after
from gpufs import lexing, par, scan_sort, unfinished
from gpufs.commands import app
from typer.testing import CliRunner

# Each has tokens that go over several pieces of 100 bytes, one that is under way where the text ends, and errors.
TEXTS = {
    "json": b'{"a": [1, -2.5e+3, true]}\n' * 6 + b'"' + b"long " * 70 + b'" @ ' + b"[1234567, null]\n" * 20 + b"12345",
    "csv": b"a,b,,\n" * 30 + b'"' + b"long,\n" * 60 + b'" x,' + b'"q""r",2\r\n' * 20 + b"the last field",
    "c": b"int a = f(3); // one\n" * 8 + b"/*" + b" long *" * 50 + b"/ @ " + b"x->y <<= 0x1F;\n" * 20 + b"/* open",
}
PIECE_NBYTES = 100
VOWELS = "kinds error vowel\nstart s\nstate s -\n a e i o u -> begin v\n else -> s\nstate v vowel\n"


def stopped_after(n: int, path: Path, table: str, engine: str = "cpu") -> None:
    """Lexes n pieces of the file, and gives up."""
    with pytest.raises(StoppedError):
        going_on(path, table, engine, on_progress=stop_after(n))


def going_on(path: Path, table: str, engine: str = "cpu", **how: Any) -> lexing.Found:
    by = lexing.table_of(table)
    return lexing.go_on(path, path.parent / "out", by, engine, piece_nbytes=PIECE_NBYTES, **how)


def in_one(path: Path, table: str, engine: str = "cpu") -> tuple[bytes, lexing.Found]:
    """What lexing without an interruption gives."""
    to = path.parent / "whole"
    with lexing.new_token_file(to) as tokens:
        found = lexing.find(path, lexing.table_of(table), engine, tokens, piece_nbytes=PIECE_NBYTES)
    whole = to.read_bytes()
    to.unlink()
    return whole, found


def assert_same(found: lexing.Found, other: lexing.Found) -> None:
    assert (found.nbytes, found.ntokens, found.first_error) == (other.nbytes, other.ntokens, other.first_error)
    np.testing.assert_array_equal(found.kinds, other.kinds)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").write_bytes(TEXTS["json"])
    return tmp_path / "in"


@pytest.mark.parametrize("table", TEXTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_lexing_goes_on_behind_each_piece(engine: str, table: str, tmp_path: Path) -> None:
    source, text = tmp_path / "in", TEXTS[table]
    source.write_bytes(text)
    whole, wanted = in_one(source, table, engine)
    assert wanted.first_error is not None
    npieces = -(-len(text) // PIECE_NBYTES)
    assert npieces >= 7
    for n in range(npieces + 1):
        stopped_after(n, source, table, engine)
        assert names_in(tmp_path) == (["in", "out.unfinished"] if n else ["in"])
        seen: list[int] = []
        found = going_on(source, table, engine, on_progress=lambda done, total, seen=seen: seen.append(done))
        assert (tmp_path / "out").read_bytes() == whole, n
        assert_same(found, wanted)
        assert found.share == pytest.approx(1 - min(n * PIECE_NBYTES, len(text)) / len(text))
        assert len(seen) == (npieces - n + 1 if n < npieces else 0)
        assert names_in(tmp_path) == ["in", "out"]
        (tmp_path / "out").unlink()


def test_lexing_that_is_interrupted_behind_every_piece_comes_to_its_end_by_any_engines(source: Path) -> None:
    whole, wanted = in_one(source, "json")
    npieces = -(-wanted.nbytes // PIECE_NBYTES)
    for i in range(npieces - 1):
        stopped_after(1, source, "json", ENGINES[i % len(ENGINES)])
        assert json.loads((source.parent / "out.unfinished" / "state").read_text())["npieces"] == i + 1
    found = lexing.go_on(source, source.parent / "out", lexing.table_of("json"), ENGINES[-1], piece_nbytes=7)
    assert 0 < found.share < PIECE_NBYTES / wanted.nbytes  # of one piece, which has its old size
    assert (source.parent / "out").read_bytes() == whole
    assert_same(found, wanted)


def test_an_empty_file_has_no_tokens_and_is_done_at_once(source: Path) -> None:
    source.write_bytes(b"")
    stopped_after(1, source, "json")
    found = going_on(source, "json")
    assert (found.nbytes, found.ntokens, found.first_error) == (0, 0, None)
    assert len(np.load(source.parent / "out")) == 0 and names_in(source.parent) == ["in", "out"]


@pytest.mark.parametrize("n", [1, 3])
def test_what_was_written_behind_the_last_save_is_written_again(n: int, source: Path) -> None:
    """As after a crash: the state was not saved since."""
    whole, wanted = in_one(source, "json")
    folder = source.parent / "out.unfinished"
    stopped_after(n, source, "json")
    with (folder / "out").open("ab") as out:
        out.write(b"\xff" * 50_000)
    found = going_on(source, "json")
    assert (source.parent / "out").read_bytes() == whole
    assert_same(found, wanted)


def test_what_was_written_before_the_first_save_is_written_again(source: Path) -> None:
    whole, _ = in_one(source, "json")
    folder = source.parent / "out.unfinished"
    stopped_after(1, source, "json")
    told = json.loads((folder / "state").read_text()) | {"npieces": 0, "sizes": [0, 0]}
    del told["checksum"]
    (folder / "state").write_text(json.dumps(told | {"checksum": unfinished.checksum_of(told)}))
    (folder / "out").write_bytes(b"\xff" * 50_000)
    assert going_on(source, "json").share == 1
    assert (source.parent / "out").read_bytes() == whole


@pytest.mark.parametrize("failing", range(1, 10))
def test_a_piece_that_is_written_in_part_is_written_again(
    failing: int, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the middle of a piece's tokens, or of the header."""
    whole, wanted = in_one(source, "json")
    assert -(-wanted.nbytes // PIECE_NBYTES) == 9
    calls, write = 0, lexing.TokenFile._write

    def full(self: lexing.TokenFile, text: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == failing + 1:
            write(self, text[: len(text) // 2 + 1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, text)

    with monkeypatch.context() as patched:
        patched.setattr(lexing.TokenFile, "_write", full)
        with pytest.raises(gpufs.GpufsError, match=r"out.unfinished: cannot be written: No space left on device$"):
            going_on(source, "json")
    found = going_on(source, "json")
    assert found.share == pytest.approx(1 - min(failing * PIECE_NBYTES, wanted.nbytes) / wanted.nbytes)
    assert (source.parent / "out").read_bytes() == whole
    assert_same(found, wanted)


def test_after_an_error_of_the_disk_nothing_more_is_believed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of bytes that it has lost once. Each save syncs two files."""
    whole, _ = in_one(source, "json")
    calls = 0

    def sync(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", sync)
        patched.setattr(unfinished, "_SAVED_EVERY", 0)
        with pytest.raises(gpufs.GpufsError, match="Input/output error"):
            going_on(source, "json")
    assert calls == 6 and json.loads((source.parent / "out.unfinished" / "state").read_text())["npieces"] == 2
    going_on(source, "json")
    assert (source.parent / "out").read_bytes() == whole


def test_what_is_kept_is_of_one_table_and_one_input(source: Path) -> None:
    folder, table = source.parent / "out.unfinished", source.parent / "table"
    table.write_text(VOWELS)
    stopped_after(3, source, str(table))

    def refused(words: str, by: str = str(table)) -> None:
        with pytest.raises(gpufs.GpufsError, match=words):
            going_on(source, by)

    refused(r"of another job [(]the table's checksum \w{8}, not \w{8}[)]: give the same options, or remove it", "json")
    table.write_text(VOWELS.replace("a e i o u", "a e i o"))
    refused("of another job [(]the table's checksum")
    table.write_text(VOWELS.replace("error vowel", "error letter").replace("v vowel", "v letter"))
    refused("of another job [(]the table's checksum")
    table.write_text(VOWELS)
    with pytest.raises(gpufs.GpufsError, match=r"of another job [(]it is lexed, not scanned[)]"):
        work = scan_sort.scan_work("cpu", None, "add", "u32", False)
        scan_sort.of_file(source, source.parent / "out", work, resume=True)
    kept = (folder / "state").read_text()
    told = json.loads(kept)
    (folder / "state").write_text(kept.replace(told["so_far"], told["so_far"][:-1] + "1"))
    refused("out.unfinished: is damaged, or of another version")
    for so_far in ("", told["so_far"] + 8 * "00"):
        short = {name: value for name, value in told.items() if name != "checksum"} | {"so_far": so_far}
        (folder / "state").write_text(json.dumps(short | {"checksum": unfinished.checksum_of(short)}))
        refused("out.unfinished: is damaged, or of another version")
    (folder / "state").write_text(kept)
    tokens = (folder / "out").read_bytes()
    os.truncate(folder / "out", len(tokens) - 1)
    refused("out.unfinished: is damaged, or of another version of gpufs: remove it to begin anew")
    (folder / "out").write_bytes(tokens)
    stopped_after(1, source, str(table))  # it is whole again, and of the same table by whatever name
    table.rename(source.parent / "renamed")
    stopped_after(1, source, str(source.parent / "renamed"))
    other = source.parent / "other"
    other.write_bytes(source.read_bytes())
    with pytest.raises(gpufs.GpufsError, match=r"out.unfinished: is of another input: remove it to begin anew"):
        going_on(other, str(source.parent / "renamed"))
    change_and_put_back(source)
    refused("is of an input that has changed since", str(source.parent / "renamed"))


def test_an_input_that_changes_meanwhile_is_an_error_and_nothing_is_kept(source: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total:
            change_and_put_back(source)

    with pytest.raises(gpufs.GpufsError, match="in: was changed while it was lexed: try again"):
        going_on(source, "json", on_progress=change)
    assert names_in(source.parent) == ["in"]
    source.unlink()
    with pytest.raises(gpufs.GpufsError, match="in: No such file or directory"):
        going_on(source, "json")
    assert names_in(source.parent) == []


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_may_be_of_a_file_of_tokens(engine: str, resume: bool, source: Path) -> None:
    out = source.parent / "out"
    offsets, kinds, names = par.lex(source, "json", engine=engine)
    if resume:
        stopped_after(3, source, "json", engine)
    found = par.lex(source, "json", out=out, resume=resume, engine=engine)
    assert found.names == names and found.offsets.dtype == np.uint64 and found.kinds.dtype == np.uint8
    np.testing.assert_array_equal(found.offsets, offsets)
    np.testing.assert_array_equal(found.kinds, kinds)
    assert out.read_bytes() == in_one(source, "json")[0] and names_in(source.parent) == ["in", "out"]
    source.write_bytes(b"")
    assert len(par.lex(source, "json", out=out, resume=resume, engine=engine).kinds) == 0


def test_arrays_go_on_from_what_is_kept(source: Path) -> None:
    """Another table is refused, so what is kept is looked at."""
    stopped_after(3, source, "json")
    with pytest.raises(gpufs.GpufsError, match="is of another job"):
        par.lex(source, "csv", out=source.parent / "out", resume=True)
    with pytest.raises(gpufs.GpufsError, match=r"^resume: keeps tokens beside those of out: name it, too$"):
        par.lex(source, "json", resume=True)
    (source.parent / "table").write_text(VOWELS)
    for name, words in [("in", "is the input"), ("table", "is the table"), ("no/out", "there is no folder")]:
        with pytest.raises(gpufs.GpufsError, match=words):
            par.lex(source, source.parent / "table", out=source.parent / name)
    assert source.read_bytes() == TEXTS["json"] and (source.parent / "table").read_text() == VOWELS


# --- The command ----------------------------------------------------------------------------------------------------


def facts_of(said: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Of each file, but for what was measured."""
    assert said.returncode == 0 and said.stderr == "", said.stderr
    measured = ("seconds", "gb_per_s", "share", "out")
    return [{n: v for n, v in of.items() if n not in measured} for of in json.loads(said.stdout)["files"]]


def shares_of(said: subprocess.CompletedProcess[str]) -> list[float]:
    return [of["share"] for of in json.loads(said.stdout)["files"]]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_goes_on_after_an_interruption(
    sent: signal.Signals, status: int, engine: str, source: Path, run: Run
) -> None:
    source.write_bytes(TEXTS["json"] * 2000)
    command = ["lex", "-t", "json", "in", "--engine", engine, "--json", "--piece"]
    whole = run(*command, "64K", "-o", "whole")
    keeping = [*command, "300", "-o", "out", "--resume"]
    started = subprocess.Popen(
        [sys.executable, "-m", "gpufs", *keeping],
        cwd=source.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, until = source.parent / "out.unfinished" / "out", time.monotonic() + 60
    while not (out.exists() and out.stat().st_size > 2000) and time.monotonic() < until:
        time.sleep(0.01)
    started.send_signal(sent)
    said, errors = started.communicate(timeout=60)
    assert started.returncode == status and said == "", errors
    assert errors == "gpufs: interrupted; not all is written: the same command goes on with what is done\n"
    assert names_in(source.parent) == ["in", "out.unfinished", "whole"]
    told = json.loads((source.parent / "out.unfinished" / "state").read_text())
    told["piece_nbytes"] = 65536  # so that the rest takes less time
    del told["checksum"]
    (source.parent / "out.unfinished" / "state").write_text(
        json.dumps(told | {"checksum": unfinished.checksum_of(told)})
    )
    again = run(*keeping)
    assert facts_of(again) == facts_of(whole) and 0 < shares_of(again)[0] < 1
    assert (source.parent / "out").read_bytes() == (source.parent / "whole").read_bytes()
    assert names_in(source.parent) == ["in", "out", "whole"]


def test_a_command_that_was_killed_goes_on_from_what_was_saved(source: Path, run: Run) -> None:
    source.write_bytes(TEXTS["json"] * 20)
    command = ["lex", "-t", "json", "in", "--engine", "cpu", "--json", "--piece", "1000"]
    whole = run(*command, "-o", "whole")
    program = (
        "import os, signal; from pathlib import Path; from gpufs import lexing, unfinished\n"
        "unfinished._SAVED_EVERY = 0\n"
        "stop = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done > 8000 else None\n"
        "by = lexing.table_of('json')\n"
        "lexing.go_on(Path('in'), Path('out'), by, 'cpu', piece_nbytes=1000, on_progress=stop)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=source.parent, env=environment(), check=False)
    assert killed.returncode == -signal.SIGKILL and names_in(source.parent) == ["in", "out.unfinished", "whole"]
    again = run(*command, "-o", "out", "--resume")
    assert facts_of(again) == facts_of(whole)
    assert shares_of(again) == [pytest.approx(1 - 9000 / source.stat().st_size)]
    assert (source.parent / "out").read_bytes() == (source.parent / "whole").read_bytes()
    assert names_in(source.parent) == ["in", "out", "whole"]


def test_after_a_full_disk_the_same_command_goes_on(source: Path, run: Run) -> None:
    source.write_bytes(TEXTS["json"] * 60)
    command = ["lex", "-t", "json", "in", "--engine", "cpu", "--json", "--piece", "1000", "--resume", "-o", "out"]
    line = f"ulimit -f 8; exec {sys.executable} -m gpufs {' '.join(command)}"
    failed = subprocess.run(
        ["bash", "-c", line], cwd=source.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr == f"gpufs: out.unfinished: cannot be written: {os.strerror(errno.EFBIG)}\n"
    again = run(*command)
    whole, wanted = in_one(source, "json")
    assert (source.parent / "out").read_bytes() == whole and 0 < shares_of(again)[0] < 1
    assert facts_of(again)[0]["ntokens"] == wanted.ntokens


def test_of_several_files_those_that_are_complete_are_not_lexed_again(source: Path, run: Run) -> None:
    folder = source.parent / "to"
    folder.mkdir()
    for name in ("a", "b"):
        (source.parent / name).write_bytes(TEXTS["csv"])
    command = ["lex", "-t", "csv", "a", "none", "b", "--engine", "cpu", "--json", "-o", "to", "--resume"]
    failed = run(*command)
    assert failed.returncode == 1 and failed.stderr == "gpufs: none: No such file or directory\n"
    assert names_in(folder) == ["a.tokens.npy.unfinished"]
    (source.parent / "none").write_bytes(b"a,b")
    again = run(*command)
    assert shares_of(again) == [0, 1, 1]
    assert names_in(folder) == ["a.tokens.npy", "b.tokens.npy", "none.tokens.npy"]
    assert facts_of(again)[0]["kinds"] == facts_of(again)[2]["kinds"]
    assert (folder / "a.tokens.npy").read_bytes() == (folder / "b.tokens.npy").read_bytes()
    anew = run(*command)
    assert shares_of(anew) == [1, 1, 1] and facts_of(anew) == facts_of(again)


def test_a_name_that_is_in_the_way_loses_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, wanted = in_one(source, "json")
    with pytest.raises(
        gpufs.GpufsError, match=r"out: cannot be written: Is a directory; it is .*out.unfinished/out now$"
    ):
        going_on(source, "json", on_progress=lambda done, total: (source.parent / "out").mkdir(exist_ok=True))
    (source.parent / "out").rmdir()
    found = going_on(source, "json")
    assert found.share == 0 and (source.parent / "out").read_bytes() == whole
    assert_same(found, wanted)


def test_without_a_file_of_tokens_there_is_nothing_to_go_on_with(source: Path, run: Run) -> None:
    said = run("lex", "-t", "json", "in", "--resume")
    assert said.returncode == 2 and "--resume: keeps tokens beside those of --out: name it, too" in said.stderr
    assert said.stdout == "" and names_in(source.parent) == ["in"]


def test_no_file_gets_its_name_where_one_of_them_has_changed(tmp_path: Path) -> None:
    """Also one that was lexed long before the last one."""
    names = ["first", "second", "third"]
    for name in names:
        (tmp_path / name).write_bytes(TEXTS["json"])
    (tmp_path / "to").mkdir()
    real = lexing.go_on

    def change_the_second(path: Path, *args: Any, **how: Any) -> lexing.Found:
        if path.name == "third":
            (tmp_path / "second").write_bytes(TEXTS["json"] + b" ")
        return real(path, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexing, "go_on", change_the_second)
        patch.chdir(tmp_path)
        said = CliRunner().invoke(app, ["lex", "--table", "json", "--engine", "cpu", "--resume", "--out", "to", *names])
    assert said.exit_code == 1 and "second" in said.stderr and "changed" in said.stderr
    assert not [name for name in names if (tmp_path / "to" / f"{name}.tokens.npy").exists()]

# SPDX-License-Identifier: Apache-2.0
"""The tokens of files against Python's parsers, and the command `gpufs lex`."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import numpy as np
import pytest
from arrays_support import ENGINES
from conftest import Run, names_in
from gpufs import lexing, par
from gpufs.commands import app
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = b'{"a": [1, -2.5e+3, true], "b\\"": "\\u00e4"}\n'
Found = list[tuple[str, bytes]]

# Files of one folder are written again for each example.
fuzzed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def found_in(path: Path, table: str, engine: str, piece_nbytes: int = 0) -> Found:
    """Of each token its kind and its bytes, with what is between it and the next one."""
    by = lexing.table_of(table)
    pieces = list(lexing.each_piece(path, by, engine, piece_nbytes=piece_nbytes))
    offsets = np.concatenate([offsets for offsets, _ in pieces])
    kinds = np.concatenate([kinds for _, kinds in pieces])
    text, names = path.read_bytes(), lexing.names_of(by)
    places = [*offsets.tolist(), len(text)]
    return [(names[kind], text[places[i] : places[i + 1]]) for i, kind in enumerate(kinds.tolist())]


def by_all(path: Path, table: str, piece_nbytes: int = 0) -> Found:
    """The same by all engines, which agree."""
    first, *others = (found_in(path, table, engine, piece_nbytes) for engine in ENGINES)
    for other in others:
        assert other == first
    return first


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """A value's tokens, in their order: of scalars with the value."""
    if isinstance(value, dict):
        yield "{", None
        for i, (key, each) in enumerate(value.items()):
            if i:
                yield ",", None
            yield "string", key
            yield ":", None
            yield from parts_of(each)
        yield "}", None
    elif isinstance(value, list):
        yield "[", None
        for i, each in enumerate(value):
            if i:
                yield ",", None
            yield from parts_of(each)
        yield "]", None
    elif isinstance(value, str):
        yield "string", value
    else:
        yield "word" if value is None or isinstance(value, bool) else "number", value


@fuzzed
@given(values, st.booleans(), st.sampled_from([None, 0, 3]), st.sampled_from([0, 1, 7, 100]))
def test_json_has_the_tokens_of_its_value(
    tmp_path: Path, value: Any, ascii_only: bool, indent: int | None, piece_nbytes: int
) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass"))
    found = [
        (kind, json.loads(text) if kind in ("string", "number", "word") else None)
        for kind, text in by_all(path, "json", piece_nbytes)
    ]
    assert found == list(parts_of(value))


# What docs/guide/lex.md says of JSON's tokens, as an expression: each alternative takes the longest one there is.
JSON = re.compile(
    rb'(?P<gap>[ \t\r\n]+)|(?P<one>[{}\[\]:,])|(?P<string>"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*")'
    rb'|(?P<open>"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*\\?)|(?P<number>[-0-9][-+.eE0-9]*)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)'
    rb"|(?P<byte>.)",
    re.DOTALL,
)


def json_tokens(text: bytes) -> list[tuple[str, int]]:
    found = []
    for match in JSON.finditer(text):
        kind, token = str(match.lastgroup), match[0]
        if kind == "one":
            kind = token.decode()
        elif kind in ("open", "byte") or (kind == "number" and not token[-1:].isdigit()):
            kind = "error"
        if kind != "gap":
            found.append((kind, match.start()))
    return found


@fuzzed
@given(
    st.binary() | st.lists(st.sampled_from([*b'{}[]:,"\\ \n1-.eEtx\x01\xff'])).map(bytes), st.sampled_from([0, 1, 5])
)
def test_bytes_that_are_no_json_have_the_tokens_that_are_promised(
    tmp_path: Path, text: bytes, piece_nbytes: int
) -> None:
    path = tmp_path / "text"
    path.write_bytes(text)
    at, found = len(text) - sum(len(part) for _, part in by_all(path, "json", piece_nbytes)), []
    for kind, part in by_all(path, "json", piece_nbytes):
        found.append((kind, at))
        at += len(part)
    assert found == json_tokens(text)


def rows_of(found: Found) -> list[list[str]]:
    """What a table of comma-separated values has, of its tokens."""
    rows: list[list[str]] = []
    row, is_field, has_begun = [""], False, False
    for kind, text in found:
        assert kind in ("field", "quoted", ",", "newline") and not (is_field and kind in ("field", "quoted"))
        is_field = kind in ("field", "quoted")
        if kind == "newline":
            rows.append(row if has_begun else [])
            row, has_begun = [""], False
            continue
        has_begun = True
        if kind == ",":
            row.append("")
        else:
            row[-1] = text[1:-1].replace(b'""', b'"').decode() if kind == "quoted" else text.decode()
    return [*rows, row] if has_begun else rows


def rows_by_python(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", '"', '""', ",", "\n", "\r\n", "\r", 'a"b', '"a"']
)


@fuzzed
@given(
    st.lists(st.lists(cells, max_size=5), max_size=8),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([0, 1, 9]),
)
def test_csv_has_the_fields_of_its_rows(
    tmp_path: Path, rows: list[list[str]], quoting: Any, newline: str, piece_nbytes: int
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=newline).writerows(rows)
    path = tmp_path / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    assert rows_of(by_all(path, "csv", piece_nbytes)) == rows_by_python(text.getvalue())


@fuzzed
@given(st.text('a", \r\n', max_size=40))
def test_text_without_an_error_is_the_csv_that_python_reads(tmp_path: Path, text: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    found = by_all(path, "csv")
    if all(kind != "error" for kind, _ in found):
        assert rows_of(found) == rows_by_python(text)
    else:
        with pytest.raises(csv.Error):  # strict: what it reads of a broken field otherwise, no other program does
            list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_c_has_names_numbers_strings_comments_and_punctuation(tmp_path: Path) -> None:
    path = tmp_path / "text.c"
    text = (
        b'#include <a.h>\n/* one ** // */ // two \\\n still\nint x_1=0x1F+1.5e-3f-.5;\nf("a\\"b", \'\\\'\', L"c")'
        b"<<= >> a->b ... .. && @ \xc3\xa4 \"open\n'o"
    )
    path.write_bytes(text)
    n, p, c, s, e, d = "name", "punctuation", "comment", "string", "error", "number"
    found = [(kind, part.strip(b" \n")) for kind, part in by_all(path, "c")]
    assert found == [
        (p, b"#"), (n, b"include"), (p, b"<"), (n, b"a"), (p, b"."), (n, b"h"), (p, b">"), (c, b"/* one ** // */"),
        (c, b"// two \\\n still"), (n, b"int"), (n, b"x_1"), (p, b"="), (d, b"0x1F"), (p, b"+"),
        (d, b"1.5e-3f"), (p, b"-"), (d, b".5"), (p, b";"), (n, b"f"), (p, b"("), (s, b'"a\\"b"'),
        (p, b","), ("character", b"'\\''"), (p, b","), (n, b"L"), (s, b'"c"'), (p, b")"), (p, b"<<="), (p, b">>"),
        (n, b"a"),
        (p, b"->"), (n, b"b"), (p, b"..."), (e, b".."), (p, b"&&"), (e, b"@"), (n, b"\xc3\xa4"), (e, b'"open'),
        (e, b"'o"),
    ]  # fmt: skip


def test_c_of_this_project_has_no_error_and_nothing_but_blanks_between_tokens() -> None:
    sources = sorted(ROOT.glob("include/gpufs/par/**/*.hpp"))
    assert len(sources) > 10
    for source in sources:
        text, found = source.read_bytes(), found_in(source, "c", "cpu")
        for kind, part in found:
            assert kind != "error", (source, part)
            token = part.rstrip(b" \n")
            if kind in ("name", "number", "punctuation"):
                assert re.fullmatch(rb"\w+|[\w.+-]+|[^\w\s\"'\\@`]{1,3}", token), (source, token)
        assert text.startswith(found[0][1])


def test_names_and_numbers_of_c_take_dollars_and_bytes_above_ascii(tmp_path: Path) -> None:
    path = tmp_path / "text.c"
    path.write_bytes(b"a$b 1$2 1\xc3\xa4 \xff $")
    n, d = "name", "number"
    assert [(kind, part.strip()) for kind, part in by_all(path, "c")] == [
        (n, b"a$b"), (d, b"1$2"), (d, b"1\xc3\xa4"), (n, b"\xff"), (n, b"$"),
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_lex_gives_arrays(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    path.write_bytes(SAMPLE)
    offsets, kinds, names = par.lex(path, "json", engine=engine)
    assert offsets.dtype == np.uint64 and kinds.dtype == np.uint8 and names[1] == "error"
    assert [names[kind] for kind in kinds] == [kind for kind, _ in parts_of(json.loads(SAMPLE))]
    assert offsets[:4].tolist() == [0, 1, 4, 6]
    path.write_bytes(b"")
    assert len(par.lex(path, "json", engine=engine).offsets) == 0


def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for table, why in [(tmp_path, "Is a directory"), (tmp_path / "none", "there is no table")]:
        with pytest.raises(gpufs.GpufsError, match=why):
            lexing.table_of(table)


def test_kinds_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    table = b"kinds error %s\nstart s\nstate s -\n \xe4 -> begin t\n else -> s\nstate t %s\n"
    (tmp_path / "table").write_bytes(table % (b"\xe4", b"\xe4"))
    (tmp_path / "text").write_bytes(b"x\xe4x")
    with pytest.raises(gpufs.GpufsError, match=r"table '.*table': the names of its kinds are no UTF-8$"):
        par.lex(tmp_path / "text", tmp_path / "table")
    (tmp_path / "table").write_bytes(table % (b"umlaut", b"umlaut"))  # bytes that stand for themselves
    assert par.lex(tmp_path / "text", tmp_path / "table", engine="cpu").offsets.tolist() == [1]


def test_a_table_of_more_than_a_mebibyte_is_none(texts: Path) -> None:
    begin = (texts / "vowels").read_bytes()
    (texts / "table").write_bytes(begin.ljust(1 << 20, b"\n"))
    assert lexing.names_of(lexing.table_of(texts / "table")) == ["", "error", "vowel"]
    (texts / "table").write_bytes(begin.ljust((1 << 20) + 1, b"\n"))
    with pytest.raises(gpufs.GpufsError, match=r"table '.*table': has more than 1 MiB, which is no table$"):
        lexing.table_of(texts / "table")


@pytest.mark.parametrize(
    "path, table, words",
    [
        ("a\0", "json", r"path: no file can have the name 'a\x00'"),
        ("", "json", "path: no file can have the name ''"),
        (3, "json", "path: is no path, but int"),
        ("none", "b\0", r"table: no file can have the name 'b\x00'"),
        ("none", None, "table: is no path, but NoneType"),
    ],
)
def test_what_is_no_path_is_an_error(path: Any, table: Any, words: str) -> None:
    with pytest.raises(gpufs.GpufsError) as error:
        par.lex(path, table)
    assert str(error.value) == words


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(SAMPLE * 100)
    pieces = lexing.each_piece(path, lexing.table_of("json"), "cpu", piece_nbytes=1000)
    next(pieces)
    path.write_bytes(SAMPLE.upper() * 100)
    os.utime(path, ns=(0, 0))
    with pytest.raises(gpufs.GpufsError, match="was changed while it was lexed"):
        list(pieces)


# --- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with files to lex."""
    (tmp_path / "a.json").write_bytes(SAMPLE)
    (tmp_path / "b.json").write_bytes(SAMPLE + b"@")
    (tmp_path / "vowels").write_text(
        "kinds error vowel\nstart s\nstate s -\n a e i o u -> begin v\n else -> s\nstate v vowel\n"
    )
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_writes_tokens(engine: str, texts: Path, run: Run) -> None:
    said = run("lex", "--table", "json", "a.json", "--out", "a.npy", "--engine", engine, "--piece", "3")
    assert said.returncode == 0 and said.stderr == "", said.stderr
    assert said.stdout.startswith(
        "a.json: 15 tokens (1 '{', 1 '}', 1 '[', 1 ']', 2 ':', 3 ',', 3 string, 2 number, 1 word)"
    )
    tokens = np.load(texts / "a.npy")
    wanted = par.lex(texts / "a.json", "json", engine=engine)
    assert tokens.dtype == lexing.TOKEN
    np.testing.assert_array_equal(tokens["offset"], wanted.offsets)
    np.testing.assert_array_equal(tokens["kind"], wanted.kinds)
    assert json.loads(run("cat", "a.npy:0", "--json").stdout) == [0, 2]


def test_the_command_counts_as_json(texts: Path, run: Run) -> None:
    (texts / "to").mkdir()
    said = json.loads(run("lex", "-t", "json", "a.json", "b.json", "-o", "to", "--json", "--engine", "cpu").stdout)
    assert said["table"] == "json" and said["engine"] == "cpu" and len(said["files"]) == 2
    first, second = said["files"]
    assert first["path"] == "a.json" and first["nbytes"] == len(SAMPLE) and first["kinds"]["string"] == 3
    assert first["first_error"] is None and second["first_error"] == len(SAMPLE) and second["kinds"]["error"] == 1
    assert second["ntokens"] == first["ntokens"] + 1 == sum(second["kinds"].values())
    assert names_in(texts / "to") == ["a.json.tokens.npy", "b.json.tokens.npy"]
    assert "the first error is at byte" in run("lex", "-t", "json", "b.json").stdout
    by_file = json.loads(run("lex", "-t", "vowels", "a.json", "--json").stdout)
    assert by_file["files"][0]["kinds"] == {"error": 0, "vowel": sum(map(SAMPLE.count, (b"a", b"e", b"i", b"o", b"u")))}


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["lex", "a.json"], 2, "--table"),
        (["lex", "-t", "json"], 2, "FILE"),
        (["lex", "-t", "yaml", "a.json"], 1, "no table 'yaml' (c, csv, json, paper), nor a file of that name"),
        (["lex", "-t", "a.json", "a.json"], 1, "a.json:1: this is no line of a table"),
        (["lex", "-t", "/dev/zero", "a.json"], 1, "/dev/zero: is no regular file: copy it to one first"),
        (["lex", "-t", ".", "a.json"], 1, "table '.': Is a directory"),
        (["lex", "-t", "json", "none"], 1, "none: No such file"),
        (["lex", "-t", "json", "."], 1, "Is a directory"),
        (["lex", "-t", "json", "a.json", "none", "-o", "to"], 1, "none: No such file"),
        (["lex", "-t", "json", "a.json", "b.json", "-o", "x.npy"], 1, "is no folder"),
        (["lex", "-t", "json", "a.json", "./a.json", "-o", "to"], 1, "would have the tokens of two files"),
        (["lex", "-t", "json", "a.json", "-o", "to/no/x"], 1, "there is no folder"),
        (["lex", "-t", "json", "a.json", "-o", "a.json"], 1, "is one of the inputs"),
        (["lex", "-t", "vowels", "a.json", "-o", "vowels"], 1, "is the table"),
        (["lex", "-t", "json", "a.json", "--piece", "x"], 2, "no size"),
        (["lex", "-t", "json", "a.json", "--engine", "tpu"], 2, "tpu"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_leave_nothing(
    arguments: list[str], status: int, words: str, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(texts)
    (texts / "to").mkdir()
    before = {name: (texts / name).read_bytes() for name in ("a.json", "b.json", "vowels")}
    said = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert said.exit_code == status and words in said.stderr, said.stderr
    if status == 1:
        assert said.stderr.startswith("gpufs: ") and said.stderr.count("\n") == 1 and said.stdout == ""
    assert names_in(texts) == ["a.json", "b.json", "to", "vowels"] and names_in(texts / "to") == []
    assert before == {name: (texts / name).read_bytes() for name in before}


def test_a_fifo_is_not_waited_for(texts: Path, run: Run) -> None:
    os.mkfifo(texts / "fifo")
    for arguments in (("-t", "fifo", "a.json"), ("-t", "json", "fifo")):
        said = run("lex", *arguments, timeout=60)
        assert said.returncode == 1 and said.stderr == "gpufs: fifo: is no regular file: copy it to one first\n"


def test_a_file_that_may_not_be_read_is_no_wrong_usage(texts: Path, unprivileged: Run) -> None:
    for name in ("b.json", "vowels"):
        (texts / name).chmod(0)
    said = unprivileged("lex", "-t", "json", "a.json", "b.json")
    assert said.returncode == 1 and said.stderr == "gpufs: b.json: Permission denied\n"
    said = unprivileged("lex", "-t", "vowels", "a.json")
    assert said.returncode == 1 and said.stderr == "gpufs: table 'vowels': Permission denied\n"


def test_a_full_disk_leaves_nothing(texts: Path) -> None:
    (texts / "large.json").write_bytes(SAMPLE * 2000)
    (texts / "out.npy").write_bytes(b"what was there before")
    command = f"ulimit -f 64; exec {sys.executable} -m gpufs lex -t json large.json -o out.npy --engine cpu"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=texts, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert names_in(texts) == ["a.json", "b.json", "large.json", "out.npy", "vowels"]
    assert (texts / "out.npy").read_bytes() == b"what was there before"


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing(sent: signal.Signals, status: int, texts: Path) -> None:
    (texts / "large.json").write_bytes(SAMPLE * 50_000)
    command = [sys.executable, "-m", "gpufs", "lex", "-t", "json", "large.json", "-o", "out.npy", "--engine", "simt"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        [*command, "--piece", "100"], cwd=texts, env=environment, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        if any(name.endswith(".tmp") for name in names_in(texts)):
            break
        time.sleep(0.05)
    assert any(name.endswith(".tmp") for name in names_in(texts))
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == status and errors == "gpufs: interrupted; nothing was written\n", errors
    assert names_in(texts) == ["a.json", "b.json", "large.json", "vowels"]

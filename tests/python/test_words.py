# SPDX-License-Identifier: Apache-2.0
"""Words and strings in trees of files, against Python and grep; and the commands `gpufs words` and `gpufs grep`."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from arrays_support import ENGINES
from conftest import Run, names_in
from gpufs import _words, words_cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
_specification = importlib.util.spec_from_file_location("make_letters", ROOT / "apps/words/make_letters.py")
assert _specification is not None and _specification.loader is not None
letters: Any = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(letters)

Found = dict[bytes, dict[bytes, int]]  # of words, of paths

# Files of one folder are written again for each example.
fuzzed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def words_of(text: bytes) -> list[str]:
    """What docs/design/words.md calls words, character by character."""
    decoded = text.decode("utf-8", "surrogateescape")
    return ["".join(run) for is_word, run in itertools.groupby(decoded, lambda c: letters.is_word(ord(c))) if is_word]


def fold(word: str) -> str:
    return "".join(chr(letters.folded(ord(c))) for c in word)


def expected(files: dict[bytes, bytes], dictionary: bytes, folds: bool) -> Found:
    form = fold if folds else str
    names: dict[str, bytes] = {}
    for line in dictionary.split(b"\n"):
        line = line.removesuffix(b"\r")
        if line and words_of(line) == [line.decode("utf-8", "surrogateescape")] and len(line) <= 255:
            names.setdefault(form(line.decode()), line)
    found: Found = {}
    for path, text in files.items():
        for word, n in Counter(map(form, words_of(text))).items():
            if word in names:
                found.setdefault(names[word], {})[path] = n
    return found


def found_by(engine: str, folder: Path, dictionary: bytes, folds: bool, piece: int) -> Found:
    """As the engine's file of words, counts and paths has it, which is in order."""
    words, tree = _words.Dictionary(dictionary, folds, "words"), _words.Tree([folder], 2)
    counted = _words.CountedWords(engine, tree, words, 2, piece, 0, folder.parent)
    assert counted.errors() == [] and counted.nbytes() == tree.nbytes()
    to = folder.parent / "rows"
    with to.open("wb") as stream:
        assert counted.write(stream.fileno()) == 0
    rows = [line.split(b"\t") for line in to.read_bytes().splitlines()]
    order = {words.word(i): i for i in range(words.nwords())}
    keys = [(order[word], path) for word, _, path in rows]
    assert keys == sorted(keys) and len({(word, path) for word, _, path in rows}) == len(rows)
    found: Found = {}
    for word, n, path in rows:
        found.setdefault(word, {})[path] = int(n)
    totals = [(order[word], sum(files.values()), len(files)) for word, files in found.items()]
    assert counted.totals() == sorted(totals)
    return found


characters = st.sampled_from(
    [
        *"aAbzZ09_ -.'\n\r\t\0",
        "ä",
        "Ä",
        "ß",
        "ẞ",
        "\u017f",
        "\u212a",
        "\u0301",
        "\u0301",
        "д",
        "Д",
        "字",
        "𐐀",
        "𐐨",
        "“",
        "€",
        "😀",
    ]
)
bytes_cut = st.sampled_from(
    [b"\xc3", b"\xa4", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\xc1\xa1", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
)
texts = st.lists(
    st.text(characters, max_size=6).map(str.encode) | bytes_cut | st.integers(1, 1500).map(lambda n: b"x" * n),
    max_size=40,
).map(b"".join)


@fuzzed
@given(
    st.lists(texts, min_size=1, max_size=4),
    st.lists(st.text(characters, max_size=4).map(str.encode) | st.just(b"x" * 250)),
    st.booleans(),
    st.sampled_from([1, 100, 700, 4096]),
    st.randoms(use_true_random=False),
)
def test_words_are_those_of_python(
    tmp_path: Path, contents: list[bytes], lines: list[bytes], folds: bool, piece: int, draw: random.Random
) -> None:
    folder = tmp_path / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {}
    for i, text in enumerate(contents):
        path = folder / f"{i % 2}" / f"{i}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        files[os.fsencode(path)] = text
    of_texts = [word.encode() for text in contents for word in words_of(text)]
    dictionary = b"\n".join([*lines, *draw.sample(of_texts, len(of_texts) // 2), b"aA\r"])
    for engine in ENGINES:
        assert found_by(engine, folder, dictionary, folds, piece) == expected(files, dictionary, folds), engine


@fuzzed
@given(
    st.lists(texts, min_size=1, max_size=3),
    st.text("ab", min_size=1, max_size=12),
    st.sampled_from([1, 50, 4096]),
    st.randoms(use_true_random=False),
)
def test_strings_have_the_lines_of_python(
    tmp_path: Path, contents: list[bytes], wanted: str, piece: int, draw: random.Random
) -> None:
    folder = tmp_path / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = []
    for i, text in enumerate(contents):
        parts = [
            text.replace(b"\0", b""),
            *(wanted.encode() * draw.randrange(1, 3) + b"ab\n" * draw.randrange(3) for _ in range(5)),
        ]
        draw.shuffle(parts)
        (folder / f"{i}").write_bytes(b"".join(parts))
        for number, line in enumerate(b"".join(parts).split(b"\n"), 1):
            lines += [(i, number, line)] if wanted.encode() in line else []
    tree, string = _words.Tree([folder], 2), _words.WantedString(wanted.encode())
    for engine in ENGINES:
        reader = _words.LinesWith(engine, tree, string, 2, piece, 0, tmp_path)
        found = []
        while some := reader.next():
            found += [(i, number, line) for i, error, is_binary, of in some for number, line in of]
        assert found == lines, engine


def test_letters_are_those_of_unicode() -> None:
    made = (ROOT / "apps/words/letters.inc").read_text()
    version = re.search(r"of Unicode ([\d.]+)\.\n", made)
    assert version is not None
    if version[1] != unicodedata.unidata_version:
        pytest.skip(f"letters.inc is of Unicode {version[1]}, this Python of {unicodedata.unidata_version}")
    done = subprocess.run(
        [sys.executable, ROOT / "apps/words/make_letters.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == made


def test_counts_of_a_source_tree_are_those_of_grep(tmp_path: Path) -> None:
    """GPUFS_SOURCE_TREE, GPUFS_DICTIONARY: another tree, as that of Linux, and its words."""
    tree = Path(os.environ.get("GPUFS_SOURCE_TREE", ROOT / "include"))
    named = os.environ.get("GPUFS_DICTIONARY")
    dictionary = Path(named) if named else tmp_path / "words"
    if not named:
        some = {word for path in tree.rglob("*.hpp") for word in words_of(path.read_bytes())}
        dictionary.write_text("\n".join(sorted(some)[::7]) + "\naardvark\n", "utf-8")
    known, files = _words.Dictionary(dictionary.read_bytes(), False, "words"), _words.Tree([tree])
    counted = _words.CountedWords("cpu", files, known, 0, 0, 0, tmp_path)
    totals = {known.word(i): n for i, n, _ in counted.totals()}
    assert len(totals) > 100
    draw = random.Random(4)
    sample = [*draw.sample(sorted(totals), 10), max(totals, key=lambda word: totals[word]), b"aardvark"]
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    for word in sample:
        command: list[Any] = ["grep", "-arohwF", "--", os.fsdecode(word), tree]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        assert done.returncode in (0, 1)
        assert done.stdout.count(b"\n") == totals.get(word, 0), word


# --- The commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with words and files."""
    (tmp_path / "words").write_text("the\ncat\ncross-bun\nCat\ndog\n")
    (tmp_path / "t/b").mkdir(parents=True)
    (tmp_path / "t/a.txt").write_bytes(b"the cat, the Cat\r\nno word\n")
    (tmp_path / "t/b/c.txt").write_bytes(b"cat the_cat\n\nthe")
    (tmp_path / "t/b/d.bin").write_bytes(b"\0\xff cat\0")
    (tmp_path / "t/empty").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES)
def test_words_prints_counts_in_the_dictionarys_order(engine: str, tree: Path, run: Run) -> None:
    said = run("words", "--dict", "words", "t", "--engine", engine, "-o", "rows")
    assert said.returncode == 0 and said.stdout == "the\t3\t2\ncat\t3\t3\nCat\t1\t1\n"
    assert (tree / "rows").read_text() == (
        "the\t2\tt/a.txt\nthe\t1\tt/b/c.txt\ncat\t1\tt/a.txt\ncat\t1\tt/b/c.txt\ncat\t1\tt/b/d.bin\nCat\t1\tt/a.txt\n"
    )
    first, second = said.stderr.splitlines()
    assert first == "gpufs: words: has a line that is no word, and not looked for: line 3 is 'cross-bun'"
    assert second == f"gpufs: 3 of 4 words occur, 7 times in 4 files (49 B); by {engine} (as asked for)"
    folded = run("words", "-i", "-d", "words", "t/a.txt", "t/b", "--engine", engine)
    assert folded.stdout == "the\t3\t2\ncat\t4\t3\n"


def test_words_as_json(tree: Path, run: Run) -> None:
    said = json.loads(run("words", "-d", "words", "t", "none", "--json", "--engine", "cpu").stdout)
    assert said["words"][0] == {"word": "the", "count": 3, "files": 2} and said["occurrences"] == 7
    assert said["dictionary"] == {"words": 4, "repeated": 0, "not_words": 1}
    assert said["engine"] == "cpu" and said["files"] == 4 and said["out"] is None
    assert said["unreadable"] == [{"path": "none", "error": "No such file or directory"}]
    assert set(said["seconds"]) == {"walk", "start", "find", "order"}


@pytest.mark.parametrize("engine", ENGINES)
def test_grep_prints_lines_as_grep_does(engine: str, tree: Path, run: Run) -> None:
    said = run("grep", "the", "t", "--engine", engine)
    assert said.returncode == 0 and said.stderr == ""
    by_grep = subprocess.run(["grep", "-rnF", "the", "t"], cwd=tree, capture_output=True, check=True).stdout
    ours = subprocess.run(
        [sys.executable, "-m", "gpufs", "grep", "the", "t", "--engine", engine],
        cwd=tree, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert sorted(ours.splitlines(keepends=True)) == sorted(by_grep.splitlines(keepends=True))
    assert run("grep", "cat", "t/b", "--engine", engine).stdout.endswith("Binary file t/b/d.bin matches\n")
    assert run("grep", "the_", "t/b/c.txt", "--engine", engine).stdout == "1:cat the_cat\n"


def test_grep_as_json(tree: Path, run: Run) -> None:
    said = json.loads(run("grep", "cat", "t/b", "--json", "--engine", "cpu").stdout)
    assert said["matches"] == [
        {"path": "t/b/c.txt", "binary": False, "lines": [[1, "cat the_cat"]]},
        {"path": "t/b/d.bin", "binary": True, "lines": []},
    ]


@pytest.mark.parametrize(
    "arguments, status, said",
    [
        (["words", "-d", "words", "t/empty"], 1, ""),
        (["grep", "bird", "t"], 1, ""),
        (["words", "t"], 2, "--dict"),
        (["words", "-d", "none", "t"], 2, "gpufs: dictionary 'none': No such file or directory\n"),
        (["words", "-d", "t/empty", "t"], 2, "gpufs: dictionary 't/empty': has no words; it is a text"),
        (["words", "-d", "words", "t", "none"], 2, "gpufs: none: No such file or directory\n"),
        (["words", "-d", "words", "t", "/dev/null"], 2, "gpufs: /dev/null: is no regular file: copy it to one first\n"),
        (["words", "-d", "words", "t", "-o", "words"], 2, "gpufs: words: is the dictionary\n"),
        (["words", "-d", "words", "t/a.txt", "-o", "t/a.txt"], 2, "gpufs: t/a.txt: is one of the inputs\n"),
        (["words", "-d", "words", "t", "-o", "t/b/rows"], 2, "gpufs: t/b/rows: lies in a folder that is searched"),
        (["words", "-d", "words", "t", "-o", "no/rows"], 2, "gpufs: no/rows: there is no folder no\n"),
        (["words", "-d", "words", "t", "--scratch", "no"], 2, "gpufs: no: is no folder: make it, or name another"),
        (["grep", "", "t"], 2, "gpufs: the string is empty: every line has it\n"),
        (["grep", "a\nb", "t"], 2, "gpufs: the string has an end of line: look for one line at a time\n"),
        (["grep", "cat", "t", "none"], 2, "gpufs: none: No such file or directory\n"),
        (["grep", "a" * 1001, "t"], 2, "gpufs: the string has 1001 bytes: at most 1000 can be looked for\n"),
    ],
)  # fmt: skip
def test_statuses_are_those_of_grep(arguments: list[str], status: int, said: str, tree: Path, run: Run) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    done = run(*arguments)
    assert done.returncode == status and said in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_cannot_be_read_is_named_and_the_others_count(engine: str, tree: Path) -> None:
    known, files = _words.Dictionary(b"cat\n", False, "words"), _words.Tree([tree / "t"])
    (tree / "t/a.txt").unlink()
    counted = _words.CountedWords(engine, files, known, 2, 0, 0, tree)
    assert counted.errors() == [(0, errno.ENOENT)] and counted.totals() == [(0, 2, 2)]
    assert names_in(tree) == ["t", "words"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read all")
def test_a_folder_that_cannot_be_read_is_named(tree: Path, run: Run) -> None:
    (tree / "t/b").chmod(0)
    said = run("words", "-d", "words", "t")
    (tree / "t/b").chmod(0o700)
    assert said.returncode == 2 and "gpufs: t/b/: Permission denied\n" in said.stderr and "cat\t1\t1\n" in said.stdout


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "gpu"])
def test_a_full_disk_leaves_nothing(engine: str, tree: Path) -> None:
    (tree / "many").write_text("".join(f"w{i}\n" for i in range(20_000)))
    (tree / "rows").write_text("what was there before")
    before = names_in(tree)
    command = f"ulimit -f 32; exec {sys.executable} -m gpufs words -d many many -o rows --scratch . --engine {engine}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert names_in(tree) == before and (tree / "rows").read_text() == "what was there before"


@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing(sent: signal.Signals, status: int, tree: Path) -> None:
    (tree / "large").write_bytes(b"the cat sat " * 2_000_000)
    (tree / "scratch").mkdir()
    command = [sys.executable, "-m", "gpufs", "words", "-d", "words", "large", "-o", "rows", "--engine", "simt"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        [*command, "--scratch", "scratch"], cwd=tree, env=environment, stderr=subprocess.PIPE, text=True
    )
    folder = tree / "scratch"
    for _ in range(6000):
        if any(len(names_in(each)) == 4 for each in folder.iterdir()):
            break
        signal.sigtimedwait([], 0.01)
    assert any(len(names_in(each)) == 4 for each in folder.iterdir())  # the kernel runs, or will at once
    started.send_signal(sent)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == status and errors == "gpufs: interrupted; nothing was written\n", errors
    assert names_in(tree) == ["large", "scratch", "t", "words"] and names_in(folder) == []


def test_auto_takes_what_is_estimated_to_be_faster_and_says_why() -> None:
    choose = words_cli.choose_engine

    def unasked() -> str:
        raise AssertionError("to ask for a GPU takes a good part of its start")

    assert choose("simt", 1, 1, 1, unasked) == ("simt", "as asked for")
    assert choose("auto", 10**6, 10**12, 1, lambda: "no driver") == ("cpu", "there is no GPU: no driver")
    few, why = choose("auto", 100, 10**6, 16, unasked)
    assert few == "cpu" and re.fullmatch(r"estimated: cpu [\d.e-]+ s by 16 cores, gpu 0\.4 s, 0\.4 of it to start", why)
    assert choose("auto", 10**5, 10**11, 4, lambda: "")[0] == "gpu"

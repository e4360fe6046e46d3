# SPDX-License-Identifier: Apache-2.0
"""Words and strings in trees of files, for `gpufs words` and `gpufs grep` (apps/words/python_module.cpp)."""

import os
from collections.abc import Callable, Sequence

Path = str | bytes | os.PathLike[str]
Progress = Callable[[int, int], None]

class Tree:
    """The regular files that paths name, in order."""

    def __init__(self, paths: Sequence[Path], nthreads: int = 0) -> None: ...
    def nfiles(self) -> int: ...
    def nbytes(self) -> int: ...
    def is_one_file(self) -> bool:
        """One path was given, which is no folder."""

    def path(self, i: int) -> bytes:
        """Of file i, as it was named."""

    def failures(self) -> list[tuple[bytes, int]]:
        """What could not be looked at: path and errno."""

class Dictionary:
    """The different words of a text."""

    def __init__(self, text: bytes, folds: bool, name: str) -> None:
        """name: what errors call it."""

    def nwords(self) -> int: ...
    def word(self, i: int) -> bytes: ...
    def nrepeated(self) -> int:
        """How many lines have a word that was there."""

    def no_words(self) -> tuple[int, int, bytes]:
        """How many lines are no word; the first one's number and text."""

class WantedString:
    """A string to find."""

    def __init__(self, text: bytes) -> None: ...

class CountedWords:
    """How often, and in which files, there are a dictionary's words."""

    def __init__(
        self,
        engine: str,
        tree: Tree,
        words: Dictionary,
        nthreads: int,
        piece_nbytes: int,
        device: int,
        scratch: Path,
        progress: Progress | None = None,
    ) -> None:
        """piece_nbytes: of a file, searched by one thread; 0: the usual."""

    def errors(self) -> list[tuple[int, int]]:
        """Of files that could not be read, and count nothing: number and errno."""

    def nbytes(self) -> int:
        """How many were searched."""

    def seconds(self) -> tuple[float, float, float]:
        """To start the engine, to find, and to put in order."""

    def totals(self) -> list[tuple[int, int, int]]:
        """Of each word that occurs: its number, how often, in how many files."""

    def write(self, fd: int) -> int:
        """A line for each word and file: 0 or an errno."""

class LinesWith:
    """The lines that have a string."""

    def __init__(
        self,
        engine: str,
        tree: Tree,
        text: WantedString,
        nthreads: int,
        piece_nbytes: int,
        device: int,
        scratch: Path,
        progress: Progress | None = None,
    ) -> None: ...
    def errors(self) -> list[tuple[int, int]]: ...
    def nbytes(self) -> int: ...
    def next(self) -> list[tuple[int, int, bool, list[tuple[int, bytes]]]]:
        """Of the next files: number, errno, whether it is binary, and the lines: number and text.

        Nothing after the last ones.
        """

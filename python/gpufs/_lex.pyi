# SPDX-License-Identifier: Apache-2.0
"""Tokens of files, for gpufs.par.lex() (apps/lex/python_module.cpp)."""

import os

class Table:
    """An automaton that finds tokens."""

    @staticmethod
    def parse(text: bytes, name: str) -> Table:
        """Of a text; name: what errors call it."""

    @staticmethod
    def named(name: str) -> Table:
        """One that is there."""

    @staticmethod
    def names() -> list[str]:
        """Of those that are there."""

    def kinds(self) -> list[str]:
        """The kinds of tokens, from number 1 on."""

    def nstates(self) -> int: ...
    def checksum(self) -> int:
        """Of what it does: 32 bits."""

class Lexer:
    """A regular file whose tokens are found piece by piece."""

    def __init__(
        self, engine: str, path: str | bytes | os.PathLike[str], table: Table, piece_nbytes: int, device: int
    ) -> None: ...
    def nbytes(self) -> int: ...
    def ndone(self) -> int:
        """How many bytes have been lexed."""

    def piece_nbytes(self) -> int:
        """How many bytes are lexed at a time."""

    def so_far(self) -> tuple[int, int, int]:
        """Where it is: the next byte, where the token under way began, and the state; there another lexer goes on."""

    def go_on(self, offset: int, begin: int, state: int) -> None:
        """From there on, before the first next()."""

    def next(self) -> int:
        """Lexes the next piece, and waits: how many tokens end in it."""

    def copy(self, offsets: int, kinds: int) -> None:
        """Those tokens, to memory for as many uint64 and uint8."""

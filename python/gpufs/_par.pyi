# SPDX-License-Identifier: Apache-2.0
"""Scans and sorts of files and of the host's memory, for gpufs.par (apps/par/python_module.cpp)."""

import os

_Path = str | bytes | os.PathLike[str]
_State = tuple[int, int, bytes]

class Ends:
    """What a job reads, and what it writes."""

    @staticmethod
    def of_files(path: _Path, verb: str, out_path: _Path, descriptor: int) -> Ends:
        """verb: what is done with the file. descriptor: of the output, open for reading and writing."""

    @staticmethod
    def of_memory(address: int, out_address: int, nbytes: int) -> Ends:
        """Of the host."""

class Job:
    """A scan or a sort that is under way."""

    def next(self) -> bool:
        """Waits for the next piece; False: all is done."""

    def ndone(self) -> int:
        """How many of nbytes() have been written."""

    def nbytes(self) -> int: ...
    def state(self) -> _State:
        """Of all that next() has waited for; with it another job goes on from there."""

    def close(self) -> None:
        """Waits for what is under way, and does no more."""

def scan(
    engine: str,
    device: int,
    of: Ends,
    op: str,
    type: str,
    exclusive: bool,
    piece_nbytes: int,
    state: _State | None = None,
) -> Job:
    """piece_nbytes: 0: the engine's own choice. state: of a job that was given up, whose pieces have their size."""

def space_to_scan(engine: str, device: int, nbytes: int, op: str, type: str) -> int:
    """How many bytes scan_there takes besides, of the engine's own memory."""

def scan_there(
    engine: str,
    device: int,
    address: int,
    out_address: int,
    nbytes: int,
    op: str,
    type: str,
    exclusive: bool,
    space: int,
    space_nbytes: int,
) -> None:
    """Of an array in the engine's own memory, which is ready, with a space aligned to 256 bytes. Waits."""

def space_to_sort(engine: str, device: int, nbytes: int, type: str) -> int:
    """How many bytes sort_there takes besides, of the engine's own memory."""

def sort_there(
    engine: str,
    device: int,
    address: int,
    nbytes: int,
    type: str,
    descending: bool,
    space: int,
    space_nbytes: int,
) -> None:
    """Of keys in the engine's own memory, which are ready, in their place, with a space aligned to 256 bytes. Waits."""

def sort(
    engine: str,
    device: int,
    of: Ends,
    type: str,
    record_nbytes: int,
    key_offset: int,
    descending: bool,
    memory_nbytes: int,
    scratch: _Path | None,
    prefers_memory: bool = False,
    scratch_descriptor: int = -1,
    state: _State | None = None,
) -> Job:
    """scratch: the folder where runs go; None: memory of the host.

    prefers_memory: there all the same, if half of what is free has room. scratch_descriptor: or the file of the folder,
    open for reading and writing. state: as of scan().
    """

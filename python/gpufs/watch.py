# SPDX-License-Identifier: Apache-2.0
"""What other processes publish (gpufs.publish), read and turned into rates: the inside of `gpufs top`."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufs import publish

SILENT_S = 5.0  # a process that has not written for so long does something that keeps it from it
_GONE_S = 60.0  # and one of another container, of which nothing else can be known, has ended
_MOST_NBYTES = 16 << 20  # of a file: that is no publisher's
_NAME = re.compile(r"(\d{1,20})-(\d{1,10})\.(json|tmp)")
_COUNTED = (*publish.COUNTERS, "nbytes")
_TEXTS, _NUMBERS = ("root", "engine"), ("number", "nfiles")
_MAYBE_NUMBERS = ("device", "page_nbytes", "cache_nbytes")


@dataclass(frozen=True)
class Process:
    """What a process said when it wrote last. Its mounts and their files are as they were in the file, and checked."""

    pid: int
    namespace: int  # that the pid is of
    start: int
    command: str
    time_s: float  # of its clock, which does not go back
    mounts: list[dict[str, Any]]
    age_s: float = 0.0  # since it wrote that


@dataclass
class Rates:
    """What counters have grown by in a second. hit_rate: of the pages that were looked up, None if none were."""

    seconds: float
    hit_rate: float | None
    per_s: dict[str, float]


@dataclass
class Seen:
    """A process that is watched, with the rates of its mounts, by number, and of their files, by number and path."""

    now: Process
    mounts: dict[int, Rates] = field(default_factory=dict)
    files: dict[tuple[int, str], Rates] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        return self.now.age_s > SILENT_S


class NewerFormatError(Exception):
    """A process with a later version of gpufs has written it."""


class Watcher:
    """The processes of this user that publish. While touch() is called every few seconds they do."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], Seen] = {}
        self.nnewer = 0  # processes whose format is a later one, in the last look

    def touch(self) -> None:
        """Raises GpufsError where there is no folder that is this user's alone, and OSError."""
        folder = publish.open_folder(make=True)
        try:
            publish.touch(folder)
        finally:
            os.close(folder)

    def look(self) -> list[Seen]:
        """The processes that have published, by pid. Rates are since the look before; there are none at first.

        Files of processes that have ended are removed.
        """
        folder = publish.open_folder(make=True)
        try:
            found = self._read_all(folder)
        finally:
            os.close(folder)
        before, self._seen = self._seen, {}
        for process in found:
            key = (process.namespace, process.pid, process.start)
            self._seen[key] = _later(before.get(key), process)
        return sorted(self._seen.values(), key=lambda seen: (seen.now.pid, seen.now.namespace))

    def _read_all(self, folder: int) -> list[Process]:
        found, self.nnewer = [], 0
        for name in os.listdir(folder):
            match = _NAME.fullmatch(name)
            try:
                process = None if match is None else _read(folder, name, int(match[1]), int(match[2]))
            except NewerFormatError:
                self.nnewer += 1
                continue
            except (OSError, ValueError):  # it is gone, half written, or nothing that gpufs wrote
                continue
            if process is not None:
                found.append(process)
        return found


def _read(folder: int, name: str, namespace: int, pid: int) -> Process | None:
    """The process that this file is of; None: it has ended, and the file is removed. Raises as parse(), and OSError."""
    of = os.stat(name, dir_fd=folder, follow_symlinks=False)
    age_s = max(0.0, time.time() - of.st_mtime)
    is_here = namespace == publish.pid_namespace()
    start = publish.start_of(pid) if is_here else None
    if start is None if is_here else age_s > _GONE_S:
        os.unlink(name, dir_fd=folder)
        return None
    if name.endswith(".tmp") or not stat.S_ISREG(of.st_mode) or of.st_size > _MOST_NBYTES:
        raise ValueError("it is being written, or is nothing that gpufs wrote")
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        process = parse(file.read(_MOST_NBYTES), age_s)
    if (process.namespace, process.pid) != (namespace, pid):
        raise ValueError("it is another process's")
    if is_here and process.start != start:  # it had the pid before
        os.unlink(name, dir_fd=folder)
        return None
    return process


def parse(text: bytes, age_s: float = 0.0) -> Process:
    """Reads a published file. Raises ValueError where it is none, and NewerFormatError."""
    try:
        whole = json.loads(text)
        if not isinstance(whole, dict):
            raise ValueError("it is no object")
        if _number(whole["version"]) > publish.VERSION:
            raise NewerFormatError
        if whole["version"] != publish.VERSION:
            raise ValueError("there was no such version")
        pid, namespace, start = (_number(whole[key]) for key in ("pid", "pid_namespace", "start"))
        time_s = float(whole["time_s"])
        if not math.isfinite(time_s):
            raise ValueError("time_s is no time")
        mounts = [_mount(mount) for mount in _list(whole["mounts"])]
        return Process(pid, namespace, start, _text(whole["command"]), time_s, mounts, age_s)
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not as gpufs writes it: {error!r}") from error


def _mount(of: Any) -> dict[str, Any]:
    if not isinstance(of, dict) or not isinstance(of["writable"], bool):
        raise ValueError("a mount is wrong")
    mount: dict[str, Any] = {key: _number(of[key]) for key in _NUMBERS} | {key: _text(of[key]) for key in _TEXTS}
    mount |= {key: None if of[key] is None else _number(of[key]) for key in _MAYBE_NUMBERS}
    mount["writable"] = of["writable"]
    counters = {name: _number(value) for name, value in of["counters"].items()}
    mount["counters"] = dict.fromkeys(publish.COUNTERS, 0) | counters
    mount["files"] = [_file(file) for file in _list(of["files"])]
    return mount


def _file(of: Any) -> dict[str, Any]:
    if not isinstance(of, dict):
        raise ValueError("a file is wrong")
    return {"path": _text(of["path"]), "way": _text(of["way"])} | {
        name: _number(of[name]) for name in _COUNTED if name in of
    }


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is no number of anything")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def _later(before: Seen | None, now: Process) -> Seen:
    """The process with its rates since it was seen before; as they were, if it has not written since; none if long."""
    seen = Seen(now)
    if before is None:
        return seen
    seconds = now.time_s - before.now.time_s
    if seen.is_silent:
        return seen
    if seconds <= 0:
        seen.mounts, seen.files = before.mounts, before.files
        return seen
    mounts = {mount["number"]: mount for mount in before.now.mounts}
    for mount in now.mounts:
        earlier = mounts.get(mount["number"])
        if earlier is None:
            continue
        rates = seen.mounts[mount["number"]] = _rates(seconds, earlier["counters"], mount["counters"], None)
        files = {file["path"]: file for file in earlier["files"]}
        for file in mount["files"]:
            if file["path"] in files:
                key = mount["number"], file["path"]
                seen.files[key] = _rates(seconds, files[file["path"]], file, rates)
    return seen


def _rates(seconds: float, before: dict[str, Any], now: dict[str, Any], most: Rates | None) -> Rates:
    """most: the mount's. A file that is opened anew goes on with the numbers of another one, and seems to jump."""
    grown = {name: max(0, now[name] - before.get(name, 0)) for name in publish.COUNTERS if name in now}
    per_s = {name: n / seconds for name, n in grown.items()}
    if most is not None:
        per_s = {name: min(rate, most.per_s[name]) for name, rate in per_s.items()}
    looked_up = sum(per_s.get(name, 0.0) for name in ("hits", "faults", "waits"))
    return Rates(seconds, per_s.get("hits", 0.0) / looked_up if looked_up else None, per_s)


def belongs_to_others(pid: int) -> bool:
    try:  # not the folder's owner, which is root of a process that may not be dumped, and of any in some sandboxes
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    owner = re.search(r"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    return owner is not None and int(owner[1]) != os.geteuid()

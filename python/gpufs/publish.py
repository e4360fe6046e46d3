# SPDX-License-Identifier: Apache-2.0
"""What `gpufs top` shows: while somebody watches, a thread writes what this process's mounts count to a small file.

docs/design/watching.md has the format, and why it is so. Nothing here may disturb the program: what fails is not
published, and tried again a second later.
"""

from __future__ import annotations

import atexit
import errno
import heapq
import itertools
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpufs.errors import GpufsError
from gpufs.text import printable

VERSION = 1
PERIOD_S = 1.0
WATCHED, WATCHED_S = "watched", 5.0  # the file that watchers touch, and how old its time may be
MOST_FILES = 256  # of a mount: the busiest of more
_MOST_COMMAND = 256  # characters
_END_S = 1.0  # how long a fork, or the process's end, waits for the thread
_START_S = 10.0  # how long the process's end waits while the thread starts

COUNTERS = ("hits", "faults", "waits", "evictions", "bytes_read", "bytes_filled", "bytes_written")

_RUN, _LAST_RESORT = "/run/user", "/tmp"  # where systemd has folders of users; where a user can always make one

sources: list[Callable[[], list[dict[str, Any]]]] = []  # each gives the mounts of a module, as Mount.describe() does
_numbers = itertools.count(1)

_wanted = os.environ.get("GPUFS_WATCH") != "0"
_starting = threading.Lock()
_thread: threading.Thread | None = None
_stop = threading.Event()
_publisher: Publisher | None = None
_beside_threads = False
_ends_in = 0  # the process whose end by multiprocessing ends the thread, too
_had_thread = False  # when the process was forked last


def new_number() -> int:
    """Of a mount: it tells the process's mounts apart."""
    return next(_numbers)


def start(*, beside_threads: bool) -> None:
    """Has the process's mounts published from now on, when somebody watches. Costs next to nothing if they are already.

    beside_threads: the process has other threads as long as it has the mount, so a fork need not find it without ours.
    """
    global _thread, _stop, _beside_threads
    _beside_threads = _beside_threads or beside_threads
    if _thread is not None or not _wanted or not _starting.acquire(blocking=False):
        return
    try:
        if _thread is None and _wanted:
            _end_also_in_workers()
            _stop = threading.Event()
            thread = threading.Thread(target=_run, args=(_stop,), name="gpufs-publish", daemon=True)
            thread.start()
            _thread = thread
    except RuntimeError:  # the process has as many threads as it may
        pass
    finally:
        _starting.release()


def _end_also_in_workers() -> None:
    """Processes that multiprocessing forks end without atexit."""
    global _ends_in
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _ends_in != os.getpid():
        _ends_in = os.getpid()
        util.Finalize(None, at_exit, exitpriority=1)  # before what ends mounts


def _end() -> None:
    global _thread
    thread, _thread = _thread, None
    if thread is not None:
        _stop.set()
        thread.join(_END_S)


def _before_fork() -> None:
    """A fork takes no thread along, and Python warns of forks beside threads, as one may have a lock."""
    global _had_thread
    _had_thread = _thread is not None
    _end()


def _after_fork() -> None:
    if _had_thread and (_beside_threads or is_watched()):  # else whoever reads next starts it
        start(beside_threads=False)


def _in_child() -> None:
    global _thread, _publisher, _starting, _beside_threads
    _thread, _publisher, _starting, _beside_threads = None, None, threading.Lock(), False


def at_exit() -> None:
    """Also lets no thread start from now on, though daemon threads may still make mounts.

    Of some Pythons (3.11.2 is one) a thread crashes whose first step comes when the interpreter has ended.
    """
    global _wanted
    _wanted = False
    if _starting.acquire(timeout=_START_S):  # another thread has none under way
        _starting.release()
    _end()
    if _publisher is not None:
        _publisher.withdraw()


def _run(stop: threading.Event) -> None:
    global _publisher
    while not stop.wait(PERIOD_S):
        try:
            _publisher = _publisher or Publisher()
            _publisher.tick()
        except Exception:  # the device may be lost, the folder gone, memory short: none of it is the program's concern
            continue


class Publisher:
    """This process's file: written while it is watched, and removed after that."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._namespace, self._start = pid_namespace(), start_of(self._pid)
        self._name = file_name(self._namespace, self._pid)
        self._is_written = False
        self._moved: dict[tuple[int, str], int] = {}  # by mount and file, when it was written last

    def tick(self) -> None:
        """What is done once a second. Not watched, it costs a look at a file that is mostly not there."""
        if is_watched():
            self.write()
        elif self._is_written:
            self.withdraw()

    def write(self) -> None:
        """Puts the file of now in place of the last one. Raises GpufsError and OSError as open_folder()."""
        import json

        folder = open_folder()
        try:
            text = json.dumps(self.document(), allow_nan=False, separators=(",", ":"))
            put(folder, self._name, text.encode())
            self._is_written = True
        finally:
            os.close(folder)

    def withdraw(self) -> None:
        if not self._is_written:
            return
        self._is_written = False
        with suppress(OSError, GpufsError):  # somebody else has removed it
            folder = open_folder()
            try:
                os.unlink(self._name, dir_fd=folder)
            finally:
                os.close(folder)

    def document(self) -> dict[str, Any]:
        mounts = sorted((mount for source in sources for mount in source()), key=lambda mount: mount["number"])
        now = time.monotonic()
        moved: dict[tuple[int, str], int] = {}
        for mount in mounts:
            files = mount["files"]
            for file in files:
                moved[mount["number"], file["path"]] = _moved_by(file)
            mount["nfiles"] = len(files)
            mount["files"] = heapq.nlargest(MOST_FILES, files, key=partial(self._busy, mount["number"]))
        self._moved = moved
        return {
            "version": VERSION,
            "pid": self._pid,
            "pid_namespace": self._namespace,
            "start": self._start,
            "command": _command(),
            "time_s": now,
            "mounts": mounts,
        }

    def _busy(self, mount: int, file: dict[str, Any]) -> tuple[int, int]:
        n = _moved_by(file)
        return n - self._moved.get((mount, file["path"]), 0), n


def _moved_by(file: dict[str, Any]) -> int:
    n: int = file["bytes_read"] + file["bytes_filled"] + file["bytes_written"]
    return n


def _command() -> str:
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return os.fsdecode(b" ".join(words).strip())[:_MOST_COMMAND] or sys.executable


def pid_namespace() -> int:
    """The number of the namespace that this process's pid is of: in a container it is another one."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


def start_of(pid: int) -> int | None:
    """When the process began, in the system's ticks; None: it has ended. With it a pid is not taken for a later one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 1 :].split()
    return None if fields[0] in b"ZX" else int(fields[19])  # proc(5)


def file_name(namespace: int, pid: int) -> str:
    return f"{namespace}-{pid}.json"


def folder_path() -> Path:
    """Where the processes of this user publish."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if given.is_absolute():
        return given / "gpufs"
    user = os.geteuid()
    usual = Path(_RUN) / str(user)
    with suppress(OSError):
        of = usual.lstat()
        if stat.S_ISDIR(of.st_mode) and of.st_uid == user:
            return usual / "gpufs"
    return Path(_LAST_RESORT) / f"gpufs-{user}"


def open_folder(*, make: bool = False) -> int:
    """A descriptor of the folder, which nobody else can read or write.

    make: makes it where it is not there, as watchers do. Raises OSError where it is not there or cannot be made, and
    GpufsError where it is a link, somebody else's, or open to others.
    """
    path = folder_path()
    if make:
        try:
            path.mkdir(0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise GpufsError(
                f"'{printable(path)}' cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours, for "
                "what is watched, too"
            ) from error
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            raise GpufsError(f"'{printable(path)}' is no folder, a link, or closed to you: {_REMEDY}") from error
        raise
    of = os.fstat(folder)
    if of.st_uid == os.geteuid() and not of.st_mode & 0o077:
        return folder
    os.close(folder)
    raise GpufsError(
        f"'{printable(path)}' is not only yours (its owner is {of.st_uid}, its mode {stat.S_IMODE(of.st_mode):o}): "
        + _REMEDY
    )


_REMEDY = "remove it, or set XDG_RUNTIME_DIR to a folder of yours, for what is watched, too"


def put(folder: int, name: str, text: bytes) -> None:
    """Writes a file that others see whole or not at all, and of which only its owner sees anything."""
    temporary = name.removesuffix(".json") + ".tmp"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)  # of a process that was killed, and had the same pid
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(text)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def touch(folder: int) -> None:
    """Says that somebody watches, for WATCHED_S from now."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(WATCHED, flags, 0o600, dir_fd=folder)
    try:
        os.utime(file)
    finally:
        os.close(file)


def is_watched() -> bool:
    try:
        touched = (folder_path() / WATCHED).lstat().st_mtime
    except OSError:
        return False
    return abs(time.time() - touched) < WATCHED_S


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
atexit.register(at_exit)

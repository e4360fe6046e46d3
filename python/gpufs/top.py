# SPDX-License-Identifier: Apache-2.0
"""The command `gpufs top`: what the mounts of other processes do."""

from __future__ import annotations

import io
import itertools
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpufs import publish
from gpufs.collage.cli import reports_errors
from gpufs.collage.interrupt import TerminatedError, sigterm_interrupts
from gpufs.doctor import size_text
from gpufs.errors import GpufsError
from gpufs.text import printable
from gpufs.watch import Rates, Seen, Watcher, belongs_to_others

_MOST_LISTED = 10  # files of a mount
_FIRST_S = publish.PERIOD_S + 0.5  # until every process has noticed that it is watched, and has written
_BROKEN_PIPE = 141  # as a shell has it for SIGPIPE
_INTERRUPTED, _TERMINATED = 130, 143
_WIDE = 10_000  # columns: lines that go elsewhere than to a terminal are not cut
_MOVED = ("bytes_read", "bytes_filled", "bytes_written")
_RIGHT = ("hit", "GB/s", "in", "out", "faults/s", "evict/s", "waits/s")


def top(
    pid: Annotated[int | None, typer.Option(min=1, help="Of this process alone.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One table, after two intervals.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a line an interval.")] = False,
    interval: Annotated[float, typer.Option(min=1, max=3600, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch the mounts of your running programs: hit rate, GB/s, faults, and which way each file's bytes take.

    Programs publish what they count while this runs. q leaves; so does Control-C, with exit status 130.
    """
    live = not once and not as_json and sys.stdout.isatty() and not _terminal().is_dumb_terminal
    looks = _looks(Watcher(), pid, interval, once)
    try:
        with sigterm_interrupts():
            if live:
                _show(looks)
            else:
                _write(looks, _as_json if as_json else _as_text)
    except BrokenPipeError:  # who reads it has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the interpreter flushes at its end goes there
        raise typer.Exit(_BROKEN_PIPE) from None
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(_TERMINATED if isinstance(interrupt, TerminatedError) else _INTERRUPTED) from None


def _terminal() -> Console:
    return Console(highlight=False, emoji=False)


# What is seen, one interval after another. The caller waits between two, so that a live view can read keys meanwhile.
Looks = Iterator[tuple[float, list[Seen] | None, str]]


def _looks(watcher: Watcher, pid: int | None, interval: float, once: bool) -> Looks:
    """Yields (s, seen, note): the caller shows what was seen, if anything, and comes back after s seconds.

    Ends after the first rates, if once; and with the process that is meant. Raises GpufsError: there is no such
    process, or, if once, it says nothing.
    """
    was_there = False
    watcher.touch()
    _check_is_there(pid)
    yield from _pause(watcher, _FIRST_S)
    for nlooks in itertools.count():
        seen = [process for process in watcher.look() if pid in (None, process.now.pid)]
        was_there = was_there or bool(seen)
        if pid is not None and not seen and not _exists(pid):
            if not was_there:
                _check_is_there(pid)
            return
        if not once or nlooks == 1:
            if once and pid is not None and not seen:
                raise GpufsError(_says_nothing(pid))
            yield 0, seen, _note(watcher, pid, seen)
            if once:
                return
        yield from _pause(watcher, max(interval, _FIRST_S) if once else interval)


def _pause(watcher: Watcher, seconds: float) -> Looks:
    """Keeps processes publishing meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        watcher.touch()
        yield min(left, publish.PERIOD_S), None, ""


def _exists(pid: int) -> bool:
    return publish.start_of(pid) is not None


def _check_is_there(pid: int | None) -> None:
    if pid is None:
        return
    if not _exists(pid):
        raise GpufsError(f"there is no process {pid}: 'gpufs top' shows those that have mounts")
    if belongs_to_others(pid):
        raise GpufsError(f"process {pid} is another user's, who alone can watch it: run gpufs top as that user")


def _says_nothing(pid: int) -> str:
    return (
        f"process {pid} does not publish: it has made no mount by Python yet, was started with GPUFS_WATCH=0, or with "
        f"another XDG_RUNTIME_DIR (here it would be in '{printable(publish.folder_path())}')"
    )


def _note(watcher: Watcher, pid: int | None, seen: list[Seen]) -> str:
    if watcher.nnewer:
        return f"{watcher.nnewer} more have a later gpufs than this one, which does not understand them: update it"
    if seen:
        return ""
    return "no process with mounts is running" if pid is None else _says_nothing(pid)


def _write(looks: Looks, as_line: Callable[[list[Seen], str], str]) -> None:
    for seconds, seen, note in looks:
        if seen is not None:
            sys.stdout.write(as_line(seen, note) + "\n")
            sys.stdout.flush()
        time.sleep(seconds)


def _as_json(seen: list[Seen], note: str) -> str:
    return json.dumps({"time": time.time(), "processes": [_object(process) for process in seen], "note": note})


def _object(seen: Seen) -> dict[str, Any]:
    def rates(of: Rates | None) -> dict[str, Any] | None:
        return None if of is None else asdict(of)

    now, mounts = seen.now, []
    for mount in now.mounts:
        number = mount["number"]
        files = [file | {"rates": rates(seen.files.get((number, file["path"])))} for file in mount["files"]]
        mounts.append(mount | {"rates": rates(seen.mounts.get(number)), "files": files})
    return {
        "pid": now.pid,
        "pid_namespace": now.namespace,
        "command": now.command,
        "age_s": now.age_s,
        "is_silent": seen.is_silent,
        "mounts": mounts,
    }


def _as_text(seen: list[Seen], note: str) -> str:
    wide = Console(file=io.StringIO(), width=_WIDE, highlight=False, emoji=False, color_system=None)
    with wide.capture() as captured:
        wide.print(_view(seen, note))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _show(looks: Looks) -> None:
    """Until q is pressed, or the process that is meant has ended."""
    with _keys() as pressed, Live(console=_terminal(), screen=True, auto_refresh=False) as live:
        live.update(Text("looking for processes with mounts ..."), refresh=True)
        for seconds, seen, note in looks:
            if seen is not None:
                live.update(_view(seen, note or "q leaves"), refresh=True)
            if pressed(seconds):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds, and says whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            keys = os.read(descriptor, 64)
            if not keys or b"q" in keys.lower():  # or the terminal is gone
                return True
        return False

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _view(seen: list[Seen], note: str) -> RenderableType:
    parts: list[RenderableType] = []
    for process in seen:
        parts += [_title(process), _table(process)]
    return Group(*parts, *([Text(printable(note), style="dim")] if note else []))


def _title(seen: Seen) -> Text:
    now = seen.now
    where = "" if now.namespace == publish.pid_namespace() else " in another container"
    text = Text(f"{now.pid}{where}  {printable(now.command)}", style="bold", no_wrap=True, overflow="ellipsis")
    if seen.is_silent:
        text = Text(f"[says nothing for {now.age_s:.0f} s] ", style="bold red").append_text(text)
    return text


def _table(seen: Seen) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  mount, files")  # this and the last one give way where the terminal is narrow
    for title in _RIGHT:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("way")
    for mount in seen.now.mounts:
        number = mount["number"]
        table.add_row(_text(f"  {mount['root']}"), *_cells(seen.mounts.get(number)), _text(_about(mount)))

        def busy(file: dict[str, Any], number: int = number) -> tuple[float, str]:
            rates = seen.files.get((number, file["path"]))
            return 0.0 if rates is None else -sum(rates.per_s.get(name, 0.0) for name in _MOVED), file["path"]

        listed = sorted(mount["files"], key=busy)[:_MOST_LISTED]
        for file in listed:
            rates = seen.files.get((number, file["path"]))
            table.add_row(_text(f"    {file['path']}"), *_cells(rates), _text(file["way"]))
        if mount["nfiles"] > len(listed):
            table.add_row(f"    and {mount['nfiles'] - len(listed):,} more")
    if not seen.now.mounts:
        table.add_row("  none is open")
    return table


def _about(mount: dict[str, Any]) -> str:
    words = [mount["engine"] if mount["device"] in (None, 0) else f"{mount['engine']} {mount['device']}"]
    if mount["cache_nbytes"]:
        words.append(f"cache {size_text(mount['cache_nbytes'])}")
        if mount["page_nbytes"]:
            words[-1] += f" in pages of {size_text(mount['page_nbytes'])}"
    if mount["writable"]:
        words.append("writable")
    return ", ".join(words)


def _cells(rates: Rates | None) -> list[str]:
    """In the order of the table's columns; empty where that is not counted, - where nothing happened yet."""
    if rates is None:
        return ["-"] * len(_RIGHT)

    def of(name: str, text: Callable[[float], str]) -> str:
        return text(rates.per_s[name]) if name in rates.per_s else ""

    return [
        "-" if rates.hit_rate is None else f"{100 * rates.hit_rate:.1f} %",
        *(of(name, _gigabytes) for name in _MOVED),
        *(of(name, _short) for name in ("faults", "evictions", "waits")),
    ]


def _gigabytes(n: float) -> str:
    return f"{n / 1e9:.3f}"


def _short(n: float) -> str:
    """1234567 -> '1.23 M'."""
    for unit in ("", " k", " M", " G"):
        if n < 999.5 or unit == " G":
            return f"{n:.3g}{unit}"
        n /= 1000
    raise AssertionError("unreachable")


def _text(words: str) -> Text:
    return Text(printable(words), no_wrap=True, overflow="ellipsis")


def register(app: typer.Typer) -> None:
    app.command()(reports_errors(top))

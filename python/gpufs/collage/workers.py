# SPDX-License-Identifier: Apache-2.0
"""Processes that decode pictures.

Not concurrent.futures: there a worker that is killed while it answers blocks the others for ever, and nobody learns
what it was doing. Here each worker has a pipe of its own, so its end is noticed, and the task it had is known.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

PR_SET_PDEATHSIG = 1


class _Worker(Generic[Task, Result]):
    def __init__(self, work: Callable[[Task], Result]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(work, other_end, os.getpid()), daemon=True)
        self.process.start()
        other_end.close()  # so that the pipe ends with the worker
        self.number = -1  # of its task; -1: idle
        self.task: Task | None = None

    def begin(self, number: int, task: Task) -> None:
        self.number, self.task = number, task
        self.connection.send(task)

    def end(self) -> int:
        """Kills the worker; its exit code."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode or 0


def in_order(
    tasks: Iterator[Task],
    work: Callable[[Task], Result],
    crashed: Callable[[Task, str], Result],
    nworkers: int,
) -> Generator[Result, None, None]:
    """Does the tasks in nworkers processes and yields their results in the tasks' order, a few tasks ahead.

    crashed: makes the result of a task whose worker died; it gets the task and how it died.
    However the generator ends, its workers end with it, and so they do when this process dies.
    """
    workers: list[_Worker[Task, Result]] = []
    results: dict[int, Result] = {}
    nbegun = ndone = 0
    more = True
    try:
        while True:
            for i in range(nworkers):
                if not more or nbegun - ndone >= 3 * nworkers:
                    break
                if i < len(workers) and workers[i].number >= 0:
                    continue
                try:
                    task = next(tasks)
                except StopIteration:
                    more = False
                    break
                if i == len(workers):
                    workers.append(_Worker(work))
                workers[i].begin(nbegun, task)
                nbegun += 1
            busy: dict[Any, int] = {worker.connection: i for i, worker in enumerate(workers) if worker.number >= 0}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = workers[busy[connection]]
                try:
                    results[worker.number] = worker.connection.recv()
                except (EOFError, OSError):
                    assert worker.task is not None
                    results[worker.number] = crashed(worker.task, _describe(worker.end()))
                    workers[busy[connection]] = _Worker(work)
                worker.number = -1
            while ndone in results:
                yield results.pop(ndone)
                ndone += 1
    finally:
        for worker in workers:
            worker.end()


def _describe(exit_code: int) -> str:
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit status {exit_code}"


def _serve(work: Callable[[Task], Result], connection: Connection[Any, Any], parent: int) -> None:
    """Control-C is the parent's to handle, and a worker does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            os._exit(0)
        connection.send(work(task))

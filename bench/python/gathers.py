# SPDX-License-Identifier: Apache-2.0
"""``x[idx]`` to a GPU: cold, hot, by Zipf's law and of one row, against what programs do otherwise."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import gpufs
import numpy as np
from devices import Gpu, Host, kvikio_reader
from gpufs.bench import Way, by_turns
from harness import Options, Results, spread_of
from tables import Answers, Ids, Picks, Table, Zipf

COLD = ("py_gather_cold", "py_vs_memmap", "py_vs_pread", "py_vs_uva_uniform")
COLD_SMALL = ("py_gather_cold_512", "py_vs_pread")
HOT = ("py_gather_hot", "py_call_p50", "py_call_p99")

OURS = "x[idx]"


def rates(seconds: list[float], amount: float) -> list[float]:
    return [amount / each for each in seconds]


def median(samples: list[float]) -> float:
    return spread_of(samples)[0]


class Gathers:
    def __init__(self, options: Options, results: Results, device: Gpu | Host) -> None:
        self.options, self.results, self.device = options, results, device
        self.runs, self.nthreads = options["runs"], options["threads"]
        device.torch.set_num_threads(self.nthreads)

    def all_of(self, table: Table) -> None:
        """Of 4 KiB rows, and of the same file with rows of 512 bytes."""
        wants = self.options.wants
        if wants(*COLD):
            self.cold(table, self.options["rows"], COLD)
        if wants("py_vs_kvikio"):
            self.against_kvikio(table)
        if wants(*HOT):
            self.hot(table)
        if wants("py_first"):
            self.first(table)
        if wants(*COLD_SMALL, "py_vs_uva_skewed"):
            small = table.with_columns(128)
            if wants(*COLD_SMALL):
                self.cold(small, self.options["small-rows"], COLD_SMALL)
            if wants("py_vs_uva_skewed"):
                self.skewed(small)

    def open(self, table: Table, cache: int | str) -> gpufs.Array:
        """With the file registered."""
        x = gpufs.open(table.path, engine=self.device.engine, cache=cache)
        x.prepare()
        return x

    def answers(self, table: Table, ids: Callable[[int], Ids]) -> Answers:
        return Answers(table, ids, self.nthreads, self.device.of)

    def cold(self, table: Table, n: int, names: tuple[str, ...]) -> None:
        """Rows that nobody has read before, in each run others."""
        device, wants = self.device, self.options.wants
        picks = Picks(table.nrows, n, self.runs + 1, seed=1)
        on_device = [device.of(picks[run]) for run in range(self.runs + 1)]
        mapped = device.torch.from_numpy(table.mapped("r+"))
        pinned = device.empty_pinned(picks.n, table.ncolumns)
        with contextlib.ExitStack() as until_end:
            x = until_end.enter_context(self.open(table, self.options.cache))
            ways: dict[str, Way] = {OURS: lambda run: device.wait(x[on_device[run]])}
            if wants("py_vs_memmap") and "py_vs_memmap" in names:
                ways["memmap"] = lambda run: device.wait(mapped[device.torch.from_numpy(picks[run])].to(device.device))
            if wants("py_vs_pread"):

                def by_threads(run: int) -> Any:
                    device.torch.index_select(mapped, 0, device.torch.from_numpy(picks[run]), out=pinned)
                    return device.wait(pinned.to(device.device))

                ways["threads"] = by_threads
            if why := device.why_no_kernel():
                self.results.skip((name for name in ("py_gather_cold", "py_vs_uva_uniform") if name in names), why)
            else:
                copy = until_end.enter_context(device.rows_by_kernel(table))
                ways["kernel"] = lambda run: copy(on_device[run])
                in_order = [ids.sort() for ids in on_device]
                # What a kernel pulls is neither the sorting nor that rows come to where they belong.
                ways["pull"] = lambda run: copy(in_order[run].values)
            answers = self.answers(table, lambda run: picks[run])

            def check(way: str, run: int, rows: Any) -> None:
                if way == "pull":
                    there = device.torch.empty_like(rows)
                    there[in_order[run].indices] = rows
                    rows = there
                answers.check(way, run, rows)

            seconds = by_turns(ways, self.runs, check)
            self.results.note(f"rows of {table.row_nbytes} B: {x.path_in_use}")
        self.say_cold(table, picks.n, names, seconds, answers.right)

    def say_cold(
        self, table: Table, n: int, names: tuple[str, ...], seconds: dict[str, list[float]], right: bool
    ) -> None:
        label = f"{n} random rows of {table.row_nbytes} B of {table.nbytes / 1e9:.3g} GB"
        gb = n * table.row_nbytes / 1e9
        ours = rates(seconds[OURS], gb)
        if "pull" in seconds:
            pull = self.results.ceiling(
                f"a kernel that only pulls these rows, sorted, of {table.row_nbytes} B",
                "GB/s",
                rates(seconds["pull"], gb),
            )
            kernel = median(rates(seconds["kernel"], gb))
            if "py_gather_cold" in names:
                what = "a kernel that pulls the same rows, sorted"
                self.results.add("py_gather_cold", label, ours, "GB/s", ceiling=pull, ceiling_is=what, verified=right)
                what = "a kernel over the registered file, in the order of idx"
                name = "py_vs_uva_uniform"
                self.results.add(name, label, ours, "GB/s", ceiling=kernel, ceiling_is=what, verified=right)
            else:
                million = 1e3 / table.row_nbytes
                self.results.add(
                    "py_gather_cold_512",
                    label,
                    rates(seconds[OURS], n / 1e6),
                    "M rows/s",
                    share=False,
                    ceiling=pull * million,
                    ceiling_is="a kernel that pulls the same rows, sorted",
                    verified=right,
                    details={"in_order_of_idx": kernel * million},
                )
        elif "py_gather_cold_512" in names:
            self.results.add(
                "py_gather_cold_512", label, rates(seconds[OURS], n / 1e6), "M rows/s", share=False, verified=right
            )
        for way, name, what in (
            ("memmap", "py_vs_memmap", "torch.from_numpy(np.memmap)[idx].cuda()"),
            ("threads", "py_vs_pread", f"index_select by {self.nthreads} threads to pinned memory, and one copy"),
        ):
            if way in seconds:
                rival = median(rates(seconds[way], gb))
                self.results.add(name, label, ours, "GB/s", ceiling=rival, ceiling_is=what, verified=right)

    def against_kvikio(self, table: Table) -> None:
        device = self.device
        read, why = kvikio_reader(table.path, self.nthreads) if isinstance(device, Gpu) else (None, "it needs a GPU")
        if read is None:
            self.results.skip(["py_vs_kvikio"], why)
            return
        picks = Picks(table.nrows, self.options["kvikio-rows"], self.runs + 1, seed=2)
        on_device = [device.of(picks[run]) for run in range(self.runs + 1)]
        rows = device.torch.empty((picks.n, table.ncolumns), dtype=device.torch.float32, device=device.device)
        begins = [(table.begin + picks[run] * table.row_nbytes).tolist() for run in range(self.runs + 1)]
        each_row = list(rows.unbind())  # made beforehand, as a loop over a tensor takes longer than some reads
        answers = self.answers(table, lambda run: picks[run])

        def by_kvikio(run: int) -> Any:
            read(begins[run], table.row_nbytes, each_row)
            return device.wait(rows)

        with self.open(table, self.options.cache) as x:
            ways: dict[str, Way] = {OURS: lambda run: device.wait(x[on_device[run]]), "kvikio": by_kvikio}
            seconds = by_turns(ways, self.runs, answers.check)
        gb = picks.n * table.row_nbytes / 1e9
        self.results.add(
            "py_vs_kvikio",
            f"{picks.n} random rows of {table.row_nbytes} B",
            rates(seconds[OURS], gb),
            "GB/s",
            ceiling=median(rates(seconds["kvikio"], gb)),
            ceiling_is=f"KvikIO, a pread of each row, {self.nthreads} threads",
            verified=answers.right,
        )

    def hot(self, table: Table) -> None:
        """Rows that are all in the cache; all of them, and one."""
        device, n = self.device, min(self.options["rows"], table.nrows)
        ids = np.random.default_rng(3).permutation(table.nrows)[:n]
        on_device = device.of(ids)
        # A row is in a page, or in two, as the array does not begin at a multiple of its size.
        cache = (2 * n * table.row_nbytes * 9 // 8) + (64 << 20)
        with self.open(table, cache) as x:
            for _ in range(4):
                device.wait(x[on_device])
            if self.options.wants("py_gather_hot"):
                self.all_hot(table, x, ids, on_device)
            if self.options.wants("py_call_p50", "py_call_p99"):
                self.one_row(table, x, on_device)

    def all_hot(self, table: Table, x: gpufs.Array, ids: Ids, on_device: Any) -> None:
        device, n = self.device, len(ids)
        there = device.torch.randperm(n, device=device.device)
        in_memory = device.torch.empty((n, table.ncolumns), dtype=device.torch.float32, device=device.device)
        in_memory[there] = device.of(x[on_device])
        answers = self.answers(table, lambda _: ids)
        before = x.stats
        ways: dict[str, Way] = {
            OURS: lambda _: device.wait(x[on_device]),
            "select": lambda _: device.wait(device.torch.index_select(in_memory, 0, there)),
        }
        seconds = by_turns(ways, self.runs, answers.check)
        gb = n * table.row_nbytes / 1e9
        after = x.stats
        self.results.add(
            "py_gather_hot",
            f"{n} rows of {table.row_nbytes} B, all cached",
            rates(seconds[OURS], gb),
            "GB/s",
            ceiling=median(rates(seconds["select"], gb)),
            ceiling_is="torch's index_select in GPU memory",
            verified=answers.right,
            details={"faults": after["faults"] - before["faults"], "hits": after["hits"] - before["hits"]},
        )

    def one_row(self, table: Table, x: gpufs.Array, on_device: Any) -> None:
        """By turns a hundred calls of each, which wait for their row."""
        device, ncalls = self.device, self.options["calls"]
        in_memory, one = device.of(x[on_device]), on_device[:1].clone()
        first = device.of(np.zeros(1, np.int64))
        ways: dict[str, Callable[[], Any]] = {
            OURS: lambda: device.wait(x[one]),
            "torch": lambda: device.wait(device.torch.index_select(in_memory, 0, first)),
        }
        right = all(bool((way() == in_memory[:1]).all()) for way in ways.values())
        rounds: dict[str, list[list[float]]] = {way: [] for way in ways}
        for run in range(self.runs + 1):
            calls: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(max(1, ncalls // 100)):
                for way, go in ways.items():
                    for _ in range(min(100, ncalls)):
                        started = time.perf_counter()
                        go()
                        calls[way].append(1e6 * (time.perf_counter() - started))
            if run > 0:
                for way, took in calls.items():
                    rounds[way].append(took)
        for name, percent in (("py_call_p50", 50), ("py_call_p99", 99)):
            ours, theirs = ([float(np.percentile(took, percent)) for took in rounds[way]] for way in (OURS, "torch"))
            self.results.add(
                name,
                f"a row of {table.row_nbytes} B, cached, over torch's index_select",
                [mine - its for mine, its in zip(ours, theirs, strict=True)],
                "us",
                share=False,
                verified=right,
                details={"gpufs_us": median(ours), "torch_us": median(theirs)},
            )

    def first(self, table: Table) -> None:
        """Of a file that was not registered: by a mount of its own each time."""
        device = self.device
        for n in sorted({1, min(1000, self.options["rows"]), self.options["rows"]}):
            picks = Picks(table.nrows, n, self.runs + 1, seed=4)
            on_device = [device.of(picks[run]) for run in range(self.runs + 1)]
            answers = self.answers(table, picks.__getitem__)
            samples = []
            for run in range(self.runs + 1):
                mount = gpufs.Mount(table.path.parent, engine=device.engine, cache=self.options.cache)
                with mount, mount.open(table.path) as x:
                    started = time.perf_counter()
                    rows = device.wait(x[on_device[run]])
                    took = time.perf_counter() - started
                    answers.check(OURS, run, rows)
                if run > 0:
                    samples.append(1e3 * took)
            label = f"the first {picks.n} rows of {table.row_nbytes} B of {table.nbytes / 1e9:.3g} GB"
            self.results.add("py_first", label, samples, "ms", share=False, verified=answers.right)

    def skewed(self, table: Table) -> None:
        """By Zipf's law, with a cache of a tenth of the file."""
        device = self.device
        if why := device.why_no_kernel():
            self.results.skip(["py_vs_uva_skewed"], why)
            return
        zipf = Zipf(table.nrows, min(self.options["small-rows"], table.nrows), seed=5)
        with self.open(table, max(1 << 20, table.nbytes // 10)) as x, device.rows_by_kernel(table) as copy:
            for _ in range(self.options["warm-ups"]):
                device.wait(x[device.of(zipf.draw())])
            ids = [zipf.draw() for _ in range(self.runs + 1)]
            on_device = [device.of(each) for each in ids]
            answers = self.answers(table, lambda run: ids[run])
            ways: dict[str, Way] = {
                OURS: lambda run: device.wait(x[on_device[run]]),
                "kernel": lambda run: copy(on_device[run]),
            }
            seconds = by_turns(ways, self.runs, answers.check)
        gb = len(ids[0]) * table.row_nbytes / 1e9
        self.results.add(
            "py_vs_uva_skewed",
            f"{len(ids[0])} rows of {table.row_nbytes} B by Zipf's law, the cache a tenth",
            rates(seconds[OURS], gb),
            "GB/s",
            ceiling=median(rates(seconds["kernel"], gb)),
            ceiling_is="a kernel over the registered file, in the order of idx",
            verified=answers.right,
        )

# SPDX-License-Identifier: Apache-2.0
"""What the benches in Python need: sizes from the command line, medians, and the JSON file that those in C++ write."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufs import doctor

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for who imports this from elsewhere, too

from report import load_targets


@dataclass(frozen=True)
class Size:
    """An option's number: of a full run, of --quick, and of a machine without a GPU, which only checks answers."""

    full: float
    quick: float
    host: float
    what: str


SIZES = {
    "table-gb": Size(40, 2, 0.004, "10^9 bytes of the array's file"),
    "rows": Size(1_000_000, 50_000, 100, "rows of 4 KiB in a gather"),
    "small-rows": Size(4_000_000, 200_000, 700, "rows of 512 bytes in a gather"),
    "warm-ups": Size(8, 3, 1, "gathers before the skewed ones are measured"),
    "kvikio-rows": Size(100_000, 5_000, 50, "rows that KvikIO reads, by a call each"),
    "calls": Size(10_000, 1_000, 40, "gathers of one row in a round"),
    "files": Size(50_000, 2_000, 60, "files for read_files, of 4 KiB"),
    "graph-gb": Size(8, 0.5, 0.001, "10^9 bytes of the graph's features, in rows of 4 KiB; the cache has a fourth"),
    "batches": Size(200, 20, 3, "batches in the graph's epoch, of 1,024 nodes (without a GPU 16)"),
    "hit-mb": Size(4000, 250, 0.01, "10^6 bytes of the elements that Numba's kernels read"),
    "hits": Size(100_000_000, 10_000_000, 1000, "elements that they read in a run"),
    "runs": Size(5, 3, 2, "of each way, by turns, after one that is not counted"),
    "threads": Size(16, 16, 2, "of the rivals on the host"),
}


@dataclass(frozen=True)
class Options:
    out: Path | None
    dir: Path
    only: frozenset[str]
    quick: bool
    device: str
    cache: str
    sizes: dict[str, float]
    command: str

    def __getitem__(self, name: str) -> int:
        return int(self.sizes[name])

    def wants(self, *names: str) -> bool:
        return not self.only or any(name in self.only for name in names)


def parse(
    arguments: list[str],
    doc: str,
    names: Iterable[str],
    find_device: Any,
    program: str = "arrays.py",
    known: Mapping[str, Size] = SIZES,
) -> Options:
    """find_device(choice): "gpu", or "host" where sizes shall be those of a machine without one."""
    parser = argparse.ArgumentParser(
        prog=program, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where files are made, in memory")
    parser.add_argument("--only", default="", help=f"names, with commas between: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small sizes; its figures are not quoted")
    parser.add_argument("--device", choices=("auto", "gpu", "host"), default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--cache", default="0", help="of cold gathers, as of gpufs.open (default: gpufs's)")
    for name, size in known.items():
        parser.add_argument(f"--{name}", type=float, help=f"{size.what} ({size.full:g})")
    given = parser.parse_args(arguments)
    only = frozenset(filter(None, given.only.split(",")))
    if unknown := only - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    device = find_device(given.device)
    sizes = {}
    for name, size in known.items():
        number = getattr(given, name.replace("-", "_"))
        if number is not None and not number > 0:
            parser.error(f"--{name} is {number:g}, and must be more than 0")
        chosen = size.host if device == "host" else size.quick if given.quick else size.full
        sizes[name] = chosen if number is None else number
    quick = given.quick or device == "host"
    command = _shown(program, arguments)
    return Options(given.out, given.dir, only, quick, device, given.cache, sizes, command)


def _shown(program: str, arguments: list[str]) -> str:
    """The command without paths of this machine."""
    words, paths = [program], {"--dir": "DIR", "--out": ""}
    at = iter(arguments)
    for word in at:
        name, equals, _ = word.partition("=")
        if name in paths:
            if not equals:
                next(at, None)
            if paths[name]:
                words += [name, paths[name]]
        else:
            words.append(word)
    return " ".join(words)


def spread_of(samples: list[float]) -> tuple[float, float, float]:
    """Median (of an even number the higher one of the middle, as in the benches in C++), lowest, highest."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[0], ordered[-1]


class Results:
    """Prints each result, and writes them all as one JSON file, again after each."""

    def __init__(self, options: Options, gpu: str | None, nprocessors: int, bench: str = "python") -> None:
        names, driver = doctor.gpus_from_driver()
        version = doctor.driver_version()
        memory = doctor.meminfo().get("MemTotal", 0)
        self._bounds = {target.name: target.bound for target in load_targets()}
        self._out = options.out
        self._cases: list[dict[str, Any]] = []
        self._ceilings: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._head = {
            "bench": bench,
            "machine": {
                "gpu": gpu,
                "processors": nprocessors,
                "host_threads": len(os.sched_getaffinity(0)),
                "host_memory_gib": round(memory / (1 << 30)),
            },
            "driver": f"{version}, {driver}" if version and names else driver,
            "commit": os.environ.get("GPUFS_COMMIT", "unknown"),
            "command": options.command,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "quick": options.quick,
        }

    def ceiling(self, name: str, unit: str, samples: list[float]) -> float:
        """Its median."""
        median, low, high = spread_of(samples)
        print(f"{'ceiling':<22} {name:<44} {median:10.4g} {unit}  ({low:.4g} to {high:.4g})", flush=True)
        named = {"name": name, "measured": median, "unit": unit, "low": low, "high": high, "samples": len(samples)}
        self._ceilings.append(named)
        self._write()
        return median

    def add(
        self,
        name: str,
        label: str,
        samples: list[float],
        unit: str,
        *,
        ceiling: float | None = None,
        ceiling_is: str = "",
        share: bool = True,
        verified: bool,
        details: dict[str, float] | None = None,
    ) -> None:
        """The figure is the share of the ceiling, or the number of times that of a rival; or, not share, itself."""
        median, low, high = spread_of(samples)
        by = ceiling if ceiling and share else 1.0
        bound = self._bounds.get(name)
        wanted = f", wanted {bound}" if bound else ""
        shown = "".join(f"  {key} {value:.4g}" for key, value in (details or {}).items())
        print(
            f"{name:<22} {label:<44} {median:10.4g} {unit}  figure {median / by:.4g} "
            f"({low / by:.4g} to {high / by:.4g}){wanted}{'' if verified else '  WRONG ANSWERS'}{shown}",
            flush=True,
        )
        self._cases.append(
            {
                "name": name,
                "case": label,
                "figure": median / by,
                "bound": bound,
                "measured": median,
                "unit": unit,
                "ceiling": ceiling,
                "ceiling_is": ceiling_is,
                "spread": [low / by, high / by],
                "samples": len(samples),
                "verified": verified,
                "cause": "",
                "details": details or {},
            }
        )
        self._write()

    def note(self, text: str) -> None:
        print(f"{'note':<22} {text}", flush=True)
        self._notes.append(text)
        self._write()

    def skip(self, names: Iterable[str], why: str) -> None:
        if left_out := ", ".join(names):
            self.note(f"{left_out}: not measured: {why}")

    def finish(self) -> int:
        """The exit status: 1 where nothing was measured, or an answer was wrong."""
        self._write()
        return 0 if self._cases and all(case["verified"] for case in self._cases) else 1

    def _write(self) -> None:
        if self._out is None:
            return
        whole = {**self._head, "ceilings": self._ceilings, "cases": self._cases, "notes": self._notes}
        part = self._out.with_name(self._out.name + ".part")
        part.write_text(json.dumps(whole, indent=2) + "\n")
        part.replace(self._out)

# SPDX-License-Identifier: Apache-2.0
"""Draws mutants of the library's code at random, and runs the related tests on each: ./dev mutants [N] [SEED].

    mutants.py draw N SEED [--under PATH]... > mutants.json    needs tree-sitter
    mutants.py run mutants.json [--jobs J] [--minutes M] [--out results.json]    needs what tests need
    mutants.py report results.json...    of several runs together
    mutants.py explain KEY WHY results.json...    puts one that survived into equivalent.json

A mutant is found when a related test program fails, crashes or hangs with it, and passes without it; it does not count
when it does not compile: another one is drawn. `run` goes on where a results.json that is there ends. Survivors that
change nothing a test could see are in equivalent.json, with why.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rebuild
from related import programs_for, sources
from trial import Outcome, run_program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "mutants"
EQUIVALENT = HERE / "equivalent.json"
RESERVE = 1.6  # so many are drawn for each that is wanted: some do not compile
SHORTEST_DEADLINE = 60.0  # seconds; else a program may take so many times what it takes without a mutant:
SLOWER = 8.0

Json = dict[str, Any]


def draw(number: int, seed: int, under: list[str], root: Path = ROOT) -> Json:
    """Mutants in a random order: a kind of change is drawn, then a place for it. All kinds are as likely."""
    from syntax import Mutant, all_mutants

    places: dict[str, list[Mutant]] = {}
    hashes = {}
    for file in sources(root):
        if under and not any(file.startswith(prefix) for prefix in under):
            continue
        hashes[file] = hashlib.sha256((root / file).read_bytes()).hexdigest()
        for mutant in all_mutants(root, file):
            places.setdefault(mutant.operator, []).append(mutant)
    population = {kind: len(found) for kind, found in sorted(places.items())}
    rng = random.Random(seed)
    drawn: list[Json] = []
    while places and len(drawn) < number * RESERVE + 4:
        kind = rng.choice(sorted(places))
        mutant = places[kind].pop(rng.randrange(len(places[kind])))
        if not places[kind]:
            del places[kind]
        drawn.append(dataclasses.asdict(mutant) | {"diff": diff_of(root, mutant)})
    used = {mutant["file"] for mutant in drawn}
    hashes = {file: value for file, value in hashes.items() if file in used}
    return {"seed": seed, "wanted": number, "population": population, "files": hashes, "mutants": drawn}


def planted(text: bytes, start: int, end: int, old: str, new: str) -> bytes:
    if text[start:end] != old.encode():
        raise ValueError(f"there is {text[start:end]!r}, not {old!r}")
    return text[:start] + new.encode() + text[end:]


def diff_of(root: Path, mutant: Any) -> str:
    before = (root / mutant.file).read_bytes()
    after = planted(before, mutant.start, mutant.end, mutant.old, mutant.new)
    lines = difflib.unified_diff(
        before.decode().splitlines(), after.decode().splitlines(), mutant.file, mutant.file, n=2, lineterm=""
    )
    return "\n".join(lines)


def explained() -> dict[str, Json]:
    known: dict[str, Json] = json.loads(EQUIVALENT.read_text())
    return known


# --- Running ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Trial:
    """A mutant that is being tried, with one program after the other; several at once when nothing else is to do."""

    mutant: Json
    programs: list[str]  # to be tried yet
    passed: list[str]
    total: int
    tree: rebuild.Tree | None = None
    running: int = 0
    result: Json | None = None
    seconds: float = 0.0  # of all programs together

    @property
    def key(self) -> str:
        return str(self.mutant["key"])


class Runner:
    """Threads that each take a mutant's next program, until enough mutants have been tried or the time is up."""

    def __init__(self, drawn: Json, out: Path, jobs: int, deadline: float, most_programs: int) -> None:
        self.drawn, self.out, self.jobs, self.deadline = drawn, out, jobs, deadline
        self.most_programs = most_programs or None
        self.results: dict[str, Json] = {}
        self.partial: dict[str, list[str]] = {}  # programs that have passed with a mutant whose trial has not ended
        self.usual: dict[str, Outcome] = {}  # how programs run without a mutant
        self.unsteady: Counter[str] = Counter()  # tests that failed with a mutant, and then without it
        self.trials: list[Trial] = []
        self.changed = threading.Condition()
        if out.exists():
            before = json.loads(out.read_text())
            if before["seed"] != drawn["seed"] or before["files"] != drawn["files"]:
                sys.exit(f"{out} is of other mutants; move it away, or name another file by --out")
            self.results = {result["key"]: result for result in before["results"]}
            self.partial = before["partial"]
            self.unsteady.update(before["unsteady"])
        self._take_explained()
        self.waiting = [mutant for mutant in drawn["mutants"] if mutant["key"] not in self.results]
        self.base = rebuild.Base(ROOT, OUT / "base")

    def _take_explained(self) -> None:
        known = explained()
        for mutant in self.drawn["mutants"][: self.drawn["wanted"]]:
            if mutant["key"] in known and mutant["key"] not in self.results:
                why = known[mutant["key"]]["why"]
                self.results[mutant["key"]] = mutant | {"status": "explained", "how": why, "seconds": 0.0}

    def run(self) -> None:
        if not self.waiting or self._counted() >= self.drawn["wanted"]:
            self._save()
            return
        programs = {program for mutant in self.waiting for program in self._programs_for(mutant)}
        say(f"building {len(programs)} test programs as they are")
        if not self.base.build(programs, self.jobs, OUT / "base.log"):
            sys.exit(f"the build failed; all it said is in {OUT}/base.log")
        say("running them as they are")
        with ThreadPoolExecutor(self.jobs) as pool:
            self.usual = dict(zip(sorted(programs), pool.map(self._as_it_is, sorted(programs)), strict=True))
        for program, got in self.usual.items():
            if not got.good:
                say(f"LEFT OUT, FAILS WITHOUT A MUTANT: {program} {got.says}")
        say(f"mutants, {self.jobs} at once")
        threads = [threading.Thread(target=self._work, args=(i,)) for i in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._save()

    def _programs_for(self, mutant: Json) -> list[str]:
        return list(programs_for(mutant["file"])[: self.most_programs])

    def _counted(self) -> int:
        return sum(counts(result) for result in self.results.values())

    def _seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def _work(self, number: int) -> None:
        # Tests start as many threads as they have cores: two, so that they do not get in each other's way.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)], cores[(number + 1) % len(cores)]})
        while (taken := self._next()) is not None:
            trial, program = taken
            begin = time.monotonic()
            try:
                result = self._try(trial, program, OUT / "work" / f"runs-{number}")
            except Exception as error:  # what cannot be tried shall not end the others
                result = {"status": "not tried", "how": f"{type(error).__name__}: {error}"}
            with self.changed:
                trial.running -= 1
                trial.seconds += time.monotonic() - begin
                if result is None:
                    trial.passed.append(program)
                    self.partial[trial.key] = trial.passed
                elif result["status"] != "unfinished" and trial.result is None:
                    trial.result = result
                if trial.result is None and len(trial.passed) == trial.total:
                    trial.result = {"status": "survived"}
                if trial.result is not None and trial.key not in self.results:
                    self._end(trial)
                if trial.result is not None and not trial.running and trial.tree is not None:
                    trial.tree.remove()
                self.changed.notify_all()

    def _end(self, trial: Trial) -> None:
        assert trial.result is not None
        if trial.result["status"] == "survived" and not self._tried(trial):
            trial.result = {"status": "not tried", "how": "no test program has this code"}
        result = trial.mutant | trial.result | {"tried": self._tried(trial), "seconds": round(trial.seconds, 1)}
        self.results[trial.key] = result
        self.partial.pop(trial.key, None)
        self._save()
        tell(result)

    def _tried(self, trial: Trial) -> list[str]:
        return [program for program in trial.passed if self.base.contains(program, trial.mutant["file"])]

    def _next(self) -> tuple[Trial, str] | None:
        with self.changed:
            while self._seconds_left() > 0:
                open_trials = [trial for trial in self.trials if trial.result is None]
                ready = [trial for trial in open_trials if trial.programs]
                idle = [trial for trial in ready if not trial.running]
                if not idle and self.waiting and self._counted() + len(open_trials) < self.drawn["wanted"]:
                    begun = self._begin(self.waiting.pop(0))
                    if begun.result is not None:
                        continue
                    self.trials.append(begun)
                    idle = [begun]
                if idle or ready:
                    trial = idle[0] if idle else min(ready, key=lambda one: one.running)
                    trial.running += 1
                    return trial, trial.programs.pop(0)
                if not open_trials:
                    return None
                self.changed.wait(1.0)  # one under way may not compile, and then another one is begun
            return None

    def _begin(self, mutant: Json) -> Trial:
        passed = list(self.partial.get(mutant["key"], []))
        programs = [program for program in self._programs_for(mutant) if self.usual[program].good]
        left = [program for program in programs if program not in passed]
        trial = Trial(mutant, left, passed, len(left) + len(passed))
        if not left:
            trial.result = {"status": "survived"}
            self._end(trial)
        return trial

    def _try(self, trial: Trial, program: str, folder: Path) -> Json | None:
        """What came of the mutant, or None: it is not found by this program."""
        mutant = trial.mutant
        if not self.base.contains(program, mutant["file"]):
            return None
        with self.changed:
            if trial.tree is None:
                before = (ROOT / mutant["file"]).read_bytes()
                text = planted(before, mutant["start"], mutant["end"], mutant["old"], mutant["new"])
                trial.tree = rebuild.Tree(self.base, OUT / "work" / trial.key, mutant["file"], text)
        made = trial.tree.build(program, self._seconds_left())
        if self._seconds_left() <= 0:
            return {"status": "unfinished"}
        if made is None:
            return {"status": "not compiled", "how": trial.tree.error}
        limit = max(SHORTEST_DEADLINE, SLOWER * self.usual[program].seconds)
        got = self._run(made, folder, min(limit, self._seconds_left()), "")
        if got.good:
            return None
        if self._seconds_left() <= 0:
            return {"status": "unfinished"}
        if got.test != "no test" and not self._run(self.base.program(program), folder, limit, got.test).good:
            with self.changed:
                self.unsteady[f"{program} {got.test}"] += 1
            return None
        return {"status": "found", "program": program, "test": got.test, "how": got.how}

    def _run(self, program: Path, folder: Path, deadline: float, test: str) -> Outcome:
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        command = [str(program)] + ([f"--gtest_filter={test}"] if test else [])
        try:
            return run_program(command, folder / "said.log", deadline, {"TMPDIR": str(temporary)})
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _as_it_is(self, program: str) -> Outcome:
        got = Outcome(False, "", "there was no time", 0.0)
        for _ in range(2):
            if self._seconds_left() > 0 and not got.good:
                got = self._run(self.base.program(program), OUT / "work" / program, self._seconds_left(), "")
        return got

    def _save(self) -> None:
        whole = {
            **{name: self.drawn[name] for name in ("seed", "wanted", "population", "files")},
            "failing": {program: got.says for program, got in self.usual.items() if not got.good},
            "unsteady": dict(self.unsteady),
            "usual": {program: round(got.seconds, 1) for program, got in self.usual.items()},
            "partial": self.partial,
            "results": list(self.results.values()),
        }
        temporary = self.out.with_name(self.out.name + ".tmp")
        temporary.write_text(json.dumps(whole, indent=1))
        temporary.replace(self.out)


def run(path: Path, jobs: int, minutes: float, out: Path, most_programs: int) -> None:
    deadline = time.monotonic() + minutes * 60
    drawn = json.loads(path.read_text())
    for file, known in drawn["files"].items():
        if hashlib.sha256((ROOT / file).read_bytes()).hexdigest() != known:
            sys.exit(f"{file} has changed since the mutants were drawn")
    OUT.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(OUT / "work", ignore_errors=True)
    Runner(drawn, out, jobs, deadline, most_programs).run()


# --- Telling ---------------------------------------------------------------------------------------------------------


def counts(result: Json) -> bool:
    return result["status"] in ("found", "survived", "explained")


def wilson(found: int, number: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share that was found `found` times in `number`."""
    if number == 0:
        return 0.0, 1.0
    share = found / number
    middle = share + z * z / (2 * number)
    half = z * ((share * (1 - share) + z * z / (4 * number)) / number) ** 0.5
    return (middle - half) / (1 + z * z / number), (middle + half) / (1 + z * z / number)


def say(words: str) -> None:
    print(f"   {words}", flush=True)


def tell(result: Json) -> None:
    words = result["status"]
    if words == "found":
        words += f" by {result['program']} {result['test']}" + (f": {result['how']}" if result["how"] else "")
    where = f"{result['file']}:{result['line']}"
    say(f"{result['key']} {where:<44} {result['operator']:<18} {words}, {result['seconds']:.0f} s")


def share(name: str, found: int, number: int) -> str:
    low, high = wilson(found, number)
    percent = 100 * found / number if number else 0.0
    return f"{name} {found} of {number}, {percent:.1f} % (95 %: {100 * low:.0f} to {100 * high:.0f} %)"


def report(all_results: Iterable[Json]) -> int:
    """Prints what came; 1 when even the upper end of the interval is below 90 % found or explained."""
    known = explained()
    merged: dict[str, Json] = {}
    unsteady: Counter[str] = Counter()
    failing: dict[str, str] = {}
    wanted = 0
    for whole in all_results:
        wanted += whole["wanted"]
        merged |= {result["key"]: dict(result) for result in whole["results"]}
        unsteady.update(whole["unsteady"])
        failing |= whole["failing"]
    for result in merged.values():
        if result["status"] == "survived" and result["key"] in known:
            result["status"] = "explained"
    tally = Counter(result["status"] for result in merged.values())
    number = tally["found"] + tally["survived"] + tally["explained"]
    for result in sorted(merged.values(), key=lambda one: (one["file"], one["line"])):
        if result["status"] == "survived":
            say(f"SURVIVED {result['key']}: {result['operator']} in {result['function']}")
            print("\n".join(f"      {line}" for line in result["diff"].split("\n")[2:]))
        elif result["status"] == "not tried":
            say(f"NOT TRIED {result['key']}: {result['how']}")
    for kind in sorted({result["operator"] for result in merged.values()}):
        of_kind = [result for result in merged.values() if result["operator"] == kind and counts(result)]
        say(f"{kind:<20} {sum(result['status'] != 'survived' for result in of_kind)} of {len(of_kind)}")
    by = Counter(result["program"] for result in merged.values() if result["status"] == "found")
    say("found by: " + ", ".join(f"{program} {n}" for program, n in by.most_common()))
    if unsteady:
        say("failed without the mutant, too: " + ", ".join(f"{name} {n}" for name, n in unsteady.most_common()))
    if failing:
        say("left out, as they failed without any: " + ", ".join(sorted(failing)))
    if number < wanted:
        say(f"{wanted - number} of {wanted} not finished: those take longest that survive, so the shares are too high")
    say(f"{number} mutants; {tally['not compiled']} more did not compile")
    say(share("found", tally["found"], number))
    say(share("found or explained", tally["found"] + tally["explained"], number))
    return int(number > 0 and wilson(tally["found"] + tally["explained"], number)[1] < 0.9)


def explain(key: str, why: str, all_results: Iterable[Json]) -> None:
    """Puts a mutant that survived into equivalent.json."""
    found = {result["key"]: result for whole in all_results for result in whole["results"]}
    if key not in found or found[key]["status"] != "survived":
        sys.exit(f"no mutant {key} has survived there")
    change = [line for line in found[key]["diff"].split("\n")[2:] if line[:1] in ("-", "+")]
    known = explained() | {key: {"file": found[key]["file"], "mutant": change, "why": why}}
    ordered = dict(sorted(known.items(), key=lambda one: (one[1]["file"], one[0])))
    EQUIVALENT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants.py", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("number", type=int)
    drawing.add_argument("seed", type=int)
    drawing.add_argument("--under", action="append", default=[], help="only files below this")
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--jobs", type=int, default=int(os.environ.get("GPUFS_JOBS") or os.cpu_count() or 1))
    running.add_argument("--minutes", type=float, default=24 * 60)
    running.add_argument("--out", type=Path, default=OUT / "results.json")
    running.add_argument("--most-programs", type=int, default=0, help="try so many of a file's test programs; 0: all")
    reporting = commands.add_parser("report")
    reporting.add_argument("results", type=Path, nargs="+")
    explaining = commands.add_parser("explain")
    explaining.add_argument("key")
    explaining.add_argument("why")
    explaining.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        json.dump(draw(options.number, options.seed, options.under), sys.stdout, indent=1)
        print()
        return 0
    if options.command == "run":
        run(options.mutants, max(1, options.jobs), options.minutes, options.out, options.most_programs)
        return report([json.loads(options.out.read_text())])
    results = [json.loads(path.read_text()) for path in options.results]
    if options.command == "explain":
        explain(options.key, options.why, results)
        return 0
    return report(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

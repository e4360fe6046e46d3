# SPDX-License-Identifier: Apache-2.0
"""Draws mutants of the library's code at random, and runs the tests that reach each: ./dev mutants [N] [SEED].

    mutants.py draw N SEED [--under PATH]... > mutants.json    needs tree-sitter
    mutants.py run mutants.json [--jobs J] [--minutes M] [--seconds S] [--out results.json]    needs what tests need
    mutants.py report results.json...    of several runs together
    mutants.py explain KEY WHY results.json...    puts one that survived into equivalent.json

All are built at once, each behind a switch (switched.py). A mutant is found when a test that reaches it fails, crashes
or hangs with it, and passes without it; it does not count when it does not compile: another one is drawn. `run` goes on
where a results.json that is there ends. Survivors that change nothing a test could see are in equivalent.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import switched
from trial import Outcome, run_program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "mutants"
TESTS = OUT / "tests.json"  # what is known of programs that have not changed
EQUIVALENT = HERE / "equivalent.json"
PARTS = ("simt", "cache", "store", "service", "file", "pointer", "compat", "trust", "fuzz")  # whose tests are run
# Not compiled where there is no GPU, or not what is to be found out here.
LEFT_OUT = re.compile(r"cuda|^src/python/|cpu_absent|sanitizer\.hpp")
RESERVE = 1.4  # so many are drawn for each that is wanted: some do not compile
PATIENCE = 30.0  # seconds a program may take, and so many times what its tests take without a mutant:
SLOWER = 8.0

Json = dict[str, Any]


def sources(root: Path) -> list[str]:
    """The files that mutants are drawn from, relative to root."""
    found = [path for folder in ("include/gpufs", "src") for path in (root / folder).rglob("*.?pp")]
    return sorted(name for path in found if not LEFT_OUT.search(name := path.relative_to(root).as_posix()))


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


@dataclasses.dataclass(frozen=True)
class Test:
    """A test of a program, as it runs without a mutant."""

    program: str
    name: str
    seconds: float
    reaches: list[int]  # numbers of mutants


class Runner:
    """Threads that each take the next mutant, until enough have been tried or the time is up."""

    def __init__(self, drawn: Json, out: Path, jobs: int, deadline: float, most_seconds: float) -> None:
        self.drawn, self.out, self.jobs, self.deadline = drawn, out, jobs, deadline
        self.most_seconds = most_seconds or float("inf")
        self.results: dict[str, Json] = {}
        self.failing: dict[str, str] = {}  # without a mutant
        self.unsteady: Counter[str] = Counter()  # tests that failed with a mutant, and then without it
        self.tests: list[Test] = []
        self.lock = threading.Lock()
        self.under_way = 0
        if out.exists():
            before = json.loads(out.read_text())
            if before["seed"] != drawn["seed"] or before["files"] != drawn["files"]:
                sys.exit(f"{out} is of other mutants; move it away, or name another file by --out")
            self.results = {result["key"]: result for result in before["results"]}
            self.unsteady.update(before["unsteady"])
        for number, mutant in enumerate(drawn["mutants"], 1):
            mutant["number"] = number
        known = explained()
        for mutant in drawn["mutants"][: drawn["wanted"]]:
            if (key := mutant["key"]) in known and key not in self.results:
                self.results[key] = mutant | {"status": "explained", "how": known[key]["why"], "seconds": 0.0}
        self.waiting = [mutant for mutant in drawn["mutants"] if mutant["key"] not in self.results]
        done = ((mutant, self.results.get(mutant["key"], {})) for mutant in drawn["mutants"])
        refused = {one["number"]: result["how"] for one, result in done if result.get("status") == "not compiled"}
        self.build = switched.Build(ROOT, OUT, drawn["mutants"], refused, jobs)

    def run(self) -> None:
        if self.waiting and self._counted() < self.drawn["wanted"]:
            say(f"building all tests with {len(self.drawn['mutants'])} mutants that are off")
            begin = time.monotonic()
            self.build.make(PARTS)
            say(f"built in {time.monotonic() - begin:.0f} s; {len(self.build.refused)} mutants do not compile")
            for mutant in self.waiting:
                if (error := self.build.refused.get(mutant["number"])) is not None:
                    self.results[mutant["key"]] = mutant | {"status": "not compiled", "how": error, "seconds": 0.0}
            self.waiting = [mutant for mutant in self.waiting if mutant["key"] not in self.results]
            begin = time.monotonic()
            self._run_all_as_they_are()
            say(f"{len(self.tests)} tests pass without a mutant, in {time.monotonic() - begin:.0f} s")
            for test, how in self.failing.items():
                say(f"LEFT OUT, FAILS WITHOUT A MUTANT: {test} {how}")
            threads = [threading.Thread(target=self._work, args=(i,)) for i in range(self.jobs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self._save()

    def _counted(self) -> int:
        return sum(counts(result) for result in self.results.values())

    def _seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def _run_all_as_they_are(self) -> None:
        known = json.loads(TESTS.read_text()) if TESTS.exists() else {}
        hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self.build.programs.items()}
        with ThreadPoolExecutor(self.jobs) as pool:
            for program, path in self.build.programs.items():
                if known.get(program, {}).get("hash") != hashes[program]:
                    done = pool.map(lambda name, program=program: self._as_it_is(program, name), tests_of(path))
                    tests = [dataclasses.asdict(test) for test in done if test is not None]
                    known[program] = {"hash": hashes[program], "tests": tests}
                self.tests += [Test(**test) for test in known[program]["tests"]]
        if self._seconds_left() > 0:
            TESTS.write_text(json.dumps(known))

    def _as_it_is(self, program: str, name: str) -> Test | None:
        reached = OUT / "work" / f"{program}-{name.replace('/', '-')}"
        reached.parent.mkdir(parents=True, exist_ok=True)
        reached.write_bytes(b"\1" * (len(self.drawn["mutants"]) + 1))
        if self._seconds_left() <= 0:
            return None
        got = self._run(program, [name], reached, {switched.REACHED: str(reached)}, self._seconds_left())
        if got.good:
            numbers = [number for number, byte in enumerate(reached.read_bytes()) if number and not byte]
            reached.unlink()
            return Test(program, name, got.seconds, numbers)
        with self.lock:
            self.failing[f"{program} {name}"] = got.how or "fails"
        return None

    def _work(self, number: int) -> None:
        # Tests start as many threads as they have cores: two, so that they do not get in each other's way.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)], cores[(number + 1) % len(cores)]})
        while (mutant := self._next()) is not None:
            begin = time.monotonic()
            try:
                result = self._try(mutant, OUT / "work" / f"runs-{number}")
            except Exception as error:  # what cannot be tried shall not end the others
                result = {"status": "not tried", "how": f"{type(error).__name__}: {error}"}
            with self.lock:
                self.under_way -= 1
                if result["status"] != "unfinished":
                    whole = mutant | result | {"seconds": round(time.monotonic() - begin, 1)}
                    self.results[mutant["key"]] = whole
                    self._save()
                    tell(whole)

    def _next(self) -> Json | None:
        with self.lock:
            if not self.waiting or self._seconds_left() <= 0:
                return None
            if self._counted() + self.under_way >= self.drawn["wanted"]:
                return None
            self.under_way += 1
            mutant: Json = self.waiting.pop(0)
            return mutant

    def _try(self, mutant: Json, folder: Path) -> Json:
        """Runs the tests that reach it, a program after the other: those first whose tests are over soonest."""
        number = mutant["number"]
        reaching: dict[str, list[Test]] = {}
        for test in self.tests:
            if number in test.reaches:
                reaching.setdefault(test.program, []).append(test)
        tried, spent = 0, 0.0
        for program, tests in sorted(reaching.items(), key=lambda one: sum(test.seconds for test in one[1])):
            usual = sum(test.seconds for test in tests)
            if tried and spent + usual > self.most_seconds:
                break
            limit = PATIENCE + SLOWER * usual
            names = [test.name for test in tests]
            got = self._run(program, names, folder, {switched.CHOSEN: str(number)}, min(limit, self._seconds_left()))
            if not got.good:
                if self._seconds_left() <= 0:
                    return {"status": "unfinished"}
                again = [got.test] if got.test in names else names
                if self._run(program, again, folder, {}, limit).good:
                    return {"status": "found", "program": program, "test": got.test, "how": got.how}
                with self.lock:
                    self.unsteady[f"{program} {got.test}"] += 1
            tried, spent = tried + len(tests), spent + usual
        return {"status": "survived", "tried": tried, "reached": sum(map(len, reaching.values()))}

    def _run(self, program: str, names: list[str], at: Path, environment: dict[str, str], limit: float) -> Outcome:
        temporary = tempfile.mkdtemp(prefix="gpufs-")  # not below OUT: a socket's path is to be short
        command = [str(self.build.programs[program]), f"--gtest_filter={':'.join(names)}"]
        try:
            log = at.with_name(f"{at.name}.log")
            return run_program(command, log, limit, {"TMPDIR": temporary} | environment)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _save(self) -> None:
        whole = {
            **{name: self.drawn[name] for name in ("seed", "wanted", "population", "files")},
            "failing": self.failing,
            "unsteady": dict(self.unsteady),
            "results": list(self.results.values()),
        }
        temporary = self.out.with_name(self.out.name + ".tmp")
        temporary.write_text(json.dumps(whole, indent=1))
        temporary.replace(self.out)


def tests_of(program: Path) -> list[str]:
    """The names of its tests, as GoogleTest knows them."""
    said = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    names, suite = [], ""
    for line in said.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return [name for name in names if "DISABLED_" not in name]


def run(path: Path, jobs: int, minutes: float, out: Path, most_seconds: float) -> None:
    deadline = time.monotonic() + minutes * 60
    drawn = json.loads(path.read_text())
    for file, known in drawn["files"].items():
        if hashlib.sha256((ROOT / file).read_bytes()).hexdigest() != known:
            sys.exit(f"{file} has changed since the mutants were drawn")
    OUT.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(OUT / "work", ignore_errors=True)
    (OUT / "work").mkdir()
    Runner(drawn, out, jobs, deadline, most_seconds).run()


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
            tests = (
                f"{result['tried']} of {result['reached']} tests that reach it"
                if result["reached"]
                else "no test reaches it"
            )
            say(f"SURVIVED {result['key']}: {result['operator']} in {result['function']}; {tests}")
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
    running.add_argument(
        "--seconds", type=float, default=0, help="of tests that a mutant may take; 0: all that reach it"
    )
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
        run(options.mutants, max(1, options.jobs), options.minutes, options.out, options.seconds)
        return report([json.loads(options.out.read_text())])
    results = [json.loads(path.read_text()) for path in options.results]
    if options.command == "explain":
        explain(options.key, options.why, results)
        return 0
    return report(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

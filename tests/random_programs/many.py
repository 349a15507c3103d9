"""``python -m tests.random_programs --count N --start-seed S --jobs J --out file.json``: many
programs at once.

In: how many programs, from which seed, in how many processes. Out: a summary on stdout and a state
file (JSON): seeds done, mismatches with their minimised programs, coverage. What always holds:
seeds that the state file has are not run again, so that an interrupted run goes on where it was; a
process that hangs or dies is reported with its seed (`workers`).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.random_programs.workers import Crew, Plan

_BATCH = 25
_WRITE_EVERY = 15.0


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    record = Record(Path(options.out), options.fresh)
    wanted = [
        s
        for s in range(options.start_seed, options.start_seed + options.count)
        if str(s) not in record.state["done"]
    ]
    batches = [wanted[i : i + _BATCH] for i in range(0, len(wanted), _BATCH)]
    os.environ.update(TRACER_STRICT="1", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    plan = Plan(options.seconds, options.minimise, options.batches_a_process)
    try:
        Crew(batches, options.jobs, plan, record.take).run()
    finally:
        record.write()
    return _report(record)


class Record:
    """What is known of the seeds, read from a state file and written to it now and then.

    Mutable. out: the state file. fresh: do not read it.
    """

    def __init__(self, out: Path, fresh: bool) -> None:
        self.state: dict[str, Any] = {"done": {}, "failures": {}, "coverage": {}}
        self.out = out
        if out.exists() and not fresh:
            self.state = json.loads(out.read_text())
        self.started = self.written = time.monotonic()

    def take(self, news: dict[str, Any]) -> None:
        from tests.random_programs import coverage

        self.state["done"].update(news["done"])
        for seed, status in news["done"].items():
            if status in ("same", "invalid"):
                self.state["failures"].pop(seed, None)
        self.state["failures"].update(news["failures"])
        for seed, failure in news["failures"].items():
            print(
                f"seed {seed}: {failure['status']}: {failure['where'][:200]}",
                file=sys.stderr,
                flush=True,
            )
        self.state["raised"] = self.state.get("raised", 0) + news["raised"]
        coverage.merge(self.state["coverage"], news["coverage"])
        if time.monotonic() - self.written > _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        scratch = self.out.with_suffix(".part")
        scratch.write_text(json.dumps(self.state))
        scratch.replace(self.out)
        self.written = time.monotonic()
        messages = f"{len(self.state['done'])} programs, {len(self.state['failures'])} failures"
        print(f"{messages}, {self.written - self.started:.0f} s", file=sys.stderr, flush=True)

    def print_totals(self) -> None:
        counts = collections.Counter(self.state["done"].values())
        text = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        seeds = sorted(map(int, self.state["done"]))
        between = f"{seeds[0]}..{seeds[-1]}" if seeds else "none"
        seconds = time.monotonic() - self.started
        print(f"{len(seeds)} programs (seeds {between}): {text}; {self.state.get('raised', 0)} raised;"
              f" {seconds:.0f} s; state in {self.out}")  # fmt: skip


def parser(
    name: str, about: str | None, minimise: float, seconds: float, batches: int
) -> argparse.ArgumentParser:
    """Returns the command line of a fuzzer: which seeds, in how many processes, and for how long.

    name: of its package in tests. minimise, seconds, batches: what the options of these names are
    when nobody gives them.
    """
    result = argparse.ArgumentParser(prog=f"python -m tests.{name}", description=about)
    result.add_argument("--count", type=int, default=1000)
    result.add_argument("--start-seed", "--first", type=int, default=0)
    result.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    result.add_argument("--out", default=f"{name}.json", help="state file")
    result.add_argument("--fresh", action="store_true", help="ignore an existing state file")
    result.add_argument(
        "--minimise",
        type=float,
        default=minimise,
        help="seconds a failing program is made smaller; 0: not",
    )
    result.add_argument("--seconds", type=float, default=seconds, help="time limit of one program")
    result.add_argument("--batches-a-process", type=int, default=batches)
    result.add_argument("--show", type=int, help="print the program of this seed and run it")
    return result


def _options(arguments: list[str] | None) -> argparse.Namespace:
    options = parser("random_programs", __doc__, 20.0, 20.0, 8).parse_args(arguments)
    if options.show is not None:
        raise SystemExit(_show(options))
    return options


def _show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TRACER_STRICT", "1")
    from tests.random_programs.minimise import alike, minimise
    from tests.random_programs.run import run
    from tests.random_programs.seeds import generate

    program = generate(options.show)
    result = run(program, options.seconds)
    if result.status in ("mismatch", "crash") and options.minimise:
        program = minimise(program, lambda p: alike(run(p, 3.0), result), options.minimise)
        result = run(program, options.seconds)
    print(program)
    print(result)
    return int(result.status not in ("same", "invalid"))


def _report(record: Record) -> int:
    from tests.random_programs import coverage

    for seed, failure in sorted(record.state["failures"].items(), key=lambda pair: int(pair[0])):
        print(f"== seed {seed}: {failure['status']}: {failure['where'][:300]}")
        print(failure["program"])
        for is_call, text in failure["steps"]:
            print(f"# {'call ' + failure['target'] if is_call else 'do'}: {text}")
    record.print_totals()
    print(coverage.report(record.state["coverage"]))
    return int(bool(record.state["failures"]))

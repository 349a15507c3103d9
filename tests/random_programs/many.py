"""``python -m tests.random_programs --count N --start-seed S --jobs J --out file.json``: many programs at once.

In: how many programs, from which seed, in how many processes. Out: a summary on stdout and a state file (JSON):
seeds done, mismatches with their minimised programs, coverage. What always holds: seeds that the state file has are
not run again, so that an interrupted run goes on where it was; a dying worker is reported with its seeds.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import concurrent.futures.process
import json
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

_BATCH = 25


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    out = Path(options.out)
    state: dict[str, Any] = {"done": {}, "failures": {}, "coverage": {}}
    if out.exists() and not options.fresh:
        state = json.loads(out.read_text())
    wanted = [
        s
        for s in range(options.start_seed, options.start_seed + options.count)
        if str(s) not in state["done"]
    ]
    batches = [wanted[i : i + _BATCH] for i in range(0, len(wanted), _BATCH)]
    started = time.monotonic()
    os.environ.update(TRACER_STRICT="1", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    context = multiprocessing.get_context("spawn")
    jobs = [(batch, options.minimise, options.seconds) for batch in batches]
    while jobs:
        jobs, broken = _round(jobs, context, options, state)
        for batch, *_ in broken:  # a worker died: one of its programs ended the process
            _merge(state, _died(batch))
        _write(out, state)
        _progress(state, started, len(jobs))
    return _report(state, out, started, options)


def _round(jobs: list[Any], context: Any, options: Any, state: Any) -> tuple[list[Any], list[Any]]:
    """Runs some batches in fresh processes; gives (what is left, batches whose process died)."""
    size = options.jobs * options.batches_a_process
    now, later = jobs[:size], jobs[size:]
    broken = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        waiting = {pool.submit(_batch, job): job for job in now}
        for future in concurrent.futures.as_completed(waiting):
            try:
                _merge(state, future.result())
            except concurrent.futures.process.BrokenProcessPool:
                broken.append(waiting[future])
    if len(broken) > 1:  # which of them it was is not known: each alone
        return later, [job for job in broken if not _alone(job, context, state)]
    return later, broken


def _alone(job: Any, context: Any, state: Any) -> bool:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            _merge(state, pool.submit(_batch, job).result())
        except concurrent.futures.process.BrokenProcessPool:
            return False
    return True


def _died(seeds: list[int]) -> dict[str, Any]:
    where = f"a process that ran seeds {seeds[0]}..{seeds[-1]} died"
    told = {"status": "died", "where": where, "program": "", "target": "", "steps": []}
    return {
        "done": dict.fromkeys(map(str, seeds), "died"),
        "failures": {str(seeds[0]): told},
        "coverage": {},
        "raised": 0,
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default="random_programs.json", help="state file")
    parser.add_argument("--fresh", action="store_true", help="ignore an existing state file")
    parser.add_argument(
        "--minimise", type=float, default=20.0, help="seconds a failing program is made smaller; 0: not"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of one program")
    parser.add_argument("--batches-a-process", type=int, default=8)
    parser.add_argument("--show", type=int, help="print the program of this seed and run it")
    options = parser.parse_args(arguments)
    if options.show is not None:
        raise SystemExit(_show(options))
    return options


def _show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TRACER_STRICT", "1")
    from tests.random_programs.minimise import minimise
    from tests.random_programs.run import run
    from tests.random_programs.seeds import generate

    program = generate(options.show)
    result = run(program, options.seconds)
    if result.status in ("mismatch", "crash") and options.minimise:
        program = minimise(program, lambda p: alike(run(p, 3.0), result), options.minimise)
    print(program)
    print(result)
    return int(result.status not in ("same", "invalid"))


def alike(one: Any, other: Any) -> bool:
    """Whether two failures look like one fault: the same status, and what differs begins alike."""
    return one.status == other.status and _kind(one) == _kind(other)


def _kind(result: Any) -> str:
    text = re.sub(r"\d+", "", result.where)
    if result.status == "crash":
        return text[text.find("captured") :][:40] if "captured" in text else text[:24]
    return (text.split(":") + [""])[1][:9]


def _batch(job: tuple[list[int], float, float]) -> dict[str, Any]:
    """Runs seeds in a worker."""
    from tests.random_programs import coverage
    from tests.random_programs.minimise import minimise
    from tests.random_programs.run import run
    from tests.random_programs.seeds import generate

    seeds, seconds, limit = job
    done: dict[str, str] = {}
    failures: dict[str, Any] = {}
    raised = 0
    # Counting instructions takes time: every fourth batch does it.
    with coverage.watching(opcodes=seeds[0] // _BATCH % 4 == 0) as seen:
        for seed in seeds:
            program = generate(seed)
            result = run(program, limit)
            done[str(seed)] = result.status
            raised += result.raised
            if result.status not in ("same", "invalid"):
                small = program
                if seconds and result.status not in ("late", "harness"):
                    small = minimise(program, lambda p, r=result: alike(run(p, 3.0), r), seconds)
                failures[str(seed)] = {"status": result.status, "where": result.where, "program": small.source,
                                       "target": small.target, "steps": list(small.steps)}  # fmt: skip
    return {"done": done, "failures": failures, "coverage": seen.table(), "raised": raised}


def _merge(state: dict[str, Any], answer: dict[str, Any]) -> None:
    from tests.random_programs import coverage

    state["done"].update(answer["done"])
    state["failures"].update(answer["failures"])
    state["raised"] = state.get("raised", 0) + answer["raised"]
    coverage.merge(state["coverage"], answer["coverage"])


def _write(out: Path, state: dict[str, Any]) -> None:
    scratch = out.with_suffix(".part")
    scratch.write_text(json.dumps(state))
    scratch.replace(out)


def _progress(state: dict[str, Any], started: float, left: int) -> None:
    told = f"{len(state['done'])} programs, {len(state['failures'])} failures, {left} batches left"
    print(f"{told}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _report(state: dict[str, Any], out: Path, started: float, options: argparse.Namespace) -> int:
    from tests.random_programs import coverage

    counts = collections.Counter(state["done"].values())
    for seed, failure in sorted(state["failures"].items(), key=lambda pair: int(pair[0])):
        print(f"== seed {seed}: {failure['status']}: {failure['where'][:300]}")
        print(failure["program"])
        for is_call, text in failure["steps"]:
            print(f"# {'call ' + failure['target'] if is_call else 'do'}: {text}")
    seeds = sorted(map(int, state["done"]))
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(f"{len(seeds)} programs (seeds {seeds[0] if seeds else '-'}..{seeds[-1] if seeds else '-'}): {told}; "
          f"{state.get('raised', 0)} raised; {time.monotonic() - started:.0f} s; state in {out}")  # fmt: skip
    print(coverage.report(state["coverage"]))
    return int(bool(state["failures"]))

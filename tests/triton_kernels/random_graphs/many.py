"""``python -m tests.triton_kernels.random_graphs --count N --start-seed S --jobs J [--device cuda]
[--build] [--limit S]``

In: how many programs, from which seed, in how many processes, for how long. Out: what differs from
eager, with a program made as short as it could be, and how many were run. By default Triton's
interpreter runs the kernels; ``--device cuda``: the GPU; ``--build``: they are only compiled, for
sm_80 and sm_90. What always holds: a process that hangs or dies is told with its seed
(`tests.random_programs.workers`).
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import sys
import time
from typing import Any

from tests.random_programs.workers import Crew, Plan, batches_of, news

_BATCH = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.triton_kernels.random_graphs", description=__doc__
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu", help="cpu: by Triton's interpreter")
    parser.add_argument(
        "--build", action="store_true", help="only build machine code, without a GPU"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no batch is begun"
    )
    parser.add_argument(
        "--minimise", type=float, default=60.0, help="seconds to make a failing program smaller"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of one program")
    options = parser.parse_args()
    if options.device == "cpu" and not options.build:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    os.environ.update(TRACER_STRICT="1", OMP_NUM_THREADS="1")
    seeds = range(options.start_seed, options.start_seed + options.count)
    batches = [list(seeds[k : k + _BATCH]) for k in range(0, len(seeds), _BATCH)]
    messages = Told(time.monotonic() + options.limit)
    plan = Plan(options.seconds, options.minimise, batches=10)
    serve = functools.partial(_serve, options.device, options.build)
    messages.crew = Crew(batches, options.jobs, plan, messages.take, serve)
    messages.crew.run()
    return messages.end()


class Told:
    """Mutable: what became of the seeds."""

    def __init__(self, until: float) -> None:
        self.done: dict[str, str] = {}
        self.failures: dict[str, Any] = {}
        self.until, self.started = until, time.monotonic()
        self.crew: Any = None

    def take(self, news: dict[str, Any]) -> None:
        self.done |= news["done"]
        for seed, failure in news["failures"].items():
            if seed not in self.failures:
                print(
                    f"seed {seed}: {failure['status']}: {failure['where'][:300]}",
                    file=sys.stderr,
                    flush=True,
                )
        self.failures |= news["failures"]
        if time.monotonic() > self.until:
            self.crew.todo.clear()

    def end(self) -> int:
        for seed, failure in sorted(self.failures.items(), key=lambda pair: int(pair[0])):
            if self.done[seed] not in ("same", "invalid"):
                print(
                    f"== seed {seed}: {failure['status']}: {failure['where'][:1200]}\n{failure['program']}"
                )
        counts = collections.Counter(self.done.values())
        text = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        print(f"{len(self.done)} programs: {text}; {time.monotonic() - self.started:.0f} s")
        return int(bool(set(counts) - {"same", "invalid"}) or counts["same"] < counts["invalid"])


def _serve(device: str, only_build: bool, pipe: Any, plan: Plan, trace: str) -> None:
    """A worker's life."""
    batches = batches_of(
        pipe, trace, limited=device == "cpu"
    )  # a GPU's driver reserves more memory than there is
    for _, seeds, eagerly in batches:
        for seed in seeds:
            _seed(pipe.send, plan, seed, device, only_build, eagerly)
            pipe.send(("next", None))
        pipe.send(("end", {"done": {}, "failures": {}, "coverage": {}, "raised": 0}))


def _seed(send: Any, plan: Plan, seed: int, device: str, only_build: bool, eagerly: bool) -> None:
    from tests.random_programs.minimise import alike, minimise, statement_edits, step_edits
    from tests.triton_kernels.random_graphs.beside_eager import build, run, run_eagerly
    from tests.triton_kernels.random_graphs.program import generate, result_edits

    send(("at", (seed, "running it", plan.seconds)))
    program = generate(seed)
    if eagerly:
        if not run_eagerly(program, plan.seconds, device):
            send(("seed", news(seed, "invalid")))
        return
    judge = build if only_build else functools.partial(run, device=device)
    result = judge(program, plan.seconds)
    send(("seed", news(seed, result.status, result.where, program)))
    if plan.minimise and result.status in ("mismatch", "crash"):
        send(("at", (seed, "making it smaller", plan.minimise)))
        edits = (step_edits, result_edits, statement_edits)
        small = minimise(program, lambda p: alike(judge(p, 20.0), result), plan.minimise, edits)
        where = judge(small, plan.seconds).where or result.where
        send(("seed", news(seed, result.status, where, small)))

"""Processes that run seeds, each watched: one that hangs or dies is replaced, and the seed it was
at is known.

In: batches of seeds, a `Plan`, what takes the news. Out: calls of ``take`` with what became of each
seed. What always holds: a program cannot stop the run, whatever native code it is stuck in: a
process that is longer at one seed than the limit is killed, the rest of its batch goes to another
one. Such a seed is a failure, "hung" or "died", unless a process that only runs eager hangs or dies
there too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FRAMES = 14
#: Bytes that a process may take: a program that doubles a list again and again shall not take the
#: machine's.
_MEMORY = 6 << 30
#: Stands for the seeds of a batch that has none left: its last word is still to come.
_END = -1
#: Stands for all seeds of a batch that are run as one program: which of them it is that ends the
#: process shows when each is run by itself.
TOGETHER = -2
#: What a worker does with a seed before anything is compiled.
GENERATING = "generating it"

Batch = list[int]
Take = Callable[[dict[str, Any]], None]
Serve = Callable[[Any, Any, str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: the time limit of a program; minimise: seconds to make a failing one smaller;
    opcodes_every: of how many batches one counts instructions; batches: how many a process runs
    before a fresh one takes its place; grace: what a process may take beyond the time limit, which
    no native code keeps; start: what it may take to begin."""

    seconds: float
    minimise: float
    batches: int
    opcodes_every: int = 4
    grace: float = 20.0
    start: float = 240.0


@dataclass
class _Worker:
    """Mutable. left: seeds of the batch that it has not finished; at: the seed it is at, what it
    does with it, and when it is killed."""

    process: Any
    pipe: multiprocessing.connection.Connection
    trace: Path
    served: int = 0
    number: int = 0
    left: Batch = field(default_factory=list)
    at: tuple[int, str] | None = None
    until: float = 0.0
    eager: bool = False


class Crew:
    """Mutable: the processes and what is still to do."""

    def __init__(
        self, batches: list[Batch], jobs: int, plan: Plan, take: Take, serve: Serve | None = None
    ) -> None:
        self.plan, self.take, self.serve = plan, take, serve or _serve
        self.todo: list[tuple[int, Batch, bool]] = [
            (i, batch, False) for i, batch in enumerate(batches)
        ]
        self.todo.reverse()
        self.jobs = jobs
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[_Worker] = []
        self.folder = tempfile.TemporaryDirectory(prefix="random_programs")

    def run(self) -> None:
        try:
            while self.todo or any(w.left for w in self.workers):
                self._employ()
                busy = [w for w in self.workers if w.left]
                multiprocessing.connection.wait(
                    [*(w.pipe for w in busy), *(w.process.sentinel for w in busy)], 1.0
                )
                for worker in busy:
                    self._listen(worker)
        finally:
            for worker in self.workers:
                self._stop(worker)
            self.folder.cleanup()

    def _employ(self) -> None:
        """Gives work to those that have none, in a fresh process where theirs has run enough."""
        for worker in [w for w in self.workers if not w.left and w.served >= self.plan.batches]:
            self._stop(worker)
        while self.todo:
            idle = next((w for w in self.workers if not w.left), None)
            if idle is None:
                if len(self.workers) >= self.jobs:
                    return
                idle = self._start()
            idle.number, idle.left, idle.eager = self.todo.pop()
            idle.served += 1
            idle.at, idle.until = None, time.monotonic() + self.plan.start
            idle.pipe.send((idle.number, idle.left, idle.eager))

    def _start(self) -> _Worker:
        ours, theirs = self.context.Pipe()
        trace = Path(self.folder.name) / f"{len(os.listdir(self.folder.name))}.txt"
        trace.touch()
        process = self.context.Process(
            target=self.serve, args=(theirs, self.plan, str(trace)), daemon=True
        )
        process.start()
        theirs.close()
        worker = _Worker(process, ours, trace)
        self.workers.append(worker)
        return worker

    def _stop(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()

    def _listen(self, worker: _Worker) -> None:
        try:
            while worker.left and worker.pipe.poll():
                self._hear(worker, worker.pipe.recv())
        except (EOFError, ConnectionError):
            self._lost(worker, "died")
            return
        if worker.left and time.monotonic() > worker.until:
            self._lost(worker, "hung")

    def _hear(self, worker: _Worker, texts: tuple[str, Any]) -> None:
        kind, value = texts
        if kind == "at":
            seed, what, seconds = value
            worker.at, worker.until = (seed, what), time.monotonic() + seconds + self.plan.grace
        elif kind == "seed":
            self.take(value)
        elif kind == "end":
            self.take(value)
            worker.left = []
        else:
            assert kind == "next", kind
            worker.left = worker.left[1:] or [_END]
            worker.at, worker.until = None, time.monotonic() + self.plan.grace

    def _lost(self, worker: _Worker, status: str) -> None:
        """A process that hangs or has died: whose fault is it?"""
        seed, what = worker.at or (worker.left[0], "starting")
        if seed == _END:
            self._stop(worker)
            return
        if seed == TOGETHER and len(worker.left) > 1:
            self.todo += [
                (worker.number, [item], worker.eager) for item in worker.left if item != _END
            ]
            self._stop(worker)
            return
        seed = worker.left[0] if seed == TOGETHER else seed
        where = f"while {what}{_stack(worker) if status == 'hung' else ''}"
        if status == "died":
            worker.process.join(5)  # its own exit code, not that of kill()
        worker.process.kill()
        worker.process.join()
        if status == "died":
            where += f" (exit code {worker.process.exitcode})"
        rest = [s for s in worker.left if s not in (seed, _END)]
        if worker.eager or what == GENERATING:  # which runs eager only
            self.take(news(seed, "invalid"))
            print(f"seed {seed} is not counted: eager alone {status} too, {where}", flush=True)
        else:
            self.take(news(seed, status, where))
            if what != "making it smaller":
                self.todo.append((worker.number, [seed], True))
        if rest:
            self.todo.append((worker.number, rest, worker.eager))
        self._stop(worker)


def _stack(worker: _Worker) -> str:
    """Where a process stands that no longer answers: its innermost frames."""
    with contextlib.suppress(OSError):
        os.kill(worker.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
    lines = [
        line.strip()
        for line in worker.trace.read_text(errors="replace").splitlines()
        if "File " in line
    ]
    return " in " + " < ".join(lines[:_FRAMES])


def news(
    seed: int, status: str, where: str = "", program: Any = None, raised: bool = False
) -> dict[str, Any]:
    failures: dict[str, Any] = {}
    if status not in ("same", "invalid"):
        failures[str(seed)] = {"status": status, "where": where, "program": getattr(program,
        "source", ""),
                               "target": getattr(program, "target", ""),
                               "steps": list(getattr(program, "steps", ()))}  # fmt: skip
    return {
        "done": {str(seed): status},
        "failures": failures,
        "coverage": {},
        "raised": int(raised),
    }


def _serve(pipe: Any, plan: Plan, trace: str) -> None:
    """A worker's life: batches come, news goes."""
    for number, seeds, eager in batches_of(pipe, trace):
        _batch(pipe.send, plan, number, seeds, eager)


def batches_of(pipe: Any, trace: str, limited: bool = True) -> Iterator[tuple[int, Batch, bool]]:
    """What a worker is sent, until nobody sends any more; from now on a signal tells where it
    stands. limited: in memory.
    """
    if limited:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, resource.RLIM_INFINITY))
    faulthandler.register(signal.SIGUSR1, file=open(trace, "w"), all_threads=False)
    with contextlib.suppress(EOFError):
        while True:
            yield pipe.recv()


def _batch(
    send: Callable[[tuple[str, Any]], None], plan: Plan, number: int, seeds: Batch, eager: bool
) -> None:
    from tests.random_programs import coverage

    # Counting instructions takes time: some batches do it.
    with coverage.watching(opcodes=number % plan.opcodes_every == 0) as seen:
        for seed in seeds:
            (_eager_only if eager else _seed)(send, plan, seed)
            send(("next", None))
    send(
        (
            "end",
            {"done": {}, "failures": {}, "coverage": {} if eager else seen.table(), "raised": 0},
        )
    )


def _seed(send: Callable[[tuple[str, Any]], None], plan: Plan, seed: int) -> None:
    from tests.random_programs.minimise import alike, minimise
    from tests.random_programs.run import EAGER_SECONDS, run
    from tests.random_programs.seeds import generate

    send(("at", (seed, GENERATING, plan.seconds)))
    program = generate(seed)
    send(("at", (seed, "running it", plan.seconds + EAGER_SECONDS)))
    result = run(program, plan.seconds)
    send(("seed", news(seed, result.status, result.where, program, result.raised)))
    if plan.minimise and result.status in ("mismatch", "crash"):
        send(("at", (seed, "making it smaller", plan.minimise)))
        small = minimise(program, lambda p: alike(run(p, 3.0), result), plan.minimise)
        send(("seed", news(seed, result.status, result.where, small)))


def _eager_only(send: Callable[[tuple[str, Any]], None], plan: Plan, seed: int) -> None:
    """Whether eager survives what a process hung or died of; if so, nothing is to be told."""
    from tests.random_programs.run import EAGER_SECONDS, run_eagerly
    from tests.random_programs.seeds import generate

    program = generate(seed)
    send(("at", (seed, "running it eagerly", EAGER_SECONDS)))
    if not run_eagerly(program, EAGER_SECONDS):
        send(("seed", news(seed, "invalid")))

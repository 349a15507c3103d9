"""Processes that run test methods, each watched.

In: tasks (a file and some of its methods). Out: calls of ``take`` with both outcomes of each
method. What always holds: every run of a method has a process of its own, forked from one that has
imported the file and run nothing, so that no method sees what another has left; a run that takes
longer than the limit is killed and is a "hang", one whose process dies is a "crash".
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracer_core
from tests.cpython import outcome, suite

#: Forked, not spawned: importing torch takes longer than most methods.
_CONTEXT: Any = multiprocessing.get_context("fork")
#: Bytes of address space of a run.
_MEMORY = 8 << 30
_FRAMES = 6
_BATCH = 40

Take = Callable[[str, str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Task:
    """file: one of `suite.FILES`. names: methods of it."""

    file: str
    names: tuple[str, ...]


def warm_up() -> None:
    """Imports what the first captures, with symbolic numbers too, and the first graph break import,
    and takes all that is there away from the garbage collector: what tests collect is their own."""

    def one(number: int) -> list[int]:
        actual = [number, 2]
        tracer_core.graph_break()
        return sorted(actual)

    fast = tracer_core.compile(one, backend="eager")
    for number in range(3):
        fast(number)
    gc.collect()
    gc.freeze()


def methods(file: str) -> list[str]:
    """Returns the names of a file's methods. Raises RuntimeError if it cannot be imported."""
    kind, value = _in_process(_list, (file,), 120.0)
    if kind != "done":
        raise RuntimeError(f"{file}: {kind}: {value}")
    return value


def _list(pipe: Any, file: str) -> None:
    outcome.silence()
    _prepare()
    pipe.send(list(suite.cases_of(file)))


def sweep(tasks: Iterable[Task], jobs: int, seconds: float, take: Take) -> None:
    """Runs the tasks, `jobs` at a time; seconds: the time limit of one run of a method."""
    waiting = [
        Task(task.file, task.names[start : start + _BATCH])
        for task in tasks
        for start in range(0, len(task.names), _BATCH)
    ][::-1]
    busy: dict[Any, tuple[Any, Task]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                task = waiting.pop()
                ours, theirs = _CONTEXT.Pipe(duplex=False)
                process = _CONTEXT.Process(target=_serve, args=(theirs, task, seconds))
                process.start()
                theirs.close()
                busy[ours] = (process, task)
            for pipe in multiprocessing.connection.wait(list(busy)):
                try:
                    name, row = pipe.recv()
                except EOFError:
                    process, task = busy.pop(pipe)
                    process.join()
                    pipe.close()
                    continue
                take(busy[pipe][1].file, name, row)
    finally:
        for process, _ in busy.values():
            process.terminate()


def _serve(pipe: Any, task: Task, seconds: float) -> None:
    """A process's life: imports the file, forks two runs a method."""
    _prepare()
    cases = suite.cases_of(task.file)
    gc.freeze()
    for name in task.names:
        row: dict[str, Any] = {}
        for kind in ("native", "compiled"):
            start = time.monotonic()
            row[kind] = _run(cases[name], kind, seconds)
            row[f"{kind}_seconds"] = round(time.monotonic() - start, 2)
        pipe.send((name, row))


def _prepare() -> None:
    """Leaves out what takes long or needs a network, as regrtest does without ``-u``."""
    from test import support

    support.use_resources = []


def _run(case: Any, kind: str, seconds: float) -> list[str]:
    """Returns the outcome of a run in a process of its own."""
    folder = tempfile.mkdtemp(prefix="cpython")
    try:
        what, value = _in_process(_one, (case, kind, folder), seconds, Path(folder) / "stack.txt")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return value if what == "done" else [f"{what}: {value}"]


def _one(pipe: Any, case: Any, kind: str, folder: str) -> None:
    """A run's life."""
    outcome.silence()
    os.chdir(folder)
    stack = open("stack.txt", "w")
    faulthandler.register(signal.SIGUSR1, stack)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    random.seed(0)
    suite.prepare(case, kind == "compiled")
    pipe.send(outcome.run_case(case))


def _in_process(
    function: Any, arguments: tuple[Any, ...], seconds: float, stack: Path | None = None
) -> tuple[str, Any]:
    """Returns ("done", what `function` sent), ("hang", where) or ("crash", how)."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_guarded, args=(function, theirs, *arguments))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return "hang", f"not ready after {seconds:.0f} s{_innermost(process.pid, stack)}"
        kind, value = ours.recv()
        return kind, value
    except (EOFError, pickle.UnpicklingError):  # it may go on without its pipe
        process.join(1.0)
        return "crash", f"the process ended with {process.exitcode}"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the test has started
        process.kill()
        process.join()
        ours.close()


class _Sender:
    """The pipe as `function` sees it: what it sends is marked as done."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def send(self, value: Any) -> None:
        self.pipe.send(("done", value))


def _guarded(function: Any, pipe: Any, *arguments: Any) -> None:
    os.setpgid(0, 0)
    try:
        function(_Sender(pipe), *arguments)
    except BaseException:  # the runner's own fault, or what unittest lets through
        pipe.send(("error", outcome.plain(traceback.format_exc()[-400:])))
    finally:
        os._exit(0)  # what threads and finalizers of a test would do is no outcome


def _innermost(pid: int, stack: Path | None) -> str:
    """Returns where a process stands that does not answer."""
    if stack is None:
        return ""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.3)
    lines = stack.read_text(errors="replace").splitlines() if stack.exists() else []
    actual = [line.strip().replace(", in", "") for line in lines if "File " in line]
    places = [line.rpartition("/")[2].replace('"', "") for line in actual[:_FRAMES]]
    return " in " + " < ".join(places) if places else ""

"""Compiles before the first request: `warmup`, `compile_many`, and what is still being compiled.

In: compiled functions and the arguments of calls to come. Out: functions whose calls with such
arguments compile nothing. The calls are made for real, first with the captured graphs, which the
background threads compile side by side, then until a whole round of calls captures nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tracer_core import markers
from tracer_core.background import worker
from tracer_core.background.compilation import Compilation, CompilationState
from tracer_core.background.progress import Progress, progress_of
from tracer_core.debug.logs import logger
from tracer_core.errors import TracerError
from tracer_core.execution import capture_lock, compiled_function
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.inputs import Inputs
from tracer_core.limits import MAX_WARMUP_ROUNDS

#: CUDA graphs are recorded some calls after the first one.
_ROUNDS_ON_CUDA = 3
#: Seconds between two looks at what is being compiled.
_LOOK = 0.05


#: What users may pass as `progress`: whether there is a bar, or what is called with each change.
Show = bool | Callable[[Progress], None]


def progress(function: CompiledFunction | None, wait: float) -> Progress:
    """See `tracer_core.progress`."""
    every = compiled_function.compilations() if function is None else function.compilations
    end = time.perf_counter() + wait
    for item in every:
        item.wait(max(0.0, end - time.perf_counter()))
    return progress_of(every)


@dataclass(slots=True)
class Item:
    """One function to prepare. Mutable."""

    #: What is called.
    fn: Callable[..., Any]
    #: Of each call.
    inputs: Sequence[Inputs]
    function: CompiledFunction | None = field(init=False)

    def __post_init__(self) -> None:
        behind = markers.compiled(self.fn)
        self.function = None if behind is None else behind.function

    def call_all(self) -> None:
        """Makes all calls, without effects on random generators and on the module's buffers."""
        with _state_restored(_module_of(self.fn)):
            for value in self.inputs:
                self.fn(*value.args, **value.kwargs)


def prepare(items: Sequence[Item], workers: int | None, show: Show) -> None:
    """Makes calls of functions until they compile nothing. workers: threads; None: one a processor.

    Raises the error of a graph that cannot be compiled (of several the first, with notes of the
    others), and TracerError where calls go on compiling.
    """
    threads = len(os.sched_getaffinity(0)) if workers is None else workers
    rounds = _ROUNDS_ON_CUDA if torch.cuda.is_initialized() else 1
    quiet = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(worker.parallel(threads))
        for item in items:
            if item.function is not None:
                stack.enter_context(_in_background(item.function))
        bar = stack.enter_context(_shown(show, sum(len(item.inputs) for item in items)))
        for _ in range(MAX_WARMUP_ROUNDS + rounds):
            known = set(map(id, compiled_function.compilations()))
            before = capture_lock.captures_so_far()
            for item in items:
                item.call_all()
            new = [item for item in compiled_function.compilations() if id(item) not in known]
            _wait(new, bar)
            _raise_failed(new)
            quiet = quiet + 1 if capture_lock.captures_so_far() == before else 0
            if quiet >= rounds:
                return
    raise TracerError(
        f"warmup: after {MAX_WARMUP_ROUNDS} rounds the calls still compile something; "
        "TRACER_LOGS=recompiles says why"
    )


def _wait(every: Sequence[Compilation], bar: Callable[[Progress], None]) -> None:
    while True:
        progress = progress_of(every)
        bar(progress)
        if progress.is_done:
            return
        next(item for item in every if not item.is_done).wait(_LOOK)


def _raise_failed(every: Sequence[Compilation]) -> None:
    failed = [item for item in every if item.state is CompilationState.FAILED]
    if not failed:
        return
    first, *others = failed
    assert first.error is not None
    for other in others:
        first.error.add_note(f"and {other.graph} of {other.function}: {other.error}")
    raise first.error


@contextlib.contextmanager
def _in_background(function: CompiledFunction) -> Iterator[None]:
    """Context in which a function's graphs are compiled on other threads."""
    before = function.config
    function.config = replace(before, when="background")
    try:
        yield
    finally:
        function.config = before


@contextlib.contextmanager
def _state_restored(module: torch.nn.Module | None) -> Iterator[None]:
    """Context after which torch's random generators and a module's buffers are as they were."""
    buffers = [] if module is None else [(item, item.clone()) for item in _written(module)]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, values in buffers:
                    # eager batch norms count no version; a needless write would be a change
                    if not torch.equal(buffer, values):
                        buffer.copy_(values)


def _written(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yields the buffers that a call may write to and that can be set back."""
    for buffer in module.buffers():
        if not buffer.is_inference() and buffer.layout is torch.strided:
            yield buffer


def _module_of(fn: Any) -> torch.nn.Module | None:
    owner = fn.__self__ if inspect.ismethod(fn) else fn
    return owner if isinstance(owner, torch.nn.Module) else None


@contextlib.contextmanager
def _shown(show: Show, n_calls: int) -> Iterator[Callable[[Progress], None]]:
    """Context with what shows progress: a bar of tqdm on a terminal, lines in the log elsewhere."""
    if callable(show):
        yield show
        return
    if not show:
        yield lambda result: None
        return
    bar_type = _bar_type() if sys.stderr.isatty() else None
    if bar_type is None:
        said: set[str] = set()

        def log(progress: Progress) -> None:
            for item in progress:
                if item.state.has_ended and item.graph not in said:
                    said.add(item.graph)
                    logger().info(
                        "%s, %s: %s in %.1f s", item.function, item.graph, item.state, item.seconds
                    )

        yield log
        return
    with bar_type(desc="compiling", unit="graph", total=n_calls) as bar:

        def show(progress: Progress) -> None:
            bar.total, bar.n = max(len(progress), 1), progress.n_done
            now = [
                f"{item.function} {item.stage}".strip()
                for item in progress
                if item.state is CompilationState.COMPILING
            ]
            bar.set_postfix_str(", ".join(now)[:60], refresh=False)
            bar.refresh()

        yield show


def _bar_type() -> Any:
    """Returns tqdm's class of bars, or None."""
    try:
        from tqdm import tqdm  # optional: tqdm, which most model libraries bring
    except ImportError:
        return None
    return tqdm

"""Fallbacks: why a graph, or a part of it, runs without its backend.

Every runner that executes captured operators eagerly is marked with its `Fallback`; the fallback is
recorded as a stage, and the first of each kind is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tracer_core.contract.backend import Runner
from tracer_core.debug.logs import logger
from tracer_core.debug.stages import stage


@dataclass(frozen=True, slots=True)
class Fallback:
    """Why a graph does not (only) run its backend's code.

    kind: ``"training"``, ``"lowering"`` or ``"unsupported"``. graph: the graph's name. backend: the
    requested backend. reason: for users.
    """

    kind: str
    graph: str
    backend: str
    reason: str


def fallback_of(runner: Runner) -> Fallback | None:
    """Returns the `Fallback` of a runner, or None if the runner only runs its backend's code."""
    found: Fallback | None = getattr(runner, "tracer_fallback", None)
    return found


def marked(runner: Runner, fallback: Fallback | None) -> Runner:
    """Attaches the fallback, if there is one, to the runner; returns the runner."""
    if fallback is not None:
        runner.tracer_fallback = fallback  # type: ignore[attr-defined]
    return runner


_listeners: list[Callable[[str], None]] = []


def graph_raised(function: str, backend: str, error: BaseException) -> str:
    """Logs that a graph raised an error that the eager program did not raise; returns the message.

    function: the function's name.
    """
    if isinstance(error, torch.OutOfMemoryError):
        why = "it needs less memory, or some was free by then; the next call tries the graph again"
    else:
        why = (
            f"unless the program catches it, backend {backend!r} is at fault (backend='eager'"
            " shows)"
        )
    text = (
        f"a graph of {function} raised {error!r}, which the program that ran in its place did not:"
        f" {why}"
    )
    logger().warning("%s", text)
    for listener in tuple(_listeners):
        listener(text)
    return text


@contextlib.contextmanager
def failures() -> Iterator[list[str]]:
    """Collects the messages of `graph_raised` inside the block, for tests of backends."""
    found: list[str] = []
    _listeners.append(found.append)
    try:
        yield found
    finally:
        _listeners.remove(found.append)


_said: set[tuple[str, str, str]] = set()


def report(fallback: Fallback) -> None:
    """Records a fallback as a stage, and logs the first of each kind, backend and reason."""
    with stage("fallback", graph=fallback.graph) as record:
        record.text = f"{fallback.kind}: {fallback.reason}"
    key = (fallback.kind, fallback.backend, fallback.reason)
    if key not in _said:
        _said.add(key)
        logger().warning("%s, backend %r: %s", fallback.graph, fallback.backend, fallback.reason)

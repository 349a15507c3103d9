"""Why a graph, or a part of it, runs without its backend.

In: a runner. Out: its `Fallback`, or None. What always holds: whoever gives the captured operators to eager marks the
runner with the reason, records it as a stage, and logs the first of a kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tracer_core.contract.backend import Runner
from tracer_core.logs import logger
from tracer_core.stages import stage


@dataclass(frozen=True, slots=True)
class Fallback:
    """kind: ``"training"``, ``"lowering"`` or ``"unsupported"``. graph: its name. backend: that was asked for.
    reason: for users. refused: (operator, reason) of each operator that the backend refused."""

    kind: str
    graph: str
    backend: str
    reason: str
    refused: tuple[tuple[str, str], ...] = ()


def fallback_of(runner: Runner) -> Fallback | None:
    """The `Fallback` of a runner that does not (only) run its backend's code."""
    found: Fallback | None = getattr(runner, "tracer_fallback", None)
    return found


def marked(runner: Runner, fallback: Fallback | None) -> Runner:
    """The runner, which carries the reason from now on, where there is one."""
    if fallback is not None:
        runner.tracer_fallback = fallback  # type: ignore[attr-defined]
    return runner


_listeners: list[Callable[[str], None]] = []


def graph_raised(function: str, backend: str, error: BaseException) -> str:
    """Says that a graph raised what the program that ran in its place did not raise, and returns what it said.
    function: its name."""
    if isinstance(error, torch.OutOfMemoryError):
        why = "it needs less memory, or some was free by then; the next call tries the graph again"
    else:
        why = f"unless the program catches it, backend {backend!r} is at fault (backend='eager' shows)"
    text = f"a graph of {function} raised {error!r}, which the program that ran in its place did not: {why}"
    logger().warning("%s", text)
    for listener in tuple(_listeners):
        listener(text)
    return text


@contextlib.contextmanager
def failures() -> Iterator[list[str]]:
    """What `graph_raised` says inside the block, for tests of backends."""
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

"""Fallbacks: why a graph, or a part of it, runs without its backend.

What always holds: whoever gives the captured operators to eager puts a `Fallback` with the reason
into the `CompiledGraph`, records it as a stage, and logs the first of a kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from tracer_core.debug.logs import logger
from tracer_core.debug.stages import stage

#: Why a graph, or a part of it, runs without its backend. ``"unsupported"``: `Backend.supports`
#: refuses a part. ``"toolchain"``: a compiler is missing.
FallbackKind = Literal["training", "lowering", "unsupported", "toolchain", "backend_failed"]

#: Kinds of fallbacks of graphs that run eagerly as a whole.
WHOLE: tuple[FallbackKind, ...] = ("lowering", "training", "backend_failed")


@dataclass(frozen=True, slots=True)
class Fallback:
    """Why a graph, or a part of it, runs without its backend."""

    kind: FallbackKind
    #: The name of the graph.
    graph: str
    #: The name of the backend.
    backend: str
    #: The reason, for users.
    reason: str
    #: (operator, reason) of each operator that the backend refuses.
    refused: tuple[tuple[str, str], ...] = ()


_listeners: list[Callable[[str], None]] = []


def graph_raised(function: str, backend: str, error: BaseException) -> str:
    """Logs that a graph raised an error that the eager program did not raise; returns the message.

    function: the function's name.
    """
    if isinstance(error, torch.OutOfMemoryError):
        why = "it needs less memory, or some was free by then; the next call tries the graph again"
    else:
        shows = "(backend='eager' shows)"
        why = f"unless the program catches it, backend {backend!r} is at fault {shows}"
    what = (
        f"a graph of {function} raised {error!r}, which the program that ran in its place did not"
    )
    text = f"{what}: {why}"
    logger().warning("%s", text)
    for listener in tuple(_listeners):
        listener(text)
    return text


@contextlib.contextmanager
def failures() -> Iterator[list[str]]:
    """Collects the messages of `graph_raised` inside the block, for tests of backends."""
    texts: list[str] = []
    _listeners.append(texts.append)
    try:
        yield texts
    finally:
        _listeners.remove(texts.append)


_said: set[tuple[str, str, str]] = set()


def report(fallback: Fallback, more: str = "") -> None:
    """Records a fallback as a stage, and logs the first of each kind, backend and reason. more:
    ends the line of the log."""
    record_only(fallback)
    key = (fallback.kind, fallback.backend, fallback.reason)
    if key not in _said:
        _said.add(key)
        text = fallback.reason + more
        logger().warning("%s, backend %r: %s", fallback.graph, fallback.backend, text)


def record_only(fallback: Fallback) -> None:
    """Records a fallback as a stage; the caller logs it."""
    with stage("fallback", graph=fallback.graph) as record:
        record.text = f"{fallback.kind}: {fallback.reason}"

"""Backends that fail: whether the graph then runs in eager mode, and what is told.

A program that eager runs does not end in an error of a backend: where one fails in a stage, or
returns something else than its graph promises, the graph runs in eager mode. A line of the log names
backend, stage, error and a file for a bug report (`tracer_core.aot.bug_report`), and a `Fallback`
of kind ``"backend_failed"`` is recorded.

Errors stay errors under ``TRACER_STRICT=1``, inside `raising_failures` (tests of backends and the
choice of ``backend="auto"``, which drops a backend that fails), where the caller's own function is
the backend, and for a `RequirementError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from tracer_core.aot.bug_report import write_bug_report
from tracer_core.contract.backend import Backend
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.debug.fallbacks import Fallback, record_only, report
from tracer_core.errors import BackendError, RequirementError
from tracer_core.options import env
from tracer_core.registry.torch_style import TorchStyle

_RAISING: ContextVar[bool] = ContextVar("tracer_raising_failures", default=False)


@contextlib.contextmanager
def raising_failures() -> Iterator[None]:
    """Context in which graphs are compiled so that failures of their backends are raised."""
    token = _RAISING.set(True)
    try:
        yield
    finally:
        _RAISING.reset(token)


def falls_back(backend: Backend) -> bool:
    """Whether graphs that this backend fails on run in eager mode."""
    style = backend.compile
    is_users = isinstance(style, TorchStyle) and style.is_callable_of_user
    return not (env().strict or _RAISING.get() or is_users)


def with_report(captured: CapturedGraph, error: BackendError) -> BackendError:
    """Returns the error with the path of a bug report, after recording the `Fallback`."""
    if isinstance(error, RequirementError):
        return error
    name = captured.name
    path = write_bug_report(captured.gm, captured.real_inputs, name, error.backend, error)
    record_only(Fallback("backend_failed", name, error.backend, _reason(error)))
    return BackendError(error.backend, error.stage, error.detail, path)


def _reason(error: BackendError) -> str:
    return (
        f"the graph runs in eager mode, because backend {error.backend!r} failed in stage"
        f" {error.stage!r}: {error.detail}"
    )


def failed(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    name: str,
    backend: str,
    error: BackendError,
) -> Fallback:
    """Writes the bug report, logs, and returns the `Fallback` of a graph that a backend failed on.

    Raises the error if it names something that the caller has to supply.
    """
    if isinstance(error, RequirementError):
        raise error
    path = write_bug_report(graph, inputs, name, backend, error)
    fallback = Fallback("backend_failed", name, backend, _reason(error))
    report(fallback, f"; for a bug report: {path}")
    return fallback

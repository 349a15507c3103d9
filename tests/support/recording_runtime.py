"""A stand-in for the tracer, for tests of what `compile()` itself does."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import tracer_core
from tracer_core.options import CompileConfig


@dataclass
class RecordingRuntime:
    """What reached the tracer: the `compiled` callables, the positional arguments of each call in
    `calls`, and how often `reset` was called."""

    compiled: list[Any] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    resets: int = 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingRuntime]:
    """Puts a tracer in place that records what it is given and runs it as it is."""
    record = RecordingRuntime()

    class CompiledFunction:
        def __init__(self, fn: Callable[..., Any], config: CompileConfig) -> None:
            self.fn, self.config = fn, config
            self.verdicts, self.compilations, self.breaks = [], [], []
            self.persistent_cache = types.SimpleNamespace(outcome="", seconds=0.0)
            record.compiled.append(self)

        def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            record.calls.append(args)
            return self.fn(*args, **kwargs)

    def reset() -> None:
        record.resets += 1

    module = types.ModuleType("tracer_core.execution.compiled_function")
    vars(module).update(CompiledFunction=CompiledFunction, reset=reset)
    monkeypatch.setitem(sys.modules, "tracer_core.execution.compiled_function", module)
    yield record
    tracer_core.reset()

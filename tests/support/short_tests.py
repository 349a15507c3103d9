"""Fixtures of the core's folders, whose tests are short: one that computes for twenty seconds has met
an endless loop, and fails.

Processor time counts, so that a busy machine fails none; one that waits for ever meets
pytest-timeout.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tracer_core

_SECONDS = 20


@pytest.fixture(autouse=True)
def no_endless_loop() -> Iterator[None]:
    late = []

    def fail(*_: Any) -> None:
        late.append(True)
        raise TimeoutError(f"a test computed for more than {_SECONDS} seconds")

    previous = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        tracer_core.reset()
    assert not late, f"a test computed for more than {_SECONDS} seconds"


@pytest.fixture
def may_leave_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose functions stay compiled, but may leave a graph."""
    torch.manual_seed(0)
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_ALWAYS_COMPILED", "1")

"""Every test here is short: one that runs for a minute has met an endless loop, and fails."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

import tracer_core

_SECONDS = 20


@pytest.fixture(autouse=True)
def _no_endless_loop() -> Iterator[None]:
    late = []

    def fail(*_: Any) -> None:
        late.append(True)
        raise TimeoutError(f"a test ran for more than {_SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        tracer_core.reset()
    assert not late, f"a test ran for more than {_SECONDS} seconds"

"""Times callables side by side: rounds alternate between them, so drift of the machine hits all alike.

In: callables by name. Out: the median seconds of each. What always holds: each is warmed up first, and what
is compared is taken from the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def median_seconds(
    candidates: Mapping[str, Callable[[], Any]], *, rounds: int = 9, budget: float = 1.0
) -> dict[str, float]:
    """Median seconds of one call of each candidate over `rounds` alternating rounds.

    budget: seconds that all rounds together should take; calls a round are set by it, and are at least 1.
    """
    calls = {name: _calls(run, budget / max(1, rounds * len(candidates))) for name, run in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            times[name].append(_seconds(run, calls[name]))
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


def _seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _calls(run: Callable[[], Any], share: float) -> int:
    """How many calls fill `share` seconds; also the warm-up (two calls: the first may build things)."""
    run()
    once = _seconds(run, 1)
    return max(1, min(100_000, int(share / max(once, 1e-7))))

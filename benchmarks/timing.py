"""Alternating measurement of several ways to do the same thing; means, text tables, memory.

In: callables by name. Out: seconds a call, for each round and name. What always holds: within a
round each name has its turn right after another, the order turns from round to round, and the first
call of a turn is not counted (another one's data is in the caches, another thread pool may still be
awake).
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """rounds; seconds: of a turn, about; least: samples of a turn at least; shortest: a sample
    covers as many calls as take this long, because the clock costs time too; clock: seconds of
    it."""

    rounds: int = 7
    seconds: float = 0.3
    least: int = 5
    shortest: float = 0.5e-3
    clock: Callable[[], float] = time.perf_counter

    def numbers(self) -> dict[str, float]:
        """Returns the fields that another process can be told: all but the clock."""
        return {"rounds": self.rounds, "seconds": self.seconds, "least": self.least,
                "shortest": self.shortest}  # fmt: skip


def per_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    calls: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds a call, over `calls` calls."""
    start = clock()
    if kwargs:
        for _ in itertools.repeat(None, calls):
            function(*args, **kwargs)
    else:
        for _ in itertools.repeat(None, calls):
            function(*args)
    return (clock() - start) / calls


def turn(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], plan: Plan
) -> float:
    """The median of one turn. The first call is not counted."""
    per_call(function, args, kwargs, 1)
    once = per_call(function, args, kwargs, 1, plan.clock)
    calls = max(1, int(plan.shortest / max(once, 1e-7)))
    wanted = max(plan.least, min(200, int(plan.seconds / max(once * calls, 1e-7))))
    samples = [once] if calls == 1 else []
    while len(samples) < wanted:
        samples.append(per_call(function, args, kwargs, calls, plan.clock))
    return statistics.median(samples)


def alternate(
    functions: Mapping[str, Callable[..., Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: Plan,
) -> dict[str, list[float]]:
    """Seconds a call for each name, one number a round."""
    names = list(functions)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(plan.rounds):
        for name in turned(names, number):
            measured[name].append(turn(functions[name], args, kwargs, plan))
    return measured


def turned(names: list[str], number: int) -> list[str]:
    """The order of a round: each begins in its turn, so that nobody always follows the same
    other."""
    first = number % len(names) if names else 0
    return names[first:] + names[:first]


def spread(base: list[float], other: list[float]) -> float:
    """How far the rounds' ratios base / other lie apart, as a share of their median."""
    ratios = [a / b for a, b in zip(base, other, strict=True)]
    return (max(ratios) - min(ratios)) / statistics.median(ratios)


def speed_up(base: list[float], other: list[float]) -> float:
    """The median over the rounds of base / other: both sides of each ratio were measured
    together."""
    return statistics.median(a / b for a, b in zip(base, other, strict=True))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    printed = [
        "  ".join(
            _pad(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    printed.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in printed)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def milliseconds(seconds: float) -> str:
    """Three significant digits or more: ``0.0123``, ``1.23``, ``123.4``."""
    value = seconds * 1e3
    digits = 4 if value < 0.1 else 3 if value < 1 else 2 if value < 100 else 1
    return f"{value:.{digits}f}"


def memory(name: str) -> int:
    """Bytes of this process: ``VmRSS`` (resident now) or ``VmHWM`` (the most since
    `reset_peak`)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def reset_peak() -> None:
    """Linux: writing 5 there sets VmHWM to VmRSS (proc(5))."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

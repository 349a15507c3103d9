"""Programs on both sides of each limit, and programs in which something changes with every call.

In: the programs of tests/limits, by the limit's name, and those of tests/limits/restless.py. Out: a
table of milliseconds of a settled call, eager and compiled, just under and just beyond the limit, what
was captured in the measured calls, and the line of `explain` that names the limit. What always holds:
eager and compiled calls take turns, call by call, on copies of the same arguments; a figure is the
median over all calls. Programs are small: what a limit costs must not hide behind kernels.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.timing import table

#: Beyond so many times eager a row is marked, by ! if so many milliseconds are added, else by ~.
_MUCH, _ADDED = 2.0, 0.05
#: Calls that are measured, and those before them.
_MEASURED, _BEFORE = 60, 100
_SIDES = ("under", "beyond")


def measure(name: str) -> dict[str, Any]:
    """Measures a limit's program on both sides."""
    from tests.limits.test_beyond import CASES

    case = CASES[name]
    return {side: _of_a_side(name, case, at) for at, side in enumerate(_SIDES)}


def _of_a_side(name: str, case: Any, side: int) -> dict[str, Any]:
    import pytest

    import tracer_core
    from tests.limits.case import change, listening
    from tests.limits.test_beyond import value_of

    size = (case.under, case.over)[side]
    with pytest.MonkeyPatch.context() as patch:
        change(patch, name, value_of(name, case, side))
        eager, target = case.make(size), case.make(size)
        compiled = tracer_core.compile(target, **case.options)
        calls = case.calls(size)
        with listening():
            result = _compared(eager, compiled, lambda n: calls[n % len(calls)], len(calls))
        rows = [row.text for row in tracer_core.last_compile(compiled) if row.name == "limit"]
    return result | {"shown": next((text for text in rows if text.startswith(name)), "")}


def _compared(
    eager: Any, compiled: Any, arguments: Callable[[int], tuple[Any, ...]], length: int
) -> dict[str, Any]:
    """Returns the medians of settled calls in milliseconds, and the captures among them. arguments:
    of call number n. length: after how many calls the arguments repeat."""
    from tracer_core.execution.compiled_function import captures_so_far

    seconds: dict[str, list[float]] = {"eager": [], "compiled": []}
    before = start = captures_so_far()
    first = max(_BEFORE, 3 * length)
    for number in range(first + _MEASURED):
        if number == first:
            before = captures_so_far()
            gc.collect()
        for side, function in (("eager", eager), ("compiled", compiled)):
            inputs = copy.deepcopy(arguments(number))
            begun = time.perf_counter()
            try:
                function(*inputs)
            except Exception:  # as both sides do, which tests check
                pass
            if number >= first:
                seconds[side].append(time.perf_counter() - begun)
    medians = {side: statistics.median(second) * 1e3 for side, second in seconds.items()}
    mean = {side: statistics.fmean(second) * 1e3 for side, second in seconds.items()}
    after = captures_so_far()
    return {
        "milliseconds": medians,
        "mean": mean,
        "captures_before": (before - start) // 2,
        "captures": (after - before) // 2,
    }


def measure_restless(name: str) -> dict[str, Any]:
    """Measures a program in which something changes with every call."""
    import tracer_core
    from tests.limits.case import listening
    from tests.limits.restless import PROGRAMS

    eager, compiled = PROGRAMS[name](), PROGRAMS[name]()
    compiled.function = tracer_core.compile(compiled.function, backend="inductor")
    with listening() as said:
        result = _compared(eager, compiled, lambda n: (n,), 1)
    return {"beyond": result | {"shown": " / ".join(dict.fromkeys(said))}}


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("limits", __doc__, limit=300.0)
    parser.add_argument("--names", nargs="+", default=[], metavar="NAME", help="only these")
    chosen = parser.parse_args(arguments)
    from tests.limits.restless import PROGRAMS
    from tests.limits.test_beyond import CASES

    store = harness.Store("limits", again=chosen.again)
    lines, failed = [], False
    names = dict.fromkeys(CASES, measure) | dict.fromkeys(PROGRAMS, measure_restless)
    for name in chosen.names or names:
        ask = partial(harness.fresh, names[name], name, limit=chosen.limit)
        row, _ = store.row(name, ask)
        failed |= "failed" in row
        result = [[name, row["failed"]]] if "failed" in row else lines_of(name, row)
        print("\n".join(" ".join(line) for line in result), flush=True)
        lines += [line for line in result if len(line) > 2]
    head = ["limit or program", "side", "eager ms", "compiled ms", "times", "captures", "shown"]
    print(table(head, lines))
    return 1 if failed else 0


def lines_of(name: str, row: dict[str, Any]) -> list[list[str]]:
    """Returns the lines of the table for one limit, with marks for what costs much or captures again."""
    lines = []
    for side in (side for side in _SIDES if side in row):
        item = row[side]
        eager, ours = item["milliseconds"]["eager"], item["milliseconds"]["compiled"]
        # where few calls capture, the median does not see them
        ratio = max(
            ours / eager,
            item["mean"]["compiled"] / item["mean"]["eager"] if item["captures"] else 0,
        )
        much = "" if side == "under" or ratio <= _MUCH else "!" if ours - eager > _ADDED else "~"
        again = f"{item['captures']}{'!' if item['captures'] else ''}"
        lines.append(
            [
                name,
                side,
                f"{eager:.3f}",
                f"{ours:.3f}",
                f"{ratio:.2f}{much}",
                again,
                item["shown"][:60],
            ]
        )
    return lines

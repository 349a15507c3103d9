"""Programs that rely on one fact each, and what changes exactly this fact.

In: functions decorated with a `Facts` table, which return (program, change) or (program, change,
restore). Out: `check`, which runs one. The program is called with `X`; `restore` puts the world
back after the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.eager_reference import Mismatch, outcome
from tracer_core.testing import CaptureCounter, compare

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True, slots=True)
class Fact:
    """make() -> (program, change, restore?). breaks: of all calls. seen: whether the change must
    make a new variant (False: the program reads the fact at run time). reason: text that the reason
    must have."""

    make: Callable[[], Any]
    breaks: int | None
    seen: bool
    reason: str


class Facts(dict[str, Fact]):
    """A table, filled by decorating functions."""

    def __call__(
        self, name: str, *, breaks: int | None = 0, seen: bool = True, reason: str = ""
    ) -> Any:
        def register(make: Callable[[], Any]) -> Any:
            assert name not in self, name
            self[name] = Fact(make, breaks, seen, reason)
            return make

        return register


class Box:
    """An object with the attributes that it is given."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def check(row: Fact, compile_it: Callable[[Any], Any]) -> None:
    """Calls the program before and after the change, three times each: a trace, its stamp, a
    stamped call.
    """
    program, change, *rest = row.make()
    restore = rest[0] if rest else None
    try:
        with CaptureCounter() as counter:
            compiled = compile_it(program)
            first = _calls(program, compiled, "before")
            change()
            second = _calls(program, compiled, "after")
        recompiles = [reason for _, reason in counter.recompiles]
        try:
            compare(first, second)
        except Mismatch:
            pass
        else:
            raise Mismatch("facts", "the change changed nothing")
        if row.breaks is not None and len(counter.breaks) != row.breaks:
            raise Mismatch("breaks", f"{counter.breaks}, expected {row.breaks}")
        if row.seen and row.breaks == 0 and not any(row.reason in text for text in recompiles):
            raise Mismatch("recompiles", f"{recompiles}, expected one that says {row.reason!r}")
        if row.breaks == 0 and len(recompiles) != int(row.seen):
            raise Mismatch("recompiles", f"{recompiles}, expected {int(row.seen)}")
    finally:
        if restore is not None:
            restore()


def _calls(program: Any, compiled: Any, where: str) -> Any:
    want: Any = None
    for number in range(3):
        want, got = outcome(program, (X,)), outcome(compiled, (X,))
        if isinstance(want[0], Exception) or isinstance(got[0], Exception):
            if type(want[0]) is not type(got[0]) or str(want[0]) != str(got[0]):
                raise Mismatch(f"{where} {number}", f"{got[0]!r}, expected {want[0]!r}") from (
                    got[0] if isinstance(got[0], Exception) else None
                )
        else:
            compare(want[0], got[0], path=f"{where} {number}")
        compare(want[2], got[2], path=f"{where} {number}: settings")
    return want[0] if not isinstance(want[0], Exception) else str(want[0])

"""Limits that compiled functions reached, for `explain` and `last_compile`.

In: `crossed("MAX_ITEMS_AHEAD", reached=65)` where code compares a limit of a package's ``limits.py``. Out:
one line for each limit and place of a compiled function, with the row's numbers and what happens
beyond. The compiled function is the one whose capture runs (`stages.recording`), or `owner`; without
one nothing is noted. Nothing here runs on a call of a cache entry.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tracer_core import limit_table
from tracer_core.debug import stages

#: How many places of one limit are listed.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Crossing:
    """A limit that a compiled function reached. name: of the limit. where: the user's line, or what
    reached it; "" if unknown. reached: how many there were; None if nobody counted."""

    name: str
    where: str = ""
    reached: float | None = None

    def __str__(self) -> str:
        row = limit_table.row(self.name)
        count = "" if self.reached is None else f"{limit_table.shown(self.reached)} of "
        bound = "at least" if self.name.startswith("MIN_") else "at most"
        limit = f"{count}{bound} {limit_table.shown(row.value)} {row.unit}"
        return f"{self.name}{f' at {self.where}' if self.where else ''}: {limit}: {row.beyond}"


_found: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], Crossing]] = (
    weakref.WeakKeyDictionary()
)
#: Returns the user's line that a trace is at; "?" outside of its code.
_here: ContextVar[Callable[[], str] | None] = ContextVar("tracer_place_of_a_limit", default=None)


def crossed(name: str, *, reached: float | None = None, where: str = "", owner: Any = None) -> None:
    """Notes that a limit was reached. where: the user's line in a trace if left out. owner: the
    compiled function; that which is being captured if left out."""
    owner = stages.current_owner() if owner is None else owner
    if owner is None:
        return
    here = _here.get()
    where = where or ("" if here is None else here().lstrip("?"))
    known = _found.setdefault(owner, {})
    if (name, where) not in known and sum(item.name == name for item in known.values()) < _SHOWN:
        known[name, where] = Crossing(name, where, reached)


def reporter() -> Callable[[str], None]:
    """Returns a function that notes limits of the compiled function which is being captured now, for
    code that reaches them in later calls."""
    owner = stages.current_owner()
    reference = None if owner is None else weakref.ref(owner)
    noted: set[str] = set()

    def report(name: str) -> None:
        if name in noted:
            return
        noted.add(name)
        alive = None if reference is None else reference()
        if alive is not None:
            crossed(name, owner=alive)

    return report


@contextmanager
def located(here: Callable[[], str]) -> Iterator[None]:
    """Context of a trace. here: returns the user's line that it is at."""
    token = _here.set(here)
    try:
        yield
    finally:
        _here.reset(token)


def crossings(owner: Any) -> tuple[Crossing, ...]:
    """Returns the limits that a compiled function reached, in the order in which it did."""
    return tuple(_found.get(owner, {}).values())


def forget(owner: Any) -> None:
    """Drops what was noted for a compiled function."""
    _found.pop(owner, None)

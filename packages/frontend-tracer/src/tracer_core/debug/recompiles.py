"""The recompiles of compiled functions, for `tracer_core.report`.

Noted where a call is captured again; nothing here runs on a call of a cache entry.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from tracer_core.limits import MAX_HISTORY


@dataclass(frozen=True, slots=True)
class Recompile:
    """One recompile. begin: when, of `time.perf_counter`. count: of the cache entries before.
    reason: the guard that failed. source: of its value; seen, now: texts of the value that the
    newest entry was captured with, and of the present one. hint: what keeps it from failing. line: of
    the program, that made the guard."""

    begin: float
    count: int
    reason: str
    source: str = ""
    seen: str = ""
    now: str = ""
    hint: str = ""
    line: str = ""


_found: weakref.WeakKeyDictionary[Any, deque[Recompile]] = weakref.WeakKeyDictionary()


def note_recompile(owner: Any, count: int, reason: str, failed: Any) -> None:
    """Notes a recompile of a compiled function. failed: a `guards.explanation.Failed`, or None."""
    if owner is None:
        return
    values = (
        () if failed is None else (failed.source, failed.seen, failed.now, failed.hint, failed.line)
    )
    recompile = Recompile(time.perf_counter(), count, reason, *values)
    _found.setdefault(owner, deque(maxlen=MAX_HISTORY)).append(recompile)


def recompiles(owner: Any) -> tuple[Recompile, ...]:
    """Returns the last recompiles of a compiled function, the oldest first."""
    return tuple(_found.get(owner, ()))


def forget(owner: Any) -> None:
    """Drops what was noted for a compiled function."""
    _found.pop(owner, None)

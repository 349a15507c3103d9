"""Threads and locks.

A lock from before the trace that the program takes and releases in it is held by each call from
before its guards are checked until its changes are replayed: what the lock protects is seen and
changed by no other thread meanwhile. A call that cannot have the lock at once breaks the graph
where the program takes it.
"""

from __future__ import annotations

import _thread
import sys
import threading
from typing import Any

from tracer_core.guards.source import Source, SourceTrait
from tracer_core.native_effects.effects import CALLED_CODES, special, special_each
from tracer_core.trace.guarded_calls import query
from tracer_core.trace.save_before_mutation import HeldLock
from tracer_core.trace.tracer import Tracer

_LOCKS: tuple[type, ...] = (type(_thread.allocate_lock()), type(_thread.RLock()))


def _methods(*wanted: str) -> list[Any]:
    return [vars(kind)[name] for kind in _LOCKS for name in wanted if name in vars(kind)]


#: What makes a lock; since CPython 3.13 its type does too, which before only raises.
_MAKERS = {_thread.allocate_lock, _thread.allocate}
if sys.version_info >= (3, 13):
    _MAKERS.add(_LOCKS[0])
special(*_MAKERS)(lambda tracer: tracer.native_calls.note_allocation(_thread.allocate_lock()))
special(_thread.RLock)(lambda tracer: _thread.RLock())


def _reads_no_code(source: Source) -> bool:
    no_code = SourceTrait.RUNS_NO_CODE in source.kind.traits
    return no_code and (source.base is None or _reads_no_code(source.base))


@special_each(*_methods("acquire", "acquire_lock", "__enter__"))
def acquire(
    tracer: Tracer, method: Any, lock: Any, blocking: Any = True, timeout: Any = -1
) -> bool:
    side_effects = tracer.side_effects
    source = tracer.provenance.source_of(lock)
    if timeout != -1 or type(blocking) not in (bool, int):
        tracer.break_graph("side_effect_native", "a lock is waited for")
    if source is not None and (not _reads_no_code(source) or tracer.native_calls.queries):
        tracer.break_graph("side_effect_native", f"the lock {source.name} is taken")
    if not lock.acquire(False):
        tracer.break_graph("side_effect_native", "a lock is taken that is not free")
    side_effects.mutations += 1
    side_effects.held.append(HeldLock(lock, tracer.outer_step))
    if source is not None:
        side_effects.locks[source] = type(lock)
    return True


@special_each(*_methods("release", "release_lock", "__exit__"))
def release(tracer: Tracer, method: Any, lock: Any, *exception: Any) -> None:
    held = tracer.side_effects.held
    for position in reversed(range(len(held))):
        if held[position].lock is lock:
            lock.release()
            del held[position]
            return
    tracer.break_graph("side_effect_native", "a lock is released that was taken before")


@special_each(*_methods("locked", "locked_lock"))
def locked(tracer: Tracer, method: Any, lock: Any) -> bool:
    held = any(item.lock is lock for item in tracer.side_effects.held)
    if not held and not tracer.provenance.is_fresh(lock):
        tracer.break_graph("side_effect_native", "another thread may hold the lock")
    return held


@special(_thread.get_ident)
def thread_id(tracer: Tracer) -> Any:
    return query(tracer, _thread.get_ident)


def _current_thread(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return query(tracer, threading.current_thread)


CALLED_CODES[threading.current_thread.__code__] = _current_thread

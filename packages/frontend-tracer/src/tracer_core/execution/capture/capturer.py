"""Captures cache entries of a compiled function, and handles traces that end without one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracer_core import argument_marks, torch_private
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS
from tracer_core.debug.fallbacks import WHOLE
from tracer_core.debug.gc_pause import give_back_free_memory
from tracer_core.debug.logs import logger
from tracer_core.debug.stages import recording
from tracer_core.errors import GraphBreakError, TracerError
from tracer_core.execution.call import Call, StartKey
from tracer_core.execution.capture.result import Abandoned, Captured, UserError
from tracer_core.execution.capture_lock import STATE
from tracer_core.execution.entry.guarded_cache import EntryFunction, GuardedCache
from tracer_core.execution.runtime import Runtime
from tracer_core.execution.tiers import delayed, eager_or_compiled, stances
from tracer_core.fx_capture.specialization_history import Speculation
from tracer_core.graph_breaks import RunEagerly
from tracer_core.options import env
from tracer_core.registry import events

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

use_own_builtins(globals())

_graph_numbers = itertools.count()

#: Puts the frames of a region into a tracer.
StartFrames = Callable[["Tracer"], list[Frame]]


def reset() -> None:
    """Names graphs from 0 again."""
    global _graph_numbers
    _graph_numbers = itertools.count()


class _FailedSpeculation(Exception):
    """A trace that assumes answers captured nothing worth keeping."""


def capture_start(runtime: Runtime, cache: GuardedCache, call: Call) -> EntryFunction | None:
    """Captures an entry where a call begins; see `capture_inside`."""
    function, state = runtime.function, call.state
    argument_marks.mark(function, call.args, call.kwargs, runtime.config.dynamic_shapes)
    start = starting(function, call.args, call.kwargs, call.labels(function))
    is_first = cache.is_first(state)
    entry = _capture(runtime, cache, start, state)
    runtime.tiering.n_first += is_first and entry is not None
    return entry


def starting(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], labels: list[str]
) -> StartFrames:
    """Returns what puts the frame of a call into a tracer. labels: the names of all arguments."""

    def start(tracer: Tracer) -> list[Frame]:
        values = [
            LazyValue(value, tracer.provenance.sources.state(index, label))
            for index, (value, label) in enumerate(
                zip((*args, *kwargs.values()), labels, strict=True)
            )
        ]
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return tracer.start(function, values[: len(args)], named)

    return start


def capture_inside(
    runtime: Runtime, cache: GuardedCache, layouts: Any, state: Any
) -> EntryFunction | None:
    """Captures an entry where a call goes on after a graph break. Returns None where the call runs in
    eager mode, now or from now on. Raises TracerError where that is an error."""
    return _capture(runtime, cache, lambda tracer: tracer.start_inside(layouts, state), state)


def first_run(
    runtime: Runtime,
    cache: GuardedCache,
    entry: EntryFunction,
    state: Any,
    again: Callable[[], EntryFunction | None],
) -> Any:
    """Runs a fresh cache entry, which must accept the call that it was captured from. Captures
    a rejecting entry again, once: compiling may have imported modules that changed what its
    guards read (pytree's registry of containers)."""
    try:
        result = entry(state)
        if result is not MISS:
            return result
        cache.remove(entry)
        with STATE.lock:
            second = again()
        if second is None:
            return MISS
        result = second(state)
    finally:
        delayed.start(runtime)
    if result is MISS:
        record = runtime.entries.captured[-1]
        cache.remove(second)
        failed = record.check_first(state)
        runtime.give_up(cache, f"{record.name} does not accept its own call: {failed}")
    return result


def _capture(
    runtime: Runtime, cache: GuardedCache, start: StartFrames, state: Any
) -> EntryFunction | None:
    """Counts and times a capture; see `capture_inside`."""
    if cache.is_closed(state) or not stances.allows_capture(runtime, cache, state):
        return None
    is_new, tiering = cache.is_new(state), runtime.tiering
    if not runtime.limit.allows(cache, state, runtime.n_broken) or cache.skips_capture():
        return None
    STATE.epoch += 1
    tiering.n_captures += 1
    tiering.n_changes += 1
    before, begun = tiering.capture_seconds, eager_or_compiled.clock()
    entry = None
    try:
        entry = _speculating(runtime, cache, start, state)
        if is_new and entry is not None:
            call = tiering.n_captures if cache.made_in < 0 else -runtime.n_broken
            runtime.limit.note_first(call, cache, state)
        return entry
    finally:  # a capture may begin inside another one
        tiering.capture_seconds = before + eager_or_compiled.clock() - begun
        runtime.limit.note_capture(cache, entry is not None)
        runtime.compare_again()
        STATE.epoch += 1


def _speculating(
    runtime: Runtime, cache: GuardedCache, start: StartFrames, state: Any
) -> EntryFunction | None:
    """Captures once, and without speculation if that fails."""
    try:
        return _traced(runtime, cache, start, state)
    except _FailedSpeculation:
        cache.forget_assumptions()
    return _traced(runtime, cache, start, state)


def _traced(
    runtime: Runtime, cache: GuardedCache, start: StartFrames, state: Any
) -> EntryFunction | None:
    """Traces, and adds the entry. Where branches on tensors are assumed to go some way, raises
    `_FailedSpeculation` if nothing can be captured or the graph has no lowered form, since the
    graphs between the breaks may have one."""
    from tracer_core.execution.capture.trace import capture  # heavy: the tracer
    from tracer_core.execution.entry.builder import EntryBuilder  # heavy: the tracer

    speculation = Speculation(
        cache.specializations.speculates and runtime.may_speculate() and not runtime.has_long_loop
    )
    has_assumptions = bool(cache.specializations.outcomes)
    name = f"graph_{next(_graph_numbers)}"
    writer = functools.partial(EntryBuilder, behind_break=not isinstance(cache.key, StartKey))
    try:
        with STATE.tracing(), recording(runtime.owner()), torch_private.unshielded():
            record = capture(
                writer, start, state, runtime.config, cache.specializations, name, runtime.eager_codes,
                runtime.answers, speculation,
            )  # fmt: skip
        give_back_free_memory()
        runtime.has_long_loop |= speculation.met_long_loop
    except (UserError, Abandoned) as error:
        if has_assumptions or speculation.n_answers:
            raise _FailedSpeculation from error
        return _not_traced(runtime, error, cache, start, state)
    except (TracerError, KeyboardInterrupt):
        raise
    except Exception as error:
        if env().strict:
            raise
        if has_assumptions or speculation.n_answers:
            raise _FailedSpeculation from error
        if runtime.config.fullgraph:
            raise runtime.not_captured(f"internal error: {error!r}") from error
        logger().warning("internal error while tracing %s: %r", runtime.name, error, exc_info=True)
        runtime.give_up(cache, f"internal error: {error!r}")
        return None
    fallback = record.runner.fallback if record.runner is not None else None
    speculates = has_assumptions or speculation.n_answers > 0
    if speculates and fallback is not None and fallback.kind in WHOLE:
        raise _FailedSpeculation
    _note(runtime, record)
    cache.specializations.add(record.shapes, record.numbers)
    loaded = [entry for entry in runtime.entries.loaded if entry.entry_function in cache.entries]
    runtime.persistent_cache.explain(loaded, record)
    cache.add(record.entry_function, state)
    if record.pending is None:
        runtime.persistent_cache.add(record)
    else:
        delayed.delay(runtime, cache, record, speculates)
    return record.entry_function


def _note(runtime: Runtime, record: Captured) -> None:
    runtime.entries.captured.append(record)
    end = record.break_
    if end is None:
        return
    if runtime.config.fullgraph:
        runtime.forget()
        raise GraphBreakError(end.kind, end.reason, end.location, end.hint, end.library)
    events.graph_break(
        kind=end.kind, reason=end.reason, location=end.location, hint=end.hint, library=end.library
    )


def _not_traced(
    runtime: Runtime,
    error: UserError | Abandoned,
    cache: GuardedCache,
    start: StartFrames,
    state: Any,
) -> EntryFunction | None:
    """Handles a trace that ended without an entry."""
    cause = error.__cause__
    if isinstance(error, Abandoned):
        runtime.give_up(cache, str(error))
        return None
    if not isinstance(cause, RunEagerly):
        cache.raised = cause
        return None
    if runtime.config.fullgraph:
        raise runtime.not_captured(str(cause)) from cause
    if cause.code is not None:
        runtime.eager_codes = {**runtime.eager_codes, cause.code: "long_loop"}
        return _capture(runtime, cache, start, state)
    runtime.note_eager(str(cause), always=cause.always)
    if cause.loop_at is not None:
        cache.limit_hit, cache.loop_at = True, cause.loop_at
    elif not cause.always:
        return None
    logger().warning("%s runs eagerly: %s", runtime.name, cause)
    return None

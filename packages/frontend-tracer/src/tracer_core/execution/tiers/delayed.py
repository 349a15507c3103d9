"""Compiles graphs after the call that captured them: in a background thread, or at their second use.

Until then an entry runs its graph in eager mode (`background_entry.Pending`); the entry with the
compiled graph takes its place. Whatever waits holds the compiled function weakly.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracer_core.background.compilation import Compilation, Dropped, SettingsChanged
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.debug.fallbacks import WHOLE
from tracer_core.debug.logs import logger
from tracer_core.errors import BackendError, TracerError
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.capture_lock import STATE
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.runtime import Runtime

if TYPE_CHECKING:
    from tracer_core.aot.compiled_graph import CompiledGraph
    from tracer_core.execution.tiers.background_entry import Pending, SecondUse

use_own_builtins(globals())


def delay(runtime: Runtime, cache: GuardedCache, record: Captured, speculates: bool) -> None:
    """Has the graph of an entry compiled later. speculates: the trace assumed answers, without which
    it is captured again where the graph has no lowered form."""
    pending = record.pending
    assert pending is not None
    if pending.second_use is None:
        _in_background(runtime, cache, record, pending, speculates)
    elif runtime.entries.loaded:
        # earlier processes got so far, too: the next one will find it compiled
        pending.second_use.waits_for(pending.with_inputs, calls_before=0)
        _in_background(runtime, cache, record, pending, speculates)
    else:
        _at_second_use(runtime, cache, record, pending, pending.second_use)


def start(runtime: Runtime) -> None:
    """Starts what the call that ends now has left to the background."""
    while runtime.to_start:
        runtime.to_start.pop(0)()


def drop_pending(runtime: Runtime) -> None:
    """Drops the entries whose graphs are not compiled yet."""
    pending = [record for record in runtime.entries.captured if record.pending is not None]
    for compilation in runtime.compilations:
        compilation.drop()
    for cache in runtime.regions:
        for record in pending:
            cache.remove(record.entry_function)


def _at_second_use(
    runtime: Runtime, cache: GuardedCache, record: Captured, pending: Pending, second: SecondUse
) -> None:
    """Has the graph of an entry compiled by the call that uses it for the second time."""
    document = runtime.persistent_cache.current
    runtime_reference, cache_reference = weakref.ref(runtime), weakref.ref(cache)

    def compile(inputs: Sequence[Any]) -> None:
        runtime, cache = runtime_reference(), cache_reference()
        if runtime is None or cache is None:
            return
        with STATE.lock:
            if not any(entry is record for entry in runtime.entries.captured):
                return  # another thread's call has compiled it
            pending.with_inputs(inputs)
            try:
                _put(runtime, cache, record, pending, pending.compile(), document)
            except Dropped:
                pass
            except Exception as error:
                is_final = _fail(runtime, cache, record, pending, error)
                if is_final and runtime.config.must_compile:
                    raise

    second.waits_for(compile)


def _in_background(
    runtime: Runtime, cache: GuardedCache, record: Captured, pending: Pending, speculates: bool
) -> None:
    """Has a thread compile the graph of an entry."""
    compilation = Compilation(runtime.name, record.name)
    runtime.compilations.append(compilation)
    document = runtime.persistent_cache.current
    runtime_reference, cache_reference = weakref.ref(runtime), weakref.ref(cache)

    def alive() -> tuple[Runtime, GuardedCache]:
        runtime, cache = runtime_reference(), cache_reference()
        if runtime is None or cache is None:
            raise Dropped
        return runtime, cache

    def work() -> Callable[[], None]:
        alive()
        compiled = pending.compile()
        fallback = compiled.fallback

        def put() -> None:
            runtime, cache = alive()
            with STATE.lock:
                if speculates and fallback is not None and fallback.kind in WHOLE:
                    cache.forget_assumptions()  # as where a call waits for the compiled graph
                    cache.remove(record.entry_function)
                    raise Dropped
                _put(runtime, cache, record, pending, compiled, document)

        return put

    def failed(error: BaseException) -> bool:
        runtime, cache = runtime_reference(), cache_reference()
        if runtime is None or cache is None:
            return False
        with STATE.lock:
            return _fail(runtime, cache, record, pending, error)

    runtime.to_start.append(functools.partial(compilation.start, work, failed))


def _put(
    runtime: Runtime,
    cache: GuardedCache,
    record: Captured,
    pending: Pending,
    compiled: CompiledGraph,
    document: Any,
) -> None:
    """Puts the compiled form of an entry in its place. Raises Dropped if the entry is gone."""
    entry = pending.entry(record.text, compiled)
    if not cache.replace(record.entry_function, entry.entry_function):
        raise Dropped
    runtime.tiering.n_changes += 1
    new = replace(
        record, entry_function=entry.entry_function, text=entry.text, runner=compiled, pending=None,
        constants={**record.constants, **entry.own},
        check_first=record.check_first.with_more(entry.added),
    )  # fmt: skip
    runtime.entries.replace(record, new)
    runtime.compare_again()
    runtime.persistent_cache.add(new, document)


def _fail(
    runtime: Runtime, cache: GuardedCache, record: Captured, pending: Pending, error: BaseException
) -> bool:
    """Handles a graph that cannot be compiled: with symbols it is captured again with constants, as
    where a call waits for it; else it goes on eagerly, or where nothing may do so its calls raise
    the error. Returns whether the error is final."""
    constants = pending.takes_constants() if isinstance(error, BackendError) else ""
    if isinstance(error, SettingsChanged):
        cache.remove(record.entry_function)
        logger().info("%s of %s is captured again: %s", record.name, runtime.name, error)
        return False
    if constants and constants not in cache.specializations.refused:
        cache.specializations.refused.add(constants)
        cache.remove(record.entry_function)
        logger().warning("%s: %s are taken as constants, because %s", record.name, constants, error)
        return False
    if runtime.config.must_compile:
        raised = error
        if not isinstance(error, TracerError):
            raised = runtime.not_captured(f"internal error: {error!r}")
            raised.__cause__ = error
        raising = pending.raising(record.text, raised)
        if cache.replace(record.entry_function, raising):
            runtime.entries.replace(record, replace(record, entry_function=raising, pending=None))
    else:
        unknown = None if isinstance(error, TracerError) else error
        logger().warning("%s of %s runs eagerly from now on, because compiling it failed: %s",
                         record.name, runtime.name, error if unknown is None else repr(error),
                         exc_info=unknown)  # fmt: skip
    return True

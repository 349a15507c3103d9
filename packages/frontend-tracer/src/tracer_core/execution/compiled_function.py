"""The compiled callable: looks a call up in the cache of its code region, and captures on a miss.

A call returns what the original function returns. Where nothing can be captured the function runs
in eager mode and the reason is recorded (with TRACER_STRICT=1 it is raised).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from sys import modules
from typing import Any

import torch

from tracer_core.background.compilation import Compilation
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS
from tracer_core.debug import logs
from tracer_core.debug.profiling import label, profiled
from tracer_core.execution.activation import Activation, ways_of
from tracer_core.execution.call import Call, StartKey, name_of
from tracer_core.execution.capture import capturer
from tracer_core.execution.capture.result import BreakRecord, Captured
from tracer_core.execution.capture_lock import STATE
from tracer_core.execution.entry.entries import Entries
from tracer_core.execution.entry.regions import Regions
from tracer_core.execution.entry.resume_function import Continuation
from tracer_core.execution.runtime import Runtime
from tracer_core.execution.store.persistent_cache import PersistentCache
from tracer_core.execution.store.reader import LoadedEntry
from tracer_core.execution.tiers import delayed
from tracer_core.execution.tiers.eager_or_compiled import Tiering
from tracer_core.execution.tiers.profitability import StoredVerdict, Verdict
from tracer_core.execution.tiers.recompile_limit import RecompileLimit
from tracer_core.fx_capture import wrong_fakes
from tracer_core.guards.own_reference import OwnReference
from tracer_core.options import CompileConfig, env
from tracer_core.registry import events
from tracer_core.registry.discovery import mark_used
from tracer_core.switch import SWITCHED_OFF, disabled_by_environment, reason_for_eager
from tracer_core.torch_private.needed import PROFILING, profiler_state
from tracer_core.torch_private.torch_compile import EVAL_FRAME, stance_of_torch

use_own_builtins(globals())

_instances: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
#: What TRACER_REPORT reports on: functions that the program has dropped, too.
_reported: list[CompiledFunction] = []


def _drop_pending() -> None:
    """Has a forked child capture again what its parent compiles: the thread stays there."""
    for function in list(_instances):
        delayed.drop_pending(function.runtime)


os.register_at_fork(after_in_child=_drop_pending)


def compilations() -> list[Compilation]:
    """Returns what is compiled in the background, of all compiled functions."""
    return [each for function in list(_instances) for each in function.compilations]


def reported() -> list[CompiledFunction]:
    """Returns the compiled functions of this process since TRACER_REPORT was set."""
    return list(_reported)


def reset() -> None:
    """Drops every cache entry of every compiled function."""
    for function in list(_instances):
        function.forget()
    wrong_fakes.forget()
    capturer.reset()


class CompiledFunction:
    """A function that is captured when it is called. Mutable: misses add cache entries."""

    def __init__(self, function: Callable[..., Any], config: CompileConfig) -> None:
        disabled_by_environment()  # a wrong value is an error of compile(), not of a call
        #: The original.
        self.function = function
        regions, entries, compilations = Regions(), Entries(), []  # type: ignore[var-annotated]
        owner = OwnReference(self)
        persistent_cache = PersistentCache(self, function, config)
        self.runtime = Runtime(
            function, config, owner, regions, entries, persistent_cache,
            Tiering(function, config, regions, entries, compilations, persistent_cache, owner),
            RecompileLimit(function, config, entries, owner), compilations, ways_of,
        )  # fmt: skip
        self._positional, self._named = regions.positional, regions.named
        self._is_announced = False
        #: The class of the module that was called first, "" for a function; the code that runs.
        self.module_class, self._code = "", getattr(function, "__code__", None)
        _instances.add(self)
        if env().report is not None:
            _reported.append(self)
        # A comparison holds the runtime that holds it: what was captured would outlive the function.
        weakref.finalize(self, regions.clear).atexit = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what was asked for; what was captured is in the persistent cache."""
        return _compiled_again, (self.function, self.config)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function. Wrappers, whose own arguments are packed already, use this: to pack
        them again would take a good part of a short call."""
        if STATE.thread is not None:
            STATE.wait_for_others()
        if SWITCHED_OFF or (EVAL_FRAME in modules and stance_of_torch() != "default"):
            if reason_for_eager() is not None:
                return self.function(*args, **kwargs)
        if kwargs:
            state = (*args, *kwargs.values())
            region = self._named.get((len(args), *kwargs))
        else:
            state = args
            region = self._positional.get(len(args))
        epoch = -1  # `Activation.begin` looks for the region, whose entries may have been loaded
        if region is not None:
            epoch = STATE.epoch
            run = region.run
            if profiler_state[PROFILING]:
                run = profiled(run, self._row())
            result = run(state)
            if result is not MISS:
                if type(result) is Continuation:
                    return Activation(self.runtime, Call(args, kwargs)).go_on(result)
                return result
        return self._miss(args, kwargs, epoch)

    def _row(self) -> str:
        """Returns the name of a call in a profile."""
        code = self._code
        frames = [] if code is None else [f"{code.co_filename}:{code.co_firstlineno}"]
        return label(f"tracer_core: {name_of(self.function, self.config, self)}", frames)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], epoch: int) -> Any:
        """Runs a call that no cache entry fits; the first one also logs in one line what was
        captured."""
        activation = Activation(self.runtime, Call(args, kwargs))
        if self._is_announced:
            return activation.begin(epoch)
        self._is_announced = True
        first = next(iter((*args, *kwargs.values())), None)
        if isinstance(first, torch.nn.Module) and self.function.__name__ == "_call_impl":
            self.module_class = type(first).__name__
            self._code = getattr(first.forward, "__code__", None)
        try:
            return activation.begin(epoch)
        finally:
            if self.records:
                owner = type(first).__name__ if isinstance(first, torch.nn.Module) else None
                events.first_call(summary=self.summary(owner), broken=bool(self.breaks))

    def forget(self) -> None:
        """Drops every cache entry."""
        self.runtime.forget()

    def summary(self, name: str | None = None) -> str:
        """Returns one line: the numbers of graphs and breaks, and the most frequent break."""
        return self.runtime.entries.summary(self.config.name or name or name_of(self.function))

    @property
    def config(self) -> CompileConfig:
        """What `compile` was asked for."""
        return self.runtime.config

    @config.setter
    def config(self, config: CompileConfig) -> None:
        self.runtime.use(config)

    # -- what was captured --

    @property
    def records(self) -> list[Captured]:
        """Every entry captured in this process."""
        return self.runtime.entries.captured

    @property
    def loaded(self) -> list[LoadedEntry]:
        """Entries that another process captured."""
        return self.runtime.entries.loaded

    @property
    def breaks(self) -> list[BreakRecord]:
        """The graph breaks found so far."""
        return self.runtime.entries.breaks

    @property
    def skipped(self) -> str | None:
        """Why the function runs in eager mode from now on, or None."""
        return self.runtime.skipped

    @property
    def abandoned(self) -> list[str]:
        """Why the function, or parts of it, run in eager mode."""
        return self.runtime.abandoned

    @property
    def verdicts(self) -> list[Verdict]:
        """The comparisons with eager mode."""
        return self.runtime.tiering.verdicts

    @property
    def compilations(self) -> list[Compilation]:
        """What was or is compiled in the background."""
        return self.runtime.compilations

    @property
    def persistent_cache(self) -> PersistentCache:
        """The persistent cache of the function."""
        return self.runtime.persistent_cache

    # -- entries of other processes --

    def captured(self) -> Iterator[tuple[Any, Captured]]:
        """Yields the entries that were captured here and are in use, with the keys of their code
        regions."""
        with STATE.lock:  # not while a trace has changed objects
            for key, cache in self.runtime.regions.items():
                for record in list(self.records):
                    if record.entry_function in cache.entries:
                        yield key, record

    def insert(self, entry: LoadedEntry) -> None:
        """Adds an entry that another process captured."""
        runtime = self.runtime
        cache = runtime.regions.loaded(entry.key, entry.start)
        cache.add_loaded(entry.entry_function)
        cache.specializations.add(entry.shapes, entry.numbers)
        runtime.entries.loaded.append(entry)
        if entry.backwards is None:
            return
        runtime_reference, cache_reference = weakref.ref(runtime), weakref.ref(cache)

        def capture_again() -> None:
            runtime, cache = runtime_reference(), cache_reference()
            if runtime is not None and cache is not None:
                cache.remove(entry.entry_function)
                loaded = runtime.entries.loaded
                loaded[:] = [other for other in loaded if other is not entry]

        entry.backwards.capture_again = capture_again

    def apply_verdict(self, key: StartKey, stored: StoredVerdict) -> bool:
        """Goes by what another process found to be faster for a start, where this one would compare;
        returns whether it does."""
        return self.runtime.tiering.apply(stored, ways_of(self.runtime, key))


def _compiled_again(function: Callable[..., Any], config: CompileConfig) -> CompiledFunction:
    """Returns a compiled function that was pickled, in the process that loads it."""
    logs.configure()
    events.follow_stages()
    mark_used(config.backend)
    return CompiledFunction(function, config)

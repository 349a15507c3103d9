"""The compiled callable: dispatches to cache entries, captures on a miss, runs graph breaks.

A call returns what the original function returns. Where nothing can be captured the function runs
in eager mode and the reason is recorded (with TRACER_STRICT=1 it is raised).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.background.compilation import Compilation, Dropped, SettingsChanged
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.frame_layout import MISS, FrameLayout, flatten, frames_of
from tracer_core.bytecode.host_builtins import are_replaced, use_own_builtins
from tracer_core.bytecode.tracebacks import without_own
from tracer_core.debug import crossed_limits, logs
from tracer_core.debug.crossed_limits import crossed
from tracer_core.debug.fallbacks import WHOLE, graph_raised
from tracer_core.debug.gc_pause import give_back_free_memory
from tracer_core.debug.logs import logger
from tracer_core.debug.stages import recording
from tracer_core.errors import (
    BackendError,
    GraphBreakError,
    RecompileLimitError,
    RecompileLimitWarning,
    TracerError,
)
from tracer_core.execution import profitability
from tracer_core.execution.branch_profile import MIN_EQUAL_PROFILES, outcome
from tracer_core.execution.capture_result import (
    Abandoned,
    Answers,
    BreakRecord,
    Captured,
    UserError,
)
from tracer_core.execution.guarded_cache import GuardedCache
from tracer_core.execution.kept import NATIVE, Kept
from tracer_core.execution.profitability import (
    MAX_SETTLED,
    SETTLED,
    Region,
    Run,
    StoredVerdict,
    Tally,
    TimedRegion,
    Verdict,
)
from tracer_core.execution.resume import (
    GRAPH_RAISED,
    HOOK_RAISED,
    Exit,
    NotRaised,
    Suspended,
    interpreter,
)
from tracer_core.execution.single_use import SingleUses
from tracer_core.execution.stored_entry import LoadedEntry
from tracer_core.fx_capture import wrong_fakes
from tracer_core.fx_capture.data_errors import (
    ASSERTIONS,
    AssertionFailed,
    DataDiffers,
    SizeDiffers,
)
from tracer_core.fx_capture.graph_breaks import BREAKS, RunNatively
from tracer_core.fx_capture.seen import Foresight, Outcome
from tracer_core.limits import (
    MAX_CACHE_ENTRIES,
    MAX_DATA_VIOLATIONS,
    MAX_PROFILED_OUTCOMES,
    MAX_RECENT_ENTRIES,
    MAX_REGIONS,
    MAX_REGIONS_WITHOUT_GRAPH,
    MAX_SILENT_FAILED_CAPTURES,
    MAX_SINGLE_USES,
)
from tracer_core.options import CompileConfig, env
from tracer_core.registry import events
from tracer_core.registry.discovery import mark_used
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import classes
from tracer_core.torch_private.needed import dispatch_modes, function_modes

if TYPE_CHECKING:
    from tracer_core.aot.compiled_graph import CompiledGraph
    from tracer_core.execution.background_entry import Pending, SecondUse
    from tracer_core.guards.explanation import Failed
    from tracer_core.trace.tracer import Tracer

use_own_builtins(globals())

#: Parameters and buffers of lazy modules before their first call.
_UNINITIALIZED = classes("nn.parameter.UninitializedTensorMixin")
_LOCK = threading.RLock()
#: Thread that is tracing now, or None. Tracing changes real objects and undoes it: others wait.
_tracing: int | None = None
#: How often a capture has begun or ended. A lookup since which this changed may have missed because
#: another thread's trace had changed what the guards read, or because its entry came afterwards.
_traced = 0
_graph_numbers = itertools.count()
_instances: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def _after_fork() -> None:
    """Resets the locks in a forked child: the threads that held them do not exist there."""
    global _LOCK, _tracing
    _LOCK, _tracing = threading.RLock(), None


os.register_at_fork(after_in_child=_after_fork)


def _drop_waiting() -> None:
    """Has a forked child capture again what its parent compiles: the thread stays there."""
    for one in list(_instances):
        one.drop_waiting()


os.register_at_fork(after_in_child=_drop_waiting)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Context of a trace that makes no cache entry: compiled calls on other threads wait."""
    global _tracing, _traced
    with _LOCK:
        previous, _tracing = _tracing, threading.get_ident()
        _traced += 1
        try:
            yield
        finally:
            _tracing = previous
            _traced += 1


def compilations() -> list[Compilation]:
    """Returns what is compiled in the background, of all compiled functions."""
    return [each for one in list(_instances) for each in one.compilations]


def captures_so_far() -> int:
    """Returns a number that every capture of any compiled function increases."""
    return _traced


def reset() -> None:
    """Drops every cache entry of every compiled function."""
    global _graph_numbers
    for one in list(_instances):
        one.forget()
    wrong_fakes.forget()
    _graph_numbers = itertools.count()


class CompiledFunction:
    """A function that is captured when it is called. Mutable: misses add cache entries.

    function: the original. config: what compile() was asked for. records: every entry captured.
    skipped: why the function runs in eager mode from now on, or None.
    """

    def __init__(self, function: Callable[..., Any], config: CompileConfig) -> None:
        self.function = function
        self.config = config
        self.records: list[Captured] = []
        #: Entries that another process captured.
        self.loaded: list[LoadedEntry] = []
        self.abandoned: list[str] = []
        self.skipped: str | None = None
        #: Code that is not inlined -> the kind of the graph break where it is called.
        self._natives: dict[types.CodeType, str] = {}
        self._answers = Answers()
        self._told = False
        #: Whether a `RecompileLimitWarning` was logged: one is enough, however many objects and
        #: values reach the limit.
        self._warned = False
        self._starts: dict[Any, GuardedCache] = {}
        #: What calls find: the cache, or what stands in for it (`profitability`). By the number of
        #: arguments, and for calls with keyword arguments by the key of `_starts`.
        self._positional: dict[int, Region] = {}
        self._named: dict[Any, Region] = {}
        #: How many captures began; these and the compiled graphs that came later; how many were the
        #: first ones of an object that lives on; the seconds of all.
        self.n_captures = self.n_changes = self.n_first = 0
        self.capture_seconds = 0.0
        #: What captures cost, of which the comparisons of all starts keep count.
        self.tally = Tally()
        #: Calls without a capture before the next comparison with eager mode; comparisons made.
        self._wait = SETTLED
        self.verdicts: list[Verdict] = []
        self._segments: dict[Any, GuardedCache] = {}
        #: What was or is compiled in the background.
        self.compilations: list[Compilation] = []
        #: Starts those that begin after the call that captured their graphs, which goes first.
        self._to_start: list[Callable[[], None]] = []
        self._single_uses = SingleUses()
        self._told_of_single_uses = False
        #: How many calls reached a graph break.
        self._n_broken = 0
        self.kept = Kept(self)
        _instances.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what was asked for; what was captured is in the persistent cache."""
        return _compiled_again, (self.function, self.config)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function. Wrappers, whose own arguments are packed already, use this: to pack
        them again would take a good part of a short call."""
        if _tracing is not None and _tracing != threading.get_ident():
            with _LOCK:
                pass
        if kwargs:
            state = (*args, *kwargs.values())
            segment = self._named.get((len(args), *kwargs))
        else:
            state = args
            segment = self._positional.get(len(args))
        traced = -1  # `_call_anew` looks for the region, whose entries may have been loaded
        if segment is not None:
            traced = _traced
            result = segment.run(state)
            if result is not MISS:
                return self._drive(result, args, kwargs) if type(result) is Suspended else result
        return self._miss_start(args, kwargs, state, traced)

    def forget(self) -> None:
        """Drops every cache entry."""
        for one in self.compilations:
            one.drop()
        self.compilations = []
        self.records.clear()
        self.loaded.clear()
        self.kept.forget()
        self._drop_entries()
        self._natives = {}
        self._answers = Answers()
        self.skipped = None
        self._warned = self._told_of_single_uses = False
        self._single_uses = SingleUses()
        crossed_limits.forget(self)
        self._wait = SETTLED
        self.verdicts = []
        self.n_captures = self.n_first = 0
        self.capture_seconds = 0.0
        self.tally = Tally()

    def _drop_entries(self) -> None:
        tables: tuple[dict[Any, Any], ...]
        tables = (self._starts, self._positional, self._named, self._segments)
        for table in tables:
            table.clear()

    def _drop_inside(self, code: types.CodeType) -> None:
        """Drops the regions that begin inside calls of this code, and the entries that lead there;
        those of unknown entries, which were loaded, may."""
        for layouts in [one for one in self._segments if any(part.code is code for part in one)]:
            del self._segments[layouts]
        kept = {record.attempt for record in self.records if not record.breaks_inside(code)}
        for segment in (*self._starts.values(), *self._segments.values()):
            segment.keep(kept)

    # -- entries of other processes --

    def captured(self) -> Iterator[tuple[Any, Captured]]:
        """Yields the entries that were captured here and are in use, with the keys of their code
        regions."""
        with _LOCK:  # not while a trace has changed objects
            for key, segment in [*self._starts.items(), *self._segments.items()]:
                for record in list(self.records):
                    if record.attempt in segment.entries:
                        yield key, record

    def take(self, entry: LoadedEntry) -> None:
        """Adds an entry that another process captured."""
        table = self._starts if entry.start else self._segments
        segment = table.setdefault(entry.key, GuardedCache(entry.key))
        segment.add_loaded(entry.attempt)
        segment.seen.add(entry.shapes, entry.numbers)
        self.loaded.append(entry)
        if entry.backwards is not None:
            function, region = weakref.ref(self), weakref.ref(segment)

            def capture_again() -> None:
                owner, place = function(), region()
                if owner is not None and place is not None:
                    place.remove(entry.attempt)
                    owner.loaded = [one for one in owner.loaded if one is not entry]

            entry.backwards.capture_again = capture_again

    # -- compiled or eager --

    def _table(self, key: Any) -> tuple[dict[Any, Region], Any]:
        """Returns the table in which calls find the region of a start, and its key there."""
        return (self._positional, key[0]) if len(key) == 1 else (self._named, key)

    def _show(self, key: Any, segment: GuardedCache) -> None:
        """Lets calls find a start, at first compared with eager mode."""
        table, at = self._table(key)
        if at not in table:
            table[at] = self.timed(key, segment)

    def timed(self, key: Any, region: Region) -> Region:
        """Returns what compares the two ways of this start, or the region itself where it must stay
        compiled."""
        if not self.config.native_if_faster or self._must_compile() or env().always_compiled:
            return region
        return TimedRegion(self, key, region, self._wait)

    def may_measure(self) -> bool:
        """Returns whether calls in eager mode and compiled ones may take turns: not where the clock
        does not see when a call ends (CUDA), nor where each process would choose for itself."""
        world = torch.distributed.is_available() and torch.distributed.is_initialized()
        return not torch.cuda.is_initialized() and not (
            world and torch.distributed.get_world_size() > 1
        )

    def is_waiting(self) -> bool:
        """Returns whether graphs run eagerly until they are compiled in the background."""
        return not all(one.is_done for one in self.compilations)

    def is_broken(self) -> bool:
        """Returns whether there are graph breaks in the function."""
        return bool(self.breaks)

    def whole(self, key: Any, region: Region) -> Run:
        """Returns what makes a whole compiled call, or returns MISS."""
        n_args, *names = key

        def run(state: Any) -> Any:
            result = region.run(state)
            if type(result) is not Suspended:
                return result
            return self._drive(
                result, state[:n_args], dict(zip(names, state[n_args:], strict=True))
            )

        return run

    def capturing(self, key: Any) -> Run:
        """Returns what makes a whole compiled call, and captures where no entry fits."""
        n_args, *names = key

        def run(state: Any) -> Any:
            named = dict(zip(names, state[n_args:], strict=True))
            return self._miss_start(state[:n_args], named, state, -1)

        return run

    def eager(self, key: Any) -> Run:
        """Returns what makes an eager call."""
        return _called_with(self.function, key)

    def put(self, key: Any, old: Region, new: Region) -> None:
        """Replaces a region among those that calls find, unless it was dropped meanwhile."""
        table, at = self._table(key)
        if table.get(at) is old:
            table[at] = new

    def decided(self, key: Any, found: Verdict, kept: StoredVerdict | None) -> None:
        """Notes a comparison, and keeps it; logs the first one that eager mode won."""
        if kept is not None:
            self.kept.decided(key, kept)
        self._wait = min(2 * self._wait, MAX_SETTLED)
        if found.native and not any(one.native for one in self.verdicts):
            logger().warning("%s: %s", _name(self.function), found)
        self.verdicts.append(found)

    def go_by(self, key: Any, found: StoredVerdict) -> bool:
        """Goes by what another process found to be faster for a start, where this one would compare;
        returns whether it does."""
        table, at = self._table(key)
        if not isinstance(table.get(at), TimedRegion) or not self.may_measure():
            return False
        table[at] = found.region(self, key, self._starts[key])
        self.verdicts.append(found.verdict())
        return True

    def _compare_again(self) -> None:
        """Begins a new comparison of the starts that stay compiled: something was captured, or a
        trace led to nothing."""
        for key, segment in list(self._starts.items()):
            table, at = self._table(key)
            if table.get(at) is segment:
                table[at] = self.timed(key, segment)

    # -- the first code region --

    def _miss_start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], state: tuple[Any, ...], traced: int
    ) -> Any:
        """Calls `_call_anew`; the first call also logs in one line what was captured."""
        if self._told:
            return self._call_anew(args, kwargs, state, traced)
        self._told = True
        try:
            return self._call_anew(args, kwargs, state, traced)
        finally:
            if self.records:
                owner = state[0] if state and isinstance(state[0], torch.nn.Module) else None
                events.first_call(summary=self.summary(type(owner).__name__ if owner is not None else None),
                                  broken=bool(self.breaks))  # fmt: skip

    def summary(self, name: str | None = None) -> str:
        """Returns one line: the numbers of graphs and breaks, and the most frequent break."""
        n_graphs = sum(record.graph is not None for record in self.records)
        places = Counter((one.location, one.reason) for one in self.breaks)
        text = f"{name or _name(self.function)}: {n_graphs} graph{'s' * (n_graphs != 1)}"
        text += f", {len(places)} graph break{'s' * (len(places) != 1)}"
        if places:
            ((location, reason), _), *_ = places.most_common(1)
            text += f"; {'the worst' if len(places) > 1 else 'it is'} at {location}: {reason}"
        return text

    def _call_anew(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], state: tuple[Any, ...], traced: int
    ) -> Any:
        """Captures an entry because none fitted when `_traced` was `traced`, unless one fits once
        no other thread traces."""
        key = (len(args), *kwargs)
        while True:
            if self.skipped is not None or not _can_trace() or _is_uninitialized(state):
                return self.function(*args, **kwargs)
            with _LOCK:
                segment = self._starts.get(key)
                if segment is None:
                    segment = self._starts[key] = GuardedCache(key)
                if _traced == traced and self._is_for_one_call(segment, state):
                    attempt, n_loaded = None, 0  # the store is not looked through either
                    break
                self._show(key, segment)
                n_loaded = self.kept.enter(key, state) if _traced == traced else 0
                if n_loaded == NATIVE:
                    break
                if _traced == traced and not n_loaded:
                    attempt = self._capture_start(segment, args, kwargs, state)
                    break
                traced = _traced
            result = segment.run(state)
            if result is not MISS:
                return self._drive(result, args, kwargs) if type(result) is Suspended else result
        if n_loaded == NATIVE:
            return self.function(*args, **kwargs)
        result = MISS
        if attempt is not None:
            again = functools.partial(self._capture_start, segment, args, kwargs, state)
            result = self._first_run(segment, attempt, state, again)
        if result is MISS:
            if segment.is_closed(state):
                segment.serve(state, _called_with(self.function, key))
            elif segment.is_blank():  # else names that are new in each call would pile up
                self._forget_start(key, segment)
            return self._natively(segment, lambda: self.function(*args, **kwargs))
        return self._drive(result, args, kwargs) if type(result) is Suspended else result

    def _forget_start(self, key: Any, segment: GuardedCache) -> None:
        """Drops a start of which nothing is known."""
        table, at = self._table(key)
        with _LOCK:
            if self._starts.get(key) is segment and segment.is_blank():
                del self._starts[key]
                table.pop(at, None)

    def _after_failure(
        self,
        error: Exception,
        exit: Exit | None,
        state: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs the program from the exit (None: from the start) after a graph raised. If the
        program does not raise, it has caught the error, or the backend is at fault: this is logged,
        and raised for ``fullgraph=True``."""
        if isinstance(error, SizeDiffers) and self.config.fullgraph:
            reason = f"a size that depends on data is not what the graph was captured for: {error}"
            hint = BREAKS["data_dependent_shape"].hint
            where = _name(self.function)
            raise GraphBreakError("data_dependent_shape", reason, where, hint) from error
        if isinstance(error, wrong_fakes.FakeDiffers):
            self._note_other_data(error, exit, args, kwargs)
            if self.config.fullgraph:
                where, hint = _name(self.function), BREAKS["operator_failed"].hint
                raise GraphBreakError("operator_failed", str(error), where, hint) from error
        if exit is None:
            result = self.function(*args, **kwargs)
        else:
            result = interpreter().finish(frames_of(exit.layouts, state))
        if isinstance(error, AssertionFailed) and self.config.fullgraph:
            reason = (
                "the program asserts something of a tensor's values, and goes on where it fails"
            )
            where, hint = _name(self.function), BREAKS["data_dependent_branch"].hint
            raise GraphBreakError("data_dependent_branch", reason, where, hint)
        if isinstance(error, wrong_fakes.FakeDiffers):
            return result
        if isinstance(error, DataDiffers):
            self._note_other_data(error, exit, args, kwargs)
            return result
        said = graph_raised(_name(self.function), self.config.backend.name, error)
        if self.config.fullgraph:
            raise TracerError(f"fullgraph=True, but {said}") from error
        return result

    def _note_other_data(
        self,
        error: DataDiffers,
        exit: Exit | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Counts that data differ from what a graph was captured for. If this keeps happening, the
        place is captured again with a graph break before such sizes or assertions."""
        segment = self._starts.get((len(args), *kwargs)) if exit is None else exit.segment
        if segment is None:
            return
        with _LOCK:
            if isinstance(error, wrong_fakes.FakeDiffers):  # which breaks the next graph
                segment.forget()
                return
            segment.other_data[error.refuses] += 1
            if segment.other_data[error.refuses] == MAX_DATA_VIOLATIONS:
                crossed("MAX_DATA_VIOLATIONS", owner=self)
                segment.forget()
                if error.refuses == ASSERTIONS and (
                    segment.seen.outcomes or (segment.seen.foresees and self._may_expect())
                ):
                    segment.seen.outcomes, segment.seen.foresees = (), False
                    segment.other_data[ASSERTIONS] = 0
                else:
                    segment.seen.refused.add(error.refuses)

    def _capture_start(
        self,
        segment: GuardedCache,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: tuple[Any, ...],
    ) -> Callable[[Any], Any] | None:
        labels = _labels(self.function, len(args), tuple(kwargs))

        def start(tracer: Tracer) -> list[Frame]:
            unread = [
                LazyValue(value, tracer.provenance.sources.state(i, labels[i]))
                for i, value in enumerate(state)
            ]
            named = dict(zip(kwargs, unread[len(args) :], strict=True))
            return tracer.start(self.function, unread[: len(args)], named)

        is_first = segment.is_first(state)
        attempt = self._capture(segment, start, state)
        self.n_first += is_first and attempt is not None
        return attempt

    def _first_run(
        self,
        segment: GuardedCache,
        attempt: Callable[[Any], Any],
        state: Any,
        again: Callable[[], Callable[[Any], Any] | None],
    ) -> Any:
        """Runs a fresh cache entry, which must accept the call that it was captured from. Captures
        a rejecting entry again, once: compiling may have imported modules that changed what its
        guards read (pytree's registry of containers)."""
        try:
            result = attempt(state)
            if result is not MISS:
                return result
            segment.remove(attempt)
            with _LOCK:
                second = again()
            if second is None:
                return MISS
            result = second(state)
        finally:
            self._start_compiling()
        if result is MISS:
            record = self.records[-1]
            segment.remove(second)
            self._give_up(
                segment, f"{record.name} does not accept its own call: {record.check_first(state)}"
            )
        return result

    def _natively(self, segment: GuardedCache, run: Callable[[], Any]) -> Any:
        """Runs the program in eager mode. If it succeeds although its trace raised, the tracer is
        at fault, and `_give_up` raises for ``fullgraph=True``."""
        raised, segment.raised = segment.raised, None
        result = run()
        if raised is not None:
            self._give_up(
                segment, f"tracing it raised {raised!r}, which running it does not", raised
            )
        return result

    # -- later code regions --

    def _drive(self, suspended: Suspended, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a suspended activation: the breaking instruction, then the next code region, and so
        on."""
        self._n_broken += 1
        exit: Exit | None = None
        state: Any = ()
        watch = self._watch(args, kwargs)
        #: How many regions in a row ran no graph; the fewest frames at the later ones.
        n_plain, fewest = 0, sys.maxsize
        while True:
            if suspended.transition is GRAPH_RAISED:
                return self._after_failure(suspended.taken(), exit, state, args, kwargs)
            if suspended.transition is HOOK_RAISED:
                return _raise_in(exit, state, suspended.taken())
            n_plain = 0 if suspended.transition.follows_graph else n_plain + 1
            asked = watch is not None and watch.ask(suspended)
            state = ()  # what the program has dropped must be able to die in the next instruction
            try:
                exit, state = suspended.transition.run(suspended)
            except NotRaised as error:
                return self._not_raised(error)
            except BaseException as error:
                raise error.with_traceback(without_own(error.__traceback__))  # noqa: B904  (the same exception)
            if exit is None:
                if watch is not None:
                    self._expect(watch)
                return state
            if watch is not None and not asked:
                watch.begin(exit.segment)
            if n_plain > MAX_REGIONS_WITHOUT_GRAPH:
                fewest = min(fewest, len(exit.layouts))
                if n_plain > 2 * MAX_REGIONS_WITHOUT_GRAPH and len(exit.layouts) == fewest:
                    held, state = [state], ()
                    return self._leave_plain_regions(exit, held, (args, kwargs))
            segment = exit.segment
            traced = -1  # `_miss_inside` looks for the region
            result = MISS
            if segment is not None:
                traced = _traced
                result = segment.run(state)
            if result is MISS:
                held, state = [state], ()
                result = self._miss_inside(exit, held, traced, (args, kwargs))
                state = held.pop() if held else ()  # from which a graph that raised goes on
            if type(result) is not Suspended:
                if watch is not None:
                    self._expect(watch)
                return result
            suspended = result

    # -- branches that follow data --

    def _may_expect(self) -> bool:
        """Returns whether branches on tensors may be expected to go some way; see `_watch`."""
        return self.config.native_if_faster and not self._must_compile() and self.may_measure()

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Watch | None:
        """Returns what notes how branches go in this call; None where nothing is to be expected of
        them: the user chose how it is compiled, or a graph that takes the wrong way could not be
        left (an index out of bounds on CUDA, a collective)."""
        start = self._starts.get((len(args), *kwargs))
        if start is None or start.profile.is_over:
            return None
        may = self._may_expect()
        if not may or not _can_trace():
            start.profile.is_over = start.profile.is_over or not may
            return None
        return _Watch(start)

    def _expect(self, watch: _Watch) -> None:
        """Has the regions whose branches went the same way in several calls captured again."""
        for segment, answers in watch.found():
            if len(answers) > MAX_PROFILED_OUTCOMES:
                crossed("MAX_PROFILED_OUTCOMES", found=len(answers), owner=self)
            expected = segment.profile.note(answers)
            if segment.profile.is_over and answers and not expected:
                crossed("MAX_PROFILED_CALLS", owner=self)
            if expected and ASSERTIONS not in segment.seen.refused:
                reason = f"{len(expected)} branches on tensors went the same way in {MIN_EQUAL_PROFILES} calls"
                events.recompile(
                    function=_name(self.function), reason=reason, count=len(segment.entries)
                )
                with _LOCK:
                    segment.seen.outcomes = expected
                    segment.forget()

    def _miss_inside(
        self,
        exit: Exit,
        held: list[tuple[Any, ...]],
        traced: int,
        call: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Any:
        """Captures an entry at this exit because none fitted when `_traced` was `traced`, unless
        one fits once no other thread traces. held: the state, which leaves the list when the
        program goes on in eager mode, so that only its frames hold its values. call: the arguments
        of the whole call."""
        layouts = exit.layouts

        def finish() -> Any:
            return interpreter().finish(frames_of(layouts, held.pop()))

        (state,) = held
        if self.skipped is not None:
            del state
            return finish()
        if not _can_trace():
            return self._under_modes(layouts, state, call)
        while True:
            with _LOCK:
                segment = exit.segment = exit.segment or self._segments.get(layouts)
                if segment is None:
                    if len(self._segments) >= MAX_REGIONS:
                        crossed("MAX_REGIONS", owner=self)
                        self._skip(f"more than {MAX_REGIONS} places where it breaks")
                        return finish()
                    segment = exit.segment = self._segments[layouts] = GuardedCache(layouts)
                    segment.made_in = self._n_broken
                again = functools.partial(self._capture_inside, segment, layouts, held)
                args, kwargs = call
                whole = (len(args), *kwargs), (*args, *kwargs.values())
                if _traced == traced and self._is_for_one_call(segment, state):
                    captured = None
                    break
                if _traced == traced and not self.kept.enter(*whole):
                    captured = again()
                    break
                traced = _traced
            result = segment.run(state)
            if result is not MISS:
                return result
        result = MISS if captured is None else self._first_run(segment, captured, state, again)
        if result is MISS and segment.loop_at is not None:
            del state
            return self._leave_loop(frames_of(layouts, held.pop()), segment.loop_at, call)
        if result is MISS and segment.is_closed(state):
            if not segment.closed_early:
                self._call_natively_from_now_on(segment, call)
            elif segment.made_in != self._n_broken:  # a later call comes here, too
                segment.closed_early = False
                self._warn_of_limit(segment, state)
                self._call_natively_from_now_on(segment, call)
        del state
        return self._natively(segment, finish) if result is MISS else result

    def _capture_inside(
        self, segment: GuardedCache, layouts: Any, held: list[tuple[Any, ...]]
    ) -> Callable[[Any], Any] | None:
        (state,) = held
        return self._capture(segment, lambda tracer: tracer.start_inside(layouts, state), state)

    def _call_natively_from_now_on(
        self, segment: GuardedCache, call: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Stops capturing at a place inside a function: later calls run that function in eager
        mode."""
        args, kwargs = call
        key, layouts = (len(args), *kwargs), segment.key
        with _LOCK:
            if len(layouts) > 1:
                self._natives = {**self._natives, layouts[-1].code: "recompile_limit"}
                self._drop_inside(layouts[-1].code)
            elif (start := self._starts.get(key)) is not None:
                state = (*args, *kwargs.values())
                start.retire(state, segment.limit_hit)
                start.serve(state, _called_with(self.function, key))

    def _skip(self, reason: str) -> None:
        """Runs the whole function in eager mode from now on."""
        logger().warning("%s runs natively: %s", _name(self.function), reason)
        self._drop_entries()
        self.abandoned.append(reason)
        self.skipped = reason

    def _under_modes(self, layouts: Any, state: tuple[Any, ...], call: Any) -> Any:
        """Runs the program in eager mode until it has left the torch modes that forbid tracing."""
        machine, frames = interpreter(), frames_of(layouts, state)
        while not _can_trace():
            returned, value = machine.step(frames)
            if returned:
                return value
        return self._go_on(frames, call)

    def _leave_plain_regions(self, exit: Exit, held: list[tuple[Any, ...]], call: Any) -> Any:
        """Leaves a loop whose code regions run no graphs, which Python itself runs faster. If none
        was captured here with a graph, the next calls leave it at once."""
        segment, loop_at = exit.segment, len(exit.layouts) - 1
        crossed("MAX_REGIONS_WITHOUT_GRAPH", where=exit.layouts[-1].code.co_qualname, owner=self)
        if segment is not None:
            graphs = (one.attempt for one in self.records if one.graph is not None)
            with _LOCK:
                if set(segment.entries).isdisjoint(graphs):
                    segment.forget()
                    segment.limit_hit, segment.loop_at = True, loop_at
        return self._leave_loop(frames_of(exit.layouts, held.pop()), loop_at, call)

    def _leave_loop(self, frames: list[Frame], loop_at: int, call: Any) -> Any:
        """Runs the frame with a long loop of plain Python in eager mode, and what follows in the
        next code region."""
        returned, value = interpreter().leave_frames(frames, loop_at)
        return value if returned else self._go_on(frames, call)

    def _go_on(self, frames: list[Frame], call: Any) -> Any:
        """Runs the code region that begins where the frames stand."""
        layouts, values = flatten(frames)
        exit, state, traced = Exit(layouts), tuple(values), -1
        exit.segment = self._segments.get(layouts)
        if exit.segment is not None:
            traced = _traced
            result = exit.segment.run(state)
            if result is not MISS:
                return result
        return self._miss_inside(exit, [state], traced, call)

    def _not_raised(self, error: NotRaised) -> Any:
        """Handles a program that did not raise what its trace raised: the tracer is at fault."""
        reason = f"{_name(self.function)}: {error}"
        if self._must_compile():
            raise TracerError(reason) from error
        logger().warning("%s; it runs natively from now on", reason)
        self.forget()
        self.skipped = reason
        return interpreter().finish(error.frames) if error.frames else error.value

    # -- capturing --

    def _capture(
        self, segment: GuardedCache, start: Any, state: Any
    ) -> Callable[[Any], Any] | None:
        """Captures a cache entry for this state; None: run in eager mode, now or from now on."""
        global _traced
        if segment.is_closed(state):
            return None
        is_new = segment.is_new(state)
        if not self._may_recompile(segment, state) or segment.skips_capture():
            return None
        _traced += 1
        self.n_captures += 1
        self.n_changes += 1
        before, begun = self.capture_seconds, profitability.clock()
        attempt = None
        try:
            attempt = self._entry(segment, start, state)
            if is_new and attempt is not None:
                call = self.n_captures if segment.made_in < 0 else -self._n_broken
                self._single_uses.note(call, segment.holder(state), segment)
            return attempt
        finally:  # a capture may begin inside another one
            self.capture_seconds = before + profitability.clock() - begun
            self._note_capture(segment, attempt is not None)
            self._compare_again()
            _traced += 1

    def _is_for_one_call(self, segment: GuardedCache, state: Any) -> bool:
        """Returns whether a new object, or region, gets no entry, because no call used those of the
        last ones again; logs the first time."""
        if self.config.fullgraph or segment.is_closed(state) or not segment.is_new(state):
            return False
        if not self._single_uses.skips_capture():
            return False
        if not self._told_of_single_uses:
            self._told_of_single_uses = True
            crossed("MAX_SINGLE_USES", owner=self)
            logger().warning(
                "%s: the last %d captures were each for one call: nothing that they gave was used again;"
                " calls that nothing fits run in eager mode until some of it is",
                _name(self.function), MAX_SINGLE_USES,
            )  # fmt: skip
        return True

    def _note_capture(self, segment: GuardedCache, gave_entry: bool) -> None:
        """Notes the end of a capture; logs the first time that several in a row gave no entry."""
        segment.note_capture(gave_entry)
        if segment.failed_captures == MAX_SILENT_FAILED_CAPTURES:
            crossed("MAX_FAILED_CAPTURES", owner=self)
            logger().warning(
                "%s: %d captures in a row gave nothing to run; most calls for which nothing was"
                " compiled run in eager mode from now on", _name(self.function), segment.failed_captures,
            )  # fmt: skip

    def _entry(self, segment: GuardedCache, start: Any, state: Any) -> Callable[[Any], Any] | None:
        """Does `_capture`, which counts it."""
        try:
            return self._traced(segment, start, state)
        except _Unexpected:
            segment.seen.outcomes, segment.seen.foresees = (), False
        return self._traced(segment, start, state)

    def _traced(self, segment: GuardedCache, start: Any, state: Any) -> Callable[[Any], Any] | None:
        """Does `_entry`. Where branches on tensors are expected to go some way, it raises
        `_Unexpected` if nothing can be captured or the graph has no lowered form, since the graphs
        between the breaks may have one."""
        global _tracing
        from tracer_core.execution.capture import capture  # heavy: the tracer
        from tracer_core.execution.entry_builder import Generator  # heavy: the tracer

        foresight = Foresight(segment.seen.foresees and self._may_expect())
        expects = bool(segment.seen.outcomes)
        name = f"graph_{next(_graph_numbers)}"
        previous, _tracing = _tracing, threading.get_ident()
        try:
            with recording(self), torch_private.unshielded():
                record = capture(
                    Generator, start, state, self.config, segment.seen, name, self._natives,
                    self._answers, foresight,
                )  # fmt: skip
            give_back_free_memory()
        except (UserError, Abandoned) as error:
            if expects or foresight.n_answers:
                raise _Unexpected from error
            return self._not_traced(error, segment, start, state)
        except (TracerError, KeyboardInterrupt):
            raise
        except Exception as error:
            if env().strict:
                raise
            if expects or foresight.n_answers:
                raise _Unexpected from error
            if self.config.fullgraph:
                raise self._not_captured(f"internal error: {error!r}") from error
            logger().warning(
                "internal error while tracing %s: %r", _name(self.function), error, exc_info=True
            )
            self._give_up(segment, f"internal error: {error!r}")
            return None
        finally:
            _tracing = previous
        fallback = record.runner.fallback if record.runner is not None else None
        expects = expects or foresight.n_answers > 0
        if expects and fallback is not None and fallback.kind in WHOLE:
            raise _Unexpected
        self._note(record)
        segment.seen.add(record.shapes, record.numbers)
        self.kept.explain([one for one in self.loaded if one.attempt in segment.entries], record)
        segment.add(record.attempt, state)
        if record.pending is None:
            self.kept.add(record)
        elif record.pending.second_use is None:
            self._compile_later(segment, record, record.pending, expects)
        elif self.loaded:  # earlier processes got so far, too: the next one will find it compiled
            record.pending.second_use.waits_for(record.pending.with_inputs, calls_before=0)
            self._compile_later(segment, record, record.pending, expects)
        else:
            self._compile_at_second_use(segment, record, record.pending, record.pending.second_use)
        return record.attempt

    # -- at the second use, or in the background --

    def _compile_at_second_use(
        self, segment: GuardedCache, record: Captured, pending: Pending, second: SecondUse
    ) -> None:
        """Has the graph of an entry compiled by the call that uses it for the second time."""
        document, function, region = self.kept.current, weakref.ref(self), weakref.ref(segment)

        def compile(inputs: Sequence[Any]) -> None:
            owner, place = function(), region()
            if owner is None or place is None:
                return
            with _LOCK:
                if not any(one is record for one in owner.records):
                    return  # another thread's call has compiled it
                pending.with_inputs(inputs)
                try:
                    made = owner._put_compiled(place, record, pending, pending.compile())
                    owner.kept.add(made, document)
                except Dropped:
                    pass
                except Exception as error:
                    if owner._not_compiled(place, record, pending, error) and owner._must_compile():
                        raise

        second.waits_for(compile)

    def _compile_later(
        self, segment: GuardedCache, record: Captured, pending: Pending, expects: bool
    ) -> None:
        """Has the graph of an entry compiled while it runs eagerly. expects: the trace expected
        answers, without which it is captured again where the graph has no lowered form."""
        compilation = Compilation(_name(self.function), record.name)
        self.compilations.append(compilation)
        function, region = weakref.ref(self), weakref.ref(segment)
        document = self.kept.current

        def alive() -> tuple[CompiledFunction, GuardedCache]:
            owner, place = function(), region()
            if owner is None or place is None:
                raise Dropped
            return owner, place

        def work() -> Callable[[], None]:
            alive()
            compiled = pending.compile()
            fallback = compiled.fallback

            def put() -> None:
                owner, place = alive()
                with _LOCK:
                    if expects and fallback is not None and fallback.kind in WHOLE:
                        place.seen.outcomes, place.seen.foresees = (), False  # as in `_entry`
                        place.remove(record.attempt)
                        raise Dropped
                    made = owner._put_compiled(place, record, pending, compiled)
                    owner.kept.add(made, document)

            return put

        def failed(error: BaseException) -> bool:
            owner, place = function(), region()
            if owner is None or place is None:
                return False
            with _LOCK:
                return owner._not_compiled(place, record, pending, error)

        self._to_start.append(functools.partial(compilation.start, work, failed))

    def _start_compiling(self) -> None:
        while self._to_start:
            self._to_start.pop(0)()

    def _put_compiled(
        self, segment: GuardedCache, record: Captured, pending: Pending, compiled: CompiledGraph
    ) -> Captured:
        """Puts the compiled form of an entry in its place, and returns it. Raises Dropped if the entry
        is gone."""
        made = pending.entry(record.text, compiled)
        if not segment.replace(record.attempt, made.attempt):
            raise Dropped
        self.n_changes += 1
        new = replace(
            record, attempt=made.attempt, text=made.text, runner=compiled, pending=None,
            constants={**record.constants, **made.own},
            check_first=record.check_first.with_more(made.added),
        )  # fmt: skip
        self._replace_record(record, new)
        self._compare_again()
        return new

    def _not_compiled(
        self, segment: GuardedCache, record: Captured, pending: Pending, error: BaseException
    ) -> bool:
        """Does what follows from a graph that cannot be compiled: with symbols it is captured again
        with constants, as where a call waits for it; else it goes on eagerly, or where nothing may
        do so its calls raise the error. Returns whether the error is final."""
        name, place = _name(self.function), record.name
        what = pending.takes_constants() if isinstance(error, BackendError) else ""
        if isinstance(error, SettingsChanged):
            segment.remove(record.attempt)
            logger().info("%s of %s is captured again: %s", place, name, error)
            return False
        if what and what not in segment.seen.refused:
            segment.seen.refused.add(what)
            segment.remove(record.attempt)
            logger().warning("%s: %s are taken as constants, because %s", place, what, error)
            return False
        if self._must_compile():
            told = error
            if not isinstance(error, TracerError):
                told = self._not_captured(f"internal error: {error!r}")
                told.__cause__ = error
            raising = pending.raising(record.text, told)
            if segment.replace(record.attempt, raising):
                self._replace_record(record, replace(record, attempt=raising, pending=None))
        else:
            unknown = None if isinstance(error, TracerError) else error
            logger().warning("%s of %s runs eagerly from now on, because compiling it failed: %s",
                             place, name, error if unknown is None else repr(error),
                             exc_info=unknown)  # fmt: skip
        return True

    def _replace_record(self, old: Captured, new: Captured) -> None:
        for number, one in enumerate(self.records):
            if one is old:
                self.records[number] = new

    def drop_waiting(self) -> None:
        """Drops the entries whose graphs are not compiled yet."""
        waiting = [one for one in self.records if one.pending is not None]
        for compilation in self.compilations:
            compilation.drop()
        for segment in (*self._starts.values(), *self._segments.values()):
            for one in waiting:
                segment.remove(one.attempt)

    def _not_traced(
        self, error: UserError | Abandoned, segment: GuardedCache, start: Any, state: Any
    ) -> Callable[[Any], Any] | None:
        """Does what follows from a trace that ended without an entry; see `_capture`."""
        cause = error.__cause__
        if isinstance(error, Abandoned):
            self._give_up(segment, str(error))
            return None
        if isinstance(cause, RunNatively):
            if self.config.fullgraph:
                raise self._not_captured(str(cause)) from cause
            return self._run_natively(cause, segment, start, state)
        segment.raised = cause
        return None

    def _run_natively(
        self, found: RunNatively, segment: GuardedCache, start: Any, state: Any
    ) -> Callable[[Any], Any] | None:
        """Does what a trace that ended with `RunNatively` asks for; see `_capture`."""
        if found.code is not None:
            self._natives = {**self._natives, found.code: "long_loop"}
            return self._capture(segment, start, state)
        if found.loop_at is not None:
            segment.limit_hit, segment.loop_at = True, found.loop_at
        elif found.always:
            self.skipped = str(found)
        else:
            return None
        logger().warning("%s runs natively: %s", _name(self.function), found)
        return None

    def _give_up(
        self, segment: GuardedCache, reason: str, cause: BaseException | None = None
    ) -> None:
        if self._must_compile():
            raise self._not_captured(reason) from cause
        segment.limit_hit = True
        self.abandoned.append(reason)
        logger().warning("%s runs natively: %s", _name(self.function), reason)

    def _must_compile(self) -> bool:
        """Returns whether falling back to eager mode is an error."""
        return self.config.fullgraph or env().strict

    def _not_captured(self, reason: str) -> TracerError:
        asked = "fullgraph=True, but " if self.config.fullgraph else ""
        return TracerError(f"{asked}{_name(self.function)} cannot be captured: {reason}")

    def _may_recompile(self, segment: GuardedCache, state: Any) -> bool:
        """Returns whether one more entry may be captured; logs why the present ones do not fit. The
        limit counts the entries of the state's object (`GuardedCache.count`), `MAX_CACHE_ENTRIES` all
        entries."""
        newest = segment.newest(state)
        if newest is None:
            return True
        count, total = segment.count(state), len(segment.entries)
        if count == 0 and total > MAX_RECENT_ENTRIES:
            crossed("MAX_RECENT_ENTRIES", found=total, owner=self)
        if count < self.config.recompile_limit and total < MAX_CACHE_ENTRIES:
            failed = self._failed(newest, state)
            reason = "a guard failed" if failed is None else failed.text
            events.recompile(function=_name(self.function), reason=reason, count=total)
            return True
        if self.config.fullgraph:
            raise RecompileLimitError(**self._at_the_limit(segment, newest, state))
        segment.close(state, self.config.recompile_limit)
        many = total >= MAX_CACHE_ENTRIES
        crossed("MAX_CACHE_ENTRIES" if many else "MAX_RECOMPILES", found=total, owner=self)
        # A loop of the call that fills a program's tables (of einops' backends) may be run by no
        # later one: this call ends in eager mode, and nothing is said yet.
        segment.closed_early = segment.made_in == self._n_broken
        if not segment.closed_early:
            self._warn_of_limit(segment, state)
        return False

    def _warn_of_limit(self, segment: GuardedCache, state: Any) -> None:
        """Logs, once a function, that a region is at the recompile limit. The record has the line
        that called the function, and the facts as `recompile_limit`. (A warning would end a program
        that makes errors of them.)"""
        newest = segment.newest(state)
        if self._warned or newest is None:
            return
        self._warned = True
        told = RecompileLimitWarning(**self._at_the_limit(segment, newest, state))
        level = _levels_to_the_user()
        logger().warning("%s", told, stacklevel=level, extra={"recompile_limit": told})

    def _failed(self, attempt: Any, state: Any) -> Failed | None:
        """Returns the guard that a state fails; None if the entry was loaded or no guard fails."""
        for record in reversed(self.records):
            if record.attempt is attempt:
                return record.check_first.failed(state)
        return None

    def _at_the_limit(self, segment: GuardedCache, newest: Any, state: Any) -> dict[str, Any]:
        """Returns the contents of a `RecompileLimitWarning`: the value that kept changing and the
        values that it had."""
        total = len(segment.entries)
        count = total if total >= MAX_CACHE_ENTRIES else max(segment.count(state), 1)
        layouts = segment.key if segment.key and isinstance(segment.key[0], FrameLayout) else ()
        function = _name(self.function)
        if layouts:
            inner = layouts[-1].code.co_qualname
            function = inner if inner == function else f"{inner} (called by {function})"
        last = self._failed(newest, state)
        if last is None:
            return {"function": function, "count": count, "reason": "a guard failed"}
        known, values = segment.known(state), []
        for record in self.records:
            failed = record.check_first.failed(state) if record.attempt in known else None
            if failed is None or failed.source != last.source:
                continue
            if failed.died or failed.seen not in values:
                values.append(failed.seen)
        values.append(last.now)
        return {"function": function, "count": count, "reason": last.text, "source": last.source,
                "values": tuple(values), "hint": last.hint}  # fmt: skip

    def _note(self, record: Captured) -> None:
        self.records.append(record)
        broken = record.break_
        if broken is None:
            return
        if self.config.fullgraph:
            self.forget()
            raise GraphBreakError(broken.kind, broken.reason, broken.location, broken.hint)
        events.graph_break(
            kind=broken.kind, reason=broken.reason, location=broken.location, hint=broken.hint
        )

    @property
    def breaks(self) -> list[BreakRecord]:
        """Returns the graph breaks found so far."""
        found = [*(one.break_ for one in self.loaded), *(one.break_ for one in self.records)]
        return [break_ for break_ in found if break_ is not None]


def _compiled_again(function: Callable[..., Any], config: CompileConfig) -> CompiledFunction:
    """Returns a compiled function that was pickled, in the process that loads it."""
    logs.configure()
    events.follow_stages()
    mark_used(config.backend)
    return CompiledFunction(function, config)


class _Unexpected(Exception):
    """A trace that expects answers captured nothing worth keeping."""


class _Watch:
    """How branches that follow data go in one call. Mutable. segment: where the call begins."""

    def __init__(self, segment: GuardedCache) -> None:
        #: Code regions, each with the number of answers before it.
        self._segments: list[tuple[GuardedCache, int]] = [(segment, 0)]
        self._answers: list[Outcome] = []

    def begin(self, segment: GuardedCache | None) -> None:
        """Notes a code region that does not begin behind such a branch, if it was captured."""
        if segment is not None:
            self._segments.append((segment, len(self._answers)))

    def ask(self, suspended: Suspended) -> bool:
        """Notes the answer that the instruction at a graph break will get, if it asks for one."""
        layouts, values = suspended.transition.layouts, suspended.values
        found = outcome(layouts, values) if _can_trace() else None
        if found is not None:
            self._answers.append(found)
        return found is not None

    def found(self) -> list[tuple[GuardedCache, list[Outcome]]]:
        """Returns the code regions, each with all answers behind it: a trace that answers one more
        question may have no break that made the next region begin there."""
        return [(segment, self._answers[n:]) for segment, n in self._segments]


def _can_trace() -> bool:
    """Returns whether tracing is possible: not under foreign torch modes or tracers, not where
    tensors may have tangents, not in a trace, not with other builtins."""
    return (
        (function_modes() == 0 or settings.ambient_devices() is not None)
        and not torch_private.transforms_active()
        and not torch_private.duals_active()
        and not torch.jit.is_tracing()
        and dispatch_modes() == 0
        and _tracing != threading.get_ident()
        and not are_replaced()
    )


def _is_uninitialized(state: Any) -> bool:
    """Returns whether an argument is a module with lazy parts whose first call is to come."""
    return any(_has_lazy_tensors(one) for one in state if isinstance(one, torch.nn.Module))


def _has_lazy_tensors(module: torch.nn.Module) -> bool:
    entries = vars(module)  # `parameters()` hashes modules, which their class may forbid
    tables = (entries.get(name) or {} for name in ("_parameters", "_buffers"))
    return any(
        isinstance(one, _UNINITIALIZED) for table in tables for one in table.values()
    ) or any(
        inner is not None and _has_lazy_tensors(inner)
        for inner in (entries.get("_modules") or {}).values()
    )


def _called_with(function: Callable[..., Any], key: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Returns a function that calls `function` with the state of a start region. key: the number of
    arguments and the keywords."""
    n_args, *names = key
    if not names:
        return lambda state: function(*state)
    return lambda state: function(*state[:n_args], **dict(zip(names, state[n_args:], strict=True)))


def _raise_in(exit: Exit | None, state: Any, error: Exception) -> Any:
    """Raises an exception in the program where a code region begins, and runs its handlers and what
    follows them (None: at the start of the function, which has none). What the region did before
    the operator whose hook raised is not done."""
    if exit is None:
        try:
            raise error
        finally:
            del error  # whose traceback has this frame
    return interpreter().finish_raising(frames_of(exit.layouts, state), error)


def _levels_to_the_user() -> int:
    """Returns the stacklevel of a caller's line in the log that names the line that called the function."""
    own, level = os.path.dirname(os.path.dirname(__file__)) + os.sep, 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame, level = frame.f_back, level + 1
    return level


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _labels(function: Any, n_args: int, keywords: tuple[str, ...]) -> list[str]:
    """Returns the user's names for the arguments of a call."""
    code = getattr(function, "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    positional = [names[i] if i < len(names) else f"args[{i - len(names)}]" for i in range(n_args)]
    return [*positional, *keywords]

"""Drives one call of a compiled function over its code regions.

A call that no cache entry fits comes to `Activation.begin`, one whose entry ended at a graph break to
`Activation.go_on`. Each runs the instruction at the break in eager mode, then the code region behind
it, and so on, until the function returns.
"""

from __future__ import annotations

import sys
from typing import Any

from tracer_core.aot.result_check import IN_ITS_PLACE
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS, flatten, frames_of
from tracer_core.bytecode.tracebacks import without_own
from tracer_core.debug.crossed_limits import crossed
from tracer_core.debug.fallbacks import graph_raised
from tracer_core.debug.logs import logger
from tracer_core.debug.profiling import profiled
from tracer_core.errors import GraphBreakError, TracerError
from tracer_core.execution import capture_lock
from tracer_core.execution.call import BreakKey, Call, StartKey
from tracer_core.execution.capture import capturer
from tracer_core.execution.capture_lock import STATE
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.entry.predicted_region import run_predicted
from tracer_core.execution.entry.regions import Region
from tracer_core.execution.entry.resume_function import (
    GRAPH_RAISED,
    HOOK_RAISED,
    Continuation,
    Exit,
    NotRaised,
    interpreter,
)
from tracer_core.execution.runtime import Runtime
from tracer_core.execution.store.persistent_cache import NATIVE
from tracer_core.execution.tiers.branch_profile import MIN_EQUAL_PROFILES
from tracer_core.execution.tiers.branch_watch import BranchWatch
from tracer_core.execution.tiers.eager_or_compiled import Run, Ways
from tracer_core.fx_capture import wrong_fakes
from tracer_core.fx_capture.data_errors import ASSERTIONS, AssertionFailed, DataDiffers, SizeDiffers
from tracer_core.graph_breaks import BREAKS
from tracer_core.limits import (
    MAX_DATA_VIOLATIONS,
    MAX_PROFILED_OUTCOMES,
    MAX_REGIONS,
    MAX_REGIONS_WITHOUT_GRAPH,
)
from tracer_core.registry import events
from tracer_core.torch_private.needed import PROFILING, profiler_state

use_own_builtins(globals())


class Activation:
    """One call. Mutable only through what it shares with other calls."""

    __slots__ = ("_runtime", "_call")

    def __init__(self, runtime: Runtime, call: Call) -> None:
        self._runtime, self._call = runtime, call

    # -- the first code region --

    def begin(self, epoch: int) -> Any:
        """Captures an entry for the call because none fitted when `STATE.epoch` was `epoch`, unless
        one fits once no other thread traces; returns the result of the call."""
        runtime, call, key, state = self._runtime, self._call, self._call.key, self._call.state
        entry = None
        while True:
            if (
                runtime.skipped is not None
                or not capture_lock.can_trace()
                or call.has_uninitialized_module()
            ):
                return call.run(runtime.function)
            with STATE.lock:
                cache = runtime.regions.start(key)
                if STATE.epoch == epoch and runtime.limit.is_for_one_call(cache, state):
                    n_loaded = 0  # the store is not looked through either
                    break
                runtime.tiering.show(ways_of(runtime, key), cache)
                n_loaded = (
                    runtime.persistent_cache.lookup(key, state) if STATE.epoch == epoch else 0
                )
                if n_loaded == NATIVE:
                    break
                if STATE.epoch == epoch and not n_loaded:
                    entry = capturer.capture_start(runtime, cache, call)
                    break
                epoch = STATE.epoch
            result = cache.run(state)
            if result is not MISS:
                return self.go_on(result) if type(result) is Continuation else result
        if n_loaded == NATIVE:
            return call.run(runtime.function)
        result = MISS
        if entry is not None:
            result = capturer.first_run(
                runtime, cache, entry, state,
                lambda: capturer.capture_start(runtime, cache, call),
            )  # fmt: skip
        if result is not MISS:
            return self.go_on(result) if type(result) is Continuation else result
        if cache.is_closed(state):
            cache.serve(state, key.calling(runtime.function))
        else:
            with STATE.lock:
                runtime.regions.forget_blank(key, cache)
        return self._eagerly(cache, lambda: call.run(runtime.function))

    def _eagerly(self, cache: GuardedCache, run: Any) -> Any:
        """Runs the program in eager mode. If it succeeds although its trace raised, the tracer is
        at fault, and `Runtime.give_up` raises for ``fullgraph=True``."""
        raised, cache.raised = cache.raised, None
        result = run()
        if raised is not None:
            reason = f"tracing it raised {raised!r}, which running it does not"
            self._runtime.give_up(cache, reason, raised)
        return result

    # -- later code regions --

    def go_on(self, continuation: Continuation) -> Any:
        """Runs a suspended activation: the breaking instruction, then the next code region, and so
        on; returns the result of the call."""
        self._runtime.n_broken += 1
        exit: Exit | None = None
        state: Any = ()
        watch = self._watch()
        #: How many regions in a row ran no graph; the fewest frames at the later ones.
        n_direct, fewest = 0, sys.maxsize
        while True:
            if continuation.resume_function is GRAPH_RAISED:
                return self._after_failure(continuation.taken(), exit, state)
            if continuation.resume_function is HOOK_RAISED:
                return _raise_in(exit, state, continuation.taken())
            n_direct = 0 if continuation.resume_function.follows_graph else n_direct + 1
            state = ()  # what the program has dropped must be able to die in the next instruction
            if continuation.resume_function.outcomes.is_predictable():
                predicted = run_predicted(continuation)
                if predicted is not None:
                    exit, state, result = predicted
                    predicted = None  # which has the state, too
                    if watch is not None:
                        watch.begin(exit.region)
                    if type(result) is not Continuation:
                        if watch is not None:
                            self._speculate(watch)
                        return result
                    continuation = result
                    continue
            asked = watch is not None and watch.ask(continuation)
            not_raised = None
            run = continuation.resume_function.run
            if profiler_state[PROFILING]:
                run = profiled(run, continuation.resume_function.row())
            try:
                exit, state = run(continuation)
            except NotRaised as error:
                not_raised = error  # no context of what the program raises next
            except BaseException as error:
                raise error.with_traceback(without_own(error.__traceback__))  # noqa: B904  (the same exception)
            if not_raised is not None:
                return self._not_raised(not_raised)
            if exit is None:
                if watch is not None:
                    self._speculate(watch)
                return state
            if watch is not None and not asked:
                watch.begin(exit.region)
            if n_direct > MAX_REGIONS_WITHOUT_GRAPH:
                fewest = min(fewest, len(exit.layouts))
                if n_direct > 2 * MAX_REGIONS_WITHOUT_GRAPH and len(exit.layouts) == fewest:
                    held, state = [state], ()
                    return self._leave_plain_regions(exit, held)
            cache = exit.region
            epoch = -1  # `_miss` looks for the region
            result = MISS
            if cache is not None:
                epoch = STATE.epoch
                result = cache.run(state)
            if result is MISS:
                held, state = [state], ()
                result = self._miss(exit, held, epoch)
                state = held.pop() if held else ()  # from which a graph that raised goes on
            if type(result) is not Continuation:
                if watch is not None:
                    self._speculate(watch)
                return result
            continuation = result

    def _miss(self, exit: Exit, held: list[tuple[Any, ...]], epoch: int) -> Any:
        """Captures an entry at this exit because none fitted when `STATE.epoch` was `epoch`, unless
        one fits once no other thread traces. held: the state, which leaves the list when the
        program goes on in eager mode, so that only its frames hold its values."""
        runtime, layouts = self._runtime, exit.layouts

        def finish() -> Any:
            return interpreter().finish(frames_of(layouts, held.pop()))

        def capture() -> Any:
            assert cache is not None
            return capturer.capture_inside(runtime, cache, layouts, held[0])

        if runtime.skipped is not None:
            return finish()
        if not capture_lock.can_trace():
            return self._under_modes(layouts, held.pop())
        entry = None
        while True:
            with STATE.lock:
                cache: GuardedCache | None = exit.region or self._region(layouts)
                exit.region = cache
                if cache is None or (
                    STATE.epoch == epoch and runtime.limit.is_for_one_call(cache, held[0])
                ):
                    break
                call = self._call
                if STATE.epoch == epoch and not runtime.persistent_cache.lookup(
                    call.key, call.state
                ):
                    entry = capture()
                    break
                epoch = STATE.epoch
            result = cache.run(held[0])
            if result is not MISS:
                return result
        if cache is None:
            return finish()
        result = MISS
        if entry is not None:
            result = capturer.first_run(runtime, cache, entry, held[0], capture)
        if result is not MISS:
            return result
        if cache.loop_at is not None:
            return self._leave_loop(frames_of(layouts, held.pop()), cache.loop_at)
        if cache.is_closed(held[0]):
            self._at_the_limit(cache, held[0])
        return self._eagerly(cache, finish)

    def _region(self, layouts: BreakKey) -> GuardedCache | None:
        """Returns the region that begins at these frames, made if missing; None where there are too
        many."""
        runtime = self._runtime
        cache = runtime.regions.inside.get(layouts)
        if cache is None:
            if len(runtime.regions.inside) >= MAX_REGIONS:
                crossed("MAX_REGIONS", owner=runtime.owner())
                runtime.skip(f"more than {MAX_REGIONS} places where it breaks")
                return None
            cache = runtime.regions.inside[layouts] = GuardedCache(layouts)
            cache.made_in = runtime.n_broken
        return cache

    def _at_the_limit(self, cache: GuardedCache, state: Any) -> None:
        """Stops capturing in a closed region inside the function: later calls run the function that
        it is in in eager mode."""
        runtime = self._runtime
        if cache.closed_early:
            if cache.made_in == runtime.n_broken:  # maybe no later call comes here
                return
            cache.closed_early = False
            runtime.limit.warn(cache, state)
        with STATE.lock:
            layouts, key = cache.key, self._call.key
            if len(layouts) > 1:
                code = layouts[-1].code
                runtime.eager_codes = {**runtime.eager_codes, code: "recompile_limit"}
                others = {
                    entry.entry_function
                    for entry in runtime.entries.captured
                    if not entry.breaks_inside(code)
                }
                runtime.regions.drop_inside(code, others)
            elif (start := runtime.regions.starts.get(key)) is not None:
                start.retire(self._call.state, cache.limit_hit)
                start.serve(self._call.state, key.calling(runtime.function))

    # -- in eager mode for a while --

    def _under_modes(self, layouts: BreakKey, state: tuple[Any, ...]) -> Any:
        """Runs the program in eager mode until it has left the torch modes that forbid tracing."""
        machine, frames = interpreter(), frames_of(layouts, state)
        del state
        while not capture_lock.can_trace():
            returned, value = machine.step(frames)
            if returned:
                return value
        return self._enter(frames)

    def _leave_plain_regions(self, exit: Exit, held: list[tuple[Any, ...]]) -> Any:
        """Leaves a loop whose code regions run no graphs, which Python itself runs faster. If none
        was captured here with a graph, the next calls leave it at once."""
        runtime, cache, loop_at = self._runtime, exit.region, len(exit.layouts) - 1
        where = exit.layouts[-1].code.co_qualname
        crossed("MAX_REGIONS_WITHOUT_GRAPH", where=where, owner=runtime.owner())
        if cache is not None:
            with_graph = (
                entry.entry_function
                for entry in runtime.entries.captured
                if entry.graph is not None
            )
            with STATE.lock:
                if set(cache.entries).isdisjoint(with_graph):
                    cache.forget()
                    cache.limit_hit, cache.loop_at = True, loop_at
        return self._leave_loop(frames_of(exit.layouts, held.pop()), loop_at)

    def _leave_loop(self, frames: list[Frame], loop_at: int) -> Any:
        """Runs the frame with a long loop of eager Python in eager mode, and what follows in the
        next code region."""
        returned, value = interpreter().leave_frames(frames, loop_at)
        return value if returned else self._enter(frames)

    def _enter(self, frames: list[Frame]) -> Any:
        """Runs the code region that begins where the frames stand."""
        layouts, values = flatten(frames)
        exit, state, epoch = Exit(layouts), tuple(values), -1
        exit.region = self._runtime.regions.inside.get(layouts)
        if exit.region is not None:
            epoch = STATE.epoch
            result = exit.region.run(state)
            if result is not MISS:
                return result
        return self._miss(exit, [state], epoch)

    # -- graphs that raise --

    def _after_failure(self, error: Exception, exit: Exit | None, state: Any) -> Any:
        """Runs the program from the exit (None: from the start) after a graph raised. If the
        program does not raise, it has caught the error, or the backend is at fault: this is logged,
        and raised for ``fullgraph=True``."""
        runtime = self._runtime
        fullgraph = runtime.config.fullgraph
        if isinstance(error, SizeDiffers) and fullgraph:
            reason = f"a size that depends on data is not what the graph was captured for: {error}"
            raise self._break("data_dependent_shape", reason) from error
        if isinstance(error, wrong_fakes.FakeDiffers):
            self._note_other_data(error, exit)
            if fullgraph:
                raise self._break("operator_failed", str(error)) from error
        if exit is None:
            result = self._call.run(runtime.function)
        else:
            result = interpreter().finish(frames_of(exit.layouts, state))
        if isinstance(error, AssertionFailed) and fullgraph:
            reason = (
                "the program asserts something of a tensor's values, and goes on where it fails"
            )
            raise self._break("data_dependent_branch", reason)
        if isinstance(error, wrong_fakes.FakeDiffers):
            return result
        if isinstance(error, DataDiffers):
            self._note_other_data(error, exit)
            return result
        message = graph_raised(runtime.name, runtime.config.backend.name, error)
        if fullgraph:
            raise TracerError(f"fullgraph=True, but {message}") from error
        always = IN_ITS_PLACE in getattr(error, "__notes__", ())  # it would raise in each call
        if always:
            runtime.forget()
        runtime.note_eager(message, always=always)
        return result

    def _break(self, kind: str, reason: str) -> GraphBreakError:
        return GraphBreakError(kind, reason, self._runtime.name, BREAKS[kind].hint)

    def _note_other_data(self, error: DataDiffers, exit: Exit | None) -> None:
        """Counts that data differ from what a graph was captured for. If this keeps happening, the
        place is captured again with a graph break before such sizes or assertions."""
        runtime = self._runtime
        fact = f": {error}" if str(error) else ""
        runtime.note_eager(f"a call whose data differ from what the graph assumes{fact}")
        cache = runtime.regions.starts.get(self._call.key) if exit is None else exit.region
        if cache is None:
            return
        with STATE.lock:
            if isinstance(error, wrong_fakes.FakeDiffers):  # which breaks the next graph
                cache.forget()
                return
            cache.other_data[error.refuses] += 1
            is_often = cache.other_data[error.refuses] == MAX_DATA_VIOLATIONS
            if not is_often:
                return
            crossed("MAX_DATA_VIOLATIONS", owner=runtime.owner())
            cache.forget()
            if error.refuses == ASSERTIONS and (
                cache.specializations.outcomes
                or (cache.specializations.speculates and runtime.may_speculate())
            ):
                cache.forget_assumptions()
                cache.other_data[ASSERTIONS] = 0
            else:
                cache.specializations.refused.add(error.refuses)

    def _not_raised(self, error: NotRaised) -> Any:
        """Handles a program that did not raise what its trace raised: the tracer is at fault."""
        runtime = self._runtime
        reason = f"{runtime.name}: {error}"
        if runtime.config.must_compile:
            raise TracerError(reason) from error
        logger().warning("%s; it runs eagerly from now on", reason)
        runtime.forget()
        runtime.note_eager(reason, always=True)
        return interpreter().finish(error.frames) if error.frames else error.value

    # -- branches on tensors --

    def _watch(self) -> BranchWatch | None:
        """Returns what notes how branches go in this call; None where nothing is to be assumed of
        them."""
        start = self._runtime.regions.starts.get(self._call.key)
        if start is None or start.profile.is_over:
            return None
        may = self._runtime.may_speculate()
        if not may or not capture_lock.can_trace():
            start.profile.is_over = start.profile.is_over or not may
            return None
        return BranchWatch(start)

    def _speculate(self, watch: BranchWatch) -> None:
        """Has the regions whose branches went the same way in several calls captured again."""
        runtime = self._runtime
        for cache, answers in watch.answers():
            if len(answers) > MAX_PROFILED_OUTCOMES:
                crossed("MAX_PROFILED_OUTCOMES", reached=len(answers), owner=runtime.owner())
            assumed = cache.profile.note(answers)
            if cache.profile.is_over and answers and not assumed:
                crossed("MAX_PROFILED_CALLS", owner=runtime.owner())
            if assumed and ASSERTIONS not in cache.specializations.refused:
                reason = f"{len(assumed)} branches on tensors went the same way in {MIN_EQUAL_PROFILES} calls"
                count = len(cache.entries)
                events.recompile(function=runtime.name, reason=reason, count=count)
                with STATE.lock:
                    cache.specializations.outcomes = assumed
                    cache.forget()


def ways_of(runtime: Runtime, key: StartKey) -> Ways:
    """Returns how calls of a form can be made."""

    def compiled(region: Region) -> Run:
        def run(state: Any) -> Any:
            result = region.run(state)
            if type(result) is not Continuation:
                return result
            return Activation(runtime, Call(*key.arguments(state))).go_on(result)

        return run

    def capturing(state: Any) -> Any:
        return Activation(runtime, Call(*key.arguments(state))).begin(-1)

    return Ways(key, runtime.function, key.calling(runtime.function), compiled, capturing)


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

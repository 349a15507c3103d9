"""Profitability: times settled compiled calls against eager ones, and stays with the faster way.

In: the guarded cache of a function's start, and the function. Out: a `Verdict`. Both ways are
right, so each measured call runs one of them, whole, and its result is the program's: nothing runs
twice, and nothing is thrown away.

`TimedRegion` stands in for the guarded cache in the table of starts. It waits until calls capture
nothing any more, lets up to `SAMPLES` calls of each way take turns, compares medians and gives its
place to the cache or to an `EagerRegion`. A settled compiled call therefore costs nothing more. An
entry captured later, or samples that contradict one another, begin the next comparison, each after
twice as many calls as the one before.

A program that captures again and again never settles. After `MAX_RECAPTURES` such calls what captures
cost a call is compared with eager calls; while the program runs in eager mode it captures nothing,
and the next try comes after a multiple of the seconds that captures took.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.background.compilation import Compilation
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS
from tracer_core.debug.logs import logger
from tracer_core.debug.profiling import is_profiling
from tracer_core.execution.call import StartKey, name_of
from tracer_core.execution.entry.entries import Entries
from tracer_core.execution.entry.regions import Region, Regions
from tracer_core.execution.store.persistent_cache import PersistentCache
from tracer_core.execution.tiers.profitability import (
    EARLY,
    MAX_SAMPLES,
    SAMPLES,
    StoredVerdict,
    Verdict,
    leads,
    verdict,
)
from tracer_core.limits import MAX_RECAPTURES, MIN_RECAPTURES
from tracer_core.options import CompileConfig, env

use_own_builtins(globals())

#: Seconds, of any origin. Tests put another clock here.
clock: Callable[[], float] = time.perf_counter
#: The same where PyTorch computes in the calling thread alone: what other processes do meanwhile is
#: no property of a call.
thread_clock: Callable[[], float] = time.thread_time

#: After so many calls without a capture a function counts as settled; at first, and at most.
FIRST_CHECK, MAX_CHECK = 8, 4096
#: How many calls in a row run one way. The first of them does not count, because what the other way
#: left in the processor's caches makes it slower than calls of a settled program are. Two lengths,
#: so that it is not always the same kind of call in a program that repeats a few kinds.
IN_A_ROW = (3, 4)
#: Calls before those that count: eager mode may have caches to fill, and Python specializes the
#: bytecode of a function after some calls.
WARM = 2 * sum(IN_A_ROW)
#: A compiled call of more seconds computes so much that entering it does not matter; with graph
#: breaks, where it is entered again and again, one of so many.
MAX_SECONDS, MAX_BROKEN_SECONDS = 0.1, 1.0
#: One in so many eager calls is timed; where two such in a row took this factor longer than the
#: measured ones, the program is another one now.
WATCHED, SLOWER = 64, 3.0
#: A comparison whose program made no call for so many seconds lets another one begin.
IDLE = 1.0
#: Half of `MAX_RECAPTURES` mean that a program does not settle where one call in so many captures.
OFTEN = 4
#: The share of an eager call that captures may cost, spread over all calls.
CAPTURING = 0.25
#: Eager mode lasts at first so many times as long as all captures of the function took; twice as
#: long after each time.
PAUSE = 8.0

Run = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Ways:
    """How calls of one form can be made, each as a whole."""

    key: StartKey
    function: Callable[..., Any]
    #: Makes the eager call.
    eager: Run
    #: Takes a region; returns what makes the compiled call, or returns MISS.
    compiled: Callable[[Region], Run]
    #: Makes the compiled call, and captures where no entry fits.
    capturing: Run


class Tiering:
    """The comparisons of one compiled function. Mutable."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: CompileConfig,
        regions: Regions,
        entries: Entries,
        compilations: list[Compilation],
        persistent_cache: PersistentCache,
        owner: Callable[[], Any],
    ) -> None:
        self._function, self.config, self._regions = function, config, regions
        self._owner = owner
        self._entries, self._compilations, self._persistent_cache = (
            entries,
            compilations,
            persistent_cache,
        )
        #: How many captures began, and graphs were compiled since their capture.
        self.n_changes = 0
        self.forget()

    def forget(self) -> None:
        """Drops what was measured."""
        #: How many captures began; how many were the first ones of an object that lives on; the
        #: seconds of all.
        self.n_captures = self.n_first = 0
        self.capture_seconds = 0.0
        #: What captures cost, of which the comparisons of all starts keep count.
        self.tally = Tally()
        #: Calls without a capture before the next comparison.
        self._wait = FIRST_CHECK
        self.verdicts: list[Verdict] = []

    def may_measure(self) -> bool:
        """Returns whether calls in eager mode and compiled ones may take turns: not where the clock
        does not see when a call ends (CUDA), nor where each process would choose for itself."""
        world = torch.distributed.is_available() and torch.distributed.is_initialized()
        return not torch.cuda.is_initialized() and not (
            world and torch.distributed.get_world_size() > 1
        )

    def may_run_eagerly(self) -> bool:
        """Returns whether the user leaves it to us which calls are compiled."""
        return self.config.native_if_faster and not self.config.must_compile

    def is_waiting(self) -> bool:
        """Returns whether graphs run eagerly until they are compiled in the background."""
        return not all(compilation.is_done for compilation in self._compilations)

    def is_broken(self) -> bool:
        """Returns whether there are graph breaks in the function."""
        return bool(self._entries.breaks)

    def timed(self, ways: Ways, region: Region) -> Region:
        """Returns what compares the ways of a start, or the region itself where it must stay
        compiled."""
        if not self.may_run_eagerly() or env().always_compiled:
            return region
        return TimedRegion(self, ways, region, self._wait)

    def show(self, ways: Ways, region: Region) -> None:
        """Lets calls find a start, at first compared with eager mode."""
        if self._regions.shown(ways.key) is None:
            self._regions.show(ways.key, self.timed(ways, region))

    def put(self, key: StartKey, old: Region, new: Region) -> None:
        """Replaces a region among those that calls find, unless it was dropped meanwhile."""
        self._regions.replace(key, old, new)

    def compare_again(self, ways: Callable[[StartKey], Ways]) -> None:
        """Begins a new comparison of the starts that stay compiled: something was captured, or a
        trace led to nothing."""
        for key, cache in list(self._regions.starts.items()):
            if self._regions.shown(key) is cache:
                self._regions.show(key, self.timed(ways(key), cache))

    def record_verdict(self, key: StartKey, result: Verdict, stored: StoredVerdict | None) -> None:
        """Notes a verdict, and keeps it; logs the first one that eager mode won."""
        if stored is not None:
            self._persistent_cache.record_verdict(key, stored)
        self._wait = min(2 * self._wait, MAX_CHECK)
        if result.native and not any(earlier.native for earlier in self.verdicts):
            logger().warning("%s: %s", name_of(self._function, self.config, self._owner()), result)
        self.verdicts.append(result)

    def apply(self, stored: StoredVerdict, ways: Ways) -> bool:
        """Goes by the verdict of another process, where this one would compare; returns whether it
        does."""
        region = self._regions.shown(ways.key)
        if not isinstance(region, TimedRegion) or not self.may_measure():
            return False
        cache: Region = self._regions.starts[ways.key]
        if stored.native:
            cache = EagerRegion(self, ways, cache, stored.grad, stored.usual, _call_clock(), None)
        self._regions.show(ways.key, cache)
        self.verdicts.append(stored.verdict())
        return True


@dataclass(slots=True)
class Tally:
    """What captures of a function cost since the last time that its captures did not end.
    Mutable. calls: of its starts. again: how many of these captured, though not for the first time.
    seconds: that this took. n_unsteady: how often it did not settle."""

    calls: float = 0.0
    again: int = 0
    seconds: float = 0.0
    n_unsteady: int = 0
    _captures: int = 0
    _first: int = 0
    _seconds: float = 0.0
    #: When calls were no longer counted, and how long one took then.
    _since: tuple[float, float] | None = None

    def look(self, host: Tiering) -> None:
        """Counts a call that captured. The first entry of an object says nothing about the next
        calls: each object has one."""
        if host.n_captures != self._captures and host.n_first == self._first:
            self.again += 1
            self.seconds += host.capture_seconds - self._seconds
        self._captures, self._first = host.n_captures, host.n_first
        self._seconds = host.capture_seconds

    def leave(self, call: float) -> None:
        """Notes that calls of so many seconds are not counted from now on."""
        self._since = clock(), call

    def come_back(self) -> None:
        """Guesses how many calls were not counted: at most what the time was enough for."""
        if self._since is not None:
            since, call = self._since
            self.calls += (clock() - since) / max(call, 1e-7)
            self._since = None

    def is_too_much(self) -> bool:
        """Returns whether so many calls captured again that their cost is to be weighed."""
        is_often = self.again * OFTEN >= self.calls
        return self.again >= max(MIN_RECAPTURES, MAX_RECAPTURES >> self.n_unsteady + is_often)

    def unsettled(self, eager: float) -> Verdict | None:
        """Returns that the function runs in eager mode if captures cost too much beside such
        calls."""
        cost = self.seconds / max(self.calls, self.again)
        return Verdict(cost, eager, True) if cost > CAPTURING * eager else None

    def restart(self) -> float:
        """Counts anew; returns the share of calls that captured again."""
        share = self.again / max(self.calls, self.again)
        self.calls = self.seconds = 0.0
        self.again = 0
        return share

    def pause(self, host: Tiering) -> float:
        """Notes that the function does not settle; returns the seconds until it is tried again."""
        self.n_unsteady += 1
        return PAUSE * host.capture_seconds * float(2 ** (self.n_unsteady - 1))


#: The comparison that goes on, if any. Two at once would measure one another: one function may
#: call the other, and both would change ways in step.
_current: weakref.ref[TimedRegion] | None = None


def _call_clock() -> Callable[[], float]:
    alone = clock is time.perf_counter and torch.get_num_threads() == 1
    return thread_clock if alone else clock


def _turn(n: int) -> tuple[bool, bool]:
    """Returns whether the n-th call is an eager one, and whether it counts. Turns follow the
    Thue-Morse sequence: each way gets half of the calls of a program that repeats two, three or
    four kinds of calls, where plain turns may give one way all calls of one kind."""
    pairs, at = divmod(n, sum(IN_A_ROW))
    turn = 2 * pairs + (at >= IN_A_ROW[0])
    return turn.bit_count() % 2 == 1, n >= WARM and at not in (0, IN_A_ROW[0])


class TimedRegion:
    """Stands in for the cache of a start; see the module's docstring. Mutable, used for one
    comparison."""

    __slots__ = ("_host", "_ways", "_region", "_eager", "_whole", "_wait", "_left", "_captures", "_n",
                 "_thread", "_way", "_grad", "_last", "_seconds", "_periods", "_backward", "_used",
                 "_is_long", "_clock", "_enough", "_tally", "_weighs", "_captures_too", "__weakref__")  # fmt: skip

    def __init__(self, host: Tiering, ways: Ways, region: Region, wait: int) -> None:
        self._host, self._ways, self._region, self._wait = host, ways, region, wait
        self._eager, self._whole = ways.eager, ways.compiled(region)
        self._used, self._is_long, self._clock = 0.0, 0, clock
        #: Captures that were seen; the one in which the comparison began was not.
        self._captures, self._tally = -1, host.tally
        self._tally.come_back()
        #: Whether only eager calls are made, whose time is weighed against what captures cost.
        self._weighs = False
        #: Whether captures no longer begin the comparison anew, but are part of compiled calls.
        self._captures_too = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._left, self._n, self._enough = self._wait, 0, SAMPLES
        self._thread: int | None = None
        #: How the call that is being measured runs: True is eager; None between two calls.
        self._way: bool | None = None
        self._grad = False
        #: When the last measured call began, and its way.
        self._last: tuple[float, bool] | None = None
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._periods: tuple[list[float], list[float]] = ([], [])
        self._backward = False

    def run(self, state: Any) -> Any:
        """Returns the result of the call, or MISS."""
        if is_profiling():  # a profile shows the compiled program, and slows calls down
            self._last = None
            return self._region.run(state)
        tally = self._tally
        if self._host.n_changes != self._captures:
            self._captures = self._host.n_changes
            tally.look(self._host)
            if not self._captures_too:
                self._begin_anew()
                self._captures_too = self._weighs = tally.is_too_much()
        tally.calls += not self._weighs
        if self._left > 0 and not self._captures_too:
            self._left -= 1
            return self._region.run(state)
        if self._way is not None:  # a call inside the measured one, or another thread's
            return self._eager(state) if self._way else self._region.run(state)
        if self._thread is None and not self._begin():
            return self._region.run(state)
        if (
            self._thread != threading.get_ident()
            or (torch.is_grad_enabled() is not self._grad and not self._weighs)
            or (torch.is_inference_mode_enabled() and not self._weighs)
        ):
            self._last = None
            return self._region.run(state)
        return self._measured(state)

    def _begin(self) -> bool:
        """Starts measuring unless another function is being measured."""
        global _current
        if not self._host.may_measure():
            self._host.put(self._ways.key, self, self._region)
            return False
        if self._host.is_waiting():
            self._left = FIRST_CHECK
            return False
        other = _current() if _current is not None else None
        if other is not None and other is not self and clock() - other._used < IDLE:
            self._left = FIRST_CHECK
            return False
        _current, self._used = weakref.ref(self), clock()
        self._clock = _call_clock()
        self._thread, self._grad = threading.get_ident(), torch.is_grad_enabled()
        return True

    def _measured(self, state: Any) -> Any:
        """Makes one call, in the way whose turn it is, and notes how long it took."""
        captures = self._host.n_captures
        native, counts = (True, self._n >= WARM) if self._weighs else _turn(self._n)
        self._way = native
        start, self._used = self._clock(), clock()
        last, self._last = self._last, None  # another thread's call may forget it meanwhile
        if last is not None:
            begun, way = last
            self._periods[way].append(start - begun)
        try:
            result = self._eager(state) if native else self._whole(state)
        finally:
            self._way = None
        seconds = self._clock() - start
        if result is MISS:
            return MISS
        self._n += 1
        if counts:
            self._seconds[native].append(seconds)
            self._last = start, native
        self._backward = self._backward or _has_history(result)
        self._verify_candidate(seconds, self._host.n_captures != captures)
        return result

    def _verify_candidate(self, last: float, captured: bool) -> None:
        compiled, eager = times = self._periods if self._backward else self._seconds
        if self._weighs:
            if len(eager) >= EARLY:
                self._weigh(statistics.median(eager))
        elif self._n == 1 and not captured and self._is_too_long(last):  # the first one, compiled
            self._is_long += 1
            self._begin_anew()
            if self._is_long > 1:  # not by chance
                self._end(Verdict(last, 0.0, False), tell=False)
        elif min(map(len, times)) == EARLY and (leads(compiled, eager) or leads(eager, compiled)):
            ours, theirs = map(statistics.median, times)
            self._end(Verdict(ours, theirs, theirs < ours, self._backward))
        elif min(map(len, self._seconds)) >= self._enough:
            call = min(self._seconds[True])
            result = verdict(*times, call, self._backward, self._captures_too)
            if result.unclear and self._enough < MAX_SAMPLES:
                self._enough *= 2
            else:
                self._end(result)

    def _weigh(self, eager: float) -> None:
        """Ends the comparison if captures cost too much; else compares whole calls, captures
        included."""
        result = self._tally.unsettled(eager)
        if result is not None:
            self._end(result)
            return
        self._tally.restart()
        self._weighs = False
        self._whole = self._ways.capturing
        self._begin_anew()

    def _is_too_long(self, seconds: float) -> bool:
        most = MAX_BROKEN_SECONDS if self._host.is_broken() else MAX_SECONDS
        return seconds > most

    def _end(self, result: Verdict, tell: bool = True) -> None:
        global _current
        _current = None
        region, host = self._region, self._host
        if result.native:
            typical, again = statistics.median(self._seconds[True]), None
            if self._captures_too:
                result = dataclasses.replace(result, captures=self._tally.restart())
                again = clock() + self._tally.pause(host) if result.captures else None
            region = EagerRegion(host, self._ways, region, self._grad, typical, self._clock, again)
        else:
            self._tally.leave(min(result.compiled, result.eager) or result.compiled)
        if tell:
            host.record_verdict(self._ways.key, result, self._stored(result))
        if result.unclear:
            region = host.timed(self._ways, region)
        host.put(self._ways.key, self, region)

    def _stored(self, result: Verdict) -> StoredVerdict | None:
        """Returns a verdict for later processes; None where it says something about this one."""
        if result.unclear or self._captures_too:
            return None
        usual = statistics.median(self._seconds[True])
        return StoredVerdict(
            result.compiled, result.eager, result.native, result.with_backward, usual, self._grad,
            torch.get_num_threads(),
        )  # fmt: skip


def _has_history(result: Any) -> bool:
    """Returns whether a backward may follow a call with this result."""
    if isinstance(result, torch.Tensor):
        return result.requires_grad
    if isinstance(result, dict):
        return any(map(_has_history, result.values()))
    if isinstance(result, (tuple, list)):
        return any(map(_has_history, result))
    # of an object of the program nobody knows what it holds
    return torch.is_grad_enabled() and not isinstance(result, _PLAIN)


_PLAIN = (type(None), bool, int, float, str)


class EagerRegion:
    """Runs the calls of a start in eager mode, because that is faster. Mutable: it times a call now
    and then. grad: the grad mode that this was found in. again: when a function that did not settle
    is tried again, whatever its grad mode; else None."""

    __slots__ = ("_host", "_ways", "_region", "_grad", "_usual", "_clock", "_again", "_function",
                 "_eager", "_left", "_slow")  # fmt: skip

    def __init__(
        self,
        host: Tiering,
        ways: Ways,
        region: Region,
        grad: bool,
        usual: float,
        clock: Callable[[], float],
        again: float | None,
    ) -> None:
        self._host, self._ways, self._region = host, ways, region
        self._grad = grad if again is None else None
        self._usual, self._clock, self._again = usual, clock, again
        #: What a call needs no more than; None with keyword arguments.
        self._function = ways.function if len(ways.key) == 1 else None
        self._eager = ways.eager
        self._left, self._slow = WATCHED, False

    def run(self, state: Any) -> Any:
        """Returns the result of the eager call; in the other grad mode that of the cache, or
        MISS. What it costs is lost in each call, so it does as little as it can."""
        if torch.is_grad_enabled() is not self._grad and self._grad is not None:
            return self._region.run(state)
        left = self._left = self._left - 1
        if left <= 0:
            return self._watched(state)
        function = self._function
        return self._eager(state) if function is None else function(*state)

    def _watched(self, state: Any) -> Any:
        """Makes a call that finds out whether things are as they were."""
        if not self._host.may_measure():  # the program has moved to a GPU
            self._host.put(self._ways.key, self, self._region)
            return self._region.run(state)
        self._left = WATCHED
        if self._again is not None:
            if clock() > self._again:
                self._compare()
            return self._eager(state)
        if is_profiling():
            return self._eager(state)
        start = self._clock()
        result = self._eager(state)
        slow = self._clock() - start > SLOWER * self._usual
        if slow and self._slow:
            self._compare()
        elif slow:
            self._left = 1
        self._slow = slow
        return result

    def _compare(self) -> None:
        self._host.put(self._ways.key, self, self._host.timed(self._ways, self._region))

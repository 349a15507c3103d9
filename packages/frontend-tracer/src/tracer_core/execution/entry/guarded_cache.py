"""The guarded cache of one code region: cache entries, found by the object that they are for.

In: cache entries as they are captured, and the values (`state`) of a call. Out: the result of the
first entry whose guards hold, or MISS. An entry runs only if its own guards hold: the order in
which entries are tried affects time only.

The first value of a state that has an identity (a module, an instance of a class) is its root. Each
root has its own list of entries and its own limit, so that a thousand instances of one class
neither use up one another's limit nor are searched through. Of the entries of other roots, the most
recently used ones are tried. A root that died leaves only its entries, which may fit others.

A region at its limit is closed: `GuardedCache.serve` runs the program in eager mode in place of a
capture. Existing entries are still looked up, more rarely the less they fit
(`RecompileLimitReached`)."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS
from tracer_core.execution.call import RegionKey
from tracer_core.execution.tiers.branch_profile import BranchProfile
from tracer_core.fx_capture.specialization_history import SpecializationHistory
from tracer_core.guards.direct_roots import DIRECT_ROOTS
from tracer_core.guards.object_layout import weak_reference_offset
from tracer_core.guards.own_reference import OwnReference
from tracer_core.limits import (
    MAX_CACHE_ENTRIES,
    MAX_FAILED_CAPTURES,
    MAX_FAILED_LOOKUPS,
    MAX_RECENT_ENTRIES,
    MAX_SHORT_LIVED_OBJECTS,
)

use_own_builtins(globals())

EntryFunction = Callable[[Any], Any]

#: Beyond MAX_SHORT_LIVED_OBJECTS one object in so many is remembered.
SAMPLED = 64
#: In a closed region so many successful lookups cancel a failed one.
OUTWEIGH = 16
_NO_ROOTS = (*DIRECT_ROOTS, type)

#: Guards the tables of every `GuardedCache` against concurrent changes. Re-entrant: the garbage
#: collector may run finalizers of the program, which call compiled functions, while it is held.
_CHANGING = threading.RLock()


def _after_fork() -> None:
    """Replaces the lock in a forked child: the thread that held it does not exist there."""
    global _CHANGING
    _CHANGING = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True)
class Root:
    """The entries of one object. Mutable. reference: to the object. cache entries: entries that
    fitted it before. captured: how many were captured for it. limit_hit: no more are captured. hot:
    the entry used last."""

    reference: weakref.ref[Any]
    entries: list[EntryFunction] = field(default_factory=list)
    captured: int = 0
    limit_hit: bool = False
    hot: EntryFunction | None = None


class RecompileLimitReached:
    """The hot entry of a closed region. Mutable. It never misses: where no entry fits it calls
    native(state), the program in eager mode.

    Failed lookups let the next calls skip the lookup, more of them each time; successful ones count
    against failed ones. Timing plays no part, so two runs of a program behave alike.
    """

    __slots__ = ("_entries", "_hot", "_native", "_pause", "_failed")

    def __init__(self, entries: Sequence[EntryFunction], native: EntryFunction) -> None:
        self._entries, self._native = tuple(entries), native
        self._hot = entries[0]
        self._pause = self._failed = 0

    def __call__(self, state: Any) -> Any:
        if self._pause > 0:
            self._pause -= 1
            return self._native(state)
        result = self._found(state)
        if result is not MISS:
            self._failed = max(0, self._failed - 1)
            return result
        self._failed = min(self._failed + OUTWEIGH, MAX_FAILED_LOOKUPS * OUTWEIGH)
        self._pause = 2 ** (self._failed // OUTWEIGH) - 2
        return self._native(state)

    def replace(self, old: EntryFunction, new: EntryFunction) -> None:
        """Puts an entry in the place of another one."""
        self._entries = tuple(new if entry is old else entry for entry in self._entries)
        self._hot = new if self._hot is old else self._hot

    def _found(self, state: Any) -> Any:
        hot = self._hot
        result = hot(state)
        if result is not MISS:
            return result
        for entry in self._entries:
            if entry is not hot:
                result = entry(state)
                if result is not MISS:
                    self._hot = entry
                    return result
        return MISS


class GuardedCache:
    """The cache entries of one code region. Mutable. key: start arguments or layouts. entries:
    entries, newest last. specializations: what they were captured with. limit_hit: no more entries
    are captured for any object. raised: by the last trace. loose: entries captured for no object,
    or for a dead one. other_data: how often unbacked SymInts or assertions differed from what a
    graph was captured for. loop_at: the frame that has a long loop of eager Python here; None
    without one.
    profile: how branches that follow data went in the calls. made_in: the number of the call that
    reached the region first. closed_early: that call closed it. failed_captures: captures in a row
    that gave no entry. shared: calls that an entry of another object served. was_called: a first call
    ran in eager mode (`set_stance`).

    Threads look entries up without a lock; what changes the tables holds `_CHANGING`."""

    __slots__ = ("key", "loop_at", "entries", "specializations", "limit_hit", "raised", "loose", "other_data",
                 "profile", "made_in", "closed_early", "failed_captures", "shared", "_uncaptured",
                 "was_called", "_at", "_roots", "_recent", "_short_lived", "_passed", "hot", "__weakref__")  # fmt: skip

    def __init__(self, key: RegionKey) -> None:
        self.key = key
        self.entries: list[EntryFunction] = []
        self.specializations = SpecializationHistory()
        self.limit_hit = False
        self.loop_at: int | None = None
        self.raised: BaseException | None = None
        self.loose = 0
        self.other_data: Counter[str] = Counter()
        self.profile = BranchProfile()
        self.made_in = -1
        self.closed_early = self.was_called = False
        self.failed_captures = self._uncaptured = self.shared = 0
        self._at: int | None = None
        self._roots: dict[int, Root] = {}
        self._recent: tuple[EntryFunction, ...] = ()
        #: How many objects in a row died before their second call; how many calls were not
        #: remembered since.
        self._short_lived = self._passed = 0
        #: What is tried first: in a region without roots the entry used last (a first call often
        #: sees what no later one does), else the last entry for objects without entries; in a
        #: closed region a `RecompileLimitReached`.
        self.hot: EntryFunction | None = None

    def hot_entry(self, state: Any) -> EntryFunction | None:
        """Returns the entry that `run` tries first."""
        root = self if self._at is None else self._roots.get(id(state[self._at]), self)
        return root.hot

    def run(self, state: Any) -> Any:
        """Returns the result of the entry whose guards hold, or MISS."""
        root = self if self._at is None else self._roots.get(id(state[self._at]), self)
        hot = root.hot
        if hot is not None:
            result = hot(state)
            if result is not MISS:
                return result
        if self._at is None:
            return self._run_all(state, self, self.entries)
        entries: Sequence[EntryFunction] = () if isinstance(root, GuardedCache) else root.entries
        result = self._run_all(state, root, entries)
        return self._run_others(state, entries) if result is MISS else result

    def _run_all(
        self, state: Any, cache: GuardedCache | Root, entries: Sequence[EntryFunction]
    ) -> Any:
        """Tries these entries except the hot one."""
        hot = cache.hot
        for entry in entries:
            if entry is not hot:
                result = entry(state)
                if result is not MISS:
                    if entry in entries:  # the call may have put its compiled form in its place
                        cache.hot = entry
                    return result
        return MISS

    def _run_others(self, state: Any, tried: Sequence[EntryFunction]) -> Any:
        """Tries the entries that other objects used last."""
        for entry in self._recent:
            if entry not in tried:
                result = entry(state)
                if result is not MISS:
                    self.shared += 1
                    self._passed = (self._passed + 1) % SAMPLED
                    if self._short_lived < MAX_SHORT_LIVED_OBJECTS or not self._passed:
                        self._used(entry, state)
                    return result
        return MISS

    def add(self, entry: EntryFunction, state: Any) -> None:
        """Adds an entry that was captured for this state."""
        with _CHANGING:
            self.entries.append(entry)
            root = self._root(state)
            if root is None:
                self.loose += 1
            else:
                root.captured += 1
            self._used(entry, state)

    def add_loaded(self, entry: EntryFunction) -> None:
        """Adds an entry that another process captured."""
        with _CHANGING:
            self.entries.append(entry)
            self._recent = (entry, *self._recent)[:MAX_RECENT_ENTRIES]

    def remove(self, entry: EntryFunction) -> None:
        """Drops an entry, which another thread may have dropped already."""
        with _CHANGING:
            if entry in self.entries:
                self.entries.remove(entry)
            self.hot = None
            self._recent = tuple(item for item in self._recent if item is not entry)
            for root in list(self._roots.values()):
                root.hot = None
                if entry in root.entries:
                    root.entries.remove(entry)

    def replace(self, old: EntryFunction, new: EntryFunction) -> bool:
        """Puts an entry in the place of another one that accepts the same calls; returns False if
        that was dropped."""
        with _CHANGING:
            if old not in self.entries:
                return False
            roots = list(self._roots.values())
            for entries in (self.entries, *(root.entries for root in roots)):
                entries[:] = [new if entry is old else entry for entry in entries]
            holders: tuple[GuardedCache | Root, ...] = (self, *roots)
            for holder in holders:
                if isinstance(holder.hot, RecompileLimitReached):
                    holder.hot.replace(old, new)
                elif holder.hot is old:
                    holder.hot = new
            self._recent = tuple(new if item is old else item for item in self._recent)
        return True

    def keep(self, chosen: Collection[EntryFunction]) -> None:
        """Drops all entries but these. Where none is left the region has its whole limit again."""
        for entry in [entry for entry in self.entries if entry not in chosen]:
            self.remove(entry)
        if not self.entries:
            self.forget()

    def forget(self) -> None:
        """Drops every entry, as if none had been captured."""
        for entry in list(self.entries):
            self.remove(entry)
        self.loose = 0
        for root in list(self._roots.values()):
            root.captured = 0

    def forget_assumptions(self) -> None:
        """Assumes nothing more of branches on tensors."""
        self.specializations.outcomes, self.specializations.speculates = (), False

    def skips_capture(self) -> bool:
        """Returns whether a call that nothing fits does without a capture, because the last ones gave
        no entry; counts it."""
        if self._uncaptured == 0:
            return False
        self._uncaptured -= 1
        return True

    def note_capture(self, gave_entry: bool) -> None:
        """Notes the end of a capture."""
        self.failed_captures = 0 if gave_entry else self.failed_captures + 1
        self._uncaptured = max(0, 2 ** min(self.failed_captures, MAX_FAILED_CAPTURES) - 2)

    def count(self, state: Any) -> int:
        """Counts the entries towards the limit of this state's object: its own, and those captured
        for no living object."""
        root = self._root(state)
        return self.loose + (root.captured if root is not None else 0)

    def is_first(self, state: Any) -> bool:
        """Returns whether nothing was captured for this state's object yet, and such objects live
        on for more than a call."""
        root = self._root(state)
        if root is None:
            return not self.entries
        return not root.captured and self._short_lived < MAX_SHORT_LIVED_OBJECTS

    def holder(self, state: Any) -> Root | GuardedCache:
        """Returns what calls with this state's object look up first."""
        return self._root(state) or self

    def is_new(self, state: Any) -> bool:
        """Returns whether nothing was captured for this state's object, or here if it has none."""
        root = self._root(state)
        return not (self.entries if root is None else root.captured)

    def is_blank(self) -> bool:
        """Returns whether the region is as new: nothing was captured, and nothing failed to be."""
        return not (
            self.entries
            or self.limit_hit
            or self.failed_captures
            or self.raised is not None
            or self.loop_at is not None
            or self.was_called
        )

    def newest(self, state: Any) -> EntryFunction | None:
        """Returns the entry whose failed guard is reported: the last one of the state's object, or
        of all."""
        root = self._root(state)
        candidates = root.entries if root is not None and root.entries else self.entries
        return candidates[-1] if candidates else None

    def known(self, state: Any) -> list[EntryFunction]:
        """Returns the entries that calls with this state's object are looked up in."""
        if self._at is None:
            return list(self.entries)
        root = self._roots.get(id(state[self._at]))
        own = [] if root is None else root.entries
        return [*own, *(item for item in self._recent if item not in own)]

    def is_closed(self, state: Any) -> bool:
        """Returns whether no more entries are captured for this state's object."""
        if self.limit_hit:
            return True
        root = self._root(state) if self._roots else None
        return root is not None and root.limit_hit

    def close(self, state: Any, limit: int) -> None:
        """Stops capturing for this state's object; for every object if the state has none or
        `limit` entries belong to no object, as those count for every object."""
        root = self._root(state)
        if root is None or self.loose >= limit or len(self.entries) >= MAX_CACHE_ENTRIES:
            self.limit_hit = True
        else:
            root.limit_hit = True

    def retire(self, state: Any, everything: bool) -> None:
        """Closes for this state's object and drops the entries that it used; everything: for all
        objects."""
        root = None if everything else self._root(state)
        if root is None:
            self.limit_hit = True
        else:
            root.limit_hit = True
        for entry in list(self.entries if root is None else root.entries):
            self.remove(entry)

    def serve(self, state: Any, native: EntryFunction) -> None:
        """Makes calls with this state's object in a closed region no longer miss. native(state):
        runs the program in eager mode."""
        root = self._roots.get(id(state[self._at])) if self._at is not None else None
        if root is None and not self.limit_hit:
            return
        known = self.known(state)
        (self if root is None else root).hot = (
            RecompileLimitReached(known, native) if known else native
        )

    def _used(self, entry: EntryFunction, state: Any) -> None:
        with _CHANGING:
            self._recent = (entry, *(item for item in self._recent if item is not entry))[
                :MAX_RECENT_ENTRIES
            ]
            root = self._root(state)
            if root is not None and entry not in root.entries:
                root.entries.append(entry)

    def _root(self, state: Any) -> Root | None:
        """Returns the `Root` of the state's object, made if missing; None if the state has no
        object."""
        if self._at is None:
            self._at = next((i for i, value in enumerate(state) if _has_identity(value)), None)
            if self._at is None:
                return None
        obj = state[self._at]
        root = self._roots.get(id(obj))
        if root is None and _has_identity(obj):
            # the one of two threads that comes second takes the first one's
            result = Root(OwnReference(obj, self._forgetter(id(obj))))
            root = self._roots.setdefault(id(obj), result)
        return root

    def _forgetter(self, key: int) -> Callable[[Any], None]:
        region = weakref.ref(self)

        def forget(_: Any) -> None:
            alive = region()
            gone = alive._roots.pop(key, None) if alive is not None else None
            if gone is not None and alive is not None:
                alive.loose += gone.captured
                alive._short_lived = 0 if gone.hot is not None else alive._short_lived + 1

        return forget


def _has_identity(value: Any) -> bool:
    """Returns whether a value is an object with a lifetime of its own: not a number, container,
    tensor or function."""
    return bool(weak_reference_offset(type(value))) and not isinstance(value, _NO_ROOTS)

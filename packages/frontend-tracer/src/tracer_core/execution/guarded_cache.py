"""The variants of one place in a program, found by the object that they are for.

In: variants as they are captured, and the values (`state`) of a call. Out: the result of the first
variant whose guards hold, or MISS. What always holds: a variant runs only where its own guards
hold, so the order in which they are tried, and which are tried at all, decides about time only; an
object that died leaves nothing behind but its variants, which may fit others.

Objects: the first value of a state that has an identity (a module, an instance of a class) is its
root. Each root has its own list of variants and its own limit, so that a thousand instances of one
class neither use up one another's limit nor are searched through. Of the others' variants, those
are tried that were used most recently.

A place that has its limit of variants is closed: `GuardedCache.serve` puts the program itself in
place of a capture. What was captured is still looked up, the more rarely the less it fits
(`Closed`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer_core.bytecode.frame_layout import MISS
from tracer_core.execution.entry_codegen import DIRECT_ROOTS
from tracer_core.fx_capture.dynamic_shapes import Seen
from tracer_core.guards.own_reference import OwnReference

Attempt = Callable[[Any], Any]

#: How many variants of other objects are tried before a new one is captured.
RECENT = 16
#: After so many objects in a row that died before their second call, only one in `SAMPLED` is
#: remembered.
SHORT_LIVED, SAMPLED = 8, 64
#: How many variants one place in a program may have, over all objects.
MOST_VARIANTS = 2048
#: At a closed place, after so many failed lookups (no more are counted) 2 to the power of their
#: number, less 2, calls do without one. Lookups that find something outweigh one that failed only
#: if there are so many of them.
MOST_FAILED, OUTWEIGH = 8, 16


@dataclass(slots=True)
class Root:
    """What is known for one object. Mutable. reference: to it. attempts: variants that fit it
    before. captured: how many were captured for it. limit_hit: no more are. hot: the variant used
    last."""

    reference: weakref.ref[Any]
    attempts: list[Attempt] = field(default_factory=list)
    captured: int = 0
    limit_hit: bool = False
    hot: Attempt | None = None


class Closed:
    """The hot variant of a closed place. Mutable. It never misses: what no variant accepts runs as
    plain Python (native(state)).

    After lookups that found nothing the next calls do without one, more of them each time; lookups
    that find something count against those. How long they take plays no part: two runs of a program
    do the same.
    """

    __slots__ = ("_attempts", "_hot", "_native", "_pause", "_failed")

    def __init__(self, attempts: Sequence[Attempt], native: Attempt) -> None:
        self._attempts, self._native = tuple(attempts), native
        self._hot = attempts[0]
        self._pause = self._failed = 0

    def __call__(self, state: Any) -> Any:
        if self._pause > 0:
            self._pause -= 1
            return self._native(state)
        result = self._found(state)
        if result is not MISS:
            self._failed = max(0, self._failed - 1)
            return result
        self._failed = min(self._failed + OUTWEIGH, MOST_FAILED * OUTWEIGH)
        self._pause = 2 ** (self._failed // OUTWEIGH) - 2
        return self._native(state)

    def _found(self, state: Any) -> Any:
        hot = self._hot
        result = hot(state)
        if result is not MISS:
            return result
        for attempt in self._attempts:
            if attempt is not hot:
                result = attempt(state)
                if result is not MISS:
                    self._hot = attempt
                    return result
        return MISS


class GuardedCache:
    """Mutable. key: start arguments or layouts. variants: attempts, newest last. version: grows
    with each. seen: what they were captured with. limit_hit: no more variants are made for
    anything. raised: by the last trace. loose: variants captured for no object, or for one that is
    gone. other_sizes: how often a graph found that a size which depends on data was not what it was
    captured for."""

    __slots__ = ("key", "variants", "version", "seen", "limit_hit", "raised", "loose",
    "other_sizes", "_at", "_roots", "_recent",
                 "_short_lived", "_passed", "hot", "__weakref__")  # fmt: skip

    def __init__(self, key: Any) -> None:
        self.key = key
        self.variants: list[Attempt] = []
        self.version = 0
        self.seen = Seen()
        self.limit_hit = False
        self.raised: BaseException | None = None
        self.loose = 0
        self.other_sizes = 0
        self._at: int | None = None
        self._roots: dict[int, Root] = {}
        self._recent: tuple[Attempt, ...] = ()
        #: How many objects in a row died before their second call; how many calls were not
        #: remembered since.
        self._short_lived = self._passed = 0
        #: What is tried first, before the variants in order: of a place without roots the variant
        #: used last (a first call often sees what no later one does), else of objects that have no
        #: variants; at a closed place a `Closed`.
        self.hot: Attempt | None = None

    def run(self, state: Any) -> Any:
        """What the variant gives whose guards hold, or MISS."""
        found = self if self._at is None else self._roots.get(id(state[self._at]), self)
        hot = found.hot
        if hot is not None:
            result = hot(state)
            if result is not MISS:
                return result
        if self._at is None:
            return self._run_all(state, self, self.variants)
        attempts: Sequence[Attempt] = () if isinstance(found, GuardedCache) else found.attempts
        result = self._run_all(state, found, attempts)
        return self._run_others(state, attempts) if result is MISS else result

    def _run_all(self, state: Any, found: GuardedCache | Root, attempts: Sequence[Attempt]) -> Any:
        """`run` with these variants but the hot one."""
        hot = found.hot
        for attempt in attempts:
            if attempt is not hot:
                result = attempt(state)
                if result is not MISS:
                    found.hot = attempt
                    return result
        return MISS

    def _run_others(self, state: Any, tried: Sequence[Attempt]) -> Any:
        """`run` with the variants that other objects used last."""
        for attempt in self._recent:
            if attempt not in tried:
                result = attempt(state)
                if result is not MISS:
                    self._passed = (self._passed + 1) % SAMPLED
                    if self._short_lived < SHORT_LIVED or not self._passed:
                        self._used(attempt, state)
                    return result
        return MISS

    def add(self, attempt: Attempt, state: Any) -> None:
        """A variant that was captured for this state."""
        self.variants.append(attempt)
        self.version += 1
        root = self._root(state)
        if root is None:
            self.loose += 1
        else:
            root.captured += 1
        self._used(attempt, state)

    def add_loaded(self, attempt: Attempt) -> None:
        """A variant that another process captured."""
        self.variants.append(attempt)
        self.version += 1
        self._recent = (attempt, *self._recent)[:RECENT]

    def remove(self, attempt: Attempt) -> None:
        """Forgets a variant."""
        self.variants.remove(attempt)
        self.hot = None
        self._recent = tuple(one for one in self._recent if one is not attempt)
        for root in list(self._roots.values()):
            root.hot = None
            if attempt in root.attempts:
                root.attempts.remove(attempt)

    def forget(self) -> None:
        """Forgets every variant, as if none had been captured."""
        for attempt in list(self.variants):
            self.remove(attempt)
        self.loose = 0
        for root in self._roots.values():
            root.captured = 0

    def count(self, state: Any) -> int:
        """How many variants count towards the limit of this state's object: its own, and those
        captured for none that still lives."""
        root = self._root(state)
        return self.loose + (root.captured if root is not None else 0)

    def newest(self, state: Any) -> Attempt | None:
        """The variant to say of why it does not fit: the last one of the state's object, or of
        all.
        """
        root = self._root(state)
        candidates = root.attempts if root is not None and root.attempts else self.variants
        return candidates[-1] if candidates else None

    def known(self, state: Any) -> list[Attempt]:
        """The variants that calls with this state's object are looked up in."""
        if self._at is None:
            return list(self.variants)
        root = self._roots.get(id(state[self._at]))
        own = [] if root is None else root.attempts
        return [*own, *(one for one in self._recent if one not in own)]

    def is_closed(self, state: Any) -> bool:
        """Whether no more variants are captured for this state's object."""
        if self.limit_hit:
            return True
        root = self._root(state) if self._roots else None
        return root is not None and root.limit_hit

    def close(self, state: Any, limit: int) -> None:
        """Captures no more variants for this state's object; for anything, where it has none or
        `limit` variants are nobody's: those count for every object."""
        root = self._root(state)
        if root is None or self.loose >= limit or len(self.variants) >= MOST_VARIANTS:
            self.limit_hit = True
        else:
            root.limit_hit = True

    def retire(self, state: Any, everything: bool) -> None:
        """Closes for this state's object and forgets the variants that it used; everything: for all
        objects."""
        root = None if everything else self._root(state)
        if root is None:
            self.limit_hit = True
        else:
            root.limit_hit = True
        for attempt in list(self.variants if root is None else root.attempts):
            self.remove(attempt)

    def serve(self, state: Any, native: Attempt) -> None:
        """At a closed place: calls with this state's object no longer miss. native(state): the
        program itself."""
        root = self._roots.get(id(state[self._at])) if self._at is not None else None
        if root is None and not self.limit_hit:
            return
        known = self.known(state)
        (self if root is None else root).hot = Closed(known, native) if known else native

    def _used(self, attempt: Attempt, state: Any) -> None:
        self._recent = (attempt, *(one for one in self._recent if one is not attempt))[:RECENT]
        root = self._root(state)
        if root is not None and attempt not in root.attempts:
            root.attempts.append(attempt)

    def _root(self, state: Any) -> Root | None:
        """The entry of the state's object, made where it is missing; None if it has none."""
        if self._at is None:
            self._at = next((i for i, value in enumerate(state) if _has_identity(value)), None)
            if self._at is None:
                return None
        obj = state[self._at]
        found = self._roots.get(id(obj))
        if found is None and _has_identity(obj):
            found = self._roots[id(obj)] = Root(OwnReference(obj, self._forgetter(id(obj))))
        return found

    def _forgetter(self, key: int) -> Callable[[Any], None]:
        segment = weakref.ref(self)

        def forget(_: Any) -> None:
            alive = segment()
            gone = alive._roots.pop(key, None) if alive is not None else None
            if gone is not None and alive is not None:
                alive.loose += gone.captured
                alive._short_lived = 0 if gone.hot is not None else alive._short_lived + 1

        return forget


def _has_identity(value: Any) -> bool:
    """Whether a value is an object with a life of its own: not a number, container, tensor or
    function.
    """
    return (
        not isinstance(value, DIRECT_ROOTS)
        and not isinstance(value, type)
        and _takes_references(value)
    )


def _takes_references(value: Any) -> bool:
    return bool(type(value).__weakrefoffset__)

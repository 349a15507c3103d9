"""The variants of one place in a program, found by the object that they are for.

In: variants as they are captured, and the values (`state`) of a call. Out: the result of the first variant whose
guards hold, or MISS. What always holds: a variant runs only where its own guards hold, so the order in which
they are tried, and which are tried at all, decides about time only; an object that died leaves nothing behind
but its variants, which may fit others.

Objects: the first value of a state that has an identity (a module, an instance of a class) is its root. Each root
has its own list of variants and its own limit, so that a thousand instances of one class neither use up one
another's limit nor are searched through. Of the others' variants, those are tried that were used most recently.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer_core.guards.own_reference import OwnReference
from tracer_core.segments.emit import DIRECT_ROOTS
from tracer_core.segments.segment import MISS

Attempt = Callable[[Any], Any]

#: How many variants of other objects are tried before a new one is captured.
RECENT = 16
#: How many variants one place in a program may have, over all objects.
MOST_VARIANTS = 2048


@dataclass(slots=True)
class Root:
    """What is known for one object. Mutable. reference: to it. attempts: variants that fit it before.
    captured: how many were captured for it. limit_hit: no more are. hot: the variant used last."""

    reference: weakref.ref[Any]
    attempts: list[Attempt] = field(default_factory=list)
    captured: int = 0
    limit_hit: bool = False
    hot: Attempt | None = None


class Segment:
    """Mutable. key: start arguments or layouts. variants: attempts, newest last. version: grows with each. seen:
    source expression -> shapes captured so far. limit_hit: no more variants are made for anything. raised: by
    the last trace. loose: variants captured for no object, or for one that is gone. other_sizes: how often a graph found
    that a size which depends on data was not what it was captured for."""

    __slots__ = ("key", "variants", "version", "seen", "limit_hit", "raised", "loose", "other_sizes", "_at", "_roots", "_recent",
                 "hot", "__weakref__")  # fmt: skip

    def __init__(self, key: Any) -> None:
        self.key = key
        self.variants: list[Attempt] = []
        self.version = 0
        self.seen: dict[str, list[tuple[int, ...]]] = {}
        self.limit_hit = False
        self.raised: BaseException | None = None
        self.loose = 0
        self.other_sizes = 0
        self._at: int | None = None
        self._roots: dict[int, Root] = {}
        self._recent: tuple[Attempt, ...] = ()
        #: The variant used last, where there are no roots: a first call often sees what no later one does.
        self.hot: Attempt | None = None

    def run(self, state: Any) -> Any:
        """What the variant gives whose guards hold, or MISS."""
        found = self if self._at is None else self._roots.get(id(state[self._at]))
        hot = None if found is None else found.hot
        if hot is not None:
            result = hot(state)
            if result is not MISS:
                return result
        attempts = () if found is None else self.variants if self._at is None else found.attempts  # type: ignore[union-attr]
        for attempt in attempts:
            if attempt is not hot:
                result = attempt(state)
                if result is not MISS:
                    found.hot = attempt  # type: ignore[union-attr]
                    return result
        return MISS if self._at is None else self._run_others(state, attempts)

    def _run_others(self, state: Any, tried: Sequence[Attempt]) -> Any:
        """`run` with the variants that other objects used last."""
        for attempt in self._recent:
            if attempt not in tried:
                result = attempt(state)
                if result is not MISS:
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
        """How many variants count towards the limit of this state's object: its own, and those captured for
        none that still lives."""
        root = self._root(state)
        return self.loose + (root.captured if root is not None else 0)

    def newest(self, state: Any) -> Attempt | None:
        """The variant to say of why it does not fit: the last one of the state's object, or of all."""
        root = self._root(state)
        candidates = root.attempts if root is not None and root.attempts else self.variants
        return candidates[-1] if candidates else None

    def is_closed(self, state: Any) -> bool:
        """Whether no more variants are captured for this state's object."""
        root = self._root(state) if self._roots else None
        return self.limit_hit or (root is not None and root.limit_hit)

    def close(self, state: Any) -> None:
        """Captures no more variants for this state's object (where it has none: for anything)."""
        root = self._root(state)
        if root is None or len(self.variants) >= MOST_VARIANTS:
            self.limit_hit = True
        else:
            root.limit_hit = True

    def retire(self, state: Any) -> None:
        """Closes, and forgets the variants that this state's object used."""
        self.close(state)
        root = self._root(state)
        for attempt in list(self.variants if root is None else root.attempts):
            self.remove(attempt)

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

        return forget


def _has_identity(value: Any) -> bool:
    """Whether a value is an object with a life of its own: not a number, container, tensor or function."""
    return not isinstance(value, DIRECT_ROOTS) and not isinstance(value, type) and _takes_references(value)


def _takes_references(value: Any) -> bool:
    return bool(type(value).__weakrefoffset__)

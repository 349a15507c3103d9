"""The guard cache: makes a repeated guard check of the same objects cheap.

A full check returns a `Checked`: the dictionaries, objects and tensors that it read. From that a
`FastPathGuard` (a fast-path guard) is made, which tells in microseconds whether any of them can
have changed. A fast-path guard may only fail too often: when in doubt it fails, and the full check
runs.

A dictionary is unchanged if its version tag is: CPython 3.11 and 3.12 give every dict a number that
each change renews (PEP 509); on later ones a watcher counts the changes (`dict_counters`), or,
without a C compiler, Python compares the entries. A tensor's metadata, an object's type, a cell's
contents and the like are memory fields (`watched_fields`), which the C helper or one torch gather
compares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer_core.guards.gather import GatherCheck
from tracer_core.guards.native_fields import native_check
from tracer_core.guards.object_layout import ObjectLayout, layout, word
from tracer_core.guards.own_reference import OwnDict, OwnReference, refers_weakly
from tracer_core.guards.watched_fields import Checked, WatchedFields, holds_scalars

__all__ = ["Checked", "FastPathGuard", "GuardCache"]


class FastPathGuard:
    """A fast-path guard; see the module's docstring.

    fetched: the values of the full check; None if some of them are objects that it must not keep
    alive. unchanged(): compares the watched fields.
    rest(): re-checks the guarded state that has no version counter; None if there is none.
    references: the roots, weakly where possible. died(reference): called when an object dies that
    the watched fields lie in.
    """

    __slots__ = (
        "fetched", "unchanged", "rest", "references", "_parts", "_fields", "_check",
    )  # fmt: skip

    def __init__(
        self,
        layout: ObjectLayout,
        checked: Checked,
        roots: list[Any],
        volatile: frozenset[int],
        died: Callable[[Any], None],
    ) -> None:
        # An object without weak references lives as long as the fast-path guard.
        self.references: list[Any] = [_weakly(root, died) for root in roots]
        mortals = [root for root in roots if refers_weakly(root)]
        fields = WatchedFields(layout, checked, mortals, volatile, died)
        self._fields = fields
        self._parts = [
            fields.own_dicts.get(id(item)) or _weakly(item, died) for item in checked.fetched
        ]
        mortal = any(type(part) in _LEADING for part in self._parts)
        self.fetched = None if mortal else checked.fetched
        self._check = native_check(fields) or GatherCheck(fields)
        self.unchanged: Callable[[], Any] = self._check.holds
        self.rest: Callable[[], bool] | None = (
            fields.holds_in_python if fields.needs_python else None
        )

    def values(self) -> tuple[Any, ...]:
        """Returns the values of the full check."""
        return tuple([part() if type(part) in _LEADING else part for part in self._parts])

    def holds(self) -> bool:
        """Whether everything is as it was when the fast-path guard was made."""
        return bool(self.unchanged()) and (self.rest is None or self.rest())

    def changed_dicts(self) -> list[int]:
        """Returns the ids of the watched dictionaries whose version changed."""
        before, dicts = self._check.before(), self._fields.dicts
        return [
            item
            for (*leading, version), item in dicts
            if all(word(at) == before[at] for at in leading) and word(version) != before[version]
        ]


def _weakly(obj: Any, died: Callable[[Any], None]) -> Any:
    return OwnReference(obj, died) if refers_weakly(obj) and not holds_scalars(obj) else obj


#: What leads to an object without keeping it alive.
_LEADING = (OwnReference, OwnDict)


def _never() -> bool:
    return False


class GuardCache:
    """The fast-path guards of one cache entry, keyed by the identity of the object inputs. Mutable.

    check(S): the full check, returns a `Checked` or None. roots: positions of the object inputs in
    a state.
    """

    #: Capacity of the cache; entries of dead objects are removed at once.
    LIMIT = 1024
    #: After this many fast-path guards in a row that no call reused (the program creates its
    #: objects anew for each call), only one full check in a few makes another: making one costs
    #: more than the check that it saves.
    WASTED, SELDOM = 6, 64

    def __init__(self, check: Callable[[Any], Checked | None], roots: tuple[int, ...]) -> None:
        self._check = check
        self._roots = roots
        self._fast_paths: dict[Any, FastPathGuard] = {}
        self._moved: dict[int, int] = {}
        self._volatile: frozenset[int] = frozenset()
        #: Keys that were checked once: a guard for inputs that never come again is not worth it.
        self._met: set[Any] = set()
        #: Full checks since a fast-path guard last held.
        self._since = 0
        self._single = roots[0] if len(roots) == 1 else None

    def fetch(self, state: Any) -> Any:
        """Returns the fetched values for this state, or None if the full check fails."""
        at = self._single
        key: Any
        if at is not None:
            key = id(state[at])
        elif self._roots:
            key = tuple([id(state[i]) for i in self._roots])
        else:
            key = 0
        guard = self._fast_paths.get(key)
        if guard is not None:
            if guard.unchanged() and (guard.rest is None or guard.rest()):
                self._since = 0
                fetched = guard.fetched
                return guard.values() if fetched is None else fetched
        return self._check_fully(state, key, guard)

    def _check_fully(self, state: Any, key: Any, guard: FastPathGuard | None) -> Any:
        checked = self._check(state)
        if checked is None:
            self._fast_paths.pop(key, None)  # it keeps alive what the program has dropped
            return None
        if guard is not None:
            self._note(guard)
        self._since += 1
        if self._since > self.WASTED and self._since % self.SELDOM:
            self._fast_paths.pop(key, None)
            return checked.fetched
        if key not in self._met:
            if len(self._met) >= self.LIMIT:
                self._met.clear()
            self._met.add(key)
            return checked.fetched
        result = layout()
        if result is not None:
            self._remember(result, checked, key, [state[i] for i in self._roots])
        return checked.fetched

    def _remember(self, result: ObjectLayout, checked: Checked, key: Any, roots: list[Any]) -> None:
        """Caches a fast-path guard until an object dies that it read: the cache must not keep the
        program's objects alive, and their ids may be reused.
        """
        if len(self._fast_paths) >= self.LIMIT:
            self._fast_paths.clear()
        fast_paths = self._fast_paths

        def forget(_: Any) -> None:
            gone = fast_paths.pop(key, None)
            if gone is not None:
                gone.unchanged = _never  # another thread may be about to ask

        fast_paths[key] = FastPathGuard(result, checked, roots, self._volatile, forget)

    def _note(self, guard: FastPathGuard) -> None:
        """Switches dictionaries whose version changed although the check still held to comparison
        by entry.
        """
        for mapping in guard.changed_dicts():
            self._moved[mapping] = self._moved.get(mapping, 0) + 1
            if self._moved[mapping] >= 2:
                self._volatile |= {mapping}

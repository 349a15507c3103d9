"""Stamps: what makes a second check of the same objects cheap.

In: the result of a segment's full check of its objects (`Checked`: dictionaries, objects, tensors that it
read). Out: a `Stamp`, which says in microseconds whether anything that the full check looked at can have
changed. What always holds: a stamp is only a shortcut; when in doubt it says no and the full check runs.

A dictionary is unchanged if its version tag is: CPython 3.11 and 3.12 give every dict a number that any
change renews (PEP 509). A tensor's metadata is read directly by the C helper, or property by property.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from operator import is_
from types import MappingProxyType
from typing import Any

from tracer_core.guards.native_check import NativeCheck, native_check
from tracer_core.provenance import is_constant

_ABSENT: Any = object()


class Checked:
    """What a full check read.

    fetched: values for the run part. dicts: (dictionary or class namespace, keys read in it; None: all of
    them). objects: whose exact type was checked. empties: containers that must be falsy. tensors: whose
    metadata was checked. lists: read by position. probes: calls that must give the same object again.
    """

    __slots__ = ("fetched", "dicts", "objects", "empties", "tensors", "lists", "probes")

    def __init__(
        self, fetched: Any, dicts: Any, objects: Any, empties: Any, tensors: Any, lists: Any, probes: Any
    ) -> None:
        self.fetched, self.dicts, self.objects, self.empties = fetched, dicts, objects, empties
        self.tensors, self.lists, self.probes = tensors, lists, probes


def _plain_dict(namespace: Any) -> dict[Any, Any] | None:
    """The dict behind a class namespace."""
    if isinstance(namespace, dict):
        return namespace
    if isinstance(namespace, MappingProxyType):
        for referent in gc.get_referents(namespace):
            if isinstance(referent, dict):
                return referent
    return None


class Stamp:
    """See the module's docstring. volatile: ids of dictionaries that change often: these are compared
    entry by entry."""

    __slots__ = ("fetched", "_check", "_objects", "_types", "_empties", "_tensors", "_facts", "_grads", "_lists",
                 "_probes", "_watched", "_volatile")  # fmt: skip

    def __init__(self, checked: Checked, volatile: frozenset[int]) -> None:
        self.fetched = checked.fetched
        watched = []
        self._volatile: list[tuple[Any, dict[Any, Any], int | None]] = []
        for namespace, keys in checked.dicts:
            plain = _plain_dict(namespace)
            if plain is None or id(plain) in volatile:
                read = namespace if keys is None else keys
                before = {key: namespace.get(key, _ABSENT) for key in read}
                self._volatile.append((namespace, before, len(namespace) if keys is None else None))
            else:
                watched.append(plain)
        self._watched = watched
        self._objects = checked.objects
        self._types = [type(obj) for obj in checked.objects]
        self._empties = checked.empties
        self._tensors = checked.tensors
        self._lists = [(items, list(items)) for items in checked.lists]
        self._probes = [(read, read()) for read in checked.probes]
        self._grads = [t.requires_grad for t in checked.tensors]
        self._check: NativeCheck | None = native_check(watched, checked.objects, checked.tensors)
        self._facts = None if self._check is not None else self._metadata()

    def _metadata(self) -> list[Any]:
        ts = self._tensors
        return [
            [t.shape for t in ts], [t.dtype for t in ts], [t.device for t in ts], [t.stride() for t in ts],
        ]  # fmt: skip

    def holds(self) -> bool:
        """Whether everything is as it was when the stamp was made."""
        if self._check is not None:
            if not self._check():
                return False
        elif (
            self._watched
            or [type(obj) for obj in self._objects] != self._types
            or self._metadata() != self._facts
        ):
            # Without version tags nothing is known about the dictionaries.
            return False
        if any(self._empties):
            return False
        # Autograd's own record of a tensor, which the helper does not read.
        if [t.requires_grad for t in self._tensors] != self._grads:
            return False
        return not (self._lists or self._probes or self._volatile) or self._holds_rest()

    def _holds_rest(self) -> bool:
        for items, old in self._lists:
            if len(items) != len(old) or not all(map(is_, items, old)):
                return False
        for read, old in self._probes:
            try:
                now = read()
            except (AttributeError, ValueError):  # a slot or a cell that is empty now
                return False
            if now is not old and not (is_constant(old) and repr(now) == repr(old) and now == old):
                return False
        for namespace, before, size in self._volatile:
            if size is not None and len(namespace) != size:
                return False
            if any(namespace.get(key, _ABSENT) is not value for key, value in before.items()):
                return False
        return True

    def changed_dicts(self) -> list[int]:
        """ids of the watched dictionaries whose version moved."""
        return [] if self._check is None else self._check.changed_dicts()


class Stamps:
    """The stamps of one segment variant, by the identity of the segment's object inputs. Mutable.
    check(S): the full check, a `Checked` or None."""

    _LIMIT = 16

    def __init__(self, check: Callable[[Any], Checked | None], roots: tuple[int, ...]) -> None:
        self._check = check
        self._roots = roots
        self._stamps: dict[Any, tuple[Any, Stamp]] = {}
        self._moved: dict[int, int] = {}
        self._volatile: frozenset[int] = frozenset()
        self._single = roots[0] if len(roots) == 1 else None

    def fetch(self, state: Any) -> Any:
        """The fetched values for this state, or None if the full check fails."""
        if self._single is not None:
            root = state[self._single]
            key: Any = id(root)
        else:
            root = tuple([state[i] for i in self._roots])
            key = tuple(map(id, root))
        found = self._stamps.get(key)
        if found is not None:
            stamp = found[1]
            if stamp.holds():
                return stamp.fetched
            self._note(stamp)
        checked = self._check(state)
        if checked is None:
            return None
        if len(self._stamps) >= self._LIMIT:
            self._stamps.clear()
        # The stamp keeps its roots alive, so that their ids stay theirs.
        self._stamps[key] = (root, Stamp(checked, self._volatile))
        return checked.fetched

    def _note(self, stamp: Stamp) -> None:
        """Dictionaries that moved although the check still held are compared by entry from then on."""
        for one in stamp.changed_dicts():
            self._moved[one] = self._moved.get(one, 0) + 1
            if self._moved[one] >= 2:
                self._volatile |= {one}

"""The iteration order of sets: how a set is filled to have a given one.

A set iterates in the order of its hash table, which depends on the order of insertion where hashes
collide, and on the size that the table had. CPython grows the table step by step for the items of a
list, and once for those of a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.value_kinds import is_constant
from tracer_core.limits import MAX_SET_ORDERS


class _Gone:
    """Stands for a member that was removed, where another one lies that gave way to it."""

    def __init__(self, hashed: int) -> None:
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash


def filling(order: Sequence[Any]) -> tuple[bool, list[Any]] | None:
    """Returns what an empty set is updated with to iterate in an order: whether by a dictionary's
    keys, and the items in the order of insertion. None if no such way is found.

    Members that only code of the program can hash are given in the order they have.
    """
    return _found(order, with_gone=False)


def can_refill(order: Sequence[Any]) -> bool:
    """Returns whether `refill` gives a set this order."""
    return _found(order, with_gone=True) is not None


def refill(target: set[Any], order: Sequence[Any]) -> None:
    """Gives a set the members in an order; without the order if there is no way to it."""
    from_dict, items = _found(order, with_gone=True) or (False, list(order))
    set.clear(target)
    set.update(target, dict.fromkeys(items) if from_dict else items)
    set.difference_update(target, [item for item in items if type(item) is _Gone])


def _found(order: Sequence[Any], with_gone: bool) -> tuple[bool, list[Any]] | None:
    if not all(is_constant(item) or _has_own_address_hash(item) for item in order):
        return False, list(order)
    for may_be_gone in (False, True)[: 1 + with_gone]:
        for from_dict in (False, True):
            result = _insertion_order(dict.fromkeys if from_dict else list, order, may_be_gone)
            if result is not None:
                return from_dict, result
    return None


def _has_own_address_hash(member: Any) -> bool:
    hashed: Any = type(member).__hash__
    return hashed is object.__hash__


def _insertion_order(
    function: Callable[[Iterable[Any]], Iterable[Any]], order: Sequence[Any], with_gone: bool
) -> list[Any] | None:
    """Searches the orders of insertion depth first: where a set has one member in the place of
    another, either may be the one that was there before it, or one that is gone."""
    pending, tried = [list(order)], set[tuple[int, ...]]()
    while pending and len(tried) < MAX_SET_ORDERS:
        items = pending.pop()
        if (key := tuple(map(hash, items))) in tried:
            continue
        tried.add(key)
        members = [item for item in set(function(items)) if type(item) is not _Gone]
        wrong = next(((a, b) for a, b in zip(members, order, strict=True) if a is not b), None)
        if wrong is None:
            return items
        if with_gone:
            pending.append([_Gone(hash(wrong[0])), *items])
        pending.extend([entry, *(item for item in items if item is not entry)] for entry in wrong)
    if pending:
        crossed("MAX_SET_ORDERS")
    return None

"""The iteration order of sets: how a set is filled to have a given one.

A set iterates in the order of its hash table, which depends on the order of insertion where hashes
collide, and on the size that the table had. CPython grows the table step by step for the items of a
list, and once for those of a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracer_core.fx_capture.provenance import is_constant

#: How many orders of insertion are tried.
_MOST_TRIES = 64


def filling(order: Sequence[Any]) -> tuple[bool, list[Any]] | None:
    """Returns what an empty set is updated with to iterate in an order: whether by a dictionary's
    keys, and the items in the order of insertion. None if no such way is found.

    Members that only code of the program can hash are given in the order they have.
    """
    if not all(is_constant(one) or _has_own_address_hash(one) for one in order):
        return False, list(order)
    for from_dict in (False, True):
        found = _insertion_order(dict.fromkeys if from_dict else list, order)
        if found is not None:
            return from_dict, found
    return None


def _has_own_address_hash(member: Any) -> bool:
    hashed: Any = type(member).__hash__
    return hashed is object.__hash__


def _insertion_order(
    made: Callable[[Iterable[Any]], Iterable[Any]], order: Sequence[Any]
) -> list[Any] | None:
    """Searches the orders of insertion depth first: where a set has one member in the place of
    another, either may be the one that was there before it."""
    pending, tried = [list(order)], set[tuple[int, ...]]()
    while pending and len(tried) < _MOST_TRIES:
        items = pending.pop()
        if (key := tuple(map(id, items))) in tried:
            continue
        tried.add(key)
        members = list(set(made(items)))
        wrong = next(((a, b) for a, b in zip(members, order, strict=True) if a is not b), None)
        if wrong is None:
            return items
        pending.extend([one, *(item for item in items if item is not one)] for one in wrong)
    return None


def refill(target: set[Any], order: Sequence[Any]) -> None:
    """Gives a set the members in an order; without the order if there is no way to it."""
    from_dict, items = filling(order) or (False, list(order))
    set.clear(target)
    set.update(target, dict.fromkeys(items) if from_dict else items)

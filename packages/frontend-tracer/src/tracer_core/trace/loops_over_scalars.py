"""Iteration over lists, tuples and dictionaries from before the trace whose numbers differ from call to
call.

The iterator is that of the container itself, which the program may change meanwhile and which may
outlive the region; the symbols of its numbers take the place of the items that it gives.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracer_core.trace.component import Component
from tracer_core.trace.guarded_reads import SIMPLE_KEYS
from tracer_core.trace.special_methods import mapping_of

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_NUMBERS = frozenset({int, float, tuple})
VALUES: type = type({}.values())
_ITEMS: type = type({}.items())
#: Types of views of dictionaries that show values.
VALUE_VIEWS = frozenset({VALUES, _ITEMS})


class ScalarLoops(Component):
    """The iterators of a trace that give symbols. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        #: id of an iterator -> (the iterator, item that it gives next -> what the program sees).
        self._iterators: dict[int, tuple[Any, Callable[[Any], Any]]] = {}

    def knows(self, iterator: Any) -> bool:
        """Returns whether an iterator gives symbols."""
        return id(iterator) in self._iterators

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        """Returns (True, item), or (False, None) at the end."""
        _, shown = self._iterators[id(iterator)]
        position = operator.length_hint(iterator)
        for item in iterator:
            return True, shown((position, item))
        return False, None

    def over(self, value: Any) -> Any:
        """Returns an iterator over a container, or a view of a dictionary, with varying numbers; None
        for any other."""
        if type(value) in VALUE_VIEWS:
            return self._over_view(value)
        items = self._varying(value)
        if items is None:
            return None
        size, result = len(items), iter(value)

        def shown(step: tuple[int, Any]) -> Any:
            return self._item(value, items, size - step[0], step[1])

        return self._noted(result, shown)

    def backwards(self, value: Any) -> Any:
        """Does `over` for ``reversed(value)``."""
        items = self._varying(value)
        if items is None:
            return None
        return self._noted(
            reversed(value), lambda step: self._item(value, items, step[0] - 1, step[1])
        )

    def part(self, container: Any, key: slice) -> Any:
        """Returns a slice of a list or tuple."""
        if type(container) is tuple and container[key] is container:
            return container
        items = self.tracer.reads.items(container, varies=True)
        return type(container)(items[key])

    def _item(self, value: Any, items: list[Any], position: int, item: Any) -> Any:
        # a change of the container has guarded its old contents
        return items[position] if self.effects.changed(value) is None else item

    def _noted(self, iterator: Any, shown: Callable[[Any], Any]) -> Any:
        self._iterators[id(iterator)] = iterator, shown
        return iterator

    def _varying(self, value: Any) -> list[Any] | None:
        """Returns the items of a list or tuple from before the trace if some are symbols."""
        if not self.is_sequence(value) or self.effects.peek(value) is not None:
            return None
        if self.provenance.is_fresh(value) or _NUMBERS.isdisjoint(map(type, value)):
            return None
        items = self.tracer.reads.items(value, varies=True)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else None

    def is_sequence(self, value: Any) -> bool:
        """Returns whether a loop over a value takes the items of a list or tuple by position."""
        return (
            isinstance(value, (list, tuple))
            and self.tracer.entries.python_method(value, "__iter__") is None
            and not self.tracer.entries.is_disabled(value, "__iter__")
        )

    def _over_view(self, view: Any) -> Any:
        """Does `over` for a view, made in the trace, of a dictionary from before it."""
        mapping = mapping_of(view)
        if self.provenance.is_fresh(mapping) or not self.provenance.is_fresh(view):
            return None
        if isinstance(mapping, collections.OrderedDict) or not _are_simple(mapping):
            return None
        pairs, is_items = self.tracer.reads.entries(mapping, varies=True), type(view) is _ITEMS
        if all(a is b for (_, a), b in zip(pairs, dict.values(mapping), strict=True)):
            return None

        def shown(step: tuple[int, Any]) -> Any:
            left, item = step
            key, value = pairs[len(pairs) - left]
            change = self.effects.peek(mapping)
            if change is not None and change.decided(key):
                value = item[1] if is_items else item
            return (key, value) if is_items else value

        return self._noted(iter(view), shown)


def _are_simple(mapping: dict[Any, Any]) -> bool:
    """Returns whether a dictionary holds numbers, under keys that no code of the program's hashes."""
    return SIMPLE_KEYS.issuperset(map(type, dict.keys(mapping))) and not _NUMBERS.isdisjoint(
        map(type, dict.values(mapping))
    )

"""Emits the lines that reconstruct containers, their views and their iterators.

Containers that may hold themselves are made empty first and filled later; containers that hash
their members are filled after the members are.
"""

from __future__ import annotations

import collections
import gc
import operator
from collections.abc import Iterable
from typing import Any

import torch

from tracer_core.fx_capture.set_order import filling
from tracer_core.guards.value_kinds import is_constant
from tracer_core.reconstruct.emitter import Emitter
from tracer_core.reconstruct.runtime import (
    DICT_ITERATORS,
    ORDERED_VIEWS,
    at_end,
    deque_iterator,
    dict_iterator,
    is_stale,
    ordered_iterator,
    ordered_over,
    spent_iterator,
    spent_ordered_iterator,
)
from tracer_core.trace.attribute_lookup import class_namespace
from tracer_core.trace.special_methods import check_hashed_again

VIEWS: dict[type, Any] = {
    type(getattr(kind(), name)()): kind.__dict__[name]
    for kind in (dict, collections.OrderedDict)
    for name in ("keys", "values", "items")
}


def dictionary_of(obj: Any) -> Any:
    """Returns the dictionary behind a view or an iterator; None if the iterator is exhausted."""
    return next((held for held in gc.get_referents(obj) if isinstance(held, dict)), None)


def _same_items(some: list[Any], others: list[Any]) -> bool:
    """Returns whether two lists hold the same objects; of the pairs of a dictionary, their items."""
    return len(some) == len(others) and all(
        item is other
        or (type(item) is type(other) is tuple and len(item) == 2 == len(other)
            and item[0] is other[0] and item[1] is other[1])
        for item, other in zip(some, others, strict=True)
    )  # fmt: skip


class ContainerRebuilder(Emitter):
    """The container part of `Rebuilder` (see there)."""

    def _list(self, obj: Any, text: str = "[]") -> str:
        if type(obj) is list and all(map(self._leaf, obj)):
            return self._new(obj, f"[{self._items(obj)}]")
        name = self._new(obj, text)
        self._pending.append(lambda: self._extend(name, "list_extend", list.__iter__(obj)))
        return name

    def _leaf(self, obj: Any) -> bool:
        """Returns whether an object's expression refers to no object that holds others."""
        return is_constant(obj) or self._source_of(obj) is not None or (
            isinstance(obj, torch.Tensor) and not self.tracer.attributes.attributes_of(obj))  # fmt: skip

    def _extend(self, name: str, function: str, items: Iterable[Any]) -> None:
        text = self._items(items)
        if text:
            self.lines.append(f"{function}({name}, [{text}])")

    def _tuple(self, obj: tuple[Any, ...]) -> str:
        text = self._items(obj)
        result = self._memo.get(id(obj))  # its own items may have made it, through a cycle
        return result or self._new(obj, f"({text},)" if text else "()")

    def _dict(self, obj: Any, text: str = "{}") -> str:
        owner = self.tracer.entries.owner_of(obj)
        if owner is not None:
            read = self.constant(class_namespace) if isinstance(owner, type) else "own"
            return self._new(obj, f"{read}({self._value(owner)})")
        if type(obj) is dict and all(is_constant(k) and self._leaf(v) for k, v in obj.items()):
            pairs = ", ".join(f"{self._value(k)}: {self._value(v)}" for k, v in obj.items())
            return self._new(obj, "{" + pairs + "}")
        name = self._new(obj, text)
        self._pending.append(lambda: self._fill_dict(name, obj))
        return name

    def _fill_dict(self, name: str, obj: Any) -> None:
        ordered = isinstance(obj, collections.OrderedDict)
        function = "ordered_set" if ordered else "dict_set"
        check_hashed_again(self.tracer, list(dict.keys(obj)))
        pairs = list(collections.OrderedDict.items(obj) if ordered else dict.items(obj))
        keys = [self._value(key) for key, _ in pairs]
        if not all(is_constant(key) for key, _ in pairs):
            self._fill_pending()  # a key's hash may need the key's contents
        for key, (_, value) in zip(keys, pairs, strict=True):
            self.lines.append(f"{function}({name}, {key}, {self._value(value)})")

    def _ordered(self, obj: Any) -> str:
        name = self._dict(obj, f"{self.constant(collections.OrderedDict)}()")
        self._pending.append(lambda: self._set_attributes(name, vars(obj)))
        return name

    def _defaultdict(self, obj: Any) -> str:
        return self._dict(
            obj, f"{self.constant(collections.defaultdict)}({self._value(obj.default_factory)})"
        )

    def _set(self, obj: Any, text: str = "set()") -> str:
        name = self._new(obj, text)
        self._pending.append(lambda: self._fill_set(name, obj))
        return name

    def _fill_set(self, name: str, obj: Any) -> None:
        check_hashed_again(self.tracer, list(set.__iter__(obj)))
        self._items(set.__iter__(obj))
        self._fill_pending()
        if obj:
            self.lines.append(f"set_update({name}, {self.in_order(obj, list(set.__iter__(obj)))})")

    def in_order(self, obj: Any, order: list[Any]) -> str:
        """Returns the text of what an empty set is updated with to have an order."""
        result = filling(order) if all(map(is_constant, order)) else (False, order)
        if result is None:
            raise self._no_way(obj)
        text = f"[{self._items(result[1])}]"
        return f"{self.constant(dict.fromkeys)}({text})" if result[0] else text

    def _frozenset(self, obj: Any) -> str:
        order = list(frozenset.__iter__(obj))
        check_hashed_again(self.tracer, order)
        text = self.in_order(obj, order)
        known = self._made_meanwhile(obj)
        return known or self._new(obj, f"{self.constant(frozenset)}({text})")

    def _deque(self, obj: Any) -> str:
        name = self._new(obj, f"{self.constant(collections.deque)}((), {obj.maxlen!r})")
        self._pending.append(
            lambda: self._extend(name, "deque_extend", collections.deque.__iter__(obj))
        )
        return name

    def _size(self, obj: torch.Size) -> str:
        return self._new(obj, f"{self.constant(torch.Size)}([{self._items(obj)}])")

    def _buffer(self, obj: Any) -> str:
        return self._new(obj, f"{self.constant(obj)}[:]")

    def _dict_iterator(self, obj: Any) -> str:
        """Emits an iterator advanced as far, over the same dictionary: it must fail when the size
        changes."""
        mapping = dictionary_of(obj)
        if mapping is None:
            return self._call(obj, spent_iterator, type(obj))
        self._flush(mapping)  # the iterator must not see the replay as a change
        self._value(mapping)
        self._fill_pending()
        left = operator.length_hint(obj)
        stale = not left and not at_end(obj)
        view, consumed = DICT_ITERATORS[type(obj)], len(mapping) - left
        return self._call(obj, dict_iterator, mapping, view, consumed, stale)

    def _ordered_iterator(self, obj: Any) -> str:
        """Emits an iterator advanced as far, over the same OrderedDict. The view that it iterates
        over is the one with the items that it has left."""
        mapping = dictionary_of(obj)
        if mapping is None:
            return self._call(obj, spent_ordered_iterator)
        try:
            left = obj.__reduce__()[1][0]
        except RuntimeError:  # the dictionary has changed since the iterator was made
            raise self._no_way(obj) from None
        consumed = len(mapping) - len(left)
        views = [
            view
            for view in ORDERED_VIEWS
            if _same_items(list(ordered_over(mapping, view))[consumed:], left)
        ]
        kinds = {view.removeprefix("-") for view in views}
        if not views or (left and (len(kinds) > 1 or (len(views) > 1 and len(mapping) > 1))):
            raise self._no_way(obj)  # several views have the same items left
        self._flush(mapping)  # the iterator must not see the replay as a change
        self._value(mapping)
        self._fill_pending()
        return self._call(obj, ordered_iterator, mapping, views[0], consumed)

    def _set_iterator(self, obj: Any) -> str:
        """Emits a fresh iterator over the same set. An advanced one cannot be made: the order of a
        reconstructed set may differ."""
        get_referents = [
            referent for referent in gc.get_referents(obj) if isinstance(referent, (set, frozenset))
        ]
        if len(get_referents) != 1 or operator.length_hint(obj) != len(get_referents[0]):
            raise self._no_way(obj)
        self._flush(get_referents[0])  # the iterator must not see the replay as a change
        text = self._value(get_referents[0])
        self._fill_pending()
        if self.has_made(obj):  # for a member of the set, before the set was full
            raise self._no_way(obj)
        return self._new(obj, f"iter({text})")

    def _deque_iterator(self, obj: Any) -> str:
        """Emits an iterator advanced as far, over the same deque: it must fail when the deque
        changes."""
        kind, (held, consumed) = obj.__reduce__()[:2]
        self._flush(held)
        self._value(held)
        self._fill_pending()
        return self._call(obj, deque_iterator, kind, held, consumed, is_stale(obj))

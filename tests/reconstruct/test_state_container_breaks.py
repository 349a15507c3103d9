"""Containers and their iterators across graph breaks, mappings after ``**``, and equal constants."""

from __future__ import annotations

import collections

import pytest
import torch

import tracer_core
from tests.support.changed_containers import Reaction, outcome_of
from tests.support.eager_reference import same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- iterators that are live across a graph break --


@pytest.mark.parametrize("change", [
    lambda items, key: items.__setitem__(key, 7),
    lambda items, key: items.append(7) if isinstance(items, collections.deque)
    else items.update({key: 7, key + 5: 8}),
], ids=["set", "add"])  # fmt: skip
@pytest.mark.parametrize("make", [
    lambda: collections.deque([0, 1, 2]),
    lambda: collections.OrderedDict.fromkeys(range(3)),
    lambda: dict.fromkeys(range(3)),
], ids=["deque", "OrderedDict", "dict"])  # fmt: skip
def test_a_loop_whose_container_changes_between_breaks(make, change):
    def f(x):
        items, seen = make(), []

        def loop():
            for key in items:
                tracer_core.graph_break()
                change(items, key)
                seen.append(key)
                tracer_core.graph_break()

        return x + 1, outcome_of(loop), seen, list(items)

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize("make", [
    lambda items: iter(items), lambda items: zip(items), lambda items: enumerate(items),
    lambda items: reversed(items),
], ids=["iter", "zip", "enumerate", "reversed"])  # fmt: skip
@pytest.mark.parametrize("kind", [collections.deque, collections.OrderedDict.fromkeys])
def test_an_iterator_notices_that_its_container_grew(kind, make):
    def f(x):
        texts = []
        for start in [], [1, 2]:
            items = kind(start)
            iterator = make(items)
            items.append(3) if isinstance(items, collections.deque) else items.setdefault(3)
            tracer_core.graph_break()
            texts.append(outcome_of(lambda: next(iterator)))
        return x + 1, texts

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize("change", [
    lambda items: dict.clear(items), lambda items: dict.pop(items, "a"),
    lambda items: dict.__delitem__(items, "a"), lambda items: dict.popitem(items),
    lambda items: dict.update(items, c=3), lambda items: dict.setdefault(items, "c", 3),
], ids=["clear", "pop", "del", "popitem", "update", "setdefault"])  # fmt: skip
def test_methods_of_dict_leave_out_the_order_of_an_ordered_dictionary(change):
    def f(x):
        items = collections.OrderedDict(a=1, b=2)
        change(items)
        return x + 1, outcome_of(lambda: repr(items)), list(items), len(items)

    same(f, (X,), (X,), breaks=None)


# -- mappings after ** --


class Pairs:
    """A mapping that may have a key twice."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def keys(self):
        return [key for key, _ in self.pairs]

    def __getitem__(self, key):
        if key == "missing":
            raise KeyError(key)
        return dict(self.pairs)[key]


class OwnKeys(dict):
    def keys(self):
        return ["other"]


class OwnOrder(OwnKeys):
    def __iter__(self):
        return iter(["other"])

    def __getitem__(self, key):
        return key * 2


@pytest.mark.parametrize("mapping", [
    Pairs(("a", 1), ("b", 2)), Pairs(("a", 1), ("a", 2)), Pairs(("missing", 1)),
    Pairs(("x", 3)), {1: 3}, OwnKeys(a=1), OwnOrder(a=1), 3,
], ids=["pairs", "twice", "missing", "given", "number", "keys", "iter", "none"])  # fmt: skip
def test_a_mapping_after_two_stars(mapping):
    def g(*args, **kwargs):
        return args, kwargs

    def f(x):
        return (
            x + 1,
            outcome_of(lambda: g(**mapping)),
            outcome_of(lambda: g(x=1, **mapping)),
            outcome_of(lambda: g(**{1: 5}, **mapping)),
            outcome_of(lambda: {**mapping}),
        )

    same(f, (X,), (X,), breaks=None)


def test_pairs_among_the_items_of_a_dictionary():
    def f(x):
        items = {1: 2, "a": [3], 0: set()}
        actual = [pair in items.items() for pair in [(1, 2), ("a", [3]), ("a", 3), 1, (1, 2, 3)]]
        actual.append((0, Reaction(items.clear)) in items.items())
        return x + 1, actual, len(items), outcome_of(lambda: ([], 1) in items.items())

    same(f, (X,), (X,), breaks=None)


# -- constants that are equal and not the same --


class Settings:
    eps = 1e-5


def test_constants_stay_the_objects_that_they_are():
    settings = Settings()

    def f(x, shape):
        result = [(1.5, 2), "".join(["wo", "rd"]), bytes([97, 98]), 10**20, float("1.25"), shape]
        others = [(float("1.5"), 2), "word", b"ab", 10**19 * 10, 5 / 4, tuple([2, 3])]
        read = settings.eps
        tracer_core.graph_break()
        pairs = list(zip(result, others, strict=True))
        tracer_core.graph_break()
        return (
            x + 1,
            [a is b for a, b in pairs],
            [a == b for a, b in pairs],
            [a is b for a, b in zip(result, [item for item, _ in pairs], strict=True)],
            (read is settings.eps, shape is result[-1]),
            [tuple(value) is value for value in (result[0], frozenset([1]))],
        )

    same(f, (X, (2, 3)), (X, (2, 3)), (X, (2, 4)), breaks=None)


def test_a_frozen_set_is_its_own_copy():
    def f(x):
        members = frozenset(range(3))
        copies = frozenset(members), frozenset(list(members))
        tracer_core.graph_break()
        return x + 1, [copy is members for copy in copies]

    same(f, (X,), (X,), breaks=None)

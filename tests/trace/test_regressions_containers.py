"""Programs that random generation, made small, found to differ from eager: lists, dictionaries, deques
and their iterators."""

from __future__ import annotations

import collections
import datetime
import fractions
import itertools
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.guard_facts import Box
from tracer_core.testing import compare

X = torch.randn(2, 3)


def test_counter_of_a_list():
    same(lambda x, items: (collections.Counter(items), x + 1), (X, [1, 1, 2]), (X, [3]), graphs=2)


def test_a_set_changed_before_the_graph_raises():
    def make():
        world = Box(seen={4})

        def fn(x):
            world.seen.add(7)
            return x.add_(1)

        return fn, world

    overlapping = torch.ones(3)[None].expand(2, 3)
    compare_with_eager(make, (overlapping,), (X,), (overlapping,))


@pytest.mark.parametrize("change", ["append", "appendleft", "popleft", "clear"])
def test_iterating_a_changed_deque(change):
    def fn(x, items):
        getattr(items, change)(*([5] if "append" in change else []))
        actual = []
        for item in items:
            print(item, flush=[])
            actual.append(x * item)
        return actual

    calls = [(X, collections.deque([1, 2])), (X, collections.deque([3, 4], maxlen=2))]
    same(fn, *calls, *calls, breaks=None)


def test_iterating_a_dict_with_a_new_key_across_a_break():
    def fn(x, table):
        table["n"] = 1
        actual = []
        for key in table:
            print(key, flush=[])
            actual.append(x * table[key])
        return actual

    same(fn, (X, {"a": 2}), (X, {"b": 3}), (X, {"n": 3}), breaks=None)


def test_a_deque_that_changes_while_it_is_iterated():
    def fn(x, items):
        for item in items:
            items.append(item)
            print(item, flush=[])
        return x

    same(fn, (X, collections.deque([1, 2])), (X, collections.deque()), breaks=None)


@pytest.mark.parametrize("view", ["keys", "values", "items"])
def test_iterators_that_go_backwards_over_a_dict(view):
    def fn(x, table):
        iterator = reversed(getattr(table, view)())
        first = next(iterator)
        print(first, flush=[])
        return x + 1, first, type(iterator), list(iterator)

    same(fn, (X, {"a": 1, "b": 2}), (X, {"a": 1, "b": 2, "c": 3}), breaks=None)


def test_a_key_that_cannot_be_one_changes_nothing():
    def f(x, box, table):
        for change in (
            lambda: box.add([1]),
            lambda: table.__setitem__([1], 2),
            lambda: table.update({(1, 2): x}),
        ):
            try:
                change()
            except TypeError as error:
                table[str(error)] = 1
        try:
            table[{}] = 3
        except TypeError:
            box.add(5)
        return x + len(box) + len(table)

    same(f, (X, {1}, {"a": 1}), (X, set(), {}), (X, {1}, {"a": 1}))


def test_an_iterator_over_a_set_is_one():
    def f(x, box):
        begun = iter(box)
        next(begun)
        return x + 1, type(iter(box)), iter(set()), iter(box), type(begun), sorted(begun)

    def g(x, box):
        out = compiled(x, box)
        return *out[:2], type(out[2]), list(out[2]), type(out[3]), list(out[3]), *out[4:]

    compiled = f
    wanted = g(X, {1, 2, 3})
    compiled = tracer_core.compile(f, backend="eager")
    compare(wanted, g(X, {1, 2, 3}))
    compare(wanted, g(X, {1, 2, 3}))
    same(lambda x, box: f(x, box)[-1], (X, {1, 2, 3}), (X, {4, 5, 6}), breaks=None)


def test_operators_of_a_read_only_view():
    def f(x, table):
        view = types.MappingProxyType({"a": 1})
        kind = types.MappingProxyType
        actual = [
            kind.__eq__(view, 3),
            kind.__ne__(view, 3),
            view == table,
            kind.__or__(view, table),
            view | {"b": 2},
        ]
        try:
            kind.__or__(view, 3)
        except TypeError as error:
            actual.append(str(error))
        return x + 1, actual

    same(f, (X, {"a": 1}), (X, {"b": 1}), breaks=None)


@pytest.mark.parametrize(
    "key",
    [
        datetime.date(2020, 1, 2),
        (1, datetime.timedelta(2)),
        fractions.Fraction(1, 2),
        float("inf"),
        float("nan"),
        -0.0,
        torch.float32,
        torch.Size([2]),
        frozenset([1]),
        datetime.UTC,
    ],
    ids=str,
)
def test_keys_of_dictionaries_that_no_literal_writes(key):
    def f(x, table):
        actual = table.get(key, "no"), key in table
        try:
            actual = (*actual, table[key])
        except KeyError as error:
            actual = (*actual, error.args)
        table[key] = 5
        return x + 1, actual

    same(f, (X, {}), (X, {key: 2}), (X, {}), (X, {"a": 1, key: 3}), breaks=None)


def test_an_empty_dictionary_does_not_ask_for_a_hash():
    def f(x, table):
        try:
            return x + 1, table.pop([1], 2)
        except TypeError as error:
            return x, str(error)

    same(f, (X, {}), (X, {"a": 1}), (X, {}), breaks=None)


def test_a_view_of_the_entries_of_a_class():
    def f(x, cls):
        return x + 1, vars(cls)

    class Plain:
        a = 1

    out = tracer_core.compile(f, backend="eager")
    for cls in (Plain, Plain, Box):
        assert type(out(X, cls)[1]) is types.MappingProxyType and repr(out(X, cls)[1]) == repr(
            vars(cls)
        )


def test_iterables_given_by_name():
    def f(x, items):
        return (
            x + 1,
            list(itertools.combinations(iterable=items, r=2)),
            list(itertools.permutations(iterable=items)),
        )

    same(f, (X, [1, 2]), (X, [3, 2]), (X, [3, 2, 5]), breaks=None)


def test_a_slice_is_set_to_all_items_of_a_list_that_was_appended_to():
    def make():
        seen = [2, 3]

        def fn(x, items):
            seen.append(1)
            items[:1] = seen
            return x + 1, items

        return fn

    compare_with_eager(make, (X, [0, 1]), (X, [0, 1]), (X, [0, 1]))


def test_the_items_that_a_slice_is_set_to_are_guarded():
    def fn(x, items, values):
        items[:1] = values
        return x + 1, items

    for pair in (
        ([1], [1, 2]),
        ({5: 1}, {5: 1, 6: 2}),
        (range(1), range(3)),
        ("ab", "cd"),
        ([X], [X, X]),
    ):
        same(fn, *[(X, [0, 1], values) for values in pair], graphs=None, breaks=None)

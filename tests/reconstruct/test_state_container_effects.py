"""The order of changes to containers, exceptions among them, and what C code sees of a container."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.changed_containers import Reaction, held, outcome_of
from tests.support.eager_reference import View, compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
STEPS = ((X,), (X,), (Y,))


# -- order of effects and exceptions --


def test_raise_that_is_caught_inside():
    def make():
        log, o = [], types.SimpleNamespace(n=0)

        def g(x):
            o.n += 1
            log.append("in")
            raise ValueError(o.n)

        def f(x):
            try:
                g(x)
            except ValueError as error:
                log.append(error.args[0])
            else:
                log.append("never")
            finally:
                log.append("finally")
            return x * o.n

        return f, View(lambda: (list(log), o.n))

    compare_with_eager(make, *STEPS, breaks=0)


def test_raise_that_leaves_half_way():
    def make():
        log, o = [], types.SimpleNamespace(n=0)

        def f(x, stop):
            log.append(1)
            o.n += 1
            x.add_(1)
            if stop:
                raise KeyError("half", o.n)
            log.append(2)
            x.mul_(2)
            return x

        return f, View(lambda: (list(log), o.n))

    compare_with_eager(make, (X, True), (X, False), (X, True), (Y, False))


def test_operator_that_fails_half_way():
    def make():
        log = []

        def f(x, i):
            log.append("before")
            y = torch.index_select(x, 0, i)
            log.append("after")
            return y

        return f, log

    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    compare_with_eager(make, (X, good), (X, bad), (X, good))


def test_setitem_of_a_user_class_with_side_effects():
    class Log:
        def __init__(self):
            self.calls, self.data = [], {}

        def __setitem__(self, key, value):
            self.calls.append(("set", key))
            if key == "bad":
                raise KeyError(key)
            self.data[key] = value

        def __delitem__(self, key):
            self.calls.append(("del", key))
            del self.data[key]

    def change(x, log):
        log["a"] = x
        try:
            log["bad"] = 1
        except KeyError:
            log["b"] = len(log.calls)
        del log["a"]
        return x * log.data["b"]

    held(Log, change, lambda v: (v.calls, v.data))


def test_unpacking_into_places():
    def change(x, v):
        v["a"], *v["rest"], v["b"] = v["b"], 1, 2, v["a"]
        v["i"] = i = 0
        v["items"][i], i = x.shape[0], 1
        return x * v["items"][0] + i

    held(lambda: {"a": 1, "b": 2, "items": [5]}, change, dict)


def test_augmented_assignment_of_every_kind():
    def change(x, v):
        v["n"] += 1
        v["list"] += [x.shape[0]]
        v["list"] *= 2
        v["set"] |= {9}
        v["set"] -= {1}
        v["dict"] |= {"z": 1}
        v["text"] += "!"
        v["t"] += x
        v["t"] *= 2
        return v["t"] + v["n"]

    held(
        lambda: {"n": 1, "list": [], "set": {1, 2}, "dict": {}, "text": "", "t": torch.zeros(3,
        4)}, change, dict,
    )  # fmt: skip


def test_results_alias_what_is_kept():
    def make():
        kept = {}

        def f(x):
            kept["y"] = y = x + 1
            kept["pair"] = pair = [y, y[0]]
            return y, pair

        return f, View(lambda: (kept["y"] is kept["pair"][0], kept["pair"][1]._base is kept["y"]))

    compare_with_eager(make, *STEPS, graphs=1, breaks=0)


def test_sorted_in_place_by_key():
    def change(x, items):
        items.sort(key=lambda pair: -pair[1])
        items[0] = (x.shape[0], items[0][1] - 5)
        return x * items[0][1]

    held(lambda: [(1, 2), (3, 9), (2, 4)], change, list)


def test_same_function_changes_its_argument_and_a_global_list():
    shared = [1, 2]

    def f(x, items):
        items.append(len(shared))
        return x * items[-1]

    same(f, (X, [0]), (X, [5, 6]))


# -- what C code sees of a container --


class Number:
    """A key with a hash and an equality of its own, both of which may change."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        if self.number is None:
            raise ValueError("no number")
        return self.number

    def __eq__(self, other):
        return isinstance(other, Number) and self.number == other.number


@pytest.mark.parametrize("kind", [dict.fromkeys, set, frozenset, collections.OrderedDict.fromkeys])
@pytest.mark.parametrize("after", [2, None])
def test_keys_keep_the_hash_they_were_put_in_with(kind, after):
    def f(x):
        key, other = Number(1), Number(1)
        held = kind([key, Number(7)])
        key.number = after
        tracer_core.graph_break()
        actual = [
            outcome_of(lambda item=value: item in held) for value in (key, other, Number(7), 7)
        ]
        key.number = 1
        return x + len(held), actual, key in held

    same(f, (X,), (X,), breaks=None)


def test_keys_that_may_be_compared_are_put_in_once():
    calls = []

    class Same:
        def __hash__(self):
            return 0

        def __eq__(self, other):
            calls.append(type(other).__name__)
            return self is other

    def f(x):
        calls.clear()
        held = {Same() for _ in range(5)}
        count = len(calls)
        tracer_core.graph_break()
        return x + len(held), count, len(calls)

    same(f, (X,), (X,), breaks=None)


def test_frozen_keys_stay_in_one_graph():
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: int
        y: str

    def f(x):
        held = {Point(1, "a"): x, Point(2, "b"): x + 1}
        held[Point(1, "a")] = x * 2
        return held, {Point(3, "c")}

    same(f, (X,), (Y,), graphs=1)


@pytest.mark.parametrize("ask", [
    lambda items, others: items == others, lambda items, others: items < others,
    lambda items, others: items.count(3), lambda items, others: items.index(3),
    lambda items, others: 3 in items, lambda items, others: items.remove(3),
    lambda items, others: items.index(2, 2),
], ids=["eq", "lt", "count", "index", "contains", "remove", "index from"])  # fmt: skip
@pytest.mark.parametrize("kind", [list, collections.deque])
def test_comparisons_that_change_what_is_compared(kind, ask):
    def f(x):
        items, others = kind(), kind([5, 6, 2])
        items += [Reaction(items.clear), Reaction(others.clear), 2]
        return x + 1, outcome_of(lambda: ask(items, others)), len(items), len(others)

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize("kind", [tuple, frozenset, list, set])
def test_arguments_that_a_container_class_refuses(kind):
    class Plain(kind):
        pass

    class Taking(kind):
        def __init__(self, items, more=None):
            self.more = more

    def f(x):
        texts = [outcome_of(lambda: Plain(iterable=())), outcome_of(lambda: Plain((), ()))]
        taking = Taking([1, 2], more=3)
        return x + taking.more, texts, sorted(taking)

    same(f, (X,), (X,), breaks=None)


def test_text_is_formatted_before_the_other_operand_is_asked():
    class Text(collections.UserString):
        def __rmod__(self, other):
            return "never"

    empty = ""
    same(lambda x: (x + 1, "%s!" % Text("a"), outcome_of(lambda: empty % Text("a"))), (X,))


def test_a_library_function_changes_its_argument():
    insort = import_fresh("bisect", "_bisect").insort_right
    held(lambda: [1, 5], lambda x, items: insort(items, 3), list)


def import_fresh(name, without):
    """Returns a module as it is where a C module is missing."""
    kept = {value: sys.modules.pop(value, None) for value in (name, without)}
    sys.modules[without] = None
    try:
        return importlib.import_module(name)
    finally:
        sys.modules.update(kept)

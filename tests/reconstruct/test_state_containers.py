"""Containers that a program changes: each change happens once and in order, whatever shares the
container.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import importlib
import itertools
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, same, twin

X, Y = torch.randn(3, 4), torch.randn(3, 4)
STEPS = ((X,), (X,), (Y,))


def held(make_value, change, look=lambda v: v, *steps, **expected):
    """change(x, value) runs compiled; look(value) is compared after each call."""

    def make():
        value = make_value()
        return (lambda x: change(x, value)), View(lambda: look(value), value)

    expected.setdefault("breaks", 0)
    return twin(make, *(steps or STEPS), **expected)


# -- buffers --

BYTES = {
    "setitem": lambda x, b: b.__setitem__(0, (b[0] + 1) % 256),
    "append": lambda x, b: b.append(len(b)),
    "extend": lambda x, b: b.extend(b"zz"),
    "slice": lambda x, b: b.__setitem__(slice(0, 2), b"longer"),
    "delete": lambda x, b: b.__delitem__(0),
    "pop": lambda x, b: x * b.pop(),
    "iadd": lambda x, b: b.__iadd__(b"q") and None,
    "read": lambda x, b: (x * b[-1], len(b), list(b), 98 in b, bytes(b), b == bytearray(b"abcdef")),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytearray(name):
    held(lambda: bytearray(b"abcdef"), BYTES[name], bytes)


ARRAYS = {
    "setitem": lambda x, a: a.__setitem__(0, a[0] + 1),
    "append": lambda x, a: a.append(len(a)),
    "extend": lambda x, a: a.extend([7, 8]),
    "delete": lambda x, a: a.__delitem__(0),
    "pop": lambda x, a: x * a.pop(),
    "reverse": lambda x, a: a.reverse(),
    "read": lambda x, a: (x * a[-1], len(a), list(a), a.tolist(), sum(a)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_array(name):
    held(lambda: array.array("i", [3, 1, 2, 5]), ARRAYS[name], list)


def test_buffer_changed_elsewhere():
    held(
        lambda: bytearray(b"ab"),
        lambda x, b: x * b[0],
        bytes,
        (X,),
        lambda b: b.__setitem__(0, 5),
        (X,),
        recompiles=1,
    )


# -- order --


def test_default_dictionary_makes_entries():
    def change(x, d):
        d["a"].append(x + 1)
        d["b"]
        return len(d["a"])

    held(lambda: collections.defaultdict(list), change, dict)


@pytest.mark.parametrize("base", [collections.defaultdict, "with __setitem__"])
def test_a_factory_that_stores_under_the_key(base):
    """Late releases of 3.14 keep what it has stored, past the class's own __setitem__."""

    def fn(x):
        class Stored(collections.defaultdict):
            def __setitem__(self, key, value):
                seen.append(key)
                super().__setitem__(key, value)

        seen = []
        kind = collections.defaultdict if base is collections.defaultdict else Stored
        result = kind(lambda: result.setdefault(0, 1) + 1)
        return x, result[0], dict(result), result[1], seen

    same(fn, (torch.ones(2),), (torch.zeros(2),))


def test_counter():
    def change(x, c):
        c["a"] += 1
        c.update("bc")
        c.subtract({"a": 1})
        del c["zzz"]
        return x * c["b"] + c["missing"]

    held(lambda: collections.Counter("aab"), change, lambda c: list(c.items()))


def test_ordered_dictionary_moves():
    def change(x, d):
        d.move_to_end("a")
        d["d"] = x
        d.move_to_end("d", last=False)
        d["a"] = d.pop("b", 9)
        return x * len(d)

    held(lambda: collections.OrderedDict(a=1, b=2, c=3), change, lambda d: list(d.items()))


def test_dictionary_keys_deleted_and_set_again():
    def change(x, d):
        d["a"] = d.pop("a") + 1
        del d["b"]
        d["b"] = x
        return d["b"] * 2

    held(
        lambda: {"a": 1, "b": 2, "c": 3},
        change,
        lambda d: list(d.items()),
        (X,),
        lambda d: d.update(c=9),
        (X,),
    )


def test_dictionary_whose_other_entries_change():
    def change(x, d):
        d["out"] = x + 1
        return d["out"] * 2

    held(lambda: {"n": 1}, change, dict, (X,), lambda d: d.update(n=2), (X,), lambda d: d.clear(),
    (Y,),
         graphs=1, recompiles=0)  # fmt: skip


def test_dictionary_pop_of_a_tensor():
    def change(x, d):
        y = d.pop("t") + x
        d["t"] = y
        return y

    held(lambda: {"t": torch.ones(3, 4), "u": 1}, change, lambda d: list(d.items()), graphs=1)


def test_keys_equal_but_of_other_types():
    def change(x, d):
        d[True] = x
        d[2.0] = x.shape[0]
        return d[1] + d[2]

    held(lambda: {1: 0, 2: 0}, change, lambda d: list(d.items()))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_bounded_deque(n):
    def change(x, d):
        d.append(x.shape[0])
        d.extend([7, 8])
        d.appendleft(0)
        return len(d)

    held(lambda: collections.deque([1, 2, 3], maxlen=n), change, lambda d: (list(d), d.maxlen))


def test_bounded_deque_that_only_grows():
    def change(x, d):
        d.append(x + 1)
        return x * 2

    held(
        lambda: collections.deque(maxlen=2),
        change,
        list,
        (X,),
        (Y,),
        (X,),
        (Y,),
        graphs=1,
        recompiles=0,
    )


def test_set_that_only_grows():
    def change(x, s):
        s.add(x.shape[0])
        s.update((7, 8))
        return x * 2

    held(lambda: {1}, change, set, (X,), lambda s: s.add(99), (Y,), graphs=1, recompiles=0)


# -- sharing --


def test_two_containers_share_an_element():
    def make():
        shared = [0]
        a, b = [shared], {"s": shared}

        def f(x):
            a[0].append(1)
            b["s"][0] += 1
            a.append(b["s"])
            return x * shared[0]

        return f, View(lambda: (a, b, a[0] is b["s"], a[-1] is shared))

    twin(make, *STEPS, breaks=0)


def test_cyclic_containers():
    def make():
        a, b = [], {}
        a.append(b)
        b["a"] = a

        def f(x):
            a[0]["a"].append(x + 1)
            b["a"][0]["n"] = len(a)
            return x * len(b)

        return f, View(lambda: (len(a), b["n"], a[0] is b, b["a"] is a))

    twin(make, *STEPS, breaks=0)


def test_list_put_into_itself():
    held(
        lambda: [1],
        lambda x, v: v.append(v) or x * len(v),
        lambda v: (len(v), [i for i, e in enumerate(v) if e is v]),
    )


def test_argument_stored_and_changed_later():
    def make():
        kept = []

        def f(x, items):
            kept.append(items)
            items.append(x + 1)
            kept[0].append(len(kept))
            return len(items)

        return f, View(lambda: [len(k) for k in kept])

    twin(make, (X, [1]), (X, [1, 2]), (Y, []), breaks=0)


def test_mutable_defaults():
    def make():
        def f(x, acc=[], *, d={}):
            acc.append(len(acc))
            d["n"] = d.get("n", 0) + 1
            return x * len(acc) + d["n"]

        return f, View(lambda: (f.__defaults__, f.__kwdefaults__))

    twin(make, *STEPS, breaks=0)


# -- changes while iterating --


def test_list_changed_while_iterating():
    def change(x, items):
        for v in items:
            if v < 10:
                items.append(v * 10)
            if v == 2:
                items.remove(1)
        return x * len(items)

    held(lambda: [1, 2, 3], change, list)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, set, collections.deque])
def test_container_changed_while_iterating_raises(kind):
    def change(x, values):
        try:
            for v in values:
                if kind in (set, collections.deque):
                    getattr(values, "add" if kind is set else "append")(v + 1)
                else:
                    values[v + 1] = 1
        except RuntimeError as error:
            return str(error), x * len(values)

    held(lambda: kind({1: 2}), change, list)


def test_dictionary_changed_while_iterating_leaves():
    def change(x, d):
        for v in d:
            d[v + 1] = 1
        return x

    held(lambda: {1: 2}, change, dict)


def test_dictionary_values_replaced_while_iterating():
    def change(x, d):
        for k in d:
            d[k] = d[k] + 1
        for k, v in list(d.items()):
            d[v] = k
        return x * sum(d.values())

    held(
        lambda: {"a": 1, "b": 2},
        lambda x, d: [d.__setitem__(k, v + 1) for k, v in d.items()] and x,
        dict,
    )


# -- iterators that live on --


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda: iter([1, 2, 3, 4, 5]), id="list"),
        pytest.param(lambda: itertools.count(2), id="count"),
        pytest.param(lambda: (i for i in range(1, 9)), id="generator"),
        pytest.param(lambda: enumerate("abcdef"), id="enumerate"),
        pytest.param(lambda: map(int, "123456"), id="map"),
        pytest.param(lambda: itertools.cycle([1, 2]), id="cycle"),
        pytest.param(lambda: reversed([1, 2, 3, 4]), id="reversed"),
    ],
)
def test_iterator_from_outside(start):
    def change(x, it):
        value = next(it)
        return x * (value[0] if isinstance(value, tuple) else value)

    held(start, change, lambda it: None, breaks=None)


# -- subclasses --


def test_dict_subclass_with_its_own_setitem():
    class D(dict):
        def __setitem__(self, k, v):
            self.count = getattr(self, "count", 0) + 1
            super().__setitem__(k, v)

    def change(x, d):
        d["a"] = d["a"] + 1
        d["z"] = x
        return x * d["a"]

    held(lambda: D(a=1), change, lambda d: (list(d.items()), d.count))


def test_list_subclass_with_state():
    class L(list):
        def append(self, v):
            self.total = getattr(self, "total", 0) + 1
            super().append(v)

    def change(x, items):
        items.append(x)
        items.extend([1, 2])
        items[0] = 5
        return x * len(items) + items.total

    held(lambda: L([1]), change, lambda v: (list(v), v.total))


def test_set_subclass_with_state():
    class S(set):
        pass

    def change(x, s):
        s.add(len(s) + 5)
        s.mark = len(s)
        return x * len(s)

    held(lambda: S([1]), change, lambda s: (set(s), s.mark))


def test_dict_subclass_with_missing():
    class D(dict):
        def __missing__(self, key):
            self[key] = len(self)
            return self[key]

    held(lambda: D(a=1), lambda x, d: x * d["b"] + d["c"], lambda d: list(d.items()))


def test_user_mapping():
    class M(collections.abc.MutableMapping):
        def __init__(self):
            self.d, self.log = {}, []

        def __getitem__(self, k):
            return self.d[k]

        def __setitem__(self, k, v):
            self.log.append(k)
            self.d[k] = v

        def __delitem__(self, k):
            self.log.append(f"-{k}")
            del self.d[k]

        def __iter__(self):
            return iter(self.d)

        def __len__(self):
            return len(self.d)

    def change(x, m):
        m["a"] = x + 1
        m.update(b=2, c=3)
        m.pop("b")
        m.setdefault("d", 4)
        return m["a"] * len(m)

    held(M, change, lambda m: (list(m.d.items()), m.log))


def test_namespaces_nested():
    def change(x, s):
        s.inner.items.append(x.shape[0])
        s.inner.count += 1
        s.other = s.inner
        return x * s.other.count

    held(
        lambda: types.SimpleNamespace(inner=types.SimpleNamespace(items=[], count=0)), change,
        lambda s: (list(s.inner.items), s.inner.count, s.other is s.inner),
    )  # fmt: skip


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

    twin(make, *STEPS, breaks=0)


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

    twin(make, (X, True), (X, False), (X, True), (Y, False))


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
    twin(make, (X, good), (X, bad), (X, good))


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

    twin(make, *STEPS, graphs=1, breaks=0)


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


class Reaction:
    """Equals nothing, and calls a function when it is compared."""

    def __init__(self, act):
        self.act = act

    def __eq__(self, other):
        self.act()
        return NotImplemented


def outcome_of(ask):
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error)


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

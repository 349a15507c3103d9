"""Containers that a program changes: each change happens once and in order, whatever shares the
container.
"""

from __future__ import annotations

import array
import collections
import itertools
import types

import pytest
import torch

from tests.support.changed_containers import held
from tests.support.eager_reference import View, compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
STEPS = ((X,), (X,), (Y,))
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

    compare_with_eager(make, *STEPS, breaks=0)


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

    compare_with_eager(make, *STEPS, breaks=0)


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

    compare_with_eager(make, (X, [1]), (X, [1, 2]), (Y, []), breaks=0)


def test_mutable_defaults():
    def make():
        def f(x, acc=[], *, d={}):
            acc.append(len(acc))
            d["n"] = d.get("n", 0) + 1
            return x * len(acc) + d["n"]

        return f, View(lambda: (f.__defaults__, f.__kwdefaults__))

    compare_with_eager(make, *STEPS, breaks=0)


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

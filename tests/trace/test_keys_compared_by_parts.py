"""Keys and elements that are no one object: bound methods and weak references, of which each access
makes a new one and C code compares what they are made of, and tuples whose numbers vary.
"""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

import tracer_core

X = torch.zeros(1)
#: Which of three objects a container holds, and which one is looked up.
CALLS = [
    (holding, number)
    for holding in ((0, 1), (1, 2), (2,), (), (0, 1))
    for number in (0, 1, 2, 1)
]  # fmt: skip


class Stage:
    def forward(self):
        return 1

    def backward(self):
        return 2


class Named:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


class Buffer:
    """Its methods are those of a list, which are C functions."""

    def __init__(self):
        items = [1]
        self.forward, self.backward = items.append, items.extend


def compare_calls(f, calls):
    """Compares calls that get these very objects, and what they make of the containers."""
    fast = tracer_core.compile(f, backend="eager")
    for container, item in calls:
        want, got = copy.copy(container), copy.copy(container)
        assert fast(got, item, X).tolist() == f(want, item, X).tolist()
        assert got == want


METHODS = {
    "in a dict": (lambda d, s, x: x + (s.forward in d), lambda ss: {s.forward: 1 for s in ss}),
    "another": (lambda d, s, x: x + (s.backward in d), lambda ss: {s.forward: 1 for s in ss}),
    "get": (lambda d, s, x: x + d.get(s.forward, 5), lambda ss: {s.forward: 1 for s in ss}),
    "pop": (lambda d, s, x: x + d.pop(s.forward, 5), lambda ss: {s.forward: 1 for s in ss}),
    "in a key": (lambda d, s, x: x + ((s.forward, 1) in d), lambda ss: {(s.forward, 1): 1 for s in ss}),
    "in a list": (lambda d, s, x: x + (s.forward in d), lambda ss: [s.forward for s in ss]),
    "a new set": (lambda d, s, x: x + len({s.forward, *d}), lambda ss: [s.forward for s in ss]),
    "equal": (lambda d, s, x: x + (s.forward == d[0]), lambda ss: [s.forward for s in ss] or [1]),
    "unequal": (lambda d, s, x: x + (s.forward != d[-1]), lambda ss: [s.forward for s in ss] or [1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", [Stage, Buffer])
@pytest.mark.parametrize("name", METHODS)
def test_bound_methods_are_compared_by_their_objects(name, kind):
    f, make = METHODS[name]
    stages = [kind() for _ in range(3)]
    compare_calls(f, [(make([stages[i] for i in held]), stages[i]) for held, i in CALLS])


WEAK = {
    "in": lambda d, k, x: x + (k in d),
    "get": lambda d, k, x: x + d.get(k, 0),
    "reference": lambda d, k, x: x + (weakref.ref(k) in d.data),
}


@pytest.mark.parametrize("kind", [Stage, Named])
@pytest.mark.parametrize("name", WEAK)
def test_weak_keys_are_compared_by_what_they_refer_to(name, kind):
    f = WEAK[name]
    fast = tracer_core.compile(f, backend="eager")
    keys = [kind(i) if kind is Named else kind() for i in range(3)]
    for holding, number in CALLS:
        held = weakref.WeakKeyDictionary({keys[i]: 1 for i in holding})
        assert fast(held, keys[number], X).tolist() == [number in holding]
    held = weakref.WeakKeyDictionary({key: 1 for key in keys[:2]})
    last = keys.pop()
    assert fast(held, last, X).tolist() == [False]
    keys.clear()
    gc.collect()
    held[last] = 1
    assert fast(held, last, X).tolist() == [True]


TUPLES = {
    "is": lambda known, shape, x: x + (shape is known[1]),
    "equal lists": lambda known, shape, x: x + (known == [known[0], shape]),
    "count": lambda known, shape, x: x + known.count(shape),
    "index": lambda known, shape, x: x + (known.index(shape) if shape in known else 9),
}


@pytest.mark.parametrize("kind", [tuple, torch.Size])
@pytest.mark.parametrize("name", TUPLES)
def test_a_tuple_that_varies_is_an_element(name, kind):
    a, b, c, d, equal = (kind([i, 7]) for i in (1, 2, 3, 4, 4))
    calls = [
        ([a, b], c), ([a, b], b), ([a, b], c), ([a, b], a), ([a, b], d), ([c, d], d), ([c, d], a),
        ([a, equal], d),
    ]  # fmt: skip
    compare_calls(TUPLES[name], calls)


def test_memory_is_compared_by_its_contents():
    data = memoryview(b"ab")
    views = {key: memoryview(key) for key in (b"ab", b"cd")}
    views["same"] = data
    compare_calls(lambda known, item, x: x + (known[0] == item), [
        ([views[key]], data) for key in ("same", b"ab", b"cd")
    ])  # fmt: skip


@pytest.mark.parametrize("kind", [Stage, Buffer, lambda: lambda: 0])
def test_a_set_that_an_object_is_added_to_is_read(kind):
    def see(seen, stage, x):
        seen.add(stage)
        x = x + len(seen)
        return x + (stage in seen)

    stages = [kind() for _ in range(3)]
    compare_calls(see, [({stages[i] for i in held}, stages[i]) for held, i in CALLS])

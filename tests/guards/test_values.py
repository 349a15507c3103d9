"""One case a fact about Python values, containers, objects, classes and functions that a trace
relies on.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import inspect
import math
import os
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import module
from tests.support.guard_facts import Box, Facts, check

fact = Facts()


def attribute(before, after, program=lambda x, v: x * v, name="k"):
    """A program that reads one attribute of an object, which then changes."""

    def make():
        b = Box(**{name: before})
        return (lambda x: program(x, getattr(b, name))), lambda: setattr(b, name, after)

    return make


def full(x, v):
    return torch.full((2,), v)


class Colour(str, enum.Enum):  # noqa: UP042 (as users write it)
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


VALUES = {
    "int": (2, 3),
    "int to bool": (1, True, full),
    "bool to int": (True, 1, full),
    "int to float": (1, 1.0, full),
    "float": (0.5, 0.25),
    "zero to minus zero": (0.0, -0.0, lambda x, v: 1.0 / torch.full((2,), v)),
    "minus zero to zero": (-0.0, 0.0, lambda x, v: 1.0 / torch.full((2,), v)),
    "number to NaN": (1.0, float("nan"), full),
    "NaN to number": (float("nan"), 1.0, full),
    "sign of NaN": (math.nan, -math.nan, lambda x, v: x * math.copysign(1.0, v)),
    "infinity": (float("inf"), float("-inf"), full),
    "complex": (1 + 2j, 1 + 3j),
    "complex with minus zero": (complex(0.0, 1), complex(-0.0, 1), lambda x,
    v: x * math.copysign(1.0, v.real)),
    "None to a value": (None, 2, lambda x, v: x if v is None else x * v),
    "value to None": (2, None, lambda x, v: x if v is None else x * v),
    "str": ("relu", "tanh", lambda x, v: getattr(torch, v)(x)),
    "bytes": (b"ab", b"cde", lambda x, v: x * len(v)),
    "large int": (2**70, 2**70 + 2, lambda x, v: x * (v % 10)),
    "range": (range(3), range(4), lambda x, v: x * sum(v)),
    "step of an empty range": (range(0, 0, 2), range(0, 0, 3), lambda x, v: x * v.step),
    "tuple": ((1, 2), (1, 3), lambda x, v: x * v[1]),
    "tuple grows": ((1, 2), (1, 2, 3), lambda x, v: x * sum(v)),
    "nested tuple": ((1, (2, 3)), (1, (2, 4)), lambda x, v: x * v[1][1]),
    "one to True in a nested tuple": ((1, (2, 1)), (1, (2, True)), lambda x, v: torch.full((2,),
    v[1][1])),
    "frozenset": (frozenset({1, 2}), frozenset({1, 3}), lambda x, v: x * sum(sorted(v))),
    "minus zero in a frozenset": (frozenset({0.0}), frozenset({-0.0}), lambda x,
    v: x * math.copysign(1.0, min(v))),
    "one to True in a slice": (slice(0, 1), slice(0, True), lambda x, v: torch.full((2,), v.stop)),
    "slice": (slice(0, 2), slice(0, 1), lambda x, v: x[v] * 2),
    "dtype": (torch.float32, torch.float64, lambda x, v: x.to(v)),
    "device": (torch.device("cpu"), torch.device("meta"), lambda x,
    v: x * 2 if v.type == "cpu" else x),
    "size": (torch.Size([12]), torch.Size([4, 3]), lambda x, v: x.reshape(v)),
    "memory format": (
        torch.contiguous_format, torch.channels_last,
        lambda x, v: x.reshape(1, 3, 2, 2).contiguous(memory_format=v)),
    "enum": (Flags.A, Flags.B, lambda x, v: x * v.value),
    "str enum": (Colour.RED, Colour.BLUE, lambda x, v: x * 2 if v == "r" else x * 3),
    "str enum to str": (Colour.RED, "r", lambda x, v: x * 2 if isinstance(v, Colour) else x * 3),
    "int enum": (Level.LOW, Level.HIGH, lambda x, v: x * int(v.value)),
    "int enum to int": (Level.LOW, 1, lambda x, v: x * 2 if type(v) is int else x * 3),
    "type": (int, float, lambda x, v: x * v(2.5)),
    "function": (torch.relu, torch.sigmoid, lambda x, v: v(x)),
    "lambda": (lambda t: t + 1, lambda t: t - 1, lambda x, v: v(x)),
    "list to tuple": ([1, 2], (1, 2), lambda x, v: x * (2 if isinstance(v, list) else 3)),
    "dict to ordered dict": (
        {"a": 1}, collections.OrderedDict(a=1), lambda x, v: x * (2 if type(v) is dict else 3)),
    "Ellipsis": (..., None, lambda x, v: x[v] * 2),
    "partial": (functools.partial(torch.add, other=1), functools.partial(torch.add, other=2),
    lambda x, v: v(x)),
    "tensor to number": (torch.tensor(2.0), 3.0),
    "tensor to another": (torch.ones(4), torch.full((3, 1), 2.0)),
}  # fmt: skip
for _name, _values in VALUES.items():
    fact(f"value: {_name}", told="k")(attribute(*_values))


# -- containers --


@fact("list: item replaced", told="items[0]")
def _():
    items = [1, 2]
    return (lambda x: x * items[0]), lambda: items.__setitem__(0, 5)


@fact("list: item appended", told="items")
def _():
    items = [1, 2]
    return (lambda x: sum((x * i for i in items), x)), lambda: items.append(5)


@fact("list: order", told="items")
def _():
    items = [1, 2]
    return (lambda x: x ** items[0] * items[1]), lambda: items.reverse()


@fact("list: a tensor in it replaced by one of another dtype", told="items[0]")
def _():
    items = [torch.ones(4)]
    return (lambda x: x.double() + items[0]), lambda: items.__setitem__(
        0, torch.full((4,), 2.5).double()
    )


@fact("list: the same object twice", told="items[1]")
def _():
    a, b = Box(k=1), Box(k=1)
    items = [a, a]

    def program(x):
        return x * (2 if items[0] is items[1] else 3)

    return program, lambda: items.__setitem__(1, b)


@fact("list: different objects become the same", told="items[1]")
def _():
    a, b = Box(k=1), Box(k=1)
    items = [a, b]

    def program(x):
        return x * (2 if items[0] is items[1] else 3)

    return program, lambda: items.__setitem__(1, a)


@fact("list: a number in a nested list", told="items[1]")
def _():
    items = [[1], [2]]
    return (lambda x: x * items[1][0]), lambda: items[1].__setitem__(0, 7)


@fact("dict: value", told="d.a")
def _():
    d = {"a": 1}
    return (lambda x: x * d["a"]), lambda: d.update(a=4)


@fact("dict: key appears", told="d")
def _():
    d = {"a": 1}
    return (lambda x: x * d.get("b", 3)), lambda: d.update(b=4)


@fact("dict: key disappears", told="d")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: x * d.get("b", 3)), lambda: d.pop("b")


@fact("dict: order of keys", told="d")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: x ** next(iter(d.values()))), lambda: d.update(a=d.pop("a"))


@fact("dict: key of equal value and another type", told="d")
def _():
    d = {1: 2}

    def change():
        d.clear()
        d[True] = 2

    return (lambda x: [torch.full((2,), k) for k in d]), change


@fact("dict: int keys", told="d[3]")
def _():
    d = {3: 2}
    return (lambda x: x * d[3]), lambda: d.update({3: 5})


@fact("dict: tuple keys", told="d")
def _():
    d = {(1, "a"): 2}
    return (lambda x: x * d[1, "a"]), lambda: d.update({(1, "a"): 5})


@fact("dict replaced by an equal one with another value", told="b.d")
def _():
    b = Box(d={"a": 1})
    return (lambda x: x * b.d["a"]), lambda: setattr(b, "d", {"a": 2})


@fact("set: member added", told="s")
def _():
    s = {1}
    return (lambda x: x if 2 in s else -x), lambda: s.add(2)


@fact("set: truth", told="s")
def _():
    s = {1}
    return (lambda x: x if s else -x), lambda: s.clear()


@fact("deque: item", told="d")
def _():
    d = collections.deque([1, 2])
    return (lambda x: x * d[0]), lambda: d.rotate(1)


@fact("deque: length", told="d")
def _():
    d = collections.deque([1, 2])
    return (lambda x: x * len(d)), lambda: d.append(1)


@fact("ordered dict: order", told="d")
def _():
    d = collections.OrderedDict(a=1, b=2)
    return (lambda x: x ** list(d.values())[0]), lambda: d.move_to_end("a")


@fact("default dict: key", told="d")
def _():
    d = collections.defaultdict(int, a=1)
    return (lambda x: x * (d["a"] + 1)), lambda: d.update(a=4)


@fact("namedtuple: field", told="p")
def _():
    P = collections.namedtuple("P", "a b")
    b = Box(p=P(1, 2))
    return (lambda x: x * b.p.a), lambda: setattr(b, "p", P(3, 2))


@fact("dataclass: field", told="a")
def _():
    @dataclasses.dataclass
    class D:
        a: int = 1

    d = D()
    return (lambda x: x * d.a), lambda: setattr(d, "a", 3)


@fact("frozen dataclass replaced", told="d")
def _():
    @dataclasses.dataclass(frozen=True)
    class D:
        a: int = 1

    b = Box(d=D())
    return (lambda x: x * b.d.a), lambda: setattr(b, "d", D(3))


@fact("object with slots", told="a")
def _():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 1
    return (lambda x: x * s.a), lambda: setattr(s, "a", 2)


@fact("slot becomes unset")
def _():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 5
    return (lambda x: x * getattr(s, "a", 2)), lambda: delattr(s, "a")


@fact("slot becomes set")
def _():
    class S:
        __slots__ = ("a",)

    s = S()
    return (lambda x: x * getattr(s, "a", 2)), lambda: setattr(s, "a", 5)


# -- objects and classes --


@fact("object: __class__ replaced", told="b")
def _():
    class A:
        k = 2

    class B:
        k = 3

    b = A()
    return (lambda x: x * b.k), lambda: setattr(b, "__class__", B)


@fact("object: __class__ replaced, seen by isinstance", told="b")
def _():
    class A:
        pass

    class B(A):
        pass

    b = A()
    return (lambda x: x * (2 if isinstance(b, B) else 3)), lambda: setattr(b, "__class__", B)


@fact("object: attribute deleted", told="b")
def _():
    b = Box(k=2)
    return (lambda x: x * getattr(b, "k", 7)), lambda: delattr(b, "k")


@fact("object: __dict__ replaced", told="k")
def _():
    b = Box(k=2)
    return (lambda x: x * b.k), lambda: setattr(b, "__dict__", {"k": 5})


@fact("object: same attribute on two objects becomes one object", told="q")
def _():
    box, two = Box(k=1), Box(k=1)
    p, q = Box(o=box), Box(o=two)
    return (lambda x: x * (2 if p.o is q.o else 3)), lambda: setattr(q, "o", box)


@fact("class: attribute", told="k")
def _():
    cls = type("C", (), {"k": 2})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", 3)


@fact("class: attribute of a base", told="k")
def _():
    base = type("B", (), {"k": 2})
    b = type("C", (base,), {})()
    return (lambda x: x * b.k), lambda: setattr(base, "k", 3)


@fact("class: subclass shadows a base", told="k")
def _():
    base = type("B", (), {"k": 2})
    cls = type("C", (base,), {})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", 3)


@fact("class: method replaced", told="go")
def _():
    cls = type("C", (), {"go": lambda self, x: x + 1})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(cls, "go", lambda self, x: x - 1)


@fact("class: method overridden on the instance", told="go")
def _():
    cls = type("C", (), {"go": lambda self, x: x + 1})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(b, "go", lambda x: x - 1)


@fact("class: property replaced", told="k")
def _():
    cls = type("C", (), {"k": property(lambda self: 2)})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", property(lambda self: 3))


@fact("class: static method replaced", told="go")
def _():
    cls = type("C", (), {"go": staticmethod(lambda x: x + 1)})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(cls, "go", staticmethod(lambda x: x - 1))


@fact("class: class method replaced", told="go")
def _():
    cls = type("C", (), {"go": classmethod(lambda c, x: x + 1)})
    return (lambda x: cls.go(x)), lambda: setattr(cls, "go", classmethod(lambda c, x: x - 1))


@fact("class: __bases__ replaced", told="__mro__")
def _():
    class A:
        k = 2

    class B:
        k = 3

    class C(A):
        pass

    b = C()
    return (lambda x: x * b.k), lambda: setattr(C, "__bases__", (B,))


@fact("class: __bases__ replaced, seen by isinstance", told="__mro__")
def _():
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    b = C()
    return (lambda x: x * (2 if isinstance(b, A) else 3)), lambda: setattr(C, "__bases__", (B,))


@fact("class: a list on it", told="items")
def _():
    cls = type("C", (), {"items": [1, 2]})
    b = cls()
    return (lambda x: x * sum(b.items)), lambda: cls.items.append(4)


@fact("class: a tensor on it", told="t")
def _():
    cls = type("C", (), {"t": torch.ones(4)})
    b = cls()
    return (lambda x: x * b.t), lambda: setattr(cls, "t", torch.ones(3, 1) * 2)


@fact("metaclass: attribute", told="k")
def _():
    meta = type("M", (type,), {"k": 2})
    cls = meta("C", (), {})
    return (lambda x: x * cls.k), lambda: setattr(meta, "k", 3)


@fact("metaclass: __call__ appears")
def _():
    meta = type("M", (type,), {})
    cls = meta("C", (), {"k": 2})

    def gain():
        meta.__call__ = lambda c, *a: Box(k=7)

    return (lambda x: x * cls().k), gain


@fact("class: __instancecheck__ appears")
def _():
    meta = type("M", (type,), {})
    cls = meta("C", (), {})
    b = Box()

    def gain():
        meta.__instancecheck__ = lambda c, o: True

    return (lambda x: x * (2 if isinstance(b, cls) else 3)), gain


@fact("class: __new__ appears")
def _():
    cls = type("C", (), {"k": 2})

    def gain():
        cls.__new__ = lambda c: Box(k=9)

    return (lambda x: x * cls().k), gain


@fact("class: __bool__ appears")
def _():
    cls = type("C", (), {})
    b = cls()
    return (lambda x: x * (2 if b else 3)), lambda: setattr(cls, "__bool__", lambda self: False)


@fact("class: __hash__ and __eq__ of a key", breaks=None)
def _():
    class K:
        n = 1

        def __hash__(self):
            return self.n

        def __eq__(self, other):
            return self.n == other.n

    a, b = K(), K()
    d = {a: 2}
    return (lambda x: x * d.get(b, 3)), (lambda: setattr(b, "n", 5))


@fact("descriptor: its own state", told="k")
def _():
    class D:
        k = 2

        def __get__(self, obj, cls):
            return self.k

    d = D()
    cls = type("C", (), {"v": d})
    b = cls()
    return (lambda x: x * b.v), lambda: setattr(d, "k", 5)


@fact("descriptor becomes a data descriptor")
def _():
    class D:
        def __get__(self, obj, cls):
            return 5

    cls = type("C", (), {"v": D()})
    b = cls()
    b.__dict__["v"] = 2
    return (lambda x: x * b.v), lambda: setattr(D, "__set__", lambda *a: None)


@fact("class gains a data descriptor over an instance attribute", told="k")
def _():
    cls = type("C", (), {})
    b = cls()
    b.k = 2
    return (lambda x: x * b.k), lambda: setattr(cls, "k", property(lambda self: 9))


@fact("super(): method of a base replaced", told="go")
def _():
    class A:
        def go(self, x):
            return x + 1

    class B(A):
        def go(self, x):
            return super().go(x) * 2

    b = B()
    return (lambda x: b.go(x)), lambda: setattr(A, "go", lambda self, x: x - 1)


@fact("enum member's value read through the class")
def _():
    class E(enum.Enum):
        A = 1

    return (lambda x: x * E.A.value), lambda: setattr(E.A, "_value_", 5)


# -- functions --


@fact("function: __code__", told="__code__")
def _():
    def g(x):
        return x + 1

    return (lambda x: g(x)), lambda: setattr(g, "__code__", (lambda x: x - 1).__code__)


@fact("function: __defaults__", told="__defaults__")
def _():
    def g(x, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__defaults__", (3,))


@fact("function: __defaults__ removed", breaks=None)
def _():
    def g(x, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__defaults__", None)


@fact("function: a mutable default", told="__defaults__")
def _():
    def g(x, k=[2]):
        return x * k[0]

    return (lambda x: g(x)), lambda: g.__defaults__[0].__setitem__(0, 3)


@fact("function: __kwdefaults__", told="k")
def _():
    def g(x, *, k=2):
        return x * k

    return (lambda x: g(x)), lambda: g.__kwdefaults__.update(k=3)


@fact("function: __kwdefaults__ replaced", told="k")
def _():
    def g(x, *, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__kwdefaults__", {"k": 3})


@fact("function: number of positional defaults", told="")
def _():
    def g(x, a=1, b=2):
        return x * a + b

    return (lambda x: g(x, 5)), lambda: setattr(g, "__defaults__", (7,))


@fact("closure cell", told="k")
def _():
    k = 2

    def g(x):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g.__closure__[0], "cell_contents", 3)


@fact("own closure cell of the compiled function", told="k")
def _():
    k = 2

    def g(x):
        return x * k

    return g, lambda: setattr(g.__closure__[0], "cell_contents", 3)


@fact("closure cell becomes empty")
def _():
    k = 2

    def g(x):
        return x * k

    def empty():
        del g.__closure__[0].cell_contents

    return g, empty


@fact("nonlocal changed by a sibling", told="k")
def _():
    k = 2

    def more():
        nonlocal k
        k += 1

    return (lambda x: x * k), more


@fact("own __code__ of the compiled function")
def _():
    def g(x):
        return x + 1

    return g, lambda: setattr(g, "__code__", (lambda x: x - 1).__code__)


@fact("own __defaults__ of the compiled function")
def _():
    def g(x, k=2):
        return x * k

    return g, lambda: setattr(g, "__defaults__", (3,))


@fact("own __kwdefaults__ of the compiled function")
def _():
    def g(x, *, k=2):
        return x * k

    return g, lambda: g.__kwdefaults__.update(k=3)


@fact("bound method: its object", told="k")
def _():
    class C:
        def __init__(self, k):
            self.k = k

        def go(self, x):
            return x * self.k

    b = Box(m=C(2).go)
    return (lambda x: b.m(x)), lambda: setattr(b, "m", C(5).go)


@fact("function wrapped by functools.wraps")
def _():
    def inner(x):
        return x + 1

    @functools.wraps(inner)
    def outer(x):
        return outer.__wrapped__(x) * 2

    return (lambda x: outer(x)), lambda: setattr(outer, "__wrapped__", lambda x: x - 1)


# -- globals, builtins, modules --


@fact("global: value", told="SCALE")
def _():
    m = module("SCALE = 2\ndef f(x):\n    return x * SCALE\n")
    return m.f, lambda: setattr(m, "SCALE", 3)


@fact("global: deleted")
def _():
    m = module("SCALE = 2\ndef f(x):\n    return x * SCALE\n")
    return m.f, lambda: delattr(m, "SCALE")


@fact("global: function replaced", told="g")
def _():
    m = module("def g(x):\n    return x + 1\ndef f(x):\n    return g(x)\n")
    return m.f, lambda: setattr(m, "g", lambda x: x - 1)


@fact("global shadows a builtin", told="len")
def _():
    m = module("def f(x):\n    return x * len([1, 2])\n")
    return m.f, lambda: setattr(m, "len", lambda items: 7)


@fact("global shadows a builtin in a nested call", told="max")
def _():
    m = module("def g(x):\n    return max(1, 2)\ndef f(x):\n    return x * g(x)\n")
    return m.f, lambda: setattr(m, "max", lambda *a: 7)


@fact("builtin replaced", breaks=None)
def _():
    m = module("def f(x):\n    return x * pow(2, 3)\n")
    original = pow
    return (
        m.f,
        (lambda: setattr(builtins, "pow", lambda a, b: original(a, b) + 1)),
        (lambda: setattr(builtins, "pow", original)),
    )


@fact("builtin added", told="tracer_added")
def _():
    m = module(
        "def f(x):\n    try:\n        return x * tracer_added\n    except NameError:\n        return x\n"
    )
    return (
        m.f,
        lambda: setattr(builtins, "tracer_added", 3),
        lambda: delattr(builtins, "tracer_added"),
    )


@fact("module: attribute", told="k")
def _():
    m = module("k = 2\n")
    return (lambda x: x * m.k), lambda: setattr(m, "k", 3)


@fact("module: what its __getattr__ returns", told="VALUES")
def _():
    m = module(
        "VALUES = {'k': 2}\ndef __getattr__(name):\n    if name in VALUES:\n"
        "        return VALUES[name]\n    raise AttributeError(name)\n"
    )
    return (lambda x: x * m.k), lambda: m.VALUES.update(k=3)


@fact("module: its __getattr__ is set", told="__getattr__")
def _():
    m = module("")
    return (lambda x: x * getattr(m, "k", 2)), lambda: setattr(m, "__getattr__", lambda name: 3)


@fact("torch.Tensor: what a property of the program reads", told="SCALE")
def _():
    m = module("SCALE = 2\nscaled = property(lambda x: x * SCALE)\n")
    torch.Tensor.test_scaled = m.scaled
    return (
        lambda x: x.test_scaled,
        lambda: setattr(m, "SCALE", 3),
        lambda: delattr(torch.Tensor, "test_scaled"),
    )


@fact("class: its members are listed", breaks=None)
def _():
    class C:
        k = 2

    return (lambda x: x * dict(inspect.getmembers(C))["k"]), lambda: setattr(C, "k", 3)


@fact("class: an attribute is looked up statically", breaks=None)
def _():
    class C:
        k = 2

    return (lambda x: x * inspect.getattr_static(C, "k")), lambda: setattr(C, "k", 3)


@fact("module: torch's function replaced", told="relu")
def _():
    original = torch.relu
    return (
        (lambda x: torch.relu(x)),
        (lambda: setattr(torch, "relu", lambda x: x * 5)),
        (lambda: setattr(torch, "relu", original)),
    )


@fact("module: function of torch.nn.functional replaced", told="relu")
def _():
    original = torch.nn.functional.relu
    return (
        (lambda x: torch.nn.functional.relu(x)),
        (lambda: setattr(torch.nn.functional, "relu", lambda x, inplace=False: x * 5)),
        (lambda: setattr(torch.nn.functional, "relu", original)),
    )


@fact("module: function of torch.nn.functional replaced, used by a module", told="relu")
def _():
    original = torch.nn.functional.relu
    net = torch.nn.ReLU()
    return (
        (lambda x: net(x)),
        (lambda: setattr(torch.nn.functional, "relu", lambda x, inplace=False: x * 5)),
        (lambda: setattr(torch.nn.functional, "relu", original)),
    )


@fact("class: method of Tensor replaced")
def _():
    torch.Tensor.tracer_method = lambda self: self + 1
    return (
        (lambda x: x.tracer_method()),
        (lambda: setattr(torch.Tensor, "tracer_method", lambda self: self - 1)),
        (lambda: delattr(torch.Tensor, "tracer_method")),
    )


@fact("class: torch's own method of Tensor replaced")
def _():
    original = torch.Tensor.relu
    return (
        (lambda x: x.relu()),
        (lambda: setattr(torch.Tensor, "relu", lambda self: self * 5)),
        (lambda: setattr(torch.Tensor, "relu", original)),
    )


@fact("class: operator of Tensor replaced")
def _():
    original = torch.Tensor.__add__
    return (
        (lambda x: x + 1),
        (lambda: setattr(torch.Tensor, "__add__", lambda self, other: self * 5)),
        (lambda: setattr(torch.Tensor, "__add__", original)),
    )


@fact("module: function of math replaced", told="sqrt")
def _():
    original = math.sqrt
    return (
        (lambda x: x * math.sqrt(4.0)),
        (lambda: setattr(math, "sqrt", lambda v: 7.0)),
        (lambda: setattr(math, "sqrt", original)),
    )


@fact("sys.modules: entry replaced, seen by an import in the function")
def _():
    sys.modules["tracer_swapped"] = item = types.ModuleType("tracer_swapped")
    item.k = 2
    two = types.ModuleType("tracer_swapped")
    two.k = 3

    def program(x):
        import tracer_swapped

        return x * tracer_swapped.k

    return (
        program,
        (lambda: sys.modules.update(tracer_swapped=two)),
        (lambda: sys.modules.pop("tracer_swapped")),
    )


@fact("sys.modules: the module of the compiled function replaced")
def _():
    m = module("SCALE = 2\nN = [0]\ndef f(x):\n    return x * SCALE + N[0]\n")
    other = types.ModuleType(m.__name__)
    other.__dict__.update(torch=torch, SCALE=5, N=[1], f=m.f)

    def change():
        sys.modules[m.__name__] = other
        m.SCALE = 3

    return m.f, change, lambda: sys.modules.pop(m.__name__)


@fact("environment variable")
def _():
    os.environ["TRACER_TEST_FACT"] = "2"
    return (
        (lambda x: x * int(os.environ["TRACER_TEST_FACT"])),
        (lambda: os.environ.update(TRACER_TEST_FACT="3")),
        (lambda: os.environ.pop("TRACER_TEST_FACT")),
    )


@fact("environment variable through os.getenv")
def _():
    os.environ["TRACER_TEST_FACT"] = "2"
    return (
        (lambda x: x * int(os.getenv("TRACER_TEST_FACT", "9"))),
        (lambda: os.environ.pop("TRACER_TEST_FACT")),
        (lambda: os.environ.pop("TRACER_TEST_FACT", None)),
    )


@fact("recursion: a function's own limit", told="DEPTH")
def _():
    m = module(
        "DEPTH = 3\ndef g(x, n):\n    return x if n == DEPTH else g(x + n, n + 1)\ndef f(x):\n    return g(x, 0)\n"
    )
    return m.f, lambda: setattr(m, "DEPTH", 4)


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))

"""One case a fact about Python values, containers, objects, classes and functions that a trace
relies on.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math

import pytest
import torch

import tracer_core
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
    fact(f"value: {_name}", reason="k")(attribute(*_values))


# -- containers --


@fact("list: item replaced", reason="items[0]")
def _():
    items = [1, 2]
    return (lambda x: x * items[0]), lambda: items.__setitem__(0, 5)


@fact("list: item appended", reason="items")
def _():
    items = [1, 2]
    return (lambda x: sum((x * i for i in items), x)), lambda: items.append(5)


@fact("list: order", reason="items")
def _():
    items = [1, 2]
    return (lambda x: x ** items[0] * items[1]), lambda: items.reverse()


@fact("list: a tensor in it replaced by one of another dtype", reason="items[0]")
def _():
    items = [torch.ones(4)]
    return (lambda x: x.double() + items[0]), lambda: items.__setitem__(
        0, torch.full((4,), 2.5).double()
    )


@fact("list: the same object twice", reason="items[1]")
def _():
    a, b = Box(k=1), Box(k=1)
    items = [a, a]

    def program(x):
        return x * (2 if items[0] is items[1] else 3)

    return program, lambda: items.__setitem__(1, b)


@fact("list: different objects become the same", reason="items[1]")
def _():
    a, b = Box(k=1), Box(k=1)
    items = [a, b]

    def program(x):
        return x * (2 if items[0] is items[1] else 3)

    return program, lambda: items.__setitem__(1, a)


@fact("list: a number in a nested list", reason="items[1]")
def _():
    items = [[1], [2]]
    return (lambda x: x * items[1][0]), lambda: items[1].__setitem__(0, 7)


@fact("dict: value", reason="d.a")
def _():
    d = {"a": 1}
    return (lambda x: x * d["a"]), lambda: d.update(a=4)


@fact("dict: key appears", reason="d")
def _():
    d = {"a": 1}
    return (lambda x: x * d.get("b", 3)), lambda: d.update(b=4)


@fact("dict: key disappears", reason="d")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: x * d.get("b", 3)), lambda: d.pop("b")


@fact("dict: order of keys", reason="d")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: x ** next(iter(d.values()))), lambda: d.update(a=d.pop("a"))


@fact("dict: key of equal value and another type", reason="d")
def _():
    d = {1: 2}

    def change():
        d.clear()
        d[True] = 2

    return (lambda x: [torch.full((2,), k) for k in d]), change


@fact("dict: int keys", reason="d[3]")
def _():
    d = {3: 2}
    return (lambda x: x * d[3]), lambda: d.update({3: 5})


@fact("dict: tuple keys", reason="d")
def _():
    d = {(1, "a"): 2}
    return (lambda x: x * d[1, "a"]), lambda: d.update({(1, "a"): 5})


@fact("dict replaced by an equal one with another value", reason="b.d")
def _():
    b = Box(d={"a": 1})
    return (lambda x: x * b.d["a"]), lambda: setattr(b, "d", {"a": 2})


@fact("set: member added", reason="s")
def _():
    s = {1}
    return (lambda x: x if 2 in s else -x), lambda: s.add(2)


@fact("set: truth", reason="s")
def _():
    s = {1}
    return (lambda x: x if s else -x), lambda: s.clear()


@fact("deque: item", reason="d")
def _():
    d = collections.deque([1, 2])
    return (lambda x: x * d[0]), lambda: d.rotate(1)


@fact("deque: length", reason="d")
def _():
    d = collections.deque([1, 2])
    return (lambda x: x * len(d)), lambda: d.append(1)


@fact("ordered dict: order", reason="d")
def _():
    d = collections.OrderedDict(a=1, b=2)
    return (lambda x: x ** list(d.values())[0]), lambda: d.move_to_end("a")


@fact("default dict: key", reason="d")
def _():
    d = collections.defaultdict(int, a=1)
    return (lambda x: x * (d["a"] + 1)), lambda: d.update(a=4)


@fact("namedtuple: field", reason="p")
def _():
    P = collections.namedtuple("P", "a b")
    b = Box(p=P(1, 2))
    return (lambda x: x * b.p.a), lambda: setattr(b, "p", P(3, 2))


@fact("dataclass: field", reason="a")
def _():
    @dataclasses.dataclass
    class D:
        a: int = 1

    d = D()
    return (lambda x: x * d.a), lambda: setattr(d, "a", 3)


@fact("frozen dataclass replaced", reason="d")
def _():
    @dataclasses.dataclass(frozen=True)
    class D:
        a: int = 1

    b = Box(d=D())
    return (lambda x: x * b.d.a), lambda: setattr(b, "d", D(3))


@fact("object with slots", reason="a")
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


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))

"""Objects of the user's classes: attributes, descriptors, operators, dataclasses, enums, named
tuples.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import NamedTuple

import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Vec:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Vec(self.v + (other.v if isinstance(other, Vec) else other))

    def __radd__(self, other):
        return Vec(other * 10 + self.v)

    def __mul__(self, other):
        return NotImplemented if isinstance(other, str) else Vec(self.v * other)

    def __iadd__(self, other):
        self.v = self.v + other
        return self

    def __neg__(self):
        return Vec(-self.v)

    def __eq__(self, other):
        return isinstance(other, Vec) and self.v is other.v

    __hash__ = None

    def __len__(self):
        return 2

    def __getitem__(self, key):
        return (key, self.v)

    def __contains__(self, item):
        return item == 3

    def __call__(self, y):
        return self.v - y

    def __bool__(self):
        return True

    def __lt__(self, other):
        return True


def test_operators():
    def f(x):
        a, b = Vec(x), Vec(x + 1)
        c = a + b
        c += 2
        d = 5 + a
        return (
            c.v,
            d.v,
            (-a).v,
            (a * 3).v,
            a == b,
            a != a,
            len(a),
            a[1:2],
            3 in a,
            4 not in a,
            a(x),
            a < b,
            not a,
        )

    same(f, (X,), (Y,), graphs=1)


def test_operator_not_implemented():
    def f(x):
        try:
            Vec(x) - {}
        except TypeError as error:
            return x + 1, str(error)

    same(f, (X,), (Y,), breaks=None)


def test_reflected_with_subclass_priority():
    class Sub(Vec):
        def __radd__(self, other):
            return "sub"

    same(lambda x: (x + 1, Vec(x) + Sub(x)), (X,), (Y,), graphs=1)


def test_tensor_left_operand_gives_way():
    class Right:
        def __rmul__(self, other):
            return other + 100

    same(lambda x: x * Right(), (X,), (Y,), graphs=1)


def test_inplace_falls_back():
    class Num:
        def __init__(self, n):
            self.n = n

        def __add__(self, k):
            return Num(self.n + k)

    def f(x):
        a = Num(x)
        b = a
        a += 3
        return a.n, b.n

    same(f, (X,), (Y,), graphs=1)


def test_property():
    class Box:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v * 2

        @v.setter
        def v(self, value):
            self._v = value + 1

        @v.deleter
        def v(self):
            self._v = 0

    def f(x):
        b = Box(x)
        b.v = b.v + 1
        first = b.v
        del b.v
        return first, b.v

    same(f, (X,), (Y,), graphs=1)


def test_property_of_argument_reads_state():
    class Box:
        k = 2

        @property
        def v(self):
            return self.k * 3

    def make():
        box = Box()
        return (lambda x: x * box.v), box

    compare_with_eager(
        make, (X,), lambda b: setattr(b, "k", 5), (X,), lambda b: delattr(b, "k"), (X,), breaks=0
    )


def test_descriptor():
    class Scaled:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls):
            return self if obj is None else getattr(obj, self.name) * 2

        def __set__(self, obj, value):
            setattr(obj, self.name, value + 1)

    class Box:
        v = Scaled()

    def f(x):
        b = Box()
        b.v = x
        return b.v, isinstance(Box.v, Scaled)

    same(f, (X,), (Y,), graphs=1)


def test_non_data_descriptor_shadowed():
    class Tag:
        def __get__(self, obj, cls):
            return 5

    class Box:
        v = Tag()

    def f(x):
        b = Box()
        before = b.v
        b.v = 7
        return x * before * b.v

    same(f, (X,), (Y,), graphs=1)


def test_super_chain():
    class A:
        def go(self, x):
            return x + 1

        @classmethod
        def name(cls):
            return cls.__name__

    class B(A):
        def go(self, x):
            return super().go(x) * 2

        @classmethod
        def name(cls):
            return "b" + super().name()

    class C(A):
        def go(self, x):
            return super().go(x) - 3

    class D(B, C):
        def go(self, x):
            return super().go(x) / 4

    same(lambda x: (D().go(x), D.name()), (X,), (Y,), graphs=1)


def test_class_and_static_methods():
    class A:
        k = 3

        @classmethod
        def make(cls, x):
            return x * cls.k

        @staticmethod
        def plus(x, n):
            return x + n

    class B(A):
        k = 4

    same(lambda x: (A.make(x), B().make(x), B.plus(x, 1), A().plus(x, 2)), (X,), (Y,), graphs=1)


def test_getattr_fallback():
    class Proxy:
        def __init__(self, target):
            self.target = target

        def __getattr__(self, name):
            if name.startswith("x_"):
                return getattr(self.target, name[2:])
            raise AttributeError(name)

    def f(x):
        p = Proxy(x)
        return p.x_shape, p.x_sum(), hasattr(p, "nothing"), getattr(p, "other", 3)

    same(f, (X,), (Y,), graphs=1)


def test_getattribute_override():
    class Odd:
        def __getattribute__(self, name):
            if name == "magic":
                return 42
            return object.__getattribute__(self, name)

    def f(x):
        o = Odd()
        o.k = 2
        return x * o.magic + o.k

    same(f, (X,), (Y,), graphs=1)


def test_setattr_override():
    class Log:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __setattr__(self, name, value):
            self.log.append(name)
            object.__setattr__(self, name, value)

    def f(x):
        o = Log()
        o.a = x
        o.b = x + 1
        return o.a + o.b, o.log

    same(f, (X,), (Y,), graphs=1)


def test_slots_made_inside():
    class Pair:
        __slots__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

    def f(x):
        p = Pair(x, 2)
        p.b += 1
        return p.a * p.b, p

    compiled = tracer_core.compile(f, backend="eager", fullgraph=True)
    for v in (X, Y):
        product, pair = compiled(v)
        assert type(pair) is Pair and pair.a is v and pair.b == 3 and torch.equal(product, v * 3)


def test_slots_of_argument_read():
    class Pair:
        __slots__ = ("a",)

    def make():
        p = Pair()
        p.a = 2
        return (lambda x: x * p.a), p

    def five(p):
        p.a = 5

    fn, p = make()
    compiled = tracer_core.compile(fn, backend="eager")
    assert torch.equal(compiled(X), X * 2)
    five(p)
    assert torch.equal(compiled(X), X * 5)


def test_slots_of_argument_written():
    class Pair:
        __slots__ = ("a", "__weakref__")

    p = Pair()
    p.a = 1

    def f(x, p):
        p.a = p.a + 1
        return x * p.a

    compiled = tracer_core.compile(f, backend="eager")
    for n in (2, 3, 4):
        assert torch.equal(compiled(X, p), X * n) and p.a == n


def test_dataclass():
    @dataclasses.dataclass
    class Out:
        a: torch.Tensor
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.b += 1

    def f(x):
        o = Out(x + 1)
        o.c.append(x)
        return o, dataclasses.replace(o, b=9), o == o

    same(f, (X,), (Y,), breaks=None)


def test_frozen_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Cfg:
        k: int
        s: str = "a"

    def f(x, cfg):
        new = Cfg(cfg.k + 1)
        try:
            new.k = 3
        except dataclasses.FrozenInstanceError as error:
            return x * new.k, new, str(error)

    same(f, (X, Cfg(2)), (X, Cfg(3)), (X, Cfg(2)))


def test_dataclass_asdict():
    @dataclasses.dataclass
    class P:
        a: int
        b: int

    same(
        lambda x: (x + 1, dataclasses.astuple(P(1, 2)), [f.name for f in dataclasses.fields(P)]),
        (X,),
        breaks=None,
    )


class NT(NamedTuple):
    a: torch.Tensor
    b: int = 4

    def double(self):
        return self.a * 2 * self.b


def test_namedtuple():
    def f(x, t):
        n = NT(x + t.b)
        m = n._replace(b=t.b)
        a, b = m
        return n, m.double(), a * b, m._asdict(), NT._fields

    same(f, (X, NT(X, 3)), (X, NT(Y, 5)), (X, NT(Y, 3)))


def test_collections_namedtuple():
    P = collections.namedtuple("P", "a b", defaults=[1])
    globals()["P"] = P
    same(lambda x: (P(x + 1), P(x, 2).b, P(b=x, a=1)), (X,), (Y,), graphs=1)


def test_enum():
    class Mode(enum.Enum):
        ADD = "add"
        MUL = "mul"

        @property
        def factor(self):
            return 2 if self is Mode.MUL else 3

    class Flag(enum.IntFlag):
        A = 1
        B = 2

    def f(x, mode):
        if mode == Mode.ADD:
            x = x + 1
        return (
            x * mode.factor,
            mode.value,
            mode.name,
            Mode("mul"),
            Mode["ADD"],
            Flag.A | Flag.B,
            len(list(Mode)),
        )

    same(f, (X, Mode.ADD), (X, Mode.MUL), (X, Mode.ADD), breaks=None)

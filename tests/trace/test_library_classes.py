"""Classes that libraries make inside the compiled function: abstract classes, dataclasses, named tuples,
enumerations, typed dictionaries."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing
from typing import NamedTuple

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tests.support.named_programs import Programs, X, Y, texts_of
from tracer_core.trace import class_creation

program = Programs()


@program
def abstract_classes(x):
    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

        @property
        @abc.abstractmethod
        def p(self): ...

    class Half(Base):
        def go(self):
            return 1

    class Full(Half):
        p = 3

    texts = []
    for cls in (Base, Half):
        try:
            cls()
        except TypeError as error:
            texts.append(str(error))
    return (
        x * Full().p,
        texts,
        isinstance(Full(), Base),
        issubclass(Half, Base),
        sorted(Half.__abstractmethods__),
    )


@program
def dataclass_made_inside(x):
    @dataclasses.dataclass
    class Point:
        a: int
        b: int = 2
        c: list = dataclasses.field(default_factory=list)

        def total(self):
            return self.a + self.b

    p, q = Point(1), Point(1)
    p.c.append(3)
    return (
        x * p.total(),
        repr(q).split(".")[-1],
        p == q,
        q == Point(1),
        [f.name for f in dataclasses.fields(p)],
    )


@program
def frozen_ordered_slotted_dataclass(x):
    @dataclasses.dataclass(frozen=True, order=True, slots=True)
    class V:
        n: int
        t: object = dataclasses.field(default=None, compare=False)

    v = V(2, x)
    try:
        v.n = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return (
        v.t * v.n,
        text,
        V(1) < V(2),
        hash(V(3)) == hash(V(3)),
        V(1) in {V(1): 0},
        dataclasses.replace(v, n=5).n,
    )


@program
def dataclass_inheritance_and_post_init(x):
    @dataclasses.dataclass
    class Base:
        a: int
        scale: dataclasses.InitVar[int] = 3

        def __post_init__(self, scale):
            self.a *= scale

    @dataclasses.dataclass(kw_only=True)
    class Sub(Base):
        b: int = 7

    return x * Sub(2).a + Sub(1, 2, b=4).b, [f.name for f in dataclasses.fields(Sub)]


@program
def make_dataclass(x):
    P = dataclasses.make_dataclass("P", ["a", ("b", int, 4)])
    return x * P(1).b, P(2).a


@program
def named_tuples_made_inside(x):
    class P(NamedTuple):
        a: int
        b: int = 3

        @property
        def total(self):
            return self.a + self.b

    Q = collections.namedtuple("Q", "u v", defaults=[5])
    p, q = P(1), Q(2)
    u, v = q
    return (
        x * p.total,
        P._fields,
        q.v,
        u + v,
        tuple(q._replace(u=9)),
        p._asdict(),
        P._field_defaults,
        p[1],
    )


@program
def enumerations_made_inside(x):
    class Color(enum.Enum):
        RED = 1
        GREEN = enum.auto()
        ALIAS = 1  # noqa: PIE796

        @property
        def twice(self):
            return self.value * 2

        @classmethod
        def first(cls):
            return cls.RED

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = LOW + 4

    class Flag(enum.Flag):
        R = enum.auto()
        W = enum.auto()
        RW = R | W

    return (x * Color.GREEN.twice, Color.ALIAS is Color.RED, [c.name for c in Color],
    Color(2).name, Color["RED"].value,
            Level.HIGH + 1, Level.LOW < Level.HIGH, (Flag.R | Flag.W) is Flag.RW, Flag.R in Flag.RW,
            Color.first().name)  # fmt: skip


@program(kinds=("class_statement",))
def enumeration_with_its_own_init(x):
    class Planet(enum.Enum):
        EARTH = (1, 2)

        def __init__(self, mass, radius):
            self.mass, self.radius = mass, radius

    return x * Planet.EARTH.mass + Planet.EARTH.radius


@program
def subclass_of_a_builtin_made_inside(x):
    class Stack(list):
        def push(self, v):
            self.append(v)
            return self

    class Upper(str):
        def __new__(cls, text):
            return super().__new__(cls, text.upper())

    class Default(dict):
        def __missing__(self, key):
            return key * 2

    return x * Stack([1]).push(4)[-1], str(Upper("ab")), Default(a=1)["z"], len(Upper("abc"))


@program
def module_class_made_inside(x):
    class Scale(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            return x * self.k

    return Scale(3)(x) + torch.nn.Sequential(Scale(2), Scale(4))(x)


@program
def exception_class_made_inside(x):
    class Stop(Exception):
        def __init__(self, value):
            self.value = value

    def run():
        raise Stop(4)

    try:
        run()
    except Stop as stop:
        return x * stop.value, stop.args


@program
def functools_on_classes(x):
    @functools.total_ordering
    class V:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    class C:
        @functools.cached_property
        def heavy(self):
            return 6

        @functools.partialmethod
        def none(self):
            return 0

        def add(self, a, b):
            return a + b

        add_two = functools.partialmethod(add, 2)

    c = C()
    return x * c.heavy + c.heavy, V(1) >= V(0), V(2) <= V(1), c.add_two(3), "heavy" in c.__dict__


@program(graphs=None, breaks=None)
def singledispatch_inside(x):
    @functools.singledispatch
    def kind(v):
        return "object"

    @kind.register
    def _(v: int):
        return "int"

    return x + 1, kind(3), kind("a")


@program
def properties_made_by_hand(x):
    class A:
        def get(self):
            return self._v

        def put(self, v):
            self._v = v + 1

        v = property(get, put)
        w = v.setter(lambda self, v: self.put(v * 10))

    a = A()
    a.v = 1
    first = a.v
    a.w = 2
    return x * a.w, first


@program
def isinstance_and_issubclass_on_made_classes(x):
    class A:
        pass

    class B(A):
        pass

    A_or_int = A | int
    return (
        x + 1,
        isinstance(B(), A),
        issubclass(B, A),
        isinstance(3, A_or_int),
        isinstance(B(), (int, A)),
        type(B()) is B,
    )


@program(graphs=None, breaks=None)
def enumerations_of_the_libraries_own_ways(x):
    class Super(metaclass=enum.EnumMeta):
        pass

    class E(Super, enum.Enum):
        A = 1

    @enum._simple_enum(enum.Enum)
    class Simple:
        CYAN = enum.auto()
        RED = enum.auto()

    return x * Simple.RED.value, repr(E.A), [item.name for item in Simple], Simple(1).name


@program
def bases_that_are_no_classes_and_namespaces_that_are_no_mappings(x):
    class Entry:
        def __mro_entries__(self, bases):
            return ()

    class Bad(type):
        @classmethod
        def __prepare__(*args):
            return None

    def statement():
        class A(metaclass=Bad):
            pass

    return x + 1, texts_of(lambda: type("A", (Entry(),), {}), statement)


@program
def classes_are_called_by_what_they_inherit(x):
    class ByClass:
        @classmethod
        def __new__(cls, *args):
            return cls.__name__, args[1:]

    class Meta(type):
        __call__ = dict

    class MetaOfClass(type):
        @classmethod
        def __call__(meta, *args):
            return meta.__name__, args

    class A(metaclass=Meta):
        pass

    class B(metaclass=MetaOfClass):
        pass

    class C:
        def fill(self, a, b):
            self.filled = a, b

        __init__ = functools.partialmethod(fill, 1)

    return x + 1, ByClass(2)[1], A(a=1), B(2), C(3).filled


@program(graphs=None, breaks=None)
def a_dataclass_that_is_refused_stays_as_it_was(x):
    def lt():
        @dataclasses.dataclass(order=True)
        class A:
            a: int

            def __le__(self, other):
                return False

    def frozen():
        @dataclasses.dataclass(frozen=True)
        class A:
            a: int

            def __delattr__(self, name):
                return None

    return x + 1, texts_of(lt, frozen)


def test_a_dataclass_keeps_what_it_had_after_an_error():
    class A:
        a: int

        def __le__(self, other):
            return False

    before = dict(vars(A))
    put = functools.partial(class_creation.put_back, A)
    with pytest.raises(TypeError, match="__le__"):
        dataclasses.dataclass(A, order=True)
    put(before)
    assert dict(vars(A)) == before


@program
def typed_dictionaries_are_made_by_calls(x):
    K = typing.TypeVar("K")

    class A(typing.TypedDict, typing.Generic[K]):
        a: K

    class B(A[K], total=False):
        b: K

    return x + 1, A(a=1), B(a=1, b=2), A.__total__, len(A.__parameters__)


@program(graphs=None, breaks=None)
def an_enumeration_keeps_what_is_set_on_it(x):
    class E(enum.IntEnum):
        ONE = 1

    E.extra = 3
    E.__reduce_ex__ = lambda self, protocol: "one"
    print(end="")
    return x * E.extra, E.ONE.__reduce_ex__(2), E(1) is E.ONE


@program.cases()
def test_class(name):
    program.run(name)


def test_an_enumeration_of_members_and_others():
    """enum.nonmember() is unwrapped while the body runs (3.13); auto() gets its number there."""

    def fn(x):
        class Mode(enum.Flag):
            READ = enum.auto()
            WRITE = enum.auto()
            BOTH = enum.nonmember(3)

        class Pair(enum.Enum):
            FIRST = (enum.auto(), "a")
            SECOND = 5

        result = [Mode.BOTH, type(Mode.BOTH).__name__, len(Mode), Mode.WRITE.value]
        tracer_core.graph_break()
        return x, result, Mode.BOTH, list(Mode.__members__), Pair.FIRST.value, len(Pair)

    same(fn, (X,), (Y,), graphs=None, breaks=None)

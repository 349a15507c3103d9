"""Classes made inside the compiled function: statements, factories, metaclasses, and classes that
outlive the call.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime
import enum
import functools
import sys
import types
import typing
from typing import ClassVar, NamedTuple

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same, twin
from tests.support.named_programs import Programs, X, Y, texts_of
from tracer_core.testing import compare
from tracer_core.trace import class_creation

program = Programs()
REGISTRY: list = []


@program
def body_sees_its_own_names_and_the_function(x):
    k = 3

    class A:
        a = k + 1
        b = a * 2
        names = [n for n in ("p", "q")]
        if b > 4:
            c = "big"
        else:
            c = "small"
        for i in range(3):
            last = i
        del i

    return x * A.b, A.c, A.names, A.last, hasattr(A, "i"), A.__name__, A.__qualname__, A.__module__


@program
def namespace_hides_the_free_variable(x):
    v = 1

    class Meta(type):
        @classmethod
        def __prepare__(mcls, name, bases):
            return {"v": 5}

    class A(metaclass=Meta):
        first = v

        def get(self):
            return v

    return x * A.first, A().get()


@program
def name_of_a_body_is_not_seen_before_it_is_bound(x):
    v = 1
    try:

        class A:
            first = v
            v = 2
    except NameError as error:
        return x + v, str(error)


@program
def body_reads_globals_and_builtins(x):
    class A:
        n = len("abc")
        t = X.shape

    return x * A.n, A.t


@program
def body_declares_global_and_nonlocal(x):
    count = 0

    class A:
        nonlocal count
        count = 5
        v = count

    return x * count, "count" in vars(A), A.v


@program
def body_raises(x):
    try:

        class A:
            v = 1
            raise ValueError(f"in the body with {v}")
    except ValueError as error:
        return x + 1, str(error)


@program
def undefined_name_in_a_body(x):
    try:

        class A:
            v = missing
    except NameError as error:
        return x + 1, str(error)


@program
def annotations_docstring_and_decorators(x):
    def mark(cls):
        cls.marked = True
        return cls

    @mark
    class A:
        """Words."""

        a: int = 1
        b: str

    return x + 1, A.__doc__, A.__annotations__, A.marked


@program
def nested_classes_and_closures(x):
    def make(n):
        class Outer:
            class Inner:
                v = n

            def get(self):
                return self.Inner.v + n

        return Outer

    a, b = make(1), make(2)
    return x * a().get() + b().get(), a is b, a.__name__ == b.__name__, a.Inner.__qualname__


@program
def recursion_through_a_class(x):
    class Node:
        def __init__(self, value, *children):
            self.value, self.children = value, children

        def total(self):
            return self.value + sum(child.total() for child in self.children)

        def __iter__(self):
            yield self
            for child in self.children:
                yield from child

    tree = Node(1, Node(2), Node(3, Node(4)))
    return x * tree.total(), [node.value for node in tree]


@program
def type_with_three_arguments(x):
    A = type("A", (), {"k": 2, "get": lambda self: self.k + 1})
    B = type("B", (A,), dict(k=5))
    return x * A().get() + B().get(), B.__mro__[1] is A, B.__name__, type(B) is type


@program
def types_new_class(x):
    A = types.new_class("A", (), {}, lambda ns: ns.update(k=4))
    return x * A.k


@program
def metaclass_with_prepare_new_init(x):
    log = []

    class Meta(type):
        @classmethod
        def __prepare__(mcls, name, bases, **kwargs):
            log.append(("prepare", name, kwargs))
            return {"given": 7}

        def __new__(mcls, name, bases, namespace, **kwargs):
            log.append(("new", name, sorted(k for k in namespace if not k.startswith("__"))))
            namespace["added"] = 3
            return super().__new__(mcls, name, bases, namespace)

        def __init__(cls, name, bases, namespace, **kwargs):
            log.append(("init", name, kwargs))
            super().__init__(name, bases, namespace)

    class A(metaclass=Meta, flag=1):
        v = given

    class B(A):
        pass

    return x * A.v + B.added, log, type(B) is Meta


@program
def namespace_that_counts(x):
    class Names(dict):
        def __setitem__(self, key, value):
            if not key.startswith("__"):
                self.setdefault("order", []).append(key)
            super().__setitem__(key, value)

    class Meta(type):
        @classmethod
        def __prepare__(mcls, name, bases):
            return Names()

        def __new__(mcls, name, bases, namespace):
            return super().__new__(mcls, name, bases, dict(namespace))

    class A(metaclass=Meta):
        b = 1
        a = 2

    return x * A.a, A.order


@program
def metaclass_that_is_a_function(x):
    def meta(name, bases, namespace, **kwargs):
        return (name, bases, namespace["v"], kwargs)

    class A(metaclass=meta, k=1):
        v = 3

    return x * A[2], A[0], A[3]


@program
def metaclass_conflict(x):
    class M1(type):
        pass

    class M2(type):
        pass

    class A(metaclass=M1):
        pass

    class B(metaclass=M2):
        pass

    try:

        class C(A, B):
            pass
    except TypeError as error:
        return x + 1, str(error)


@program
def inconsistent_mro(x):
    class A:
        pass

    class B(A):
        pass

    try:

        class C(A, B):
            pass
    except TypeError as error:
        return x + 1, str(error)


@program
def init_subclass_with_keywords(x):
    class Base:
        subclasses: ClassVar = []

        def __init_subclass__(cls, /, tag="none", **kwargs):
            super().__init_subclass__(**kwargs)
            cls.tag = tag
            Base.subclasses.append(cls.__name__)

    class A(Base, tag="a"):
        pass

    class B(A):
        pass

    return x * len(Base.subclasses), A.tag, B.tag, Base.subclasses, [c.__name__ for c in B.__mro__]


@program
def init_subclass_refuses_keywords(x):
    try:

        class A(k=1):
            pass
    except TypeError as error:
        return x + 1, str(error)


class Registered:
    """Every subclass puts its name in the list."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        REGISTRY.append(cls.__name__)


def test_a_registry_that_existed_before_is_filled_once_a_call():
    def make():
        REGISTRY.clear()

        def f(x):
            class One(Registered):
                pass

            return x * len(REGISTRY)

        return f, REGISTRY

    def copies(x):
        log = []

        class Base:
            def __init_subclass__(cls):
                log.append(cls.__name__)

        class One(Base):
            pass

        return x * len(log), log

    twin(lambda: copies, (X,), (Y,), graphs=1, breaks=0)
    fn, _ = make()
    import tracer_core

    compiled = tracer_core.compile(fn, backend="eager")
    for count in (1, 2, 3):
        assert torch.equal(compiled(X), X * count)
        assert REGISTRY == ["One"] * count


def test_set_name_changes_the_world_once_a_call():
    def make():
        names: list = []

        class Named:
            def __set_name__(self, owner, name):
                names.append((owner.__name__, name))

        def f(x):
            class A:
                one = Named()
                two = Named()

            return x * len(names), isinstance(A.one, Named)

        return f, names

    twin(make, (X,), (Y,), lambda names: names.clear(), (X,), breaks=0)


@program
def set_name_of_descriptors(x):
    class Field:
        def __set_name__(self, owner, name):
            self.owner, self.name = owner.__name__, name

        def __get__(self, obj, owner):
            return self if obj is None else obj.__dict__.get(self.name, 0)

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value * 2

    class A:
        one = Field()
        two = Field()

    a = A()
    a.one, a.two = 1, x
    return a.two + a.one, A.one.name, A.two.owner, list(A.__dict__)[:6]


@program
def set_name_that_raises(x):
    class Bad:
        def __set_name__(self, owner, name):
            raise KeyError(name)

    try:

        class A:
            v = Bad()
    except (RuntimeError, KeyError) as error:
        return x + 1, type(error).__name__


@program
def class_getitem_and_generic_base(x):
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v):
            self.v = v

    class Pair(Box[int]):
        pass

    class Own:
        def __class_getitem__(cls, item):
            return (cls.__name__, item)

    return x * Pair(2).v, Own["k"], Pair.__orig_bases__ == (Box[int],)


@program
def mro_entries(x):
    class Base:
        k = 3

    class Stand:
        def __mro_entries__(self, bases):
            return (Base,)

    stand = Stand()

    class A(stand):
        pass

    return x * A.k, A.__bases__ == (Base,), A.__orig_bases__ == (stand,)


@program
def zero_argument_super_and_class_cell(x):
    class A:
        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v

    class B(A):
        def __init__(self, v):
            super().__init__(v * 2)
            self.kind = __class__.__name__

        def get(self):
            return [super().get() for _ in range(1)][0] if False else super().get() + 1

    return x * B(2).get(), B(1).kind


@program
def slots_in_a_class_made_inside(x):
    class A:
        __slots__ = ("a", "__dict__")
        b = 2

    a = A()
    a.a = 3
    a.c = 4
    return x * a.a, a.c, a.b, a.__dict__


@program
def slots_conflict(x):
    try:

        class A:
            __slots__ = ("a",)
            a = 1
    except ValueError as error:
        return x + 1, str(error)


@program
def class_attributes_are_set_and_deleted(x):
    class A:
        k = 1

    a = A()
    before = a.k
    A.k = 5
    A.double = lambda self: self.k * 2
    setattr(A, "m", 3)
    middle = a.double() + a.m
    del A.k
    return x * middle, before, hasattr(a, "k"), "m" in vars(A)


@program
def special_methods_set_later(x):
    class A:
        pass

    a = A()
    A.__len__ = lambda self: 4
    first = len(a)
    A.__len__ = lambda self: 7
    A.__eq__ = lambda self, other: True
    return x * len(a), first, a == 3, bool(a)


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


# -- classes that outlive the region
# --------------------------------------------------------------------------------


def _kind(value):
    return type(value).__name__, [c.__name__ for c in type(value).__mro__]


def check_outlives(f, use, calls=((X,), (Y,), (X,))):
    """`f` returns an object of a class made inside; `use` must find the same in it on both
    sides.
    """
    import tracer_core

    compiled = tracer_core.compile(f, backend="eager")
    seen = []
    for call in calls:
        want, got = f(*call), compiled(*call)
        assert _kind(want) == _kind(got)
        compare(use(want), use(got))
        seen.append(got if isinstance(got, type) else type(got))
    assert len(set(seen)) == len(seen), "each call makes a class of its own"
    return compiled


def test_an_instance_is_returned():
    def f(x):
        class Box:
            k = 3

            def __init__(self, v):
                self.v = v

            def get(self, n=1):
                return self.v * self.k * n

            @property
            def twice(self):
                return self.v * 2

            @classmethod
            def make(cls, v):
                return cls(v)

            @staticmethod
            def plus(a):
                return a + 1

        return Box(x + 1)

    check_outlives(f, lambda box: [box.get(2), box.twice, box.make(box.v).get(), box.plus(1)])


def test_the_class_is_returned():
    def f(x):
        y = x * 2

        class Adder:
            def __call__(self, v):
                return v + y

        return Adder

    import tracer_core

    result = tracer_core.compile(f, backend="eager")(X)
    torch.testing.assert_close(result()(Y), f(X)()(Y))


def test_super_still_works_in_a_class_that_is_returned():
    def f(x):
        class Base:
            def get(self):
                return x

        class Sub(Base):
            def get(self):
                return super().get() * 2

        return Sub()

    check_outlives(f, lambda sub: sub.get())


def test_a_dataclass_instance_is_returned():
    def f(x):
        @dataclasses.dataclass
        class Out:
            logits: object
            loss: object = None
            extra: dict = dataclasses.field(default_factory=dict)

        return Out(x * 2)

    check_outlives(
        f, lambda out: [out.logits, type(out)(1, 2).loss, len(dataclasses.fields(out)), out.extra]
    )


def test_a_named_tuple_is_returned():
    def f(x):
        Out = collections.namedtuple("Out", "a b")
        return Out(x + 1, b=x * 2)

    check_outlives(f, lambda out: [out.a, out.b, out._fields, out._replace(a=1).a])


def test_an_enumeration_member_is_returned():
    def f(x):
        class Mode(enum.Enum):
            FAST = 1
            SLOW = 2

        return Mode.SLOW

    check_outlives(f, lambda mode: [mode.value, mode.name == "SLOW", len(type(mode))])


def test_an_abstract_class_and_slots_outlive():
    def f(x):
        class Base(abc.ABC):
            @abc.abstractmethod
            def go(self): ...

        class Impl(Base):
            __slots__ = ("v",)

            def __init__(self, v):
                self.v = v

            def go(self):
                return self.v

        return Impl(x)

    check_outlives(
        f,
        lambda impl: [
            impl.go(),
            isinstance(impl, type(impl).__mro__[1]),
            hasattr(impl, "__slots__"),
        ],
    )


def test_a_class_lives_across_a_break():
    def f(x):
        class Box:
            def __init__(self, v):
                self.v = v

            def get(self):
                return self.v * 2

        box = Box(x)
        print(end="", flush=[])
        return box.get() + Box(x).get()

    twin(lambda: f, (X,), breaks=1, kinds=("side_effect_native",))


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
def metaclass_answers_every_question(x):
    class Meta(type):
        def __getattribute__(cls, name):
            return True

    class A(metaclass=Meta):
        attr = False

    class HasDict:
        pass

    class Mixed(HasDict, type):
        pass

    class B(metaclass=Mixed):
        y = 4

    return x + 1, A.attr, A.nothing, B.__dict__["y"]


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
def aliases_and_unions_name_the_classes_that_are_rebuilt(x):
    class Group(NamedTuple):
        key: int

    class A:
        pass

    alias, union = Group[int], A | str
    print(end="")
    return x + 1, alias.__origin__ is Group, type(alias(1)) is Group, union == A | str


@program(graphs=None, breaks=None)
def protocols_of_a_trace_know_their_instances_after_a_break(x):
    class P(typing.Protocol):
        def go(self): ...

    class A:
        def go(self):
            return 1

    class Heir(P):
        pass

    @functools.singledispatch
    def kind(value):
        return "base"

    kind.register(P)(lambda value: "protocol")
    said = texts_of(lambda: isinstance(A(), P))
    checked = typing.runtime_checkable(P)
    print(end="")
    return x + 1, said, kind(Heir()), isinstance(A(), checked), isinstance(3, checked)


@program(graphs=None, breaks=None)
def protocols_and_their_heirs_are_initialised_after_a_break(x):
    class P(typing.Protocol):
        pass

    class Plain:
        def __init__(self):
            self.made = "plain"

    class Heir(P):
        pass

    class Both(P, Plain):
        pass

    tracer_core.graph_break()
    said = texts_of(P, lambda: Heir(1), lambda: Heir(2))
    return x + 1, said, Both().made, isinstance(Heir(), Heir)


@program(graphs=None, breaks=None)
def classes_that_typing_makes_are_of_the_caller(x):
    Row = NamedTuple("Row", [("a", int)])  # noqa: UP014 (the call is what is tested)
    Entry = typing.TypedDict("Entry", {"a": int})  # noqa: UP013
    Other = typing.TypedDict("Other", {"b": str}, total=False)  # noqa: UP013
    Id = typing.NewType("Id", int)
    result = [Row, Entry, Other, Id]
    return (
        x + Id(1),
        [item.__module__ for item in result],
        tuple(Row(3)),
        Entry(a=1),
        Other.__total__,
    )


@program(graphs=None, breaks=None)
def members_of_an_enumeration_whose_text_cannot_be_read(x):
    class Day(datetime.date, enum.Enum):
        FIRST = 2023, 11, 1

        def __new__(cls, *given):
            day = datetime.date.__new__(cls, *given)
            day._value_ = given
            return day

    tracer_core.graph_break()
    same = Day.FIRST is Day["FIRST"]
    tracer_core.graph_break()
    return x + 1, same, texts_of(lambda: repr(Day.FIRST), errors=TypeError), Day.FIRST.year


@program(graphs=None, breaks=None)
def typing_caches_aliases_of_a_class_that_is_made_in_each_call(x):
    Entry = typing.TypedDict("Entry", {"a": int})  # noqa: UP013
    item, other = typing.Optional[Entry], typing.Union[None, Entry]  # noqa: UP045
    tracer_core.graph_break()
    same = item == other, item.__args__[0] is Entry, other.__args__[1] is Entry
    return x + 1, same, item is typing.Optional[Entry]  # noqa: UP045


@program(graphs=None, breaks=None)
def an_alias_of_an_alias_lives_across_a_break(x):
    Ts = typing.TypeVarTuple("Ts")

    class Pack(typing.Generic[*Ts]):
        pass

    def go(*args):
        pass

    go.__annotations__["args"] = typing.Unpack[Pack[int, str]]
    tracer_core.graph_break()
    type_hints = typing.get_type_hints(go)
    tracer_core.graph_break()
    return x + 1, type_hints == {"args": typing.Unpack[Pack[int, str]]}


@program
def super_passes_over_a_method_in_c(x):
    class Lists(collections.defaultdict):
        def copies(self):
            return super(collections.defaultdict, self).copy(), super().copy()

    eager, own = Lists(list, a=1).copies()
    return x + 1, type(eager) is dict, type(own) is Lists, eager == own


@program(graphs=None, breaks=None)
def a_protocol_without_functions(x):
    @typing.runtime_checkable
    class P(typing.Protocol):
        y = None

    class A:
        pass

    class B:
        y = 1

    tracer_core.graph_break()
    return x + 1, isinstance(A(), P), isinstance(B(), P)


@program(graphs=None, breaks=None)
def typing_knows_its_own_hook_after_a_break(x):
    @typing.runtime_checkable
    class P(typing.Protocol):
        y: int

        def go(self): ...

    class A:
        y = 1

        def go(self): ...

    tracer_core.graph_break()
    same = vars(P)["__subclasshook__"] is typing._proto_hook if sys.version_info >= (3, 12) else 0
    return x + 1, same, texts_of(lambda: issubclass(A, P), lambda: issubclass(int, P))


@program(graphs=None, breaks=None)
def the_bases_of_a_generic_named_tuple(x):
    class Pair(NamedTuple, typing.Generic[T]):
        a: T

    tracer_core.graph_break()
    return x + 1, Pair.__bases__ == (tuple, typing.Generic), Pair.__mro__[1] is tuple, Pair(3).a


@program(graphs=None, breaks=None)
def classes_that_typing_makes_after_a_break(x):
    tracer_core.graph_break()

    class Entry(typing.TypedDict):
        a: int

    Row = NamedTuple("Row", [("a", int)])  # noqa: UP014 (the call is what is tested)
    tracer_core.graph_break()
    return x + 1, Row(3).a, Row.__mro__[1] is tuple, Entry(a=1), Entry.__required_keys__


T = typing.TypeVar("T")


class Crate(typing.Generic[T]):
    pass


@program(graphs=None, breaks=None)
def aliases_of_typing_are_the_ones_in_its_cache_after_a_break(x):
    def forms():
        return (
            typing.Annotated[int, "text"], typing.Callable[[int], str], typing.Literal[3],
            list[T], Crate[int], Crate[T], typing.Union[int, str],
        )  # fmt: skip

    class Text:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return type(other) is Text

    first, odd = forms(), (typing.Annotated[int, []], typing.Annotated[int, Text()])
    tracer_core.graph_break()
    again = typing.Annotated[int, []], typing.Annotated[int, Text()]
    return (
        x + 1,
        all(a is b for a, b in zip(first, forms(), strict=True)),
        [a == b for a, b in zip(odd, again, strict=True)],
        odd[0] is again[0],
    )


@program(graphs=None, breaks=None)
def what_refers_to_a_class_refers_to_one_class_after_a_break(x):
    met = []

    class Found:
        def __get__(self, obj, owner=None):
            met.append((obj, owner))
            return lambda: 1

    class Base:
        found = Found()

    class A(Base):
        def go(self):
            return super().found()

    a = A()
    a.go()
    method, order, slot = A.mro, A.mro(), a.__repr__
    failed, parts = KeyError(A), functools.partial(isinstance, a)
    print(end="")
    return (
        x + 1, met == [(a, A)], method() == order == [A, Base, object], slot() == repr(a),
        failed.args[0] is A, parts(A),
    )  # fmt: skip


@program(graphs=None, breaks=None)
def wrapped_methods_keep_their_texts_after_a_break(x):
    def decorated(method):
        @classmethod
        @functools.wraps(method.__func__)
        def wrapper(*args):
            return method.__func__(*args)

        wrapper.mark = 3
        return wrapper

    class A:
        @functools.singledispatchmethod
        @decorated
        @classmethod
        def kind(cls, value: int) -> str:
            """Says its kind."""
            return str(value)

    print(end="")
    held = vars(A)["kind"].func
    return x * held.mark, held.__doc__, A.kind.__doc__, A().kind(3), held.__name__


@program(graphs=None, breaks=None)
def an_enumeration_keeps_what_is_set_on_it(x):
    class E(enum.IntEnum):
        ONE = 1

    E.extra = 3
    E.__reduce_ex__ = lambda self, protocol: "one"
    print(end="")
    return x * E.extra, E.ONE.__reduce_ex__(2), E(1) is E.ONE


@program
def the_cell_of_a_class_is_empty(x):
    class A:
        def go(self):
            nonlocal __class__
            del __class__
            super()

    return x + 1, texts_of(lambda: A().go(), errors=RuntimeError)


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self): ...


def test_protocols_ask_the_object_too():
    class A:
        pass

    def make():
        return lambda value, x: (isinstance(value, Goes), x + 1)

    a, able, blocked = A(), A(), A()
    able.go, blocked.go = print, None
    twin(make, (a, X), (able, X), (blocked, X), (a, X))


@program
def an_abstract_class_asked_before_it_is_ready(x):
    ready = []

    class Base:
        def __init_subclass__(cls, **words):
            super().__init_subclass__()
            ready.append(words)

    class A(Base, metaclass=abc.ABCMeta, word=1):
        pass

    return x + 1, ready, isinstance(3, A)


def test_a_metaclass_that_answers_any_name():
    class Meta(type):
        def __getattribute__(self, name):
            return lambda: name

    class Outer(metaclass=Meta): ...

    def f(x):
        class Inner(metaclass=Meta):
            def attribute():
                return False

        return x + 1, Inner.attribute(), Outer.attribute()

    def g(x):
        return x + 1, Outer.attribute()

    for value in (f, g):
        same(value, (X,), (X,), breaks=None)


@program(graphs=None, breaks=None)
def an_entry_whose_name_is_no_text(x):
    class Name:
        def __hash__(self):
            return hash("first")

        def __eq__(self, other):
            A.__bases__ = (Second,)

    class First:
        first = second = "of First"

    class Second:
        first = second = "of Second"

    A = type("A", (First,), {Name(): 5})
    tracer_core.graph_break()
    # LOAD_ATTR looks a name up once more when CPython specialises it.
    return x + 1, getattr(A, "first"), getattr(A, "second")


@program(graphs=None, breaks=None)
def a_module_class_that_notes_what_it_is_asked(x):
    log = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            log.append(name)
            return super().__getattribute__(name)

    module = Module("m")
    module.a = 1
    return x + module.a, log


@program.cases()
def test_class(name):
    program.run(name)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, BaseException])
def test_a_set_name_that_raises_anything(kind):
    def fn(x):
        class Raising:
            def __set_name__(self, owner, name):
                raise kind("no")

        raising = Raising()
        try:

            class Holder:
                attribute = raising
        except BaseException as error:
            return x, type(error), getattr(error, "__notes__", None), str(error)

    same(fn, (1,), (2,))


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

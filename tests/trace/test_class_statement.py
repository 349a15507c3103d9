"""Classes made inside the compiled function: statements, factories, metaclasses, and classes that
outlive the call.
"""

from __future__ import annotations

import types
import typing
from typing import ClassVar

import torch

from tests.support.eager_reference import compare_with_eager
from tests.support.named_programs import Programs, X, Y

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

    compare_with_eager(lambda: copies, (X,), (Y,), graphs=1, breaks=0)
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

    compare_with_eager(make, (X,), (Y,), lambda names: names.clear(), (X,), breaks=0)


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


@program.cases()
def test_class(name):
    program.run(name)

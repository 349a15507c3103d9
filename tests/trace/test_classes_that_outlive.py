"""Classes made inside that outlive the call, by themselves or behind an instance."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum

import torch

from tests.support.eager_reference import compare_with_eager
from tests.support.named_programs import X, Y
from tracer_core.testing import compare


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

    compare_with_eager(lambda: f, (X,), breaks=1, kinds=("side_effect_native",))

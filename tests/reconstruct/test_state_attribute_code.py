"""User code around attributes (setters, descriptors), objects by two names, and ``__dict__``."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager, module, same
from tests.support.slotted_objects import Slots, space

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- user code around attributes --


def test_user_setattr_with_a_log():
    def make():
        class C:
            def __setattr__(self, name, value):
                self.__dict__.setdefault("log", []).append(name)
                object.__setattr__(self, name, value)

            def __delattr__(self, name):
                self.log.append(f"-{name}")
                object.__delattr__(self, name)

        c = C()

        def f(x):
            c.a = 1
            c.b = x + c.a
            c.c = 2
            del c.c
            return c.b

        return f, View(lambda: vars(c).copy())

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_property_setter_keeps_history():
    def make():
        class C:
            def __init__(self):
                self.history = []

            @property
            def value(self):
                return self.history[-1]

            @value.setter
            def value(self, v):
                self.history.append(v)

            @value.deleter
            def value(self):
                self.history.clear()

        c = C()

        def f(x):
            c.value = x
            c.value = c.value + 1
            y = c.value
            if len(c.history) > 3:
                del c.value
            return y

        return f, View(lambda: list(c.history))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_descriptor_with_storage():
    def make():
        class Field:
            def __set_name__(self, owner, name):
                self.name = "_" + name

            def __get__(self, obj, owner=None):
                return obj.__dict__[self.name]

            def __set__(self, obj, value):
                obj.__dict__[self.name] = value
                obj.writes += 1

            def __delete__(self, obj):
                del obj.__dict__[self.name]
                obj.writes -= 100

        class C:
            a = Field()

        c = C()
        c.writes = 0
        c.a = 1

        def f(x):
            c.a = c.a + 1
            y = x * c.a
            del c.a
            c.a = 1
            return y

        return f, View(lambda: vars(c).copy())

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_vars_written_after_an_attribute():
    def make():
        o = space(a=1, b=2)

        def f(x):
            o.a = 5
            vars(o).update(c=3)
            vars(o)["d"] = x
            return x * sum(v for v in vars(o).values() if isinstance(v, int))

        return f, View(lambda: vars(o).copy(), o)

    compare_with_eager(make, (X,), lambda o: setattr(o, "b", 9), (X,), breaks=0)


def test_vars_cleared_after_an_attribute():
    def make():
        o = space(a=1, b=2)

        def f(x):
            o.a = 5
            o.__dict__.clear()
            o.z = x + 1
            return o.z

        return f, View(lambda: vars(o).copy(), o)

    compare_with_eager(
        make,
        (X,),
        lambda o: setattr(o, "b", 9),
        (X,),
        lambda o: setattr(o, "new", 9),
        (Y,),
        breaks=0,
    )


@pytest.mark.parametrize("holder", ["object", "slots", "class", "function", "module"])
def test_one_object_by_two_names(holder):
    def make():
        target = {
            "object": lambda: space(n=0),
            "slots": lambda: type("S", (), {"__slots__": ("n",)})(),
            "class": lambda: type("C", (), {"n": 0}),
            "function": lambda: types.FunctionType((lambda: None).__code__, {}),
            "module": lambda: module("n = 0\n"),
        }[holder]()
        target.n = 0
        first, second = {"t": target}, space(t=target)

        def f(x):
            first["t"].n += 1
            second.t.n += 1
            return x * first["t"].n

        return f, View(lambda: target.n)

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


@pytest.mark.parametrize("kind", ["object", "slots"])
def test_two_objects_that_become_one(kind):
    def f(x, a, b):
        a.a = 1
        b.a = 2
        return x * a.a

    result = (lambda: space(a=0)) if kind == "object" else (lambda: Slots(a=0))

    def g(x, item):
        first, second = (result(), result())
        pair = (first, first) if item else (first, second)
        return f_of(x, *pair), first.a, second.a

    for_eager = [f(X, *pair) for pair in ((result(), result()), (lambda t: (t, t))(result()))]
    import tracer_core

    f_of = tracer_core.compile(f, backend="eager")
    got = [g(X, False), g(X, True), g(X, False), g(X, True)]
    for i, (value, first, second) in enumerate(got):
        assert torch.equal(value, for_eager[i % 2])
        assert (first, second) == ((1, 2) if i % 2 == 0 else (2, 0))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="such classes came with 3.12")
def test_an_object_whose_class_is_made_in_c():
    testcapi = pytest.importorskip("_testcapi")

    def make():
        def f(x):
            kind = testcapi.make_vectorcall_class()
            item = kind()
            item.set_vectorcall(kind)
            said = [item()]
            kind.__call__ = lambda self: "of the program"
            return x + 1, said, item()

        return f

    compare_with_eager(make, (X,), (Y,), (X,))


# -- the dictionary of an object that the call makes --


class Plain:
    pass


class Items(list):
    pass


class Alike:
    """All have one dictionary."""

    shared: dict[str, object] = {}

    def __init__(self):
        self.__dict__ = self.shared


def its_dictionary(x, between):
    obj = Plain()
    own = obj.__dict__
    between()
    obj.a = x + 1
    between()
    own["b"] = x.dim()
    return obj.b, own, own is vars(obj)


def its_dictionary_alone(x, between):
    obj = Plain()
    obj.x, obj.itself, own = x, obj.__dict__, vars(obj)
    del obj
    between()
    return own["x"] + 1, own["itself"] is own


def those_of_other_objects(x, between):
    def inner():
        pass

    items, error = Items([1]), ValueError("a")
    actual = [vars(items), error.__dict__, inner.__dict__]
    between()
    items.a, error.b, inner.c = x + 1, 2, 3
    return actual, vars(items) is actual[0]


def one_that_the_program_gives(x, between):
    obj, own = Plain(), {"a": x}
    obj.__dict__ = own
    between()
    obj.b = x + 1
    return own, obj.a, vars(obj) is own


def one_for_two(x, between):
    Alike.shared.clear()
    first, second = Alike(), Alike()
    first.a = x + 1
    between()
    second.b = 2
    return first.b, second.a, vars(first) is vars(second) is Alike.shared


def one_that_is_taken_away(x, between):
    obj = Plain()
    obj.a, own = x, obj.__dict__
    obj.__dict__ = {"b": 1}
    between()
    obj.c = 2
    return own, vars(obj), vars(obj) is own


DICTIONARIES = (
    its_dictionary,
    its_dictionary_alone,
    those_of_other_objects,
    one_that_the_program_gives,
    one_for_two,
    one_that_is_taken_away,
)


@pytest.mark.parametrize("between", [tracer_core.graph_break, lambda: None])
@pytest.mark.parametrize("program", DICTIONARIES)
def test_the_dictionary_of_an_object(program, between):
    same(program, (X, between), (Y, between), breaks=None)


def test_the_dictionary_of_an_object_that_is_returned():
    def fn(x):
        obj = Plain()
        return x + 1, obj, obj.__dict__

    _, obj, own = tracer_core.compile(fn, backend="eager")(X)
    obj.a = 1
    assert own == {"a": 1} and own is vars(obj)

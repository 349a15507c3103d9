"""Type variables, generic classes, and (from 3.12 on) functions and classes with type parameters in
brackets.
"""

from __future__ import annotations

import dataclasses
import sys
import typing

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, module, same

X, Y = torch.ones(2, 3), torch.full((2, 3), 2.0)
NEW = pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
MAKERS = {
    "plain": lambda: typing.TypeVar("T"),
    "bound": lambda: typing.TypeVar("T", bound=int),
    "constraints": lambda: typing.TypeVar("T", int, str),
    "covariant": lambda: typing.TypeVar("T_co", covariant=True),
    "contravariant": lambda: typing.TypeVar("T_contra", contravariant=True),
    "ParamSpec": lambda: typing.ParamSpec("P"),
    "TypeVarTuple": lambda: typing.TypeVarTuple("Ts"),
}


def described(variable):
    names = (
        "__name__",
        "__module__",
        "__bound__",
        "__constraints__",
        "__covariant__",
        "__contravariant__",
    )
    return [
        repr(variable),
        type(variable).__name__,
        *(getattr(variable, name, None) for name in names),
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_a_variable_that_is_returned(name):
    make = MAKERS[name]

    def fn(x):
        return x + 1, [make()], described(make())

    compiled = tracer_core.compile(fn, backend="eager")
    for x in (X, Y, X):
        want, got = fn(x), compiled(x)
        torch.testing.assert_close(got[0], want[0])
        assert described(got[1][0]) == want[2] == got[2]
    assert len(tracer_core.explain(fn)(X).graphs) == 1


def test_the_module_of_a_variable():
    source = (
        "import typing\ndef fn(x):\n    return x + 1, typing.TypeVar('T').__module__ == __name__\n"
    )
    result = module(source)
    same(result.fn, (X,), (Y,), graphs=1)


def test_a_generic_class_with_a_hook_of_its_own():
    def fn(x):
        T, messages = typing.TypeVar("T"), []

        class Base(typing.Generic[T]):
            def __init_subclass__(cls, **options):
                super().__init_subclass__()
                messages.append((cls.__name__, options))

        class Sub(Base[int], tag=1):
            def __init__(self, v):
                self.v = v

        return (
            x * Sub(2).v,
            messages,
            [p.__name__ for p in Base.__parameters__],
            Sub.__orig_bases__ == (Base[int],),
        )

    same(fn, (X,), (Y,), graphs=1)


def test_errors_of_generic_classes():
    def fn(x):
        try:

            class Wrong(typing.Generic):
                pass

        except TypeError as error:
            return x + 1, str(error)

    same(fn, (X,), (Y,), graphs=1)


def test_make_dataclass_says_its_module():
    def fn(x):
        P = dataclasses.make_dataclass("P", ["a", ("b", int, 4)])
        return x * P(1).b, P(2) == P(2), repr(P(3)).rpartition(".")[2]

    same(fn, (X,), (Y,), graphs=1)


BRACKETS = {
    "function": """
def fn(x):
    def first[T, *Ts, **P](a: T, *rest) -> T:
        return a
    return first(x, 1) * 2, [type(p).__name__ + p.__name__ for p in first.__type_params__], sorted(first.__annotations__)
""",
    "function with defaults and a closure": """
def fn(x):
    k = x + 1
    def add[T](a: T, b=2, *, c=3) -> T:
        return a + b + c + k
    return add(x), add(x, c=1)
""",
    "class": """
def fn(x):
    class Box[T]:
        def __init__(self, v: T):
            self.v = v
        def get(self) -> T:
            return self.v
    box = Box[int](x * 2)
    return box.get() + 1, [p.__name__ for p in Box.__type_params__], Box.__name__, [str(p) for p in Box.__parameters__]
""",
    "class with a base and a generic method": """
def fn(x):
    class Base[T]:
        scale = 3
        def run[U](self, a: T, b: U):
            return a * self.scale + b
    class Sub[T, V](Base[T]):
        scale = 4
    return Sub().run(x, 1), len(Sub.__type_params__), Sub.__orig_bases__[0] == Base[Sub.__type_params__[0]]
""",
    "class with a tuple of parameters": """
def fn(x):
    class Many[*Ts]:
        n = 2
    return x * Many.n, str(Many[int, str]).rpartition(".")[2]
""",
    "global": """
def first[T](a: T) -> T:
    return a * 2
class Box[T]:
    def __init__(self, v: T):
        self.v = v
type Pair[T] = tuple[T, T]
def fn(x):
    return first(x) + Box[int](x).v, Pair.__name__
""",
}


@NEW
@pytest.mark.parametrize("name", BRACKETS)
def test_brackets(name):
    # From 3.14 on, annotations are evaluated when they are first read, by C code.
    deferred = sys.version_info >= (3, 14) and "__annotations__" in BRACKETS[name]
    compare_with_eager(
        lambda: module(BRACKETS[name]).fn, (X,), (Y,), graphs=1, breaks=int(deferred)
    )


LATER = {
    "bound": "def fn(x):\n    def g[T: (int, str)](a: T) -> T:\n        return a * 2\n    return g(x + 1) + 1\n",
    "alias": "def fn(x):\n    type Pair = tuple[int, int]\n    y = x + 1\n    return y * 2, str(Pair)\n",
}


@NEW
@pytest.mark.parametrize("name", LATER)
def test_what_is_evaluated_later_breaks(name):
    compare_with_eager(lambda: module(LATER[name]).fn, (X,), (Y,), kinds=("unsupported_opcode",))


@NEW
def test_a_class_with_brackets_is_made_again():
    source = """
def fn(x):
    class Box[T]:
        def __init__(self, v: T):
            self.v = v
    print(end="", flush=[])
    def first[T](a: T) -> T:
        return a + 1
    print(end="", flush=[])
    return Box[int](first(x)).v * 2, [p.__name__ for p in (*Box.__type_params__, *first.__type_params__)]
"""
    compare_with_eager(lambda: module(source).fn, (X,), (Y,), kinds=("side_effect_native",))


@NEW
def test_parameters_of_a_class_stay_the_same_across_a_break():
    source = """
import tracer_core
class Box[T: int]:
    pass
def fn(x):
    found = Box.__type_params__
    tracer_core.graph_break()
    return x + 1, found[0] is Box.__type_params__[0], found[0].__bound__
"""
    compare_with_eager(lambda: module(source).fn, (X,), (Y,), kinds=("requested",))

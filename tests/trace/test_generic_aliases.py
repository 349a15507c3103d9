"""Generic aliases and unions (``list[int]``, ``int | str``, ``typing.Union``), alias statements and
the parts of a ParamSpec: as arguments that change from call to call, and live at graph breaks.
"""

from __future__ import annotations

import sys
import types
import typing

import pytest

import tracer_core
from tests.support.eager_reference import module

T, S = typing.TypeVar("T"), typing.TypeVar("S")
NEW = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="alias statements came with Python 3.12"
)


def generic(number):
    """A class of its own for each number, whose aliases are made by C code."""
    names = {"__class_getitem__": classmethod(types.GenericAlias), "number": number}
    return type(f"C{number}", (), names)


ALIASES = {
    "of a class": lambda number: generic(number)[T],
    "nested": lambda number: list[generic(number)[T]],
    "with a list": lambda number: types.GenericAlias(dict, ([T, generic(number)], int)),
    "of two variables": lambda number: dict[T, S if number == 1 else T],
    "in a union": lambda number: generic(number)[T] | int,
    "a union": lambda number: generic(number) | int,
    "in typing's union": lambda number: typing.Union[generic(number)[T], int],
}
USES = {
    "subscript": lambda alias: alias[str],
    "subscript in another": lambda alias: list[alias][str],
    "subscript in a tuple": lambda alias: tuple[alias, ...][int],
    "parts": lambda alias: (typing.get_origin(alias), typing.get_args(alias)),
    "attribute of the origin": lambda alias: (alias.number, alias.__name__),
    "united": lambda alias: alias | None,
    "in a Union": lambda alias: typing.Union[alias, str],
}


def described(value):
    """Returns the parts of an alias, of which some have no hash."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if typing.get_origin(value) is None:
        return value
    return type(value), described(typing.get_origin(value)), described(typing.get_args(value))


def outcome(function, *args):
    """Returns what a call gives or raises, with its text."""
    try:
        result = function(*args)
    except (TypeError, AttributeError) as error:
        return type(error), str(error)
    return described(result), repr(result)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", ALIASES)
def test_an_alias_that_changes(make, use):
    def fn(alias):
        return USES[use](alias)

    compiled = tracer_core.compile(fn, backend="eager")
    for number in (0, 1, 0, 2):
        alias = ALIASES[make](number)
        assert outcome(compiled, alias) == outcome(fn, alias)


class Meta(type):
    def __or__(cls, other):
        raise AssertionError("the union is made again by other means")


class Plain(metaclass=Meta):
    pass


MEMBERS = {
    "types": lambda: int | str | None,
    "aliases": lambda: list[int] | dict[str, T],
    "forward references": lambda: typing.Union[int, "str"],
    "annotated": lambda: typing.Annotated[int, 1] | str,
    "a literal": lambda: typing.Literal[3, "a"] | None,
    "callables": lambda: list[typing.Callable[[int], T]] | int,
    "texts": lambda: typing.Union[typing.Literal[b"x"], typing.Literal[b"y"]],
    "typing.Generic": lambda: int | typing.Generic,
    "a metaclass with |": lambda: typing.Union[Plain, int],
}
if sys.version_info >= (3, 14):  # before, typing's unions hash their members and take types only
    MEMBERS |= {
        "annotated by what has no hash": lambda: typing.Union[typing.Annotated[str, {}], int],
        "members without |": lambda: typing.Union[b"x", b"y"],
    }


@pytest.mark.parametrize("members", MEMBERS)
def test_a_union_across_a_break(members):
    """A break behind it, and one before what is read of it."""

    def fn(x):
        result = MEMBERS[members]()
        tracer_core.graph_break()
        held = [result, x]
        tracer_core.graph_break()
        return held, typing.get_args(result), result == MEMBERS[members]()

    compiled = tracer_core.compile(fn, backend="eager")
    for x in (1, 2, 1):
        (want, others, is_equal), got = fn(x), compiled(x)
        assert got == (want, others, True) and is_equal
        assert repr(got) == repr((want, others, True)) and type(got[0][0]) is type(want[0])


def test_the_parts_of_a_ParamSpec():
    def fn(x):
        parameters = typing.ParamSpec("P")
        parts = [parameters.args, parameters.kwargs, parameters]
        tracer_core.graph_break()
        return x, parts, parts[0].__origin__ is parameters, parts[1].__origin__ is parts[2]

    compiled = tracer_core.compile(fn, backend="eager")
    for x in (1, 2):
        number, (args, kwargs, parameters), *same = compiled(x)
        assert (number, *same) == (x, True, True)
        assert args == parameters.args and kwargs == parameters.kwargs


@NEW
def test_aliases_of_an_alias_statement():
    result = module(
        "from typing import Callable, TypeVar\n"
        "T = TypeVar('T')\n"
        "def make():\n"
        "    type X[**P] = Callable[P, int]\n"
        "    return X\n"
    )

    def fn(alias):
        alia = alias[str]
        tracer_core.graph_break()
        return alia, alia.__args__, alia.__origin__

    compiled = tracer_core.compile(fn, backend="eager")
    for _ in range(3):
        alias = result.make()[result.T,]
        assert outcome(compiled, alias) == outcome(fn, alias)

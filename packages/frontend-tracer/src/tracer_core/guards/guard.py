"""The kinds of guard, and the expression that checks each.

The expression is Python text over the fetched value (named `v`); it is true when the trace is still
valid. A guard has no side effects and never runs user code.
"""

from __future__ import annotations

import builtins
import datetime
import enum
import fractions
import math
import operator
import pathlib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracer_core.guards.numpy_types import SCALARS
from tracer_core.guards.own_reference import Mortal
from tracer_core.guards.source import Source
from tracer_core.guards.tensor_guard import tensor_text


class GuardKind(enum.Enum):
    """What a guard checks.

    TYPE: exact type. EQ: an immutable value, with its type. IS: object identity. SAME: the same
    object as another source. LEN / KEYS: of a container. HAS / HAS_NOT: a dict has or lacks a key.
    EMPTY: a falsy container. TENSOR: everything a graph relies on in a tensor. UNBOUND: an empty
    cell. UNSET / IS_SET: a slot, by its descriptor. DATA: the contents of a bytearray or array.
    MRO: a class and its bases. FUNCTION: what calls of a function rely on beside its code, globals
    and cells.
    """

    TYPE = "type"
    EQ = "eq"
    IS = "is"
    SAME = "same"
    NOT_SAME = "not_same"
    LEN = "len"
    KEYS = "keys"
    HAS_NOT = "has_not"
    EMPTY = "empty"
    TENSOR = "tensor"
    UNBOUND = "unbound"
    HAS = "has"
    UNSET = "unset"
    IS_SET = "is_set"
    DATA = "data"
    MRO = "mro"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What a call relies on in a function that is made anew with the same code: its name in errors,
    and which parameters have defaults. It has no attributes: no marks."""

    name: str
    n_defaults: int
    keywords: tuple[str, ...]


def function_facts(function: types.FunctionType) -> FunctionFacts:
    """Returns what a FUNCTION guard compares."""
    defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or ()
    return FunctionFacts(function.__qualname__, len(defaults), tuple(keywords))


def function_is(value: Any, name: str, n_defaults: int, keywords: tuple[str, ...]) -> bool:
    """Checks a FUNCTION guard."""
    kind: type = type(value)  # no narrower type: with a cache mypy knows no `__builtins__` of it
    return (
        kind is types.FunctionType
        and value.__qualname__ == name
        and len(value.__defaults__ or ()) == n_defaults
        and tuple(value.__kwdefaults__ or ()) == keywords
        and value.__builtins__ is builtins.__dict__
        and not value.__dict__
    )


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """One guard: its kind, its source, and the expected value, whose meaning depends on the
    kind.
    """

    kind: GuardKind
    source: Source
    expected: Any
    #: The line of the program that the trace was at, ``file:line in function``.
    line: str = ""

    def text(
        self, value: str, constant: Callable[[Any], str], fetch: Callable[[Source], str]
    ) -> str:
        """Returns the check as an expression.

        value: text of the fetched value. constant: returns text that evaluates to an object. fetch:
        returns the text of another source's value.
        """
        return _CHECKS[self.kind](self, value, constant, fetch)

    def __str__(self) -> str:
        return self.text(self.source.name, show, lambda source: source.name)


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A condition over several values. template: an expression in which {0}, {1}, ... stand for the
    values of the sources."""

    template: str
    sources: tuple[Source, ...]

    def text(self, fetch: Callable[[Source], str]) -> str:
        """The condition as an expression. fetch: text of a source's value."""
        return self.template.format(*map(fetch, self.sources))

    def __str__(self) -> str:
        return self.text(lambda source: source.name)


def show(obj: Any) -> str:
    """Text of an object for people."""
    if isinstance(obj, type):
        module, name = (type.__dict__[item].__get__(obj) for item in ("__module__", "__qualname__"))
        return f"{module}.{name}"
    if isinstance(obj, Mortal) or len(repr(obj)) < 80:
        return repr(obj)
    return f"<{type(obj).__name__} at {id(obj):#x}>"


#: Bits of an integer that is written in hexadecimal digits.
_LONG_BITS = 1024
#: Immutable types whose repr is their whole value; equal values may differ (in time zone or fold).
REPR_TYPES: frozenset[type] = frozenset(
    {datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
    fractions.Fraction,
     pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, *SCALARS}
)  # fmt: skip


#: Immutable types of which equal ones may differ -> the fields that are their whole value.
_FIELDS: dict[type, tuple[str, ...]] = {
    complex: ("real", "imag"), range: ("start", "stop", "step"), slice: ("start", "stop", "step"),
}  # fmt: skip


def exact_members(members: frozenset[Any]) -> frozenset[Any]:
    """Returns the members of a frozenset as what tells them apart: True from 1, -0.0 from 0.0."""
    return frozenset(map(_exact, members))


def _exact(value: Any) -> Any:
    if isinstance(value, frozenset):
        return exact_members(value)
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    return type(value), value, repr(value) if isinstance(value, (float, complex)) else None


def literal(value: Any) -> str:
    """Returns the text of a literal. Python limits the digits of decimal integers in texts."""
    return hex(value) if type(value) is int and value.bit_length() > _LONG_BITS else repr(value)


def equality(value: str, expected: Any, constant: Callable[[Any], str]) -> str:
    """Returns text that is true when `value` equals the immutable `expected`.

    The types must be equal too; NaN equals NaN of the same sign, and -0.0 differs from 0.0.
    """
    if expected is None or expected is True or expected is False or expected is Ellipsis:
        return f"{value} is {expected!r}"
    kind = type(expected)
    if kind is float:
        if math.isnan(expected):
            sign = f"math.copysign(1.0, {value}) == {math.copysign(1.0, expected)}"
            return f"(type({value}) is float and {value} != {value} and {sign})"
        if expected == 0.0:
            return (
                f"(type({value}) is float and {value} == 0.0"
                f" and repr({value}) == {repr(expected)!r})"
            )
        text = repr(expected) if math.isfinite(expected) else f"float({repr(expected)!r})"
        return f"(type({value}) is float and {value} == {text})"
    if kind is tuple:
        # Element by element: (True, -0.0) == (1, 0.0) in Python.
        checks = [f"type({value}) is tuple", f"len({value}) == {len(expected)}"]
        checks += [equality(f"{value}[{i}]", item, constant) for i, item in enumerate(expected)]
        return f"({' and '.join(checks)})"
    if kind in REPR_TYPES:
        return f"(type({value}) is {constant(kind)} and repr({value}) == {repr(expected)!r})"
    if kind in _FIELDS:
        parts = [
            equality(f"{value}.{name}", getattr(expected, name), constant) for name in _FIELDS[kind]
        ]
        return f"({' and '.join([f'type({value}) is {constant(kind)}', *parts])})"
    if kind is frozenset:
        members = f"exact_members({value}) == exact_members({constant(expected)})"
        return f"(type({value}) is frozenset and {members})"
    if kind in (int, str, bytes):
        return f"(type({value}) is {kind.__name__} and {value} == {literal(expected)})"
    return f"(type({value}) is {constant(kind)} and {value} == {constant(expected)})"


def same_objects(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects; calls no ``__eq__``."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def data_of(buffer: Any) -> tuple[str, bytes]:
    """Returns what a DATA guard compares: the element type and the bytes of a bytearray or
    array.
    """
    return getattr(buffer, "typecode", "B"), bytes(buffer)


def _keys(guard: Guard, value: str, constant: Callable[[Any], str]) -> str:
    """Returns the check of a dict's keys in order, or of a set's members, with their types (1 is
    not True).
    """
    expected = guard.expected
    kind = list if isinstance(expected, list) else set
    held = f"list({value})" if kind is list else value
    text = f"{held} == {constant(expected)}"
    types = kind(map(type, expected))
    if set(types) <= {str}:
        return text
    return f"{text} and {kind.__name__}(map(type, {value})) == {constant(types)}"


_CHECKS: dict[GuardKind, Callable[..., str]] = {
    GuardKind.TYPE: lambda g, v, c, f: f"type({v}) is {c(g.expected)}",
    GuardKind.EQ: lambda g, v, c, f: equality(v, g.expected, c),
    GuardKind.IS: lambda g, v, c, f: f"{v} is {c(g.expected)}",
    GuardKind.SAME: lambda g, v, c, f: f"{v} is {f(g.expected)}",
    GuardKind.NOT_SAME: lambda g, v, c, f: f"{v} is not {f(g.expected)}",
    GuardKind.LEN: lambda g, v, c, f: f"len({v}) == {g.expected}",
    GuardKind.KEYS: lambda g, v, c, f: _keys(g, v, c),
    GuardKind.HAS_NOT: lambda g, v, c, f: f"{g.expected!r} not in {v}",
    GuardKind.EMPTY: lambda g, v, c, f: f"not {v}",
    GuardKind.TENSOR: lambda g, v, c, f: tensor_text(g.expected, v, c),
    GuardKind.UNBOUND: lambda g, v, c, f: f"is_unbound({v})",
    GuardKind.HAS: lambda g, v, c, f: f"{g.expected!r} in {v}",
    GuardKind.UNSET: lambda g, v, c, f: f"is_unset({c(g.expected)}, {v})",
    GuardKind.IS_SET: lambda g, v, c, f: f"not is_unset({c(g.expected)}, {v})",
    GuardKind.MRO: lambda g, v, c, f: f"same_objects({v}.__mro__, {c(g.expected)})",
    GuardKind.FUNCTION: lambda g, v, c, f: (
        f"function_is({v}, {g.expected.name!r}, {g.expected.n_defaults}, {g.expected.keywords!r})"
    ),
    GuardKind.DATA: lambda g, v, c, f: f"data_of({v}) == {g.expected!r}",
}

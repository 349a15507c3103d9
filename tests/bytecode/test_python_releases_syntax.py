"""Template strings and other syntax of CPython 3.13 and 3.14."""

from __future__ import annotations

import sys

import pytest

import tracer_core
from tests.support.eager_reference import module, same
from tests.support.graph_breaks import broken
from tests.support.named_programs import X, Y
from tracer_core.testing import compare

TEMPLATES = {
    "parts": """
def fn(x):
    name, n = "a", x.dim()
    made = t"begin {name} {n + 1:>{n}} {name!r:x} end"
    return x * n, made.strings, made.values, [
        (one.value, one.expression, one.conversion, one.format_spec) for one in made.interpolations
    ], len(list(made)), t"{name}{n}".strings, t"".strings, t"plain".strings
""",
    "tensors": """
def fn(x):
    made = t"{x + 1} and {x.mean()!s:y}"
    return made.values, made.interpolations[1].format_spec
""",
    "joined": """
def fn(x):
    made = t"a{x.dim()}" t"b" + t"{1}d"
    return x + 1, made.strings, made.values, type(made).__name__
""",
    "rendered": """
from string.templatelib import Interpolation, Template, convert
def fn(x):
    def render(made):
        return "".join(
            format(convert(part.value, part.conversion), part.format_spec)
            if isinstance(part, Interpolation) else part
            for part in made
        )
    match t"{x.dim()}!":
        case Template(strings=strings):
            pass
    return x + 1, render(t"{x.dim():>4}|{'a'!r}|{1.5:.2f}"), strings
""",
    "around breaks": """
def fn(x):
    made = t"{BREAK(x)} {BREAK(x.dim()):{BREAK(3)}}"
    return made.values, BREAK(made).interpolations[1].format_spec
""",
    "made by calls": """
from string.templatelib import Interpolation, Template
def fn(x):
    part = Interpolation(x + 1, "x + 1", "r", ">3")
    made = Template("a", "b", part, Interpolation(x.dim(), "n"), "c")
    BREAK(x)
    errors = []
    for wrong in (lambda: Template(1), lambda: Template(a=1), lambda: Interpolation(1, 2)):
        try:
            wrong()
        except TypeError as error:
            errors.append(str(error))
    again = Template(*BREAK(["d", part]))
    return made.strings, made.values, part.conversion, again.strings, errors
""",
    "errors": """
def fn(x):
    try:
        t"a" + "b"
    except TypeError as error:
        return x + 1, str(error)
""",
}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with Python 3.14")
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_strings(name):
    fn = module(TEMPLATES[name], BREAK=broken).fn
    same(fn, (X,), (Y,), breaks=None if "BREAK" in TEMPLATES[name] else 0)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with Python 3.14")
def test_template_strings_that_are_arguments():
    result = module("""
def template(x, n):
    return t"{x} at {n}"
def fn(made, x):
    first, n = made.values
    return first + x, n * 2, made.interpolations[1].value, len(list(made)), (made + t"!").strings
""")
    compiled = tracer_core.compile(result.fn, backend="eager")
    for template in (result.template(X, 1), result.template(Y, 2), result.template(X, 1)):
        compare(result.fn(template, X), compiled(template, X))


NEW_SYNTAX = {
    "3.13": """
def fn(x):
    def first[T = int, *Ts = *tuple[int, str], **P = [int]](a: T, *rest) -> T:
        return a
    class Box[T = int]:
        def __init__(self, v: T):
            self.v = v
    defaults = [p.__default__ for p in first.__type_params__ + Box.__type_params__]
    return first(x, 1) * 2, Box(x).v + 1, defaults[0], len(defaults)
""",
    "3.13, defaults": """
import typing
def fn(x):
    plain = typing.TypeVar("plain")
    made = [typing.TypeVar("T", default=int), typing.ParamSpec("P", default=[int]), plain]
    made.append(typing.TypeVarTuple("Ts", default=typing.Unpack[tuple[int, str]]))
    BREAK(x)
    class Box(typing.Generic[plain, made[0]]):
        pass
    try:
        class Wrong(typing.Generic[made[0], plain]):
            pass
    except TypeError as error:
        return x + 1, [(one.has_default(), str(one.__default__)) for one in made], str(error)
""",
    "3.14": """
def fn(x):
    try:
        {}[x.dim()]
    except ValueError, KeyError:
        x = x + 1
    try:
        raise ExceptionGroup("", [ValueError("a"), TypeError("b")])
    except* ValueError, TypeError:
        x = x * 2
    return x
""",
}


@pytest.mark.parametrize("release", NEW_SYNTAX)
def test_new_syntax(release):
    if sys.version_info < tuple(map(int, release.partition(",")[0].split("."))):
        pytest.skip("syntax of a later Python")
    same(module(NEW_SYNTAX[release], BREAK=broken).fn, (X,), (Y,), breaks=None)

"""Library code that is not interpreted step by step, and values of its immutable types."""

from __future__ import annotations

import copy
import datetime
import fractions
import functools
import inspect
import json
import operator
import os
import pathlib
import re
import statistics
import textwrap
import types
import typing
import uuid

import packaging.version
import pytest
import torch
from test.support import import_helper

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.library_programs import (
    LOGGER,
    Color,
    Config,
    Holder,
    Size,
    remember,
    with_default,
)
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- library code is not interpreted step by step
# -------------------------------------------------------------------


def steps_of(fn, *args):
    """Instructions interpreted to trace one call."""
    from tracer_core.trace.tracer import Tracer

    seen = []
    eager = Tracer.run_chain

    def run_chain(self, frames):
        try:
            return eager(self, frames)
        finally:
            seen.append(self.steps)

    Tracer.run_chain = run_chain
    try:
        with CaptureCounter() as counter:
            tracer_core.compile(fn, backend="eager")(*args)
    finally:
        Tracer.run_chain = eager
    assert not counter.breaks
    return sum(seen)


LIBRARY_CALLS = {
    "signature": lambda x: (x * 2, list(inspect.signature(with_default).parameters)),
    "regex": lambda x: (x * 2, re.sub(r"(a+)b*", "c", "aaab" * 9)),
    "version": lambda x: (
        x * 2,
        packaging.version.parse("2.4.1") >= packaging.version.parse("2.0"),
    ),
    "json": lambda x: (x * 2, json.dumps({"a": list(range(9))}, indent=2)),
    "textwrap": lambda x: (x * 2, textwrap.fill("word " * 50)),
    "statistics": lambda x: (x * 2, statistics.stdev([1, 2, 3, 4])),
    "logging": lambda x: (x * 2, LOGGER.debug("nothing")),
    "type-hints": lambda x: (x * 2, typing.get_type_hints(Config)),
    "uuid": lambda x: (x * 2, uuid.uuid5(uuid.NAMESPACE_URL, "a")),
    "splitext": lambda x: (x * 2, os.path.splitext("a/b.c"), os.path.normpath("a/../b")),
    "splitroot": lambda x: (x * 2, pathlib.PurePath("/a/b.c").root, pathlib.PurePath("a//b").parts),
}


@pytest.mark.parametrize("name", LIBRARY_CALLS)
def test_steps(name):
    assert steps_of(LIBRARY_CALLS[name], X) < 80


def test_library_code_with_the_programs_objects_is_interpreted():
    """json.dumps with the program's own default= calls it: it may not run behind the tracer's
    back.
    """
    calls = []

    def default(value):
        calls.append(value.n)
        return value.n

    def f(x):
        return x * 2, json.dumps([Size(3)], default=default)

    want = f(X)
    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(2):
        got = compiled(X)
        assert got[1] == want[1] and torch.equal(got[0], want[0])
    assert calls == [3, 3, 3]


# -- values of the library's own immutable types
# -----------------------------------------------------------------------

CHANGED = {
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3), lambda x, v: (x * float(v),
    v + 1)),
    "date": (datetime.date(2024, 1, 2), datetime.date(2024, 1, 3), lambda x, v: (x * v.day,
    v.isoformat())),
    "datetime": (datetime.datetime(2024, 1, 2, 3), datetime.datetime(2024, 1, 2, 4), lambda x,
    v: (x, v.strftime("%H"))),
    "zone": (
        datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 2, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        lambda x, v: (x * v.hour, v.isoformat()),
    ),
    "timedelta": (datetime.timedelta(1), datetime.timedelta(2), lambda x, v: (x * v.days, v * 2)),
    "pattern": (re.compile("a+"), re.compile("b+"), lambda x, v: (x, v.findall("aabb"), v.pattern)),
    "path": (pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a/c"), lambda x, v: (x, v.name,
    str(v / "d"))),
    "getter": (operator.itemgetter(0), operator.itemgetter(1), lambda x, v: (x, v([1, 2]))),
    "partial": (functools.partial(max, 3), functools.partial(min, 3), lambda x, v: (x, v(5))),
    "namespace": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), lambda x, v: x * v.a),
    "enum": (Color.RED, Color.BLUE, lambda x, v: (x * v.value, v.name, v is Color.RED)),
    "bytearray": (bytearray(b"ab"), bytearray(b"cd"), lambda x, v: (x, bytes(v))),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"getter"}))  # these do not compare equal
def test_argument_changes(name):
    first, second, fn = CHANGED[name]
    same(fn, (X, first), (X, second), (Y, first), breaks=None if name == "bytearray" else 0)


@pytest.mark.parametrize("name", CHANGED)
def test_attribute_changes(name):
    first, second, fn = CHANGED[name]

    def make():
        box = Holder()
        box.value = copy.copy(first)
        return (lambda x: fn(x, box.value)), types.SimpleNamespace(box=box)

    compare_with_eager(
        make, (X,), lambda w: setattr(w.box, "value", second), (X,), (Y,), breaks=None
    )


def test_a_cache_is_guarded_once_for_many_calls():
    def f(x):
        for _ in range(50):
            x = x + remember(1, 2)
        return x

    same(f, (X,), (Y,), breaks=0)
    guards = [str(guard) for guard in tracer_core.explain(f)(X).guards]
    assert 0 < sum("remember" in guard for guard in guards) < 5, guards


@pytest.mark.parametrize("pattern", ["a", "b", "a(b)?", "x*", "c$"])
def test_a_function_of_sub_that_returns_no_text(pattern):
    def f(x, n):
        try:
            return re.sub(pattern, lambda match: n, "abac"), x
        except TypeError as error:
            return str(error), x + n

    fast = tracer_core.compile(f, backend="eager")
    for n in (1, 1, 2):
        assert fast(torch.ones(1), n) == f(torch.ones(1), n)


def test_a_library_of_c_that_was_loaded_again():
    """Its classes look up attributes as the first one's do, by functions that the table lacks."""
    again = import_helper.import_fresh_module("decimal", fresh=["_decimal"])

    def f(x):
        context = again.Context(prec=5)
        context.flags[again.Inexact] = True
        return x + sum(context.flags.values()), context.traps[again.InvalidOperation]

    def g(x):
        try:
            return functools.partial(max, 3).nothing
        except AttributeError as error:
            return str(error), x + 1

    for function in (f, g):
        fast = tracer_core.compile(function, backend="eager")
        for _ in range(2):
            assert str(fast(torch.ones(2))) == str(function(torch.ones(2)))

"""Errors of C code: their text, and the chain of contexts that the program sees."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import fractions
import json
import math
import operator

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same


class Slots:
    __slots__ = ()


CASES = {
    "vars": lambda: vars(1),
    "attribute": lambda: (1).foo,
    "attribute_by_name": lambda: Slots().missing,
    "key": lambda: {}["a"],  # noqa: RUF100
    "position": lambda: [][1],
    "next": lambda: next(iter([])),
    "int": lambda: int("x"),
    "arguments": lambda: (lambda a, b: 0)(*[1]),
    "name": lambda: undefined_name,
    "call": lambda: operator.call(3),
    "delete": lambda: delattr(Slots(), "z"),
    "set": lambda: setattr(Slots(), "z", 1),
    "import": lambda: __import__("no_such_module_x"),
    "inside_a_generator": lambda: list(v.foo for v in [1]),
    "max": lambda: max([]),
    "order": lambda: 1 < "a",
    "add": lambda: 1 + "a",
    "iterate": lambda: list(3),
    "len": lambda: len(3),
    "hash": lambda: hash([]),
    "super": lambda: super(),
    "slice": lambda: operator.getitem("abc", "x"),
    "percent": lambda: "%d" % "a",
    "format": lambda: format(3, "z!"),
    "json": lambda: json.loads("{"),
    "fraction": lambda: fractions.Fraction("q"),
    "ordered_dict": lambda: collections.OrderedDict().popitem(),
    "chain_map": lambda: collections.ChainMap({})["q"],
    "module": lambda: torch.nn.Linear(1, 1).nothing,
    "tensor": lambda: torch.ones(2).nothing,
    "shapes": lambda: torch.ones(2) @ torch.ones(3),
    "enum": lambda: enum.Enum("E", "a b")(3),
    "library": lambda: torch.nothing,
    "dataclass": lambda: dataclasses.replace(3),
    "remove": lambda: [].remove(1),
    "pop": lambda: set().pop(),
    "join": lambda: "".join([1]),
    "float": lambda: float("q"),
    "sqrt": lambda: math.sqrt(-1),
    "zero": lambda: 1 / 0,
    "stack": lambda: torch.stack([]),
}


def chain_of(error):
    names = []
    while error is not None:
        names.append((type(error), str(error), error.__suppress_context__, error.__cause__))
        error = error.__context__
    return names


def alone(step, x):
    try:
        step()
    except Exception as error:
        return x + 1, chain_of(error)


def in_a_handler(step, x):
    try:
        raise OSError("outer")
    except OSError:
        return alone(step, x)


@pytest.mark.parametrize("around", [alone, in_a_handler])
@pytest.mark.parametrize("case", CASES)
def test_contexts_equal_eager(case, around):
    step, x = CASES[case], torch.ones(2)
    compiled = tracer_core.compile(around, backend="eager")
    for _ in range(3):
        y, chain = compiled(step, x)
        assert torch.equal(y, x + 1)
        assert chain == around(step, x)[1]


class Missing:
    def __getattr__(self, name):
        raise AttributeError("not here")

    @property
    def broken(self):
        raise AttributeError


def test_an_attribute_error_names_what_was_looked_up():
    def f(x, missing):
        actual = []
        for look in (lambda: missing.size, lambda: missing.broken, lambda: Missing().size):
            try:
                look()
            except AttributeError as error:
                actual += [error.name, error.obj is missing, type(error.obj)]
        return x + 1, actual

    same(f, (torch.ones(2), Missing()), (torch.ones(2), Missing()))


def test_a_name_error_names_the_variable():
    def f(x, bound):
        if bound:
            free = 1

        def inner():
            return free

        try:
            return x, inner()
        except NameError as error:
            return x + 1, error.name, str(error)

    same(f, (torch.ones(2), False), (torch.ones(2), True), (torch.ones(2), False))


def test_a_context_that_the_program_has_cleared_stays_cleared():
    @contextlib.contextmanager
    def replaces():
        try:
            yield
        except IndexError:
            error = ValueError(1)
            try:
                raise error
            finally:
                error.__context__ = None

    def f(x):
        try:
            with replaces():
                raise IndexError
        except ValueError as error:
            return x + 1, error.__context__

    def after_a_break(x):
        try:
            tracer_core.graph_break()
            with replaces():
                tracer_core.graph_break()
                raise IndexError
        except ValueError as error:
            return x + 1, error.__context__

    same(f, (torch.ones(2),), (torch.ones(2),))
    same(after_a_break, (torch.ones(2),), (torch.ones(2),), breaks=2)


def test_an_error_that_a_generator_raises_in_place_of_a_stop_keeps_its_context():
    def ends_wrongly():
        raise StopIteration
        yield

    def f(x):
        result = ends_wrongly()
        tracer_core.graph_break()
        try:
            raise TypeError
        except TypeError:
            return next(result)

    same(f, (torch.ones(2),), (torch.zeros(2),), breaks=None)


def test_an_error_that_was_raised_again_is_the_context_of_the_next():
    """`finally` raises it again in eager Python; the operator fails inside a context manager."""

    @contextlib.contextmanager
    def noted(log):
        log.append("in")
        try:
            yield
        finally:
            log.append("out")

    def program(weight, log):
        try:
            try:
                weight[0] = 1
            finally:
                log.append("finally")
        except RuntimeError:
            with noted(log):
                weight.clamp_()

    def chain(function):
        log = []
        with pytest.raises(RuntimeError) as caught:
            function(torch.nn.Parameter(torch.ones(2, 3)), log)
        actual, error = [], caught.value
        while error is not None:
            actual.append((type(error), str(error)))
            error = error.__context__
        return actual, log

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        assert chain(compiled) == chain(program) and len(chain(program)[0]) == 2

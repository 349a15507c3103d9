"""Marks that user code puts on functions and tensors, and how the tracer reads them."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

import tracer_core
from tracer_core import markers
from tracer_core.errors import OptionError
from tracer_core.markers import FunctionRole


def add(x, y=1):
    return x + y


def test_disable_wraps_and_leaves_the_function_alone():
    native = tracer_core.disable(add, reason="prints")
    assert native(1) == 2 and native.__name__ == "add"
    assert inspect.signature(native) == inspect.signature(add)
    assert markers.disabled(native) == "prints"
    assert markers.disabled(add) is None


def test_disable_as_a_decorator():
    @tracer_core.disable
    def first(x):
        return x

    @tracer_core.disable(reason="talks to the network")
    def second(x):
        return x

    assert markers.disabled(first) == "marked with tracer_core.disable"
    assert markers.disabled(second) == "talks to the network"


def test_disable_on_a_method_keeps_its_object():
    class Box:
        def __init__(self, value):
            self.value = value

        @tracer_core.disable
        def get(self):
            return self.value

        def other(self):
            return -self.value

    box = Box(4)
    assert box.get() == 4 and markers.disabled(box.get) is not None
    assert tracer_core.disable(box.other)() == -4


def test_torchs_own_disable_is_honoured():
    native = torch.compiler.disable(add, reason="theirs")
    assert markers.disabled(native) == "theirs"


@pytest.mark.parametrize(
    ("mark", "role"),
    [
        (tracer_core.allow_in_graph, FunctionRole.ALLOW),
        (tracer_core.disallow_in_graph, FunctionRole.DISALLOW),
        (tracer_core.assume_constant_result, FunctionRole.CONSTANT_RESULT),
    ],
)
def test_roles(mark, role):
    def fresh(x):
        return x

    assert markers.role(fresh) is None
    assert mark(fresh) is fresh
    assert markers.role(fresh) is role
    assert mark(fresh) is fresh, "marking twice alike is no mistake"

    class Box:
        def method(self):
            return 1

    mark(Box().method)
    assert markers.role(Box().method) is role


def test_a_c_function_can_be_marked(monkeypatch):
    import math

    monkeypatch.setattr(markers, "_roles_of_builtins", dict(markers._roles_of_builtins))

    assert markers.role(math.hypot) is None
    tracer_core.disallow_in_graph(math.hypot)
    assert markers.role(math.hypot) is FunctionRole.DISALLOW
    assert markers.role(math.atan2) is None


def test_contradicting_marks_are_an_error():
    def fresh(x):
        return x

    tracer_core.allow_in_graph(fresh)
    with pytest.raises(OptionError, match="already marked allow_in_graph"):
        tracer_core.disallow_in_graph(fresh)


def test_a_copied_attribute_is_not_a_mark():
    @tracer_core.assume_constant_result
    def constant():
        return 1

    @functools.wraps(constant)
    def outer():
        return constant() + 1

    assert markers.role(outer) is None

    theirs = torch.compiler.assume_constant_result(lambda: 1)
    assert markers.role(theirs) is FunctionRole.CONSTANT_RESULT

    @functools.wraps(theirs)
    def outer_of_theirs():
        return theirs() + 1

    assert markers.role(outer_of_theirs) is None


def test_graph_break_and_is_compiling_do_nothing_when_nothing_is_traced():
    assert tracer_core.graph_break() is None
    assert tracer_core.graph_break("here") is None
    assert tracer_core.is_compiling() is False
    assert markers.role(tracer_core.graph_break) is FunctionRole.GRAPH_BREAK
    assert markers.role(tracer_core.is_compiling) is FunctionRole.IS_COMPILING


def test_mark_dynamic_and_static():
    x = torch.zeros(4, 5, 6)
    assert markers.dynamic_dims(x) == {} and markers.static_dims(x) == frozenset()
    tracer_core.mark_dynamic(x, 0, min=2, max=8)
    tracer_core.mark_dynamic(x, [-1])
    assert markers.dynamic_dims(x) == {0: (2, 8), 2: (None, None)}
    tracer_core.mark_static(x, 0)
    assert markers.dynamic_dims(x) == {2: (None, None)}
    assert markers.static_dims(x) == {0}
    tracer_core.mark_static(x)
    assert markers.static_dims(x) == {0, 1, 2} and markers.dynamic_dims(x) == {}
    tracer_core.mark_dynamic(x, 1)
    assert markers.static_dims(x) == {0, 2}


def test_torchs_own_dimension_marks_are_honoured():
    x = torch.zeros(4, 5)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
    torch._dynamo.mark_static(x, 1)
    assert markers.dynamic_dims(x) == {0: (2, 16)}
    assert markers.static_dims(x) == {1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tracer_core.mark_dynamic(x, 2), "no dimension 2"),
        (
            lambda x: tracer_core.mark_dynamic(x, 0, min=5),
            "size 4 of dimension 0 is outside 5..None",
        ),
        (
            lambda x: tracer_core.mark_dynamic(x, 0, max=3),
            "size 4 of dimension 0 is outside None..3",
        ),
        (lambda x: tracer_core.mark_static(x, -3), "no dimension -3"),
        (lambda x: tracer_core.disable(3), "disable needs a function"),
        (lambda x: tracer_core.disable(int), "disable needs a function"),
        (lambda x: tracer_core.allow_in_graph("f"), "allow_in_graph needs a function"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(OptionError, match=message):
        call(torch.zeros(4, 5))

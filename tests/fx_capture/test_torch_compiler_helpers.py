"""Helpers of torch.compiler, torch.onnx and torch._refs, and what torch's own tests of its tracer do:
in the graph, with eager's results."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
import torch
import torch.onnx.operators
from torch import nn

import tracer_core
from tests.support.eager_reference import same
from tests.support.named_programs import X
from tracer_core.errors import OptionError


def test_the_mark_of_a_step_of_cuda_graphs():
    def program(x):
        y = x * 2
        torch.compiler.cudagraph_mark_step_begin()
        return y + 1

    same(program, (X,), (X,), graphs=1)


@torch.compiler.wrap_numpy
def of_arrays(array, factor):
    return np.sin(array) * factor


def test_wrap_numpy():
    same(of_arrays, (X, 2.0), (X, 2.0), graphs=1)
    same(lambda x: of_arrays(x + 1, 3.0) * 2, (X,), (X,), graphs=1)


def test_nonstrict_trace():
    from torch._dynamo import nonstrict_trace

    halved = nonstrict_trace(lambda x: x.sin() / 2)
    same(lambda x: halved(x) + 1, (X,), (X,), graphs=1)


def test_shapes_of_onnx():
    def program(x):
        sizes = torch.onnx.operators.shape_as_tensor(x.t())
        return torch.onnx.operators.reshape_from_tensor_shape(x * 2, sizes), sizes + 1

    same(program, (X,), (X,), (torch.ones(2, 5),))


@pytest.mark.parametrize("value", [1, "a", None, [1]])
def test_shapes_of_what_is_no_tensor(value):
    def program(value):
        with pytest.raises(TypeError, match="must be Tensor"):
            torch._shape_as_tensor(value)
        with pytest.raises(TypeError, match="must be Tensor"):
            torch._reshape_from_tensor(torch.ones(2), value)

    tracer_core.compile(program, backend="eager")(value)


REFS = {
    "add": lambda x: torch._refs.add(x, 1),
    "gelu": lambda x: torch._refs.nn.functional.gelu(x),
    "entr": lambda x: torch._refs.special.entr(x.abs()),
    "clamp": lambda x: torch._refs.clamp(x, 0, 1),
    "where": lambda x: torch._refs.where(x > 0, x, 0),
    "cat": lambda x: torch._refs.cat([x, x * 2]),
    "softmax": lambda x: torch._refs.softmax(x, 0),
}


@pytest.mark.parametrize("name", REFS)
def test_reference_functions(name):
    same(REFS[name], (X,), (X,), graphs=1)


class Item:
    pass


KNOWN, OTHER = Item(), Item()
ITEMS, CHANGING = frozenset([KNOWN, Item()]), {KNOWN}


def test_membership_in_a_set_of_objects():
    def program(x):
        actual = KNOWN in ITEMS, OTHER in ITEMS, Item() in ITEMS
        return x * 2 if KNOWN in ITEMS else x, actual

    same(program, (X,), (X,), graphs=1)


def test_membership_that_changes():
    fast = tracer_core.compile(lambda x, item: x * 2 if item in CHANGING else x - 1)
    for change, item in ((None, KNOWN), (None, OTHER), (CHANGING.add, OTHER),
                         (CHANGING.discard, OTHER), (None, KNOWN), (None, Item())):  # fmt: skip
        if change is not None:
            change(item)
        expected = X * 2 if item in CHANGING else X - 1
        assert torch.equal(fast(X, item), expected)


@pytest.mark.parametrize(
    "function", [ctypes.CDLL(None).abs, np.sin, np.linalg.norm], ids=["ctypes", "ufunc", "numpy"]
)
def test_allow_in_graph_refuses_what_takes_no_tensor(function):
    with pytest.raises(OptionError, match="takes no traced tensor"):
        tracer_core.allow_in_graph(function)


def test_an_allowed_function_that_reads_an_array_breaks_the_graph_alone():
    def of_array(x):
        return torch.from_numpy(np.sin(x.numpy()))

    tracer_core.allow_in_graph(of_array)
    same(lambda x: of_array(x * 2) + 1, (X,), (X,), graphs=2, breaks=1)


@pytest.mark.parametrize("first", [tracer_core.mark_dynamic, tracer_core.mark_static])
@pytest.mark.parametrize("last", [tracer_core.mark_dynamic, tracer_core.mark_static])
def test_the_last_of_two_marks_stands(first, last):
    fast = tracer_core.compile(lambda x: x * 2)
    for rows in (5, 7):
        x = torch.ones(rows, 3)
        first(x, 0)
        last(x, 0)
        assert torch.equal(fast(x), x * 2)


def test_extremes_of_tensors():
    def program(x):
        return max(x.sum(), x.mean()), min(x.sum(), 0), max([x[0, 0], x[1, 1], x.max()])

    same(program, (X,), (-X,), breaks=None)


def test_attributes_of_partial_functions():
    function = functools.partial(torch.add, alpha=2)
    function.note = 3

    def program(x):
        result = functools.partial(function, x)
        result.own = 4
        return (
            result(x),
            function.note,
            result.own,
            result.args[0] + 1,
            result.keywords,
            result.func is torch.add,
        )

    same(program, (X,), (X,), graphs=1)


def test_an_autograd_function_with_results_that_are_no_tensors():
    class Described(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.factor = 3
            return x * 2, 5, None, "text"

        @staticmethod
        def backward(ctx, gradient, *rest):
            return gradient * ctx.factor

    def program(x):
        y, number, nothing, text = Described.apply(x)
        return y * number, nothing, text

    same(program, (X.clone().requires_grad_(),), (X.clone().requires_grad_(),), graphs=1)


def test_numbers_among_the_outputs_of_a_callable_backend():
    fast = tracer_core.compile(
        lambda x, n: (x * n, n + 1, n / 2, x.shape[0]), backend=lambda gm, _: gm
    )
    for number in (3, 4, 5):
        result, *numbers = fast(X, number)
        assert torch.equal(result, X * number)
        assert numbers == [number + 1, number / 2, X.shape[0]]
        assert [type(number) for number in numbers] == [int, float, int]


def test_control_flow_called_by_its_own_name():
    from torch._higher_order_ops.cond import cond
    from torch._higher_order_ops.map import map as mapped

    def program(x):
        return cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))

    same(program, (X,), (-X,), graphs=1)
    fast = tracer_core.compile(mapped)
    for _ in range(2):
        assert torch.allclose(fast(lambda row: row.sin(), X), X.sin())


def test_lazy_modules():
    torch.manual_seed(0)
    net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    fast = tracer_core.compile(net)
    results = [fast(X) for _ in range(3)]
    assert type(net[0]) is nn.Linear
    assert all(torch.allclose(result, net(X)) for result in results)

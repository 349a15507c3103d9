"""Gradients of elements with the sums of their columns beside them (a layer before a bias): explicit vectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.codegen.cpp import vectors
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate, assert_same, assert_same_calls

aten = torch.ops.aten
#: name -> a gradient of elements
GRADIENTS = {
    "gelu": lambda dy, x: aten.gelu_backward(dy, x),
    "gelu, tanh": lambda dy, x: aten.gelu_backward(dy, x, approximate="tanh"),
    "silu": lambda dy, x: aten.silu_backward(dy, x),
    "relu": lambda dy, x: aten.threshold_backward(dy, x, 0),
    "mask": lambda dy, x: dy * (x > 0.3) * 1.25,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_with_their_sums(name):
    gradient = GRADIENTS[name]

    def program(dy, x):
        dx = gradient(dy, x)
        return dx, dx.sum(0), nn.functional.gelu(x)

    torch.manual_seed(0)
    compiled_program = tracer_core.compile(program, dynamic=False)
    for size in ((1, 40), (37, 40), (300, 33), (16, 1100), (33, 5)):
        inputs = [torch.randn(size) for _ in range(2)]
        assert_same_calls(compiled_program, program, *inputs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["gelu", "mask"])
def test_gradients_of_16_bits_with_their_sums(name):
    gradient = GRADIENTS[name]

    def program(dy, x):
        dx = gradient(dy, x)
        return dx, dx.sum(0)

    torch.manual_seed(0)
    inputs = [torch.randn(300, 40).bfloat16() for _ in range(2)]
    actual, wanted = tracer_core.compile(program)(*inputs), program(*inputs)
    exact = program(*(tensor.double() for tensor in inputs))
    assert_same(actual[0], wanted[0])
    for results in zip(actual, wanted, exact, strict=True):
        assert_as_accurate(*results)


@pytest.mark.skipif(not vectors.available(), reason="no vectors for this processor")
def test_sums_beside_results_are_in_vectors():
    def program(dy, x):
        dx = aten.gelu_backward(dy, x)
        return dx, dx.sum(0)

    text = compiled(program, torch.randn(64, 200), torch.randn(64, 200)).source
    assert "tc_walk" in text and "tc_take" in text


def test_sums_of_many_rows_are_exact_to_float():
    def program(x):
        y = x * 1.5
        return y, y.sum(0)

    x = torch.full((40_000, 24), 1 / 3)
    _, actual = tracer_core.compile(program)(x)
    torch.testing.assert_close(actual.double(), (x * 1.5).double().sum(0), rtol=2e-7, atol=0)

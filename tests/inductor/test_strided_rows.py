"""Reductions of long rows that are not contiguous: kernels reduce neighbouring columns side by side, in vectors,
and transpose operands and results that lie across them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.codegen.cpp import vectors
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate, assert_same, assert_same_calls
from tests.support.gradients import same_gradients


def channels_first_norm(x):
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-6)


#: name -> what reduces dimension 1
OVER_ONE = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "amax and amin": lambda x: (x.amax(1), x.amin(1)),
    "max": lambda x: x.max(1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "standardized": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "norm": lambda x: nn.functional.normalize(x, dim=1),
    "prod": lambda x: (1 + x / 50).prod(1),
    "layer_norm": lambda x: nn.functional.layer_norm(x.transpose(1, 2), (x.shape[1],)),
    "softmax, transposed": lambda x: x.transpose(1, 2).softmax(-1),
    "softmax, a transposed result": lambda x: x.transpose(1, 2).contiguous().softmax(1).mT + 1,
    "both ways": lambda x: (x.transpose(1, 2) * 2 + x.mT.contiguous()).softmax(-1),
    "channels first": channels_first_norm,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVER_ONE)
def test_rows_along_dimension_one(name, dynamic):
    function = OVER_ONE[name]
    program = tracer_core.compile(function, dynamic=dynamic)
    torch.manual_seed(0)
    for size in ((2, 100, 64), (3, 33, 49), (1, 16, 200), (2, 640, 16)):
        x = torch.randn(size) + 3
        assert_same_calls(program, function, x, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "softmax, transposed", "logsumexp"])
def test_rows_of_16_bits(name, dtype):
    function = OVER_ONE[name]
    torch.manual_seed(0)
    x = torch.randn(2, 100, 49).to(dtype)
    results = tracer_core.compile(function)(x), function(x), function(x.double())
    assert results[0].stride() == results[1].stride()
    assert_as_accurate(*results)


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "layer_norm", "norm", "channels first"]
)
def test_gradients(name):
    function = OVER_ONE[name]
    torch.manual_seed(0)
    x = torch.randn(2, 100, 49, requires_grad=True)
    same_gradients(lambda: lambda x: function(x).exp(), (x,), backend="inductor")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e25, -1e-40])
def test_extreme_values_in_a_few_columns(value):
    def program(x):
        return x.softmax(0), x.amax(0), x.amin(0), x.var(0), x.logsumexp(0)

    torch.manual_seed(0)
    x = torch.randn(100, 70)
    x[50, 3] = x[99, 69] = x[0, 20] = value
    assert_same_calls(tracer_core.compile(program), program, x, rtol=2e-5, atol=2e-5)


def test_variances_of_numbers_far_from_zero():
    def program(x):
        return x.var(0)

    torch.manual_seed(0)
    x = torch.randn(5000, 40) + 10_000.0
    x[7] = -5e5  # far from the others
    actual = tracer_core.compile(program)(x)
    torch.testing.assert_close(actual.double(), x.double().var(0), rtol=1e-6, atol=0)


def test_in_place():
    def program(x, y):
        y.copy_(x.t().softmax(-1) + y)
        return x.mul_(x.softmax(0))

    torch.manual_seed(0)
    first, second = ([torch.randn(100, 64), torch.ones(64, 100)] for _ in range(2))
    second[0].copy_(first[0])
    assert_same(tracer_core.compile(program)(*first), program(*second), rtol=1e-5, atol=1e-5)
    assert_same(first[1], second[1], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not vectors.available(), reason="no vectors for this processor")
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "softmax, transposed", "logsumexp"])
def test_every_loop_is_in_vectors(name):
    text = compiled(OVER_ONE[name], torch.randn(2, 128, 64)).source
    assert text.count("tc_walk") == {"softmax": 3, "softmax, transposed": 3}.get(name, 2)
    assert ("tc_turn_out" in text) == (name in ("layer_norm", "softmax, transposed"))

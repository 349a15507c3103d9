"""Reductions of rows of a few elements, which kernels reduce side by side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_same_calls

#: name -> what reduces the last dimension
REDUCTIONS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: (x * x).sum(-1),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "var_mean": lambda x: torch.var_mean(x, -1, correction=0),
    "any": lambda x: (x > 1).any(-1),
    "prod": lambda x: x.prod(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("length", [1, 3, 7, 15])
def test_short_rows(name, length):
    function = REDUCTIONS[name]
    torch.manual_seed(0)
    for x in (
        torch.randn(70, 3, length),
        torch.randn(3, length, 70).transpose(1, 2),
        torch.randn(2, length, 5, 21).permute(0, 2, 3, 1),
        torch.randn(5, length),
        torch.randn(0, length),
    ):
        assert_same_calls(tracer_core.compile(function), function, x, calls=2)


def test_short_rows_with_infinities():
    x = torch.randn(40, 4)
    x[3], x[4, 1], x[5, 2], x[6] = float("-inf"), float("nan"), float("inf"), 0
    for name in ("softmax", "log_softmax", "amax", "argmax", "layer_norm"):
        function = REDUCTIONS[name]
        assert_same_calls(tracer_core.compile(function), function, x, calls=2)


def test_short_rows_are_lanes():
    assert "int64_t lanes" in compiled(lambda x: x.softmax(-1), torch.randn(500, 4)).source
    assert "int64_t lanes" not in compiled(lambda x: x.softmax(-1), torch.randn(500, 64)).source

"""Linear layers over a few channels that are not contiguous (talking heads): values, dtypes and strides are
eager's, without copies that put the channels side by side."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.limits import MAX_MIXED_CHANNELS
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate, assert_same_calls
from tests.support.gradients import same_gradients


class TalkingHeads(nn.Module):
    """Attention whose heads are mixed before and after softmax."""

    def __init__(self, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.before = nn.Linear(heads, heads, bias=bias)
        self.after = nn.Linear(heads, heads, bias=bias)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1)
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        return self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v


def heads_of(
    count: int, dtype: torch.dtype = torch.float32, length: int = 33
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, count, length, 8).to(dtype) for _ in range(3)]


@pytest.mark.parametrize(
    "heads, bias", [(2, True), (4, False), (16, True), (MAX_MIXED_CHANNELS + 1, True)]
)
def test_talking_heads(heads, bias):
    module = TalkingHeads(heads, bias)
    with torch.no_grad():
        assert_same_calls(tracer_core.compile(module), module, *heads_of(heads), calls=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_talking_heads_of_16_bits(dtype):
    module = TalkingHeads(4).to(dtype)
    inputs = heads_of(4, dtype)
    with torch.no_grad():
        actual, wanted = tracer_core.compile(module)(*inputs), module(*inputs)
        exact = copy.deepcopy(module).double()(*(tensor.double() for tensor in inputs))
    assert (actual.dtype, actual.stride()) == (wanted.dtype, wanted.stride())
    assert_as_accurate(actual, wanted, exact)


def test_trained_talking_heads():
    def make():
        torch.manual_seed(1)
        return TalkingHeads(4)

    inputs = [tensor.requires_grad_() for tensor in heads_of(4)]
    same_gradients(make, tuple(inputs), tuple(inputs), backend="inductor")


def test_frozen_talking_heads():
    module = TalkingHeads(4).eval()
    frozen = tracer_core.compile(module, options={"freeze": True})
    with torch.no_grad():
        assert_same_calls(frozen, module, *heads_of(4), calls=2)


def test_the_channels_are_mixed_where_they_lie():
    module = TalkingHeads(4)
    of_heads = compiled(module, *heads_of(4), first="linear_layers")
    assert "fused_mix" in of_heads.source and "addmm" not in of_heads.text


#: name -> (program of scores and a weight, sizes of the scores, of the weight)
FORMS = {
    "einsum": (lambda a, w: torch.einsum("bhij,hg->bgij", a, w), (2, 4, 20, 20), (4, 4)),
    "wider": (lambda a, w: a.permute(0, 2, 3, 1) @ w, (2, 3, 20, 20), (3, 5)),
    "one image": (lambda a, w: a.permute(0, 2, 3, 1) @ w, (1, 4, 20, 20), (4, 4)),
    "of a matrix": (lambda a, w: a.t() @ w, (4, 300), (4, 6)),
    "sequences": (lambda a, w: (a.transpose(1, 2) @ w).relu(), (3, 6, 40), (6, 2)),
    "a slice": (lambda a, w: a[:, 1:5].permute(0, 2, 3, 1) @ w, (2, 6, 20, 20), (4, 4)),
    "a column": (lambda a, w: a.permute(0, 2, 3, 1) @ w, (2, 4, 20, 20), (4, 1)),
    "few that follow": (lambda a, w: a.permute(0, 2, 3, 1) @ w, (2, 4, 20, 3), (4, 4)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    function, sizes, weight = FORMS[name]
    torch.manual_seed(0)
    inputs = [
        torch.rand(sizes),
        torch.rand(weight),
    ]  # sums of many terms of one sign are exact enough
    assert_same_calls(tracer_core.compile(function), function, *inputs, calls=2)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    same_gradients(lambda: function, tuple(inputs), backend="inductor")


def test_infinities_and_zeros_are_mixed_as_eager_does():
    scores = torch.zeros(1, 4, 20, 20)
    scores[0, 1, 3], scores[0, 2, 4, 5], scores[0, 3] = float("inf"), float("nan"), -0.0
    weight = -torch.eye(4)

    def mixed(a, w):
        return a.permute(0, 2, 3, 1) @ w

    actual, wanted = tracer_core.compile(mixed)(scores, weight), mixed(scores, weight)
    assert torch.equal(actual.isnan(), wanted.isnan())
    assert torch.equal(actual.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(actual.signbit() & ~actual.isnan(), wanted.signbit() & ~wanted.isnan())


def test_sizes_that_change():
    module = TalkingHeads(4)
    dynamic = tracer_core.compile(module, dynamic=True)
    with torch.no_grad():
        for length in (33, 40, 57):
            inputs = heads_of(4, length=length)
            torch.testing.assert_close(dynamic(*inputs), module(*inputs))

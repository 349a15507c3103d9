"""Gradients of convolutions: our kernels for few pixels, ATen's for the rest, and the bias's as a
sum.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.kernels import small_gemm
from tests.inductor.compiling import compiled
from tests.inductor.test_operators import R

aten = torch.ops.aten
LAYOUTS = (torch.contiguous_format, torch.channels_last)
#: batch, channels, height, width, results' channels, kernel, stride, padding, dilation
CASES = {
    "3x3": (2, 20, 4, 5, 33, (3, 3), (1, 1), (1, 1), (1, 1)),
    "3x3, one image": (1, 20, 4, 5, 33, (3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": (3, 17, 7, 6, 16, (3, 3), (2, 2), (1, 1), (1, 1)),
    "1x1": (2, 64, 3, 4, 40, (1, 1), (1, 1), (0, 0), (1, 1)),
    "1x1 strided": (2, 64, 5, 4, 40, (1, 1), (2, 2), (0, 0), (1, 1)),
    "dilated, uneven": (2, 16, 9, 8, 24, (3, 2), (2, 1), (2, 0), (1, 2)),
    "one pixel": (4, 32, 2, 2, 48, (2, 2), (1, 1), (0, 0), (1, 1)),
    "wide padding": (1, 16, 2, 3, 16, (3, 3), (1, 1), (3, 2), (1, 1)),
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", CASES)
def test_our_gradients_in_every_layout(name):
    batch, channels, height, width, count, kernel, stride, padding, dilation = CASES[name]
    x, weight = R(batch, channels, height, width), R(count, channels, *kernel)
    how = (stride, padding, dilation, False, (0, 0), 1)
    dy = torch.randn_like(aten.convolution(x, weight, None, *how))
    mask = [True, True, False]
    exact = aten.convolution_backward(dy.double(), x.double(), weight.double(), None, *how, mask)
    for layouts in itertools.product(LAYOUTS, repeat=3):
        inputs = [
            t.contiguous(memory_format=f) for t, f in zip((dy, x, weight), layouts, strict=True)
        ]
        actual = small_gemm.convolution_backward(*inputs, None, *how, mask)
        for item, right, of in zip(actual[:2], exact[:2], inputs[1:], strict=True):
            assert item.stride() == of.stride()
            torch.testing.assert_close(item.double(), right, rtol=1e-5, atol=1e-4)


class Small(nn.Module):
    """Few pixels: all convolutions but the first have gradients of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.down = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.narrow = nn.Conv2d(64, 48, 1)
        self.wide = nn.Conv2d(48, 64, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.first(x).relu()).relu()
        out: torch.Tensor = self.wide(self.narrow(x).relu())
        return out + x


def gradients(function, model, x):
    model.zero_grad()
    function(x).square().mean().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_of_few_pixels(layout):
    torch.manual_seed(1)
    model = Small().to(memory_format=layout)
    fast = tracer_core.compile(model, backend="inductor")
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, 6, 6).to(memory_format=layout)
        eager = gradients(model, model, x.clone().requires_grad_())
        ours = gradients(fast, model, x.clone().requires_grad_())
        for item, other in zip(ours, eager, strict=True):
            if other is not None:
                assert item.stride() == other.stride()
                torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-6)


def backward(mask):
    """What the mask asks for (ATen gives more)."""

    def run(dy, x, weight):
        how = ([64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return [
            t
            for t, wanted in zip(aten.convolution_backward(dy, x, weight, *how), mask, strict=True)
            if wanted
        ]

    return run


def test_only_what_is_asked_for_is_computed():
    dy, x, weight = R(2, 64, 4, 4), R(2, 48, 4, 4), R(64, 48, 3, 3)
    for mask in itertools.product((False, True), repeat=3):
        if any(mask):
            result = compiled(backward(list(mask)), dy, x, weight)
            assert ("backward_input(" in result.text) == mask[0]
            assert ("backward_weight(" in result.text) == mask[1]
            assert ("bias_gradient" in result.source + result.text) == mask[2]
            for item, other in zip(
                result(dy, x, weight), backward(list(mask))(dy, x, weight), strict=True
            ):
                torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-4)


def test_the_bias_gradient_joins_the_loop_before_it():
    """The loop that makes the result's gradient adds it up as well: no pass of its own."""

    def run(dy, x, weight):
        slope = dy * 2 + 1
        how = ([3], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
        return aten.convolution_backward(slope, x, weight, *how)

    dy, x, weight = R(2, 3, 40, 40), R(2, 3, 40, 40), R(3, 3, 3, 3)
    result = compiled(run, dy, x, weight)
    assert result.kernels == 1
    for item, other in zip(result(dy, x, weight), run(dy, x, weight), strict=True):
        torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-3)


OTHERS = {
    "one dimension": (lambda: nn.Conv1d(8, 16, 3, padding=1), (2, 8, 9)),
    "three dimensions": (lambda: nn.Conv3d(4, 8, 3, padding=1), (2, 4, 3, 4, 5)),
    "groups": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=4), (2, 32, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 32, 2, stride=2), (2, 16, 3, 3)),
    "half": (lambda: nn.Conv2d(16, 32, 3, padding=1).bfloat16(), (2, 16, 4, 4)),
    "double": (lambda: nn.Conv2d(32, 32, 3, padding=1).double(), (2, 32, 4, 4)),
    "one image without a batch": (lambda: nn.Conv2d(32, 48, 3), (32, 5, 5)),
    "reflected padding": (
        lambda: nn.Conv2d(32, 48, 3, padding=1, padding_mode="reflect"),
        (2, 32, 4, 4),
    ),
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_learn_as_in_eager(name):
    make, shape = OTHERS[name]
    torch.manual_seed(1)
    model = nn.Sequential(make(), nn.Tanh())
    dtype = model[0].weight.dtype
    fast = tracer_core.compile(model, backend="inductor")
    x = torch.randn(shape, dtype=dtype)
    eager = gradients(model, model, x.clone().requires_grad_())
    ours = gradients(fast, model, x.clone().requires_grad_())
    close = (
        {"rtol": 5e-2, "atol": 5e-3} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-6}
    )
    for item, other in zip(ours, eager, strict=True):
        if other is not None:
            assert item.stride() == other.stride() and item.dtype == other.dtype
            torch.testing.assert_close(item, other, **close)


def test_batches_that_change():
    torch.manual_seed(1)
    model = Small()
    fast = tracer_core.compile(model, backend="inductor", dynamic=True)
    for batch in (2, 5, 3):
        x = torch.randn(batch, 3, 6, 6)
        eager = gradients(model, model, x.clone().requires_grad_())
        ours = gradients(fast, model, x.clone().requires_grad_())
        for item, other in zip(ours, eager, strict=True):
            if other is not None:
                torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-6)

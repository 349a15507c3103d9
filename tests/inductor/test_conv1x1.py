"""Training of 1x1 convolutions on contiguous images: forward and gradients as products by image."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import conv1x1
from inductor_backend.kernels.selection import Operand, best
from tests.inductor.image_training import gradients_are_right, relative

aten = torch.ops.aten
HOW = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 32, 8, 8, 40),
        (3, 70, 9, 13, 33),
        (2, 350, 5, 3, 65),
        (4, 32, 31, 33, 500),
        (1, 400, 16, 16, 256),
    ],
    ids=str,
)
def test_the_kernel_alone(shape, threads):
    torch.manual_seed(0)
    batch, channels, height, width, count = shape
    x, w = torch.randn(batch, channels, height, width), torch.randn(count, channels, 1, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exact = F.conv2d(x.double(), w.double())
        assert relative(conv1x1.convolution(x, w), exact) < 1e-6
        bias = torch.randn(count)
        biased = F.conv2d(x.double(), w.double(), bias.double())
        assert relative(conv1x1.convolution(x, w, bias), biased) < 1e-6
        dy = torch.randn(exact.shape)
        exact = torch.nn.grad.conv2d_input(x.shape, w.double(), dy.double())
        dx, *rest = conv1x1.convolution_backward(dy, x, w, [True, False, False])
        assert relative(dx, exact) < 1e-6 and rest == [None, None]
        exact = torch.nn.grad.conv2d_weight(x.double(), w.shape, dy.double())
        none, dw, _ = conv1x1.convolution_backward(dy, x, w, [False, True, False])
        assert relative(dw, exact) < 1e-6 and none is None and dw.shape == w.shape
    finally:
        torch.set_num_threads(before)


def chosen(x, w, bias=None, *, stride=(1, 1), padding=(0, 0)):
    operands = [
        None if t is None else Operand(tuple(t.shape), tuple(t.stride()), t.dtype)
        for t in (x, w, bias)
    ]
    how = [list(stride), list(padding), *HOW[2:]]
    forward = best(aten.convolution.default, [*operands, *how]).form == "conv1x1"
    sizes = [
        (size + 2 * pad - 1) // step + 1
        for size, pad, step in zip(x.shape[2:], padding, stride, strict=True)
    ]
    result = torch.empty(x.shape[0], w.shape[0], *sizes, dtype=x.dtype).to(memory_format=_format(x))
    dy = Operand(tuple(result.shape), result.stride(), result.dtype)
    args = [dy, *operands[:2], None, *how]
    backward = (
        best(aten.convolution_backward.default, [*args, [True, False, False]]).form == "conv1x1"
    )
    assert (
        best(aten.convolution_backward.default, [*args, [False, True, False]]).form == "conv1x1"
    ) is backward
    return forward, backward


def _format(x):
    return torch.contiguous_format if x.is_contiguous() else torch.channels_last


def test_which_convolutions_it_takes():
    x, w = torch.empty(4, 64, 16, 16), torch.empty(96, 64, 1, 1)
    assert chosen(x, w) == (True, True)
    assert chosen(x, w, torch.empty(96)) == (True, True)
    assert chosen(x, w, stride=(2, 2)) == chosen(x, w, padding=(1, 1)) == (False, False)
    assert (
        chosen(x.to(memory_format=torch.channels_last), w)
        == chosen(x.double(), w.double())
        == (False, False)
    )
    assert chosen(torch.empty(4, 64, 7, 7), w) == (False, False)
    assert chosen(x, torch.empty(96, 64, 3, 3), padding=(1, 1)) == (False, False)


def net():
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 64, 1,
        bias=False),
        nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 40, 1, bias=False), nn.ReLU(), nn.Conv2d(40,
        36, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step(dynamic, texts):
    torch.manual_seed(0)
    # from 3 on a batch is a symbol
    gradients_are_right(net(), (3, 16, 24), (2, 3, 4) if dynamic else (2, 2))
    assert [text.count(" run_conv1x1(") for text in texts] == [3, 3] * (len(texts) // 2)
    assert [text.count(" run_conv1x1_weight(") for text in texts] == [0, 3] * (len(texts) // 2)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("size", "groups"), [(1, 1), (3, 1), (3, 8), (3, 64)])
def test_biases_whose_elements_are_not_contiguous(size, groups, channels_last, freeze):
    """Kernels of all kinds (a matmul for each image, Winograd, grouped, depthwise) read dense biases."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 64, 32, 32), torch.randn(64, 64 // groups, size, size)
    x = x.to(memory_format=torch.channels_last) if channels_last else x

    def convolve(x, bias):
        return F.conv2d(x, w, bias, padding=size // 2, groups=groups)

    compiled = tracer_core.compile(convolve, options={"freeze": freeze})
    for bias in (torch.randn(128)[::2], torch.randn(1).expand(64)):
        ours, eager = compiled(x, bias), convolve(x, bias)
        assert torch.allclose(ours, eager, rtol=1e-4, atol=1e-3) and ours.stride() == eager.stride()

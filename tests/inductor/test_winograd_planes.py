"""Training of 3x3 convolutions on contiguous images: forward and the input's gradient by Winograd's
method.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from inductor_backend.kernels import winograd
from inductor_backend.kernels.selection import Operand, best
from tests.inductor.image_training import gradients_are_right, relative

aten = torch.ops.aten


SHAPES = [  # batch, channels, height, width, channels of the result, padding
    (1, 32, 31, 45, 40, 1),
    (2, 48, 29, 28, 64, 0),
    (3, 33, 7, 9, 50, 2),
    (1, 130, 5, 3, 7, 1),
    (2, 3, 5, 5, 2, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_alone(shape):
    torch.manual_seed(0)
    batch, channels, height, width, count, pad = shape
    x, w = torch.randn(batch, channels, height, width), torch.randn(count, channels, 3, 3)
    bias = torch.randn(count)
    padding = (pad, pad)
    exact = F.conv2d(x.double(), w.double(), bias.double(), padding=padding)
    assert relative(winograd.convolution(x, w, bias, (1, 1), padding), exact) < 1e-6
    dy = torch.randn(exact.shape)
    exact = torch.nn.grad.conv2d_input(x.shape, w.double(), dy.double(), padding=padding)
    dx, *_ = winograd.convolution_backward(dy, x, w, None, (1, 1), padding)
    assert relative(dx, exact) < 1e-6


def chosen(x, w, **kwargs):
    operands = [Operand(tuple(t.shape), tuple(t.stride()), t.dtype) for t in (x, w)]
    inputs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, **kwargs}
    args = [
        *operands,
        None,
        inputs["stride"],
        inputs["padding"],
        inputs["dilation"],
        False,
        [0, 0],
        inputs["groups"],
    ]
    return best(aten.convolution.default, args).call.startswith(winograd.__name__)


def test_which_convolutions_it_takes():
    x, w = torch.empty(1, 64, 32, 32), torch.empty(64, 64, 3, 3)
    assert chosen(x, w)
    assert (
        not chosen(x, w, stride=[2, 2])
        and not chosen(x, w, dilation=[2, 2])
        and not chosen(x, w, padding=[3, 3])
    )
    assert not chosen(x, torch.empty(64, 32, 3, 3), groups=2)
    assert not chosen(x.to(memory_format=torch.channels_last), w)
    assert not chosen(x.double(), w.double())
    assert not chosen(torch.empty(1, 64, 8, 8), w) and not chosen(
        x, torch.empty(64, 64, 5, 5), padding=[2, 2]
    )


def net():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 40, 3, padding=1, bias=False), nn.BatchNorm2d(40), nn.ReLU(),
        nn.Conv2d(40, 36, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_training_step(dynamic, texts):
    torch.manual_seed(0)
    # from 3 on a batch is a symbol
    gradients_are_right(net(), (3, 30, 34), (2, 3, 4) if dynamic else (2, 2))
    assert len(texts) == (4 if dynamic else 2) and all(
        text.count(" run_winograd_planes(") == 2 for text in texts
    )

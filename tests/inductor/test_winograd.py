"""Convolutions 3x3 with stride 1 by Winograd's F(2x2, 3x3): what they compute, where they are
used.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.kernels import packed_weights
from inductor_backend.kernels.packed_weights import Geometry, for_result
from tests.support.comparison import assert_as_accurate_as_eager

FREEZE = {"freeze": True}


class Residual(nn.Module):
    """Two convolutions with batch norm and what follows them."""

    def __init__(self, inside: int, outside: int, padding: int, activation: nn.Module) -> None:
        super().__init__()
        self.a, self.na = (
            nn.Conv2d(inside, outside, 3, padding=padding, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.b, self.activation = nn.Conv2d(outside, outside, 3, padding=1), activation
        self.na.running_mean.normal_(0, 0.2)
        self.na.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.na(self.a(x)).relu()
        return self.activation(self.b(x) + x)


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("options", [FREEZE, None], ids=["frozen", "default"])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(
    "sizes", [(1, 32, 64, 17, 20), (3, 48, 96, 9, 14), (2, 160, 32, 16, 16)], ids=str
)
def test_a_block_is_eager_s_within_rounding(options, padding, sizes, texts) -> None:
    torch.manual_seed(0)
    batch, inside, outside, height, width = sizes
    model = Residual(inside, outside, padding, nn.SiLU() if padding else nn.ReLU()).eval()
    fast = tracer_core.compile(model, options=options, fullgraph=True)
    x = torch.randn(batch, inside, height, width)
    with torch.no_grad():
        for given in (x, x.contiguous(memory_format=torch.channels_last), x * 3):
            assert_as_accurate_as_eager(fast(given), model, given)
    assert any("run_winograd(" in text for text in texts)


def test_all_sizes_that_a_symbolic_one_takes() -> None:
    """The form is chosen for the captured size, and right for every other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3)).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, height, width in ((2, 16, 16), (3, 5, 33), (2, 3, 3), (5, 4, 6)):
            x = torch.randn(batch, 32, height, width)
            assert_as_accurate_as_eager(fast(x), model, x)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1, 512, 7, 128), (1, 64, 40, 160), (2, 96, 11, 32)], ids=str)
def test_the_kernel_shares_tiles_or_columns(threads: int, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batch, channels, size, count = sizes
    g = for_result(Geometry(channels, count, (3, 3), (1, 1), (1, 1), (1, 1), 1), batch, size, size)
    assert g.tiled
    x = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    weight, scale, bias = (
        torch.randn(count, channels, 3, 3),
        torch.rand(count) + 0.5,
        torch.randn(count),
    )
    residual = torch.randn(batch, count, size, size).contiguous(memory_format=torch.channels_last)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = packed_weights.convolution(
            x,
            packed_weights.pack(weight, g),
            bias,
            g,
            before="tanh",
            residual=residual,
            after="relu",
            scale=scale,
        )
    finally:
        torch.set_num_threads(before)

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        x, weight, scale, bias, residual = tensors
        y = nn.functional.conv2d(x, weight, padding=1) * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)
        return (y.tanh() + residual).relu()

    operands = (x, weight, scale, bias, residual)
    exact, eager = reference(*(operand.double() for operand in operands)), reference(*operands)
    error, of_eager = ((value - exact).abs().max().item() for value in (ours, eager))
    assert error <= 4 * of_eager


def test_small_results_and_other_windows_are_done_directly() -> None:
    g = Geometry(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1)
    assert for_result(g, 1, 14, 14).tiled
    assert not for_result(g, 1, 3, 3).tiled  # a quarter of each tile's work would be thrown away
    assert not for_result(g, 1, 4, 4).tiled  # four tiles: the weights, which are larger, decide
    assert not for_result(g, 64, 1, 1).tiled
    for other in (
        {"stride": (2, 2)},
        {"dilation": (2, 2)},
        {"groups": 2},
        {"count": 40},
        {"channels": 24},
    ):
        changed = {name: getattr(g, name) for name in g.__dataclass_fields__} | other
        assert not for_result(Geometry(**changed), 1, 14, 14).tiled


def test_parameters_that_change_are_packed_again() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(64, 64, 3, padding=1).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True)
    x = torch.randn(1, 64, 12, 12)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
        model.weight.mul_(-0.5)
        assert_as_accurate_as_eager(fast(x), copy.deepcopy(model), x)

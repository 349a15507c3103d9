"""Dimensions that a view merged: kernels go through them one by one, without divisions."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.runtime import generated_support
from tests.support.comparison import assert_same_calls
from tests.support.gradients import same_gradients


@pytest.fixture
def sources(monkeypatch):
    """The C++ texts that are built."""
    seen: list[str] = []
    build = generated_support.build
    monkeypatch.setattr(
        generated_support,
        "build",
        lambda texts, *, name: seen.extend(texts) or build(texts, name=name),
    )
    return seen


def divisions(sources):
    """Returns the lines of kernels that divide a loop's variable."""
    lines = [line.strip() for source in sources for line in source.splitlines()]
    return [line for line in lines if re.search(r"\(i\d\) [%/] ", line)]


#: name -> (function, shapes of the inputs)
MERGED = {
    "heads": (lambda x: x.transpose(1, 2).reshape(32, 96).contiguous() + 1, [(2, 3, 16, 32)]),
    "heads, transposed": (lambda x: x.transpose(1, 2).reshape(32, 96).t().exp(), [(2, 3, 16, 32)]),
    "sums of columns": (lambda x: x.transpose(1, 2).reshape(32, 96).sum(0), [(2, 3, 16, 32)]),
    "sums of rows": (lambda x: x.transpose(1, 2).reshape(32, 96).sum(1), [(2, 3, 16, 32)]),
    "softmax": (lambda x: x.transpose(1, 2).reshape(32, 96).softmax(-1), [(2, 3, 16, 32)]),
    "variance": (lambda x: x.transpose(1, 2).reshape(32, 96).var(1), [(2, 3, 16, 32)]),
    "three": (lambda x: x.permute(2, 1, 0, 3).reshape(-1) * 2, [(20, 17, 3, 16)]),
    "beside merged": (
        lambda x, y: x.transpose(1, 2).reshape(32, 96) * y,
        [(2, 3, 16, 32), (32, 96)],
    ),
    "to bfloat16": (lambda x: x.transpose(1, 2).reshape(32, 96).bfloat16(), [(2, 3, 16, 32)]),
}


@pytest.mark.parametrize("name", MERGED)
def test_values_and_strides_are_eagers(name, sources):
    function, shapes = MERGED[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    assert_same_calls(tracer_core.compile(function), function, *inputs, calls=2)
    assert not divisions(sources)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(1, 2).reshape(32, 96).argmax(1),
        lambda x: x.transpose(1, 2).reshape(32, 96).cumsum(1),
        lambda x: x.transpose(2, 3).reshape(32, 96).contiguous(),
        lambda x: (torch.arange(96) // 32 + x.reshape(32, 96)).float(),
    ],
)
def test_places_running_sums_and_short_pieces(function):
    """Loops that keep their order, or whose pieces are shorter than a vector."""
    x = torch.randn(2, 3, 16, 32).round(decimals=1)
    assert_same_calls(tracer_core.compile(function), function, x, calls=2)


def test_a_number_of_heads_that_changes(sources):
    function = lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) * 2
    fast = tracer_core.compile(function, dynamic=True)
    for heads, length in ((3, 6), (5, 7), (2, 9)):
        assert_same_calls(fast, function, torch.randn(2, heads, length, 32), calls=1)
    assert not divisions(sources)


class Attention(nn.Module):
    """As GPT-NeoX projects: queries, keys and values of a head side by side."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        heads = self.qkv(x).view(*x.shape[:2], 2, 96).transpose(1, 2)
        q, k, v = heads.chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q.tanh(), k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def test_a_layer_with_heads():
    def make():
        torch.manual_seed(0)
        return Attention()

    calls = [(torch.randn(4, 32, 64, requires_grad=True),) for _ in range(2)]
    same_gradients(make, *calls, backend="inductor")


def test_a_matrix_and_its_transpose_share_a_copy(texts):
    """As the two matmuls of a projection's gradients read it."""

    def gradients(dy, weight, x):
        rows = dy.transpose(1, 2).reshape(128, 96)
        return rows @ weight, rows.t() @ x

    inputs = [torch.randn(shape) for shape in [(4, 3, 32, 32), (96, 80), (128, 80)]]
    assert_same_calls(tracer_core.compile(gradients), gradients, *inputs, calls=2)
    (text,) = texts
    assert len(re.findall(r"^    fused_copy\w*\(", text, re.MULTILINE)) == 1

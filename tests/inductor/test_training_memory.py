"""What a training step keeps, and for how long."""

from __future__ import annotations

import re

import torch
from torch import nn

import tracer_core
from inductor_backend.runtime.huge_pages import LARGE, in_large_pages, large_empty


def test_saved_tensors_are_dropped_after_their_last_use(texts):
    layers = [part for _ in range(4) for part in (nn.Conv2d(4, 4, 3), nn.Tanh())]
    model = nn.Sequential(*layers)
    tracer_core.compile(model, backend="inductor")(torch.randn(2, 4, 40, 40)).sum().backward()
    forward, backward = texts
    assert "del in" not in forward
    lines = backward.splitlines()
    dropped = [at for at, line in enumerate(lines) if re.match(r"    del .*\bin\d+", line)]
    calls = [at for at, line in enumerate(lines) if "convolution_backward" in line and "=" in line]
    assert len(dropped) >= 3 and dropped[0] < calls[-1]


def test_products_are_written_into_the_arena_or_the_result(texts):
    def attention(q, k, v):
        return (q @ k.transpose(1, 2)).softmax(-1) @ v

    fast = tracer_core.compile(attention, backend="inductor")
    for seed in (1, 2):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(2, 8, 16, requires_grad=seed == 2) for _ in range(3))
        torch.testing.assert_close(fast(q, k, v), attention(q, k, v))
    assert "bmm_out(" in texts[0] and "bmm_default" not in texts[0]
    first, second = fast(q, k, v), fast(q, k, v)
    assert first.data_ptr() != second.data_ptr()


def test_large_results_are_ordinary_tensors():
    sizes = (LARGE // 4 + 3, 2)
    built = large_empty(sizes, (2, 1), torch.float32)
    assert built.shape == sizes and built.is_contiguous() and built.fill_(3).sum() == 6 * sizes[0]
    small = torch.ones(5)
    assert in_large_pages(small) is small and small.sum() == 5


def test_a_large_result_of_a_kernel():
    fast = tracer_core.compile(lambda x: x * 2 + 1, backend="inductor")
    x = torch.randn(1200, 1000)
    assert torch.equal(fast(x), x * 2 + 1)

"""Strides and dtypes of operators whose fakes say something else than their kernels."""

from __future__ import annotations

import pytest
import torch

import tracer_core

WIDE, TURNED = torch.rand(5, 6), torch.rand(6, 5).mT
ADDED = [TURNED, WIDE, torch.rand(6), torch.rand(5, 1), torch.rand(1, 6), torch.rand(5, 12)[:, ::2]]


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("backend", ["inductor", "aten_eager"])
def test_addr_of_any_layout(backend, beta):
    fast = tracer_core.compile(
        lambda a, u, v: torch.addr(a, u, v, beta=beta), backend=backend, dynamic=False
    )
    for added in ADDED:
        expected = torch.addr(added, WIDE[:, 0], WIDE[0], beta=beta)
        actual = fast(added, WIDE[:, 0], WIDE[0])
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_addr_of_symbolic_sizes():
    fast = tracer_core.compile(lambda a, u, v: torch.addr(a, u, v, beta=0) * 2, dynamic=True)
    for n, m in ((5, 6), (7, 3)):
        a, u, v = torch.rand(m, n).mT, torch.rand(n), torch.rand(m)
        expected = torch.addr(a, u, v, beta=0) * 2
        actual = fast(a, u, v)
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


@pytest.mark.parametrize("mean", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [torch.float16, torch.float32, torch.float64])
def test_normal_has_the_dtype_of_the_mean(mean, deviation):
    def noise(m, s):
        result = torch.normal(m, s)
        return result, result.dtype.itemsize

    inputs = torch.zeros(8, dtype=mean), torch.ones(8, dtype=deviation)
    torch.manual_seed(1)
    expected = noise(*inputs)
    torch.manual_seed(1)
    actual = tracer_core.compile(noise)(*inputs)
    assert actual[0].dtype is expected[0].dtype is mean and actual[1] == expected[1]
    assert torch.equal(actual[0], expected[0])


def test_block_diag_of_two_dtypes():
    parts = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.long)
    actual = tracer_core.compile(lambda a, b: torch.block_diag(a, b) * 2)(*parts)
    expected = torch.block_diag(*parts) * 2
    assert torch.equal(actual, expected) and actual.dtype is expected.dtype


LAYOUTS = [
    lambda x: x,
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
]


@pytest.mark.parametrize("images", LAYOUTS)
@pytest.mark.parametrize("grid", LAYOUTS)
def test_grid_sample_of_any_layout(images, grid):
    def sample(x, g):
        return torch.nn.functional.grid_sample(x, g, align_corners=False)

    inputs = images(torch.randn(2, 3, 5, 5)), grid(torch.rand(2, 5, 5, 2))
    actual, expected = tracer_core.compile(sample, backend="aten_eager")(*inputs), sample(*inputs)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_running_statistics_keep_their_dtype(dtype):
    def norm(x, mean, deviation):
        return torch.nn.functional.batch_norm(x, mean, deviation, training=True)

    inputs = torch.randn(2, 3, 3, 4).half(), torch.randn(3).to(dtype), torch.rand(3).to(dtype)
    mine, theirs = ([item.clone() for item in inputs] for _ in range(2))
    actual, expected = tracer_core.compile(norm, backend="aten_eager")(*mine), norm(*theirs)
    torch.testing.assert_close(actual, expected)
    assert all(map(torch.equal, mine, theirs))

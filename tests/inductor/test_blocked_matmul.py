"""Large matmuls (kernels/cpu/blocked.cpp), of sizes around those at which it cuts rows, columns and terms."""

import itertools

import pytest
import torch

import tracer_core
from inductor_backend.kernels import small_gemm
from tests.support.comparison import assert_as_accurate

LAYOUTS = list(itertools.product(("rows", "columns"), repeat=2))

#: rows, terms, columns: one group of rows and several, panels that are whole, cut and alone, terms in
#: one part and in many, rows in several steps (more than 2^22 elements of `a`).
SIZES = [
    (64, 16, 64),
    (97, 385, 321),
    (192, 384, 257),
    (66, 1030, 127),
    (1100, 4000, 65),
    (193, 5000, 65),
    (6100, 700, 48),
]


@pytest.fixture(autouse=True)
def threads_as_before():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def matrix(rows, columns, layout):
    return torch.randn(rows, columns) if layout == "rows" else torch.randn(columns, rows).t()


@pytest.mark.parametrize("m, k, n", SIZES, ids=str)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
def test_matmuls_of_every_layout(layouts, m, k, n):
    a, b = matrix(m, k, layouts[0]), matrix(k, n, layouts[1])
    bias, residual = torch.randn(n), torch.randn(m, n)
    exact = a.double() @ b.double()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert_as_accurate(small_gemm.blocked_mm(a, b), a @ b, exact)
        ours = small_gemm.blocked_addmm(bias, a, b, epilogue="relu", residual=residual)
        want = (exact + bias.double()).relu() + residual.double()
        assert_as_accurate(ours, torch.addmm(bias, a, b).relu() + residual, want)


@pytest.mark.parametrize("m", [63, 64, 65, 95, 96, 97, 103, 191])
def test_every_cut_of_rows(m):
    """Rows of a result that is wider than the matrix: what lies beside it stays."""
    for k, n in ((48, 130), (400, 70)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        memory = torch.full((m, n + 3), 7.0)
        small_gemm.blocked_mm(a, b, out=memory[:, :n])
        torch.testing.assert_close(memory[:, :n], a @ b, rtol=1e-4, atol=1e-4)
        assert (memory[:, n:] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_gelu_are_as_accurate_as_eagers(dtype):
    x = torch.cat([torch.linspace(-13, 13, 40_009), torch.tensor([0.0, -0.0, 1e20, -1e20, 3e38])])
    x = x.to(dtype)
    inputs = torch.randn_like(x), x
    gradient = lambda dy, x: torch.ops.aten.gelu_backward(dy, x)
    fast = tracer_core.compile(gradient)
    exact = gradient(*(value.double() for value in inputs))
    assert_as_accurate(fast(*inputs), gradient(*inputs), exact)
    edges = torch.tensor([float("inf"), -float("inf"), float("nan")] * 16, dtype=dtype)
    slopes = torch.ones_like(edges)
    torch.testing.assert_close(fast(slopes, edges), gradient(slopes, edges), equal_nan=True)


def test_small_gradients_of_gelu_keep_their_digits():
    """Eager's 1 + erf(x) has few digits left below -3."""
    x = torch.linspace(-5, -1, 4001)
    gradient = lambda x: torch.ops.aten.gelu_backward(torch.ones_like(x), x)
    exact = gradient(x.double())
    error = (tracer_core.compile(gradient)(x).double() - exact) / exact
    assert error.abs().max() < 3e-6

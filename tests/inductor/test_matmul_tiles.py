"""Large float32 matmuls as the processor's tiles compute them (kernels/cpu/tiles.cpp), where it has such.

Elsewhere the same programs run through the blocked kernel. Tiles multiply parts of floats, so that
special, huge and tiny values are what could go wrong.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native, packed_weights, small_gemm
from tests.support.comparison import assert_as_accurate, assert_as_accurate_as_eager

LAYOUTS = [("rows", "rows"), ("rows", "columns"), ("columns", "rows"), ("columns", "columns")]

#: rows, terms, columns around the sizes of blocks of 32, of strips of 192 columns and of 768 terms.
SIZES = [
    (256, 64, 256),
    (257, 65, 321),
    (300, 799, 449),
    (2100, 1537, 191),
    (193, 3000, 707),
    (2600, 768, 160),
]


@pytest.fixture(autouse=True)
def threads_as_before():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def matrix(rows, columns, layout="rows"):
    return torch.randn(rows, columns) if layout == "rows" else torch.randn(columns, rows).t()


@pytest.mark.parametrize("m, k, n", SIZES, ids=str)
@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
def test_every_layout_and_number_of_threads(layouts, m, k, n):
    a, b = matrix(m, k, layouts[0]), matrix(k, n, layouts[1])
    exact, results, tiles = a.double() @ b.double(), [], packed_weights.pack_tiles(b)
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        results.append(small_gemm.blocked_mm(a, b))
        assert_as_accurate(results[-1], a @ b, exact)
        results.append(small_gemm.blocked_mm(a, b, tiles=tiles))
    assert all(torch.equal(result, results[0]) for result in results)


def test_bias_activation_and_residual():
    a, b, bias, residual = matrix(300, 800), matrix(800, 330), torch.randn(330), matrix(300, 330)
    ours = small_gemm.blocked_addmm(bias, a, b, epilogue="relu", residual=residual)
    want = (a.double() @ b.double() + bias.double()).relu() + residual.double()
    assert_as_accurate(ours, torch.addmm(bias, a, b).relu() + residual, want)


@pytest.mark.parametrize("kind", ["normal", "same sign", "wide", "integers"])
def test_errors_are_no_larger_than_eagers(kind):
    a, b = matrix(512, 2048), matrix(2048, 384)
    if kind == "same sign":
        a, b = a.abs(), b.abs()
    if kind == "wide":
        a, b = (x * torch.empty_like(x).uniform_(-30, 30).exp2() for x in (a, b))
    if kind == "integers":  # exact
        a, b = (a * 20).round(), (b * 20).round()
    exact = a.double() @ b.double()
    error = lambda result: (result.double() - exact).square().mean().sqrt()
    ours = small_gemm.blocked_mm(a, b)
    assert error(ours) <= 1.5 * error(a @ b)
    if kind == "integers":
        assert torch.equal(ours.double(), exact)


#: Values that have no parts, whose parts are flushed, or that overflow.
SPECIAL = [float("inf"), -float("inf"), float("nan"), 3.4e38, -3.4e38, 1e-45, 1e-38, -0.0]


@pytest.mark.parametrize("value", SPECIAL, ids=str)
@pytest.mark.parametrize("place", [(0, 0), (255, 767), (31, 33), (256, 768)], ids=str)
def test_special_values(value, place):
    a, b = matrix(257, 769), matrix(769, 300)
    a[place] = value
    assert_special(a, b)
    a[place] = 1
    b[place[1], place[0]] = value
    assert_special(a, b)


def test_infinities_of_both_signs_and_times_zero():
    a, b = matrix(257, 769), matrix(769, 300)
    a[3, 5], a[3, 6], a[4, 7], b[7] = float("inf"), -float("inf"), float("inf"), 0
    assert_special(a, b)


@pytest.mark.parametrize(
    "scales", [(1e-20, 1e-20), (1e-38, 1), (1e-42, 1e3), (1e18, 1e18)], ids=str
)
def test_huge_and_tiny_values(scales):
    a, b = matrix(257, 769) * scales[0], matrix(769, 300) * scales[1]
    assert_special(a, b)


@pytest.mark.parametrize("scale", [1e-25, 1e-40])
def test_a_row_of_tiny_values_among_others(scale):
    """As a gradient's rows of tokens that the loss hardly depends on."""
    a, b = matrix(257, 769), matrix(769, 300)
    a[100] *= scale
    exact = a[100:101].double() @ b.double()
    assert_as_accurate(small_gemm.blocked_mm(a, b)[100:101], a[100:101] @ b, exact)


def assert_special(a, b):
    want, ours = a @ b, small_gemm.blocked_mm(a, b)
    size = want[want.isfinite()].abs().max()
    torch.testing.assert_close(ours, want, rtol=1e-5, atol=float(size) * 1e-5, equal_nan=True)
    once = small_gemm.blocked_mm(a, b, tiles=packed_weights.pack_tiles(b))
    assert torch.equal(once.nan_to_num(7), ours.nan_to_num(7))


def test_a_training_step_between_eager_ones():
    """Eager's bfloat16 matmuls use the same tiles, in other shapes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(320, 512), nn.GELU(), nn.Linear(512, 320))
    half, x = nn.Linear(320, 320, dtype=torch.bfloat16), torch.randn(300, 320)
    fast, want = tracer_core.compile(model), half(x.bfloat16())
    for _ in range(3):
        model.zero_grad()
        fast(x).square().mean().backward()
        ours = [parameter.grad.clone() for parameter in model.parameters()]
        assert torch.equal(half(x.bfloat16()), want)
        model.zero_grad()
        model(x).square().mean().backward()
        for mine, parameter in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-7)


def rows_of(call):
    """The operators of a call, as a profile shows them, without their lines."""
    with torch.profiler.profile() as profile:
        call()
    names = {event.key.partition(" (")[0] for event in profile.key_averages()}
    return {name for name in names if name.startswith(("aten.", "packed."))}


class Frozen(nn.Module):
    """Layers that are followed by activations, a residual and a norm, whose queries are one matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(256),
            nn.Linear(256, 1600),
            nn.Linear(1600, 256),
        )
        self.query, self.key = nn.Linear(256, 256), nn.Linear(256, 256, bias=False)
        self.by_rows = nn.Parameter(torch.randn(256, 320) / 16)

    def forward(self, x):
        x = self.down(F.gelu(self.up(self.norm(x)))) + x
        y = F.relu(F.hardswish(self.query(x)) + x)
        return y + self.key(x), (x.flatten(0, -2) @ self.by_rows).relu()


@pytest.fixture(scope="module")
def frozen():
    torch.manual_seed(0)
    model = Frozen().eval()
    return model, tracer_core.compile(model, dynamic=True, options={"freeze": True})


@pytest.mark.parametrize("rows", [160, 192, 257, 1, 40, 700])
def test_frozen_layers(frozen, rows):
    """Weights are packed once, for the rows of the first call, and are right for any."""
    model, fast = frozen
    with torch.no_grad():
        x = torch.randn(rows, 256)
        assert_as_accurate_as_eager(fast(x), model, x)


@pytest.mark.skipif(not native.multiplies_in_tiles(), reason="a rule for processors with tiles")
@pytest.mark.parametrize("rows", [64, 192, 1024])
def test_which_frozen_layers_are_packed_for_tiles(rows):
    """Few rows wait for memory, which tiles take half as much again of; many pay for packing."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).eval()
    fast, x = tracer_core.compile(model, options={"freeze": True}), torch.randn(rows, 256)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
        names = rows_of(lambda: fast(x))
    kernels = {64: "packed.linear by run_packed", 192: "packed.linear by run_blocked"}
    assert names == {kernels.get(rows, "aten.addmm.default by run_blocked")}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e-42, 3e38])
def test_frozen_special_weights_that_change(value):
    model, x = nn.Linear(320, 256).eval(), torch.randn(200, 320)
    fast = tracer_core.compile(model, options={"freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        model.weight[5, 7] = value
        want = model(x)
        torch.testing.assert_close(fast(x), want, rtol=1e-5, atol=1e-5, equal_nan=True)
        x[3, 7] = float("inf")
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5, equal_nan=True)

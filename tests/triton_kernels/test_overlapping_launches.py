"""Kernels that start while the one before ends (programmatic dependent launch): what is loaded
before the wait, and the same bits as without. Run by Triton's interpreter, and on a GPU.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.codegen.triton import kernel
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda import build
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.runtime.cuda.triton_compile import WAIT
from tests.inductor.compiling import clones, compiled, flat
from tests.inductor.test_operators import R

interpreted_only = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(matmul, "MIN_LOOPED_MATRIX", 64)
    monkeypatch.setattr(kernel, "EARLY_BYTES", 4 * 48 * 32)


def early(fn, *inputs, dynamic=False):
    """Compares with eager; returns the loads that stand before the wait, of all kernels that have
    one of their own."""
    with interpreted():
        built = compiled(fn, *clones(inputs), dynamic=dynamic)
    for _ in range(2):
        ours, eager = clones(inputs), clones(inputs)
        for actual, wanted in zip(
            [*flat(built(*ours)), *ours], [*flat(fn(*eager)), *eager], strict=True
        ):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
    texts = [text for text in built.compilation.sources if WAIT in text]
    return [text.partition(WAIT)[0].count("tl.load") for text in texts]


@interpreted_only
def test_weights_are_loaded_before_the_wait(any_size):
    x, gate, up, down = R(1, 32), R(48, 32), R(48, 32), R(32, 48)
    step = lambda x, g, u, d: x + F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d)
    assert early(step, x, gate, up, down) == [2, 1]


@interpreted_only
def test_small_inputs_are_not(any_size):
    assert early(lambda x, w: F.linear(x, w), R(1, 32), R(47, 32)) == []


@interpreted_only
def test_inputs_that_the_graph_writes_are_not(any_size):
    def updates(x, w):
        y = F.linear(x, w)
        w.add_(1.0)
        return y, F.linear(y[:, :32], w)

    assert early(updates, R(1, 32), R(48, 32)) == []


class Step(torch.nn.Module):
    """One row through norms, gated feed-forward layers and a cache that it writes to."""

    def __init__(self):
        super().__init__()
        size, inner = 1024, 2816
        linear = lambda *sizes: torch.nn.Linear(*sizes, bias=False)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList([torch.nn.RMSNorm(size), linear(size, inner), linear(size, inner),
                                 linear(inner, size)])
            for _ in range(6)
        )  # fmt: skip
        self.register_buffer("cache", torch.zeros(64, size))

    def forward(self, x, place):
        for norm, gate, up, down in self.layers:
            y = norm(x)
            x = x + down(F.silu(gate(y)) * up(y))
            self.cache.index_copy_(0, place, x)
            x = x + self.cache.mean(0, keepdim=True)
        return x


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_same_bits_as_kernels_that_do_not_overlap(monkeypatch, mode):
    torch.manual_seed(0)
    model = Step().cuda().bfloat16().eval()
    inputs = [
        (torch.randn(1, 1024, device="cuda", dtype=torch.bfloat16),
         torch.randint(64, (1,), device="cuda"))
        for _ in range(200)
    ]  # fmt: skip

    def results():
        tracer_core.reset()
        model.cache.zero_()
        fast = tracer_core.compile(model, mode=mode)
        with torch.no_grad():
            return [fast(*each).clone() for each in inputs]

    overlapping, load = results(), build._load

    def loaded(*args, **kwargs):
        result = load(*args, **kwargs)
        result.overlaps = False
        return result

    monkeypatch.setattr(build, "_load", loaded)
    for ours, plain in zip(overlapping, results(), strict=True):
        assert torch.equal(ours, plain)

"""On a GPU: kernels that start while the one before ends (programmatic dependent launch)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.runtime.cuda import build


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
        # other tiles, found while the program runs, would sum in another order
        fast = tracer_core.compile(model, mode=mode, options={"tile_search": False})
        with torch.no_grad():
            return [fast(*each).clone() for each in inputs]

    overlapping, load = results(), build._load

    def loaded(*args, **kwargs):
        result = load(*args, **kwargs)
        result.overlaps = False
        return result

    monkeypatch.setattr(build, "_load", loaded)
    for ours, expected in zip(overlapping, results(), strict=True):
        assert torch.equal(ours, expected)

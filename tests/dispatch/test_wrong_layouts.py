"""A fake that is laid out otherwise than the operator's result: a graph that relies on it fails, also
in eager mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tracer_core.torch_private import own_fakes

INVERSE = torch.ops.aten.linalg_inv_ex.default


def _contiguous(mode, value, **options):
    """linalg_inv_ex returns matrices whose columns are contiguous."""
    return torch.empty(value.shape), torch.empty(value.shape[:-2], dtype=torch.int32)


@pytest.fixture
def wrong_fake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(own_fakes.fakes(), INVERSE, _contiguous)
    monkeypatch.setenv("TRACER_STRICT", "0")


def test_a_graph_whose_operators_raise_in_eager_mode_too_is_run_once(wrong_fake):
    weight = torch.randn(3, 4)

    def solved(x):
        return F.linear(torch.linalg.inv(x), weight)

    fast = tracer_core.compile(solved, backend="inductor")
    counts = []
    for _ in range(4):
        x = torch.randn(2, 4, 4) + 4 * torch.eye(4)
        torch.testing.assert_close(fast(x), solved(x))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            fast(x)
        counts.append(sum(event.name == "aten::linalg_inv_ex" for event in seen.events()))
    assert counts == [1] * 4

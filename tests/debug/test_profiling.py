"""A compiled call in torch.profiler: named rows, and no eager calls of a comparison."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import profile

import tracer_core


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cos(x) * torch.sigmoid(y)


def test_the_profile_names_calls_and_graphs_with_the_users_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRACER_ALWAYS_COMPILED", raising=False)
    monkeypatch.setenv("TRACER_STRICT", "0")  # with it every call stays compiled
    fast = tracer_core.compile(gated, backend="inductor")
    x = torch.randn(8)
    fast(x, x)
    with profile() as recorded:
        for _ in range(60):
            fast(x, x)
    rows = {row.key: row.count for row in recorded.key_averages()}
    first = gated.__code__.co_firstlineno
    call = f"tracer_core: gated (test_profiling.py:{first})"
    (graph,) = (
        name for name in rows
        if name.startswith("graph_") and name.endswith(f"(test_profiling.py:{first + 1})")
    )  # fmt: skip
    # sixty calls are enough for a comparison with eager mode, whose calls would lack the graph
    assert (rows[call], rows[graph], rows.get("aten::cos")) == (60, 60, None)

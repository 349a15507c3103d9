"""Modules that share a frozen graph: beyond the limit, prepared parameters are made again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.limits.case import Watched, change
from tracer_core.execution import capture_lock


@pytest.mark.parametrize("limit", [3, 2], ids=["under", "beyond"])
def test_modules_that_share_a_graph(monkeypatch, limit):
    watched = Watched(limit)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64).eval() for _ in range(3)]

    @tracer_core.compile(options={"freeze": True})
    def run(layer, x):
        return layer(x).relu()

    x, captures = torch.randn(64, 64), []
    with torch.no_grad():
        run(layers[0], x)  # imports what binds the limit
        change(monkeypatch, "MAX_FROZEN_STATES", watched)
        for _ in range(6):
            for layer in layers:
                torch.testing.assert_close(run(layer, x), layer(x).relu())
            captures.append(capture_lock.captures_so_far())
    assert watched.asked and captures[-1] == captures[1]

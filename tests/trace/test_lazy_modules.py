"""Modules that make their parameters in their first call, which runs in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core import markers


class Hidden(nn.Module):
    """Holds a lazy module that is no part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = [nn.LazyLinear(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside[0](x) * 2


MODULES: dict[str, Callable[[], nn.Module]] = {
    "itself": lambda: nn.LazyLinear(3),
    "parts": lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)),
    "buffers": lambda: nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(2)),
    "hidden": Hidden,
}
X = torch.arange(8.0).reshape(2, 4) / 8


def trained(make: Callable[[], Any]) -> tuple[list[Any], str]:
    module, results = make(), []
    for step in range(4):
        torch.manual_seed(0)
        out = module(X + step)
        out.sum().backward()
        results.append((out, {name: item.clone() for name, item in module.state_dict().items()}))
    results.append([parameter.grad for parameter in module.parameters()])
    return results, type(module).__name__


@pytest.mark.parametrize("name", MODULES)
def test_lazy_module(name: str) -> None:
    want = trained(MODULES[name])
    result: list[Any] = []

    def make() -> Any:
        result.append(tracer_core.compile(MODULES[name]()))
        return result[0]

    got = trained(make)
    assert got[1] == want[1]
    torch.testing.assert_close(got[0], want[0])
    assert any(record.graph is not None for record in markers.compiled(result[0]).function.records)


def test_lazy_module_of_a_function() -> None:
    torch.manual_seed(0)
    linear, lazy = nn.LazyLinear(3), nn.LazyLinear(3)
    fast = tracer_core.compile(lambda x: lazy(x).relu())
    for step in range(3):
        torch.manual_seed(1)
        want = linear(X + step).relu()
        torch.manual_seed(1)
        torch.testing.assert_close(fast(X + step), want)

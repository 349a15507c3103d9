"""Operators that name places of memory by an offset: their operand lies anywhere in an arena."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core

SCATTER = torch.as_strided_scatter


def base(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


PROGRAMS = {
    "an offset": (lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (5, 2), 3) + 1, base(40), base(2, 3)),
    "no offset": (lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (5, 2)) + 1, base(40), base(2, 3)),
    "channels last": (
        lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (7, 2), 4) + 1,
        base(2, 4, 3, 3).to(memory_format=torch.channels_last),
        base(2, 3),
    ),
    "an input that begins later": (
        lambda b, s: SCATTER(b, s * 2, (2, 3), (7, 2), 12) + 1,
        base(60)[10:50],
        base(2, 3),
    ),
    "a copy": (lambda b, s: torch.as_strided_copy(b * 1 + s, (2, 3), (7, 2), 12) + 1, base(60), base(1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_places_count_from_where_the_operand_begins(name):
    program, *inputs = PROGRAMS[name]
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    expected = program(*inputs)
    for _ in range(2):
        found = fast(*inputs)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_channels_last_net_with_a_pool_before_its_classifier_learns():
    """ATen's pool to one pixel ends in as_strided, whose gradient is as_strided_scatter."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(module)
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    for _ in range(2):
        for function in (module, fast):
            function(x).square().sum().backward()
    for one, other in zip(module.parameters(), ours.parameters(), strict=True):
        assert one.grad.abs().max() > 0
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)

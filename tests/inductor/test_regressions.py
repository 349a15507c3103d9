"""Bugs met on the way, each by the program that showed it."""

from __future__ import annotations

import pytest
import torch

import tracer_core

REDUCTIONS = {
    "mean": lambda x: x.mean(dim=(2, 3)),
    "sum": lambda x: x.sum(dim=2),
    "amax": lambda x: x.amax(dim=(2, 3)),
    "prod": lambda x: x.prod(dim=3),
    "any": lambda x: (x > 0).any(dim=2),
    "argmax": lambda x: x.argmax(dim=2),
    "max_with_index": lambda x: x.max(dim=3),
    "var_mean": lambda x: torch.var_mean(x, dim=(2, 3), correction=0),
    "softmax": lambda x: x.softmax(dim=2),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (1, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_dimensions_of_size_one_keeps_its_values(name):
    """resnext101 at 7x7 pixels pools 1x1 images: the reduction was taken for one over everything."""
    x = torch.randn(64, 32, 1, 1)
    expected = REDUCTIONS[name](x)
    for _ in range(2):
        torch.testing.assert_close(tracer_core.compile(REDUCTIONS[name])(x), expected)

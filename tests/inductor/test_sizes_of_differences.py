"""Sizes that shrink where a number grows: ``76 - n`` behind ``x.shape[1] + n == 76``."""

from __future__ import annotations

import pytest
import sympy
import torch

import tracer_core
from inductor_backend.ir.symbolic_sizes import SizeVars
from tracer_core.plugin_api import SizeSpec

n, m = sympy.Symbol("n", integer=True, positive=True), sympy.Symbol("m", integer=True)


@pytest.mark.parametrize(
    ("size", "bound"),
    [
        (76 - n, 74),
        (76 + n, 86),
        (3 * n, 30),
        (n * n - n, 98),
        (sympy.Max(1, 76 - n), 74),
        (sympy.Min(5, n), 5),
        (n + m, None),
        (sympy.Integer(7), 7),
    ],
)
def test_upper_bounds(size: sympy.Expr, bound: int | None) -> None:
    sizes = SizeVars(
        [SizeSpec("n", 0, 0, lower=2, upper=10, hint=5), SizeSpec("m", 0, 1, 2, None, 5)]
    )
    assert sizes.upper(size) == bound


def positions(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    """What `generate` makes of a text and the number of its new tokens."""
    if x.shape[1] + n == 76:
        place = (x.cumsum(1) - 1).masked_fill(x == 0, 0)
        return place, (x < 0).any(), place.sum(1)
    return x, x, x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_row_whose_length_is_a_difference(dynamic: bool | None, dtype: torch.dtype) -> None:
    fast = tracer_core.compile(positions, dynamic=dynamic, fullgraph=True)
    for number in (30, 36, 20, 60, 70, 5, 74):
        x = torch.randint(0, 9, (2, 76 - number)).to(dtype)
        for result, wanted in zip(fast(x, number), positions(x, number), strict=True):
            torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_size_of_one_is_no_other_size_where_a_number_stands_for_it(dynamic: bool | None) -> None:
    def equal(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.squeeze(0) + 1 if x.shape[0] == n else x

    def sum_is_known(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.squeeze(0) + n if x.shape[0] + n == 12 else x

    def beside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.squeeze(0) * 2 if x.shape[0] + y.shape[0] == 12 else x

    functions = {
        equal: lambda n: n,
        sum_is_known: lambda n: 12 - n,
        beside: lambda n: torch.ones(12 - n),
    }
    for function, other in functions.items():
        fast = tracer_core.compile(function, dynamic=dynamic)
        for size in (5, 6, 7, 1, 8, 0, 1, 11):
            x = torch.randn(size)
            torch.testing.assert_close(fast(x, other(size)), function(x, other(size)))

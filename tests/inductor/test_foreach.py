"""Operators on lists of tensors that are decomposed into operators of single tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from inductor_backend.passes.foreach import DECOMPOSITIONS

torch.manual_seed(0)
XS = [torch.rand(3, 4) + 0.5, torch.rand(7) + 0.5, torch.rand(()) + 0.5]
YS = [torch.rand(3, 4) + 0.5, torch.rand(7) + 0.5, torch.rand(()) + 0.5]
SPECIAL = [torch.tensor([float("nan"), float("inf"), -0.0, 3.0])]

PROGRAMS: dict[str, Any] = {
    "pow_scalar": lambda x, y: torch._foreach_pow(x, 2.0),
    "pow_list": torch._foreach_pow,
    "pow_scalars": lambda x, y: torch._foreach_pow(x, [1.0, 2.0, 3.0]),
    "pow_of_scalar": lambda x, y: torch._foreach_pow(0.9, y),
    "pow_in_place": lambda x, y: torch._foreach_pow_([item.clone() for item in x], 2.0),
    "norm": lambda x, y: torch._foreach_norm(x),
    "norm_1": lambda x, y: torch._foreach_norm(x, 1),
    "norm_inf": lambda x, y: torch._foreach_norm(x, float("inf")),
    "norm_dtype": lambda x, y: torch._foreach_norm(x, 2, torch.float64),
    "clamp_min": lambda x, y: torch._foreach_clamp_min(x, 0.9),
    "clamp_max_scalars": lambda x, y: torch._foreach_clamp_max(x, [0.7, 0.8, 0.9]),
    "clamp_max_list": torch._foreach_clamp_max,
    "maximum": lambda x, y: torch._foreach_maximum(x, 0.9),
    "minimum_scalars": lambda x, y: torch._foreach_minimum(x, [0.7, 0.8, 0.9]),
    "lerp_list": lambda x, y: torch._foreach_lerp(x, y, x),
    "lgamma": lambda x, y: torch._foreach_lgamma(x),
    "erf": lambda x, y: torch._foreach_erf(x),
    "frac": lambda x, y: torch._foreach_frac(x),
    "max": lambda x, y: torch._foreach_max(x),
    "log2": lambda x, y: torch._foreach_log2(x),
    "sigmoid": lambda x, y: torch._foreach_sigmoid(x),
    "round": lambda x, y: torch._foreach_round([item * 7 for item in x]),
}


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_tensor_has_eagers_result(name: str) -> None:
    f = PROGRAMS[name]
    for _ in range(2):
        ours, eager = tracer_core.compile(f)(XS, YS), f(XS, YS)
        for mine, theirs in zip(ours, eager, strict=True):
            assert mine.dtype is theirs.dtype
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["clamp_min", "maximum", "norm_inf"])
def test_special_values(name: str) -> None:
    f = PROGRAMS[name]
    ours, eager = tracer_core.compile(f)(SPECIAL, SPECIAL), f(SPECIAL, SPECIAL)
    torch.testing.assert_close(ours, eager, equal_nan=True)


def test_the_table_holds_operators_of_this_torch() -> None:
    aten = torch.ops.aten
    for value in (aten._foreach_pow.ScalarAndTensor, aten._foreach_norm.Scalar):
        assert value in DECOMPOSITIONS
    assert all(isinstance(decomposition, torch._ops.OpOverload) for decomposition in DECOMPOSITIONS)

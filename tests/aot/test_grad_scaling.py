"""The traceable forms of GradScaler's operators beside the kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BACKENDS = ("aten_eager", "inductor")


def _gradients(dtype: torch.dtype, *unusual: float) -> list[torch.Tensor]:
    torch.manual_seed(0)
    result = [torch.randn(shape, dtype=dtype) * 100 for shape in ((3, 5), (), (0,), (7,))]
    for gradient, value in zip((result[0], result[3]), unusual, strict=False):
        gradient.view(-1)[2] = value
    return [*result, torch.randn(6, 4, dtype=dtype).t()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sweep(keep=4)
def test_gradients_are_unscaled_and_checked(
    dtype: torch.dtype, backend: str, fallbacks: Any
) -> None:
    def unscale(gradients: Any, actual: Any, inverse: Any) -> Any:
        products = [gradient * 2 for gradient in gradients]
        torch._amp_foreach_non_finite_check_and_unscale_(products, actual, inverse)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, actual, inverse)
        return products

    compiled = tracer_core.compile(unscale, backend=backend)
    nan, inf = float("nan"), float("inf")
    for unusual in ((), (inf,), (-inf, nan), (nan,), ()):
        for scale, before in ((1 / 3, 0.0), (1.0, 0.0), (0.25, 1.0)):
            sides = []
            for run in (compiled, unscale):
                gradients = _gradients(dtype, *unusual)
                result = torch.tensor(before)
                products = run(gradients, result, torch.tensor(scale))
                sides.append([*gradients, *products, result])
            for mine, theirs in zip(*sides, strict=True):
                assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert not fallbacks


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scale_shrinks_and_grows(backend: str, fallbacks: Any) -> None:
    def update(scale: Any, steps: Any, actual: Any) -> Any:
        return torch._amp_update_scale_(scale, steps, actual, 1.7, 0.3, 3)

    compiled = tracer_core.compile(update, backend=backend)
    largest = torch.finfo(torch.float32).max
    for begin in (65536.0, 1 / 3, largest, 0.0):
        mine = torch.tensor(begin), torch.tensor(0, dtype=torch.int32)
        theirs = torch.tensor(begin), torch.tensor(0, dtype=torch.int32)
        for value in (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0):
            assert compiled(*mine, torch.tensor(value)) is mine[0]
            update(*theirs, torch.tensor(value))
            assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    assert not fallbacks

"""argmax and argmin over rows: ties, NaN, infinities, blocks of 512 elements, short rows, every dtype; and of pools."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tracer_core

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8,
]  # fmt: skip
#: Columns: fewer than a vector has lanes, one vector and some, a block, several blocks.
COLUMNS = [1, 5, 19, 512, 1500]


def places(x):
    return x.argmax(1), x.argmin(1), x.argmax(0), x.argmin(), (x + 1).argmax(-1, keepdim=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sweep(keep=14)
@pytest.mark.parametrize("columns", COLUMNS)
def test_first_of_equal_values(columns, dtype):
    compiled = tracer_core.compile(places)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randint(0, 9, (23, columns)).to(dtype)  # few values: many ties
        for actual, eager in zip(compiled(x), places(x), strict=True):
            assert torch.equal(actual, eager)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("columns", COLUMNS[1:])
def test_special_values(columns, dtype):
    inf, nan = float("inf"), float("nan")
    torch.manual_seed(0)
    x = torch.randn(8, columns).to(dtype)
    x[0] = -inf
    x[1] = inf
    x[2, columns // 2] = nan
    x[3, [1, columns - 1]] = nan
    x[4, 0], x[4, columns - 1] = inf, nan
    x[5] = nan
    x[6, columns - 1] = -inf
    compiled = tracer_core.compile(places)
    for _ in range(3):
        for actual, eager in zip(compiled(x), places(x), strict=True):
            assert torch.equal(actual, eager)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_places_in_windows(train):
    """NaN is the greatest, the last of several; of equal values it is the first."""

    def pooled(x):
        values, where = F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
        return values.sin(), where

    compiled = tracer_core.compile(pooled)
    for size in (21, 21, 34):
        torch.manual_seed(size)
        x = torch.randint(0, 4, (2, 3, size, size)).float()
        x[0, 0, 4:6, 4:6] = float("nan")
        x[0, 1, :9, :9] = float("-inf")
        ours, theirs = (x.clone().requires_grad_(train) for _ in range(2))
        actual, eager = compiled(ours), pooled(theirs)
        assert torch.equal(actual[1], eager[1])
        torch.testing.assert_close(actual[0], eager[0], equal_nan=True)
        if train:
            for values, leaf in ((actual[0], ours), (eager[0], theirs)):
                values.nan_to_num().sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)

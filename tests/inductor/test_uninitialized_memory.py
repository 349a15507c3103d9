"""Deterministic algorithms: compiled code fills uninitialized memory as eager mode does."""

from __future__ import annotations

import pytest
import torch

import tracer_core

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.bool]


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uninitialized_memory_is_filled(dtype, deterministic):
    def program(x):
        first = torch.empty(4, dtype=dtype), torch.empty_like(x), x.new_empty(2)
        return *first, torch.empty_strided((2, 2), (1, 2), dtype=dtype), torch.empty(3).fill_(2)

    x = torch.ones(3, dtype=dtype)
    fast = tracer_core.compile(program, fullgraph=True)
    for got, expected in zip(fast(x), program(x), strict=True):
        assert (
            torch.equal(got.nan_to_num(5), expected.nan_to_num(5)) and got.dtype == expected.dtype
        )
    assert fast(x)[0][0].item() != 0


def test_the_setting_is_a_guard():
    fast = tracer_core.compile(lambda x: x * 0 + torch.empty(3), fullgraph=True)
    x = torch.ones(3)
    assert not fast(x).isnan().any()
    torch.use_deterministic_algorithms(True)
    try:
        assert fast(x).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not fast(x).isnan().any()

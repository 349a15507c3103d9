"""Positions and sources of dtypes that kernels refuse raise eager's errors."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.eager_reference import same

NUMBERS = (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool)
POSITIONS = (torch.int64, torch.int32, torch.uint8)


def reduce(table, positions, source):
    return table.index_reduce(0, positions, source, "amax", include_self=False)


def reduce_in_place(table, positions, source):
    table.index_reduce_(0, positions, source, "mean")
    return table * 2


def fill(table, positions, source):
    return table.index_fill(0, positions, 3.0)


def fill_in_place(table, positions, source):
    table.index_fill_(0, positions, source[0].float())
    return table * 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", [reduce, reduce_in_place, fill, fill_in_place])
def test_as_eager(program, backend):
    calls = [
        (torch.zeros(4), torch.tensor([0, 0, 1, 1]).to(of), torch.tensor([1, 2, 3, 4]).to(dtype))
        for dtype, of in itertools.product(NUMBERS, POSITIONS)
    ]
    same(program, *calls, backend=backend, breaks=None, recompile_limit=20)

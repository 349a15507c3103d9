"""``as_strided`` with an offset names a place in the input's storage, also where the graph writes to the input."""

from __future__ import annotations

import pytest
import torch

import tracer_core


def after_a_write(x):
    x.add_(1)
    return torch.as_strided(x, (2,), (1,), 3) * 2


def a_method_of_a_view(x):
    y = x.view(-1)
    y.mul_(3)
    return y.as_strided((2,), (2,), storage_offset=3).sin()


def written_through(x):
    x.as_strided((2,), (1,), 3).add_(1)
    return x.sum()


def scattered(x):
    x.add_(1)
    return torch.as_strided_scatter(x, torch.ones(2), (2,), (1,), 3)


def copied(x):
    x.add_(1)
    return torch.as_strided_copy(x, (2,), (1,), 3)


def without_an_offset(x):
    x.add_(1)
    return x.as_strided((2,), (1,)) * 2


def without_a_write(x):
    return x.as_strided((2,), (1,), 3) * 2


PROGRAMS = [
    after_a_write, a_method_of_a_view, written_through, scattered, copied, without_an_offset, without_a_write,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_view_that_begins_later(program, backend):
    fast = tracer_core.compile(program, backend=backend)
    for start in (2, 2, 1, 0):
        bases = [torch.arange(8.0), torch.arange(8.0)]
        mine, theirs = (one(base[start : start + 4]) for one, base in zip((fast, program), bases, strict=True))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        torch.testing.assert_close(*bases, rtol=0, atol=0)

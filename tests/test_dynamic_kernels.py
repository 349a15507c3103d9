"""One compile, and one set of kernels, serves several sizes."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.graphs import records_of

PROGRAMS = {
    "pointwise": (lambda x: torch.relu(x) * 2 + x.sin(), lambda n: (torch.randn(n, 8),)),
    "softmax": (lambda x: torch.softmax(x * 0.5, dim=-1), lambda n: (torch.randn(n, 33),)),
    "matmul": (
        lambda x, w: torch.nn.functional.gelu(x @ w),
        lambda n: (torch.randn(n, 24), torch.randn(24, 40)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_with_a_symbolic_batch_serves_three_batch_sizes(name):
    program, inputs = PROGRAMS[name]
    fast = tracer_core.compile(program, backend="inductor")
    with torch.no_grad():
        for n in (3, 5, 9, 64):
            args = inputs(n)
            if n == 3:
                tracer_core.mark_dynamic(args[0], 0)
            torch.testing.assert_close(fast(*args), program(*args))
    assert len(records_of(fast)) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_that_changed_becomes_symbolic_by_itself(name):
    program, inputs = PROGRAMS[name]
    fast = tracer_core.compile(program, backend="inductor")
    with torch.no_grad():
        for n in (3, 5, 9, 64):
            args = inputs(n)
            torch.testing.assert_close(fast(*args), program(*args))
    assert len(records_of(fast)) == 2


def test_sizes_zero_and_one_are_right():
    program, inputs = PROGRAMS["softmax"]
    fast = tracer_core.compile(program, backend="inductor", dynamic=True)
    with torch.no_grad():
        for n in (7, 1, 0, 2):
            args = inputs(n)
            torch.testing.assert_close(fast(*args), program(*args))

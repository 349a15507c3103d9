"""Products whose sizes are differences of symbols, and nothing in some call: sums of nothing are
zeros.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core

MATMULS = {
    "nothing to sum": (lambda x: x[:, 64:] @ x[:, 64:].t(), lambda s: (300, s)),
    "nothing to sum, few rows": (lambda x: x[:, 64:] @ x[:, 64:].t(), lambda s: (48, s)),
    "no columns of weights": (lambda x: torch.ones(300, 512) @ x[64:].t(), lambda s: (s, 512)),
}


@pytest.mark.parametrize("case", MATMULS)
def test_sizes_that_become_nothing(case):
    function, sizes = MATMULS[case]
    compiled = tracer_core.compile(function, backend="inductor", dynamic=True)
    for size in (192, 320, 64, 65, 64):
        dirty = torch.full((300, 300), 7.0)
        del dirty  # what fresh memory is made of
        x = torch.randn(sizes(size))
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)

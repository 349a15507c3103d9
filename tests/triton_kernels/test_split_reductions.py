"""Long sums of few rows are cut into parts on GPUs, in line with the loops that make their terms; run by the interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.runtime.triton_interpreter import interpreting
from inductor_backend.target import interpreted
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import R

pytestmark = pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")

last = {"memory_format": torch.channels_last}


def gelu_gradient(g, x):
    t = torch.ops.aten.gelu_backward(g, x)
    return t, t.flatten(0, -2).sum(0)


def norm_gradients(g, x, mean, rstd):
    y = (x - mean) * rstd
    return (g * y).sum((0, 1)), g.sum((0, 1))


def statistics(x):
    return *torch.var_mean(x, (0, 2, 3)), x.mean((0, 2, 3)), x.amax((0, 2, 3))


#: name -> (program, inputs, kernels or None)
CASES = {
    "columns": (lambda x: x.sum(0), (R(1024, 24),), 2),
    "columns and what makes them": (gelu_gradient, (R(8, 128, 40), R(8, 128, 40)), 2),
    "two sums of the same rows": (norm_gradients, (R(8, 64, 48), R(8, 64, 48), R(8, 64, 1), R(8, 64, 1)), 2),
    "images": (statistics, (R(4, 8, 16, 16),), None),
    "channels-last images": (statistics, (R(4, 8, 16, 16).to(**last),), None),
    "channels-last, odd": (statistics, (R(3, 5, 15, 17).to(**last),), None),
    "a prime": (lambda x: x.sum(0), (R(1009, 4),), 1),
    "long rows": (lambda x: (x.sum(1), x.amax(1)), (R(2, 5000),), None),
    "all": (lambda x: x.sum(), (R(20_000),), 2),
    "products": (lambda x: (1 + x / 500).prod(0), (R(512, 3),), 2),
    "any": (lambda x: ((x > 9).any(0), (x < 9).all(0)), (R(512, 3),), None),
    "bfloat16": (lambda x: x.sum(0), (R(1024, 24).bfloat16(),), 2),
    "double": (lambda x: x.sum(0), (R(1024, 24).double(),), 2),
    "cross-entropy's input": (lambda x: F.log_softmax(x, 1).sum(0), (R(512, 20),), None),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_parts_give_the_whole(name, dynamic):
    fn, inputs, kernels = CASES[name]
    expected = flat(fn(*clones(inputs)))
    with interpreted():
        made = compiled(fn, *inputs, dynamic=dynamic)
    for ours, eager in zip(made(*clones(inputs)), expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        bounds = {"atol": 2e-3, "rtol": 1e-4} if eager.dtype == torch.float32 else tolerance(eager.dtype)
        torch.testing.assert_close(ours, eager, **bounds)
    if kernels is not None and not dynamic:
        assert made.kernels == kernels


def test_neighbours_read_neighbours():
    """A program's threads read along memory: the channels of channels-last images, not their parts."""
    with interpreted():
        made = compiled(lambda x: x.sum((0, 2, 3)), R(16, 64, 14, 14).to(**last))
    first = made.source.split("@triton.jit")[1]
    assert "x1 = xindex % 64" in first and "+ x1)" in first

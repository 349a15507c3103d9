"""GELU and its gradients on GPUs, in both forms: in terms of one power of two, which a gradient shares
with a forward that is computed again. Run by Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

aten = torch.ops.aten
#: Of inf, the CPU's vectors give NaN and its single elements inf.
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 60.0, -60.0, 6e4, -6e4, -math.inf, math.nan]


def inputs(dtype=torch.float32):
    return torch.cat([torch.linspace(-9, 9, 4001), torch.tensor(SPECIAL)]).to(dtype)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gelu_and_its_gradient(approximate, dtype):
    x = inputs(dtype)
    checked(lambda x: F.gelu(x, approximate=approximate), x)
    g = torch.linspace(-3, 3, len(x), dtype=dtype)
    checked(lambda g, x: aten.gelu_backward(g, x, approximate=approximate), g, x)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_errors_are_at_most_about_eagers(approximate):
    x = torch.linspace(-9, 9, 20001)
    gradient = lambda g, x: aten.gelu_backward(g, x, approximate=approximate)
    forward = lambda g, x: F.gelu(x, approximate=approximate)
    for fn in (forward, gradient):
        (ours,) = checked(fn, torch.ones_like(x), x)(torch.ones_like(x), x)
        exact = fn(torch.ones_like(x).double(), x.double())
        eager = (fn(torch.ones_like(x), x) - exact).abs().max()
        assert (ours - exact).abs().max() <= 1.5 * eager + 1e-7


def test_a_gradient_shares_the_forwards_exponential():
    """The two of a feed-forward network's gradients: of the activation and of the weight behind it."""

    def fn(g, x):
        return aten.gelu_backward(g, x), F.gelu(x)

    result = checked(fn, inputs(), inputs())
    (text,) = result.compilation.sources
    assert text.count("sigmoid_exp2(") == 1

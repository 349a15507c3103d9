"""What is padded, pooled or scattered into a slice is computed inside Triton kernels, behind the mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def rotated_gradient(g, c, s):
    """The gradient of ``x * c + rotate_half(x) * s``, as autograd makes it."""
    half = g.shape[-1] // 2
    rotated = g * s
    first = torch.zeros_like(g).slice_scatter(-rotated[..., :half], -1, half)
    second = torch.zeros_like(g).slice_scatter(rotated[..., half:], -1, 0, half)
    return g * c + first + second


PROGRAMS = {
    "rotary gradient": (rotated_gradient, R(2, 3, 5, 8), R(5, 8), R(5, 8)),
    "padding of arithmetic": (lambda x: F.pad(x * 2 + 1, (2, 1, 0, 3), value=-5.0), R(3, 7)),
    "padding twice": (lambda x: F.pad(F.pad(x.relu(), (2, 1)) + 1, (1, 0, 3, 0), value=2.0),
                      R(3, 7)),
    "a logarithm of nothing": (lambda x: F.pad(1 / (x.abs() + 1), (4, 4)).log1p(), R(3, 7)),
    "a pool": (lambda x: F.max_pool2d((x * 2).relu(), 3, 2, 1), R(2, 3, 9, 8)),
    "of integers": (lambda x: F.pad(x + 1, (3, 2)) * 2, I(-9, 9, 4, 5)),
    "a comparison": (lambda x: F.pad((x > 0).float(), (1, 1)), R(4, 5)),
    "of bfloat16": (lambda x: F.pad(x * 0.3, (1, 2)).sum(1), R(4, 5).bfloat16()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_producer_behind_a_mask_is_computed_in_its_reader(name):
    fn, *inputs = PROGRAMS[name]
    assert checked(fn, *inputs).kernels == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_division_that_may_fail_stays_in_front_of_the_mask():
    """The interpreter runs integer divisions by zero as NumPy does: only the values are compared."""
    x, y = I(1, 9, 4, 5), I(1, 9, 4, 5)
    assert checked(lambda x, y: F.pad(x // y, (1, 2)), x, y).kernels == 2


def test_a_gather_stays_in_front_of_the_mask():
    assert checked(lambda x, i: F.pad(x[i], (1, 2)), R(7, 5), I(-7, 7, 4)).kernels == 2


def test_what_merged_readers_share_is_computed_in_their_kernel():
    """Of a size at which two readers would rather load it."""
    c, s = R(40, 8), R(40, 8)
    assert checked(rotated_gradient, R(4, 8, 40, 8), c, s).kernels == 1


def test_gradients_of_rotary_embeddings():
    def rotated(x):
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def program(x, c, s):
        y = x.tanh()
        return (y * c + rotated(y) * s).square().mean()

    x, c, s = R(2, 3, 5, 8).requires_grad_(), R(5, 8), R(5, 8)
    (exact,) = torch.autograd.grad(program(x.double(), c.double(), s.double()), x)
    with interpreted():
        fast = tracer_core.compile(program)
        for _ in range(3):
            (actual,) = torch.autograd.grad(fast(x, c, s), x)
            torch.testing.assert_close(actual, exact, atol=1e-6, rtol=1e-5)

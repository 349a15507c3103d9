"""Reductions over a few strided elements as Triton kernels: pointwise loops, with eager's values."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def with_nan(x):
    x[1, 1, 3], x[2, 0, 4] = torch.nan, torch.inf
    return x


PROGRAMS = {
    "heads of a group": (lambda g, c: (g.sum(2).float() * c).bfloat16(),
                         R(2, 3, 2, 5, 8).bfloat16(), R(5, 8)),
    "eight rows": (lambda x: x.sum(0), R(8, 40)),
    "two dimensions": (lambda x: x.sum((0, 2)), R(2, 5, 3, 40)),
    "kept dimensions": (lambda x: x.mean(1, keepdim=True) + 1, R(5, 3, 40)),
    "products": (lambda x: x.prod(1), R(5, 3, 40)),
    "extremes": (lambda x: (x.amax(1), x.amin(1)), with_nan(R(5, 3, 40))),
    "integers": (lambda x: (x.sum(1), x.amax(1), x.prod(1)), I(-9, 9, 5, 3, 40)),
    "small integers": (lambda x: (x.sum(1), x.amin(1)), I(-9, 9, 5, 3, 40).to(torch.int8)),
    "bools": (lambda x: ((x > 1).any(1), (x > 1).all(1), (x > 0).sum(1)), R(5, 3, 40)),
    "squares in float64": (lambda x: x.double().square().sum(1), R(5, 3, 40)),
    "float16 that overflows": (lambda x: (x.sum(1), x.mean(1)), R(5, 3, 40).half() + 40_000),
    "a gather": (lambda x, i: x[i].sum(1), R(7, 40), I(-7, 7, 5, 3)),
    "an expanded operand": (lambda x, y: (x * y.expand(5, 3, 40)).sum(1), R(5, 3, 40), R(1, 3, 1)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_few_strided_elements_are_combined_in_a_pointwise_kernel(name):
    fn, *inputs = PROGRAMS[name]
    result = checked(fn, *inputs)
    assert "rindex" not in result.source and result.kernels == 1


def test_parts_of_one_projection():
    """A query is pooled; keys, which other loops read, lie in the same buffer."""

    def fn(x):
        q, k = x.view(2, 4, 6, 2, 8).unbind(3)
        return q.amax(1) * 2, k.contiguous()

    result = checked(fn, R(2, 24, 16))
    assert "rindex" not in result.source


def test_a_sum_of_negative_zeros_is_zero():
    x = torch.full((3, 2, 8), -0.0)
    (total,) = checked(lambda x: x.sum(1), x)(x)
    assert not total.signbit().any()


def test_sums_of_symbolic_rows():
    result = checked(lambda x: x.sum(1) * 2, R(5, 3, 40), dynamic=True)
    x = R(6, 3, 44)
    torch.testing.assert_close(result(x)[0], x.sum(1) * 2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(1),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: ((y := x.sin() * 2), y.sum(1)),
        lambda x: x.var(1),
        lambda x: x.argmax(1),
        lambda x: (x.sum(1), x.argmax(1)),
        lambda x: (x.sum(1), x.sin()),
        lambda x: x.sum(2),
    ],
)
def test_other_reductions_keep_their_rows(fn):
    """Where the rows are needed again, or are contiguous."""
    result = checked(fn, R(5, 3, 8))
    assert "rindex" in result.source and result.kernels == 1


def test_nine_rows():
    assert "rindex" in checked(lambda x: x.sum(0), R(9, 40)).source


def test_a_sum_that_is_stored_is_stored_in_its_own_dtype():
    """Where several kernels read it: half the bytes."""
    g = R(2, 3, 2, 5, 8).bfloat16()
    result = checked(lambda g: (g.sum(2) @ g[:, :, 0].transpose(-1, -2), g.sum(2) * 2), g)
    dtypes = {buffer.dtype for buffer in result.compilation.program.buffers.values()}
    assert dtypes == {torch.bfloat16}

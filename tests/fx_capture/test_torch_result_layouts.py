"""Strides and dtypes of elementwise results over every pair of operands: permuted, of zero
dimensions, expanded, strided, of other dtypes."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tracer_core.testing import compare

PERMUTED = torch.randn(2, 3, 4).permute(2, 0, 1)
OPERANDS = (
    torch.randn(4, 2, 3),
    PERMUTED,
    torch.tensor(1.5),
    torch.randn(3),
    torch.randn(2, 1).expand(4, 2, 3),
    torch.randn(3, 2).t(),
    torch.tensor(2.0, dtype=torch.float64),
    PERMUTED.double(),
    (PERMUTED * 3).long(),
    torch.randn(8, 2, 3)[::2],
    PERMUTED.half(),
    torch.randn(3, 4, 2).permute(1, 2, 0),
    torch.empty(0, 2, 3).transpose(1, 2)[:, :1],
)


def huber(x, y):
    return F.huber_loss(x, y, reduction="none")


def soft_margin(x, y):
    return F.soft_margin_loss(x, y, reduction="none")


def power_of_number(x, y):
    return torch.pow(2.0, y), 3**x


OPERATORS = (
    torch.logaddexp,
    torch.logaddexp2,
    torch.pow,
    power_of_number,
    torch.heaviside,
    torch.xlogy,
    torch.special.xlog1py,
    torch.ldexp,
    torch.polar,
    torch.complex,
    huber,
    F.huber_loss,
    soft_margin,
    F.smooth_l1_loss,
    torch.atan2,
    torch.hypot,
    torch.lerp,
)


def _pairs(operator):
    """The pairs that the operator takes."""
    for x, y in itertools.product(OPERANDS, OPERANDS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield x, y, operator(x, y)
        except (RuntimeError, TypeError):
            continue


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
@pytest.mark.sweep(keep=10)
def test_results_are_laid_out_as_eager_lays_them_out(operator, backend):
    items = list(_pairs(operator))

    @tracer_core.compile(backend=backend, dynamic=False)
    def program(*operands):
        return [operator(*operands[k : k + 2]) for k in range(0, len(operands), 2)]

    results = program(*(value for x, y, _ in items for value in (x, y)))
    for number, (x, y, want) in enumerate(items):
        messages = f"{x.dtype} {x.shape} {x.stride()} and {y.dtype} {y.shape} {y.stride()}"
        low = torch.float16 in (x.dtype, y.dtype)
        if low:  # a sum of half numbers, rounded once or twice
            results[number] = _near(results[number], want)
        compare(want, results[number], path=messages)


def _near(got, want):
    """`want`, if `got` is it but for rounding."""
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else list(zip(got, want, strict=True))
    for item, other in pairs:
        near = torch.allclose(item, other, rtol=1e-2, atol=1e-2, equal_nan=True)
        if not near or item.stride() != other.stride() or item.dtype is not other.dtype:
            return got
    return want


BACKWARDS = {
    "hardtanh": F.hardtanh,
    "elu": F.elu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", BACKWARDS)
def test_gradients_that_enter_in_another_layout(name):
    def f(x, g):
        y = x * 1
        return torch.autograd.grad(BACKWARDS[name](y), y, g)

    compiled = tracer_core.compile(f, backend="aten_eager")
    rows, columns = torch.randn(4, 5), torch.randn(5, 4).t()
    for x, g in ((rows, columns), (columns, rows), (columns, columns), (rows, columns)):
        (actual,), (expected,) = compiled(x.requires_grad_(), g), f(x.requires_grad_(), g)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected)


def windows(x):
    return torch.remainder(x, x.unfold(-3, 2, 1)), torch.atan2(x.unfold(0, 2, 1), x)


def flipped(x):
    part = x.permute(2, 1, 0)[1:].flip(())
    return torch.eq(torch.ones(3, 4)[..., ::2], part), part * torch.ones(1, 3, 2), part + part


def single_rows(x):
    row = x[:1].permute(2, 0, 1)
    return row * row, row + x[0, 0, 0], torch.hypot(row, x.permute(2, 0, 1)), row.mT - row.mT[:, :1]


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", [windows, flipped, single_rows])
def test_dimensions_of_one_element_with_strides_of_their_own(program, backend):
    compiled = tracer_core.compile(program, backend=backend, dynamic=False)
    x = torch.rand(2, 3, 2) if program is flipped else torch.rand(2, 1, 2)
    compare(program(x), compiled(x))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_rrelu_is_contiguous_of_any_image(training, requires_grad):
    def activated(x):
        return F.rrelu(x, 0.1, 0.3, training)

    images = torch.randn(2, 6, 9, 4)
    for image in (images, images.to(memory_format=torch.channels_last), images.mT):
        image = image.detach().requires_grad_(requires_grad)
        torch.manual_seed(0)
        expected = activated(image)
        torch.manual_seed(0)
        compare(expected, tracer_core.compile(activated, backend="inductor")(image))

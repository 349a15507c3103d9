"""Outputs of softmax and log_softmax are recomputed by the backward where that saves memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from tests.inductor.test_recomputed_norms import saved_by_ours
from tracer_core.aot import softmax_recomputation


class Head(nn.Module):
    """The head of a language model, in bfloat16, with its loss in float32."""

    def __init__(self, classes, loss, cap=None):
        super().__init__()
        self.linear = nn.Linear(32, classes, bias=False)
        self.loss, self.cap = loss, cap

    def forward(self, x, target):
        logits = self.linear(x)
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        wide = logits if logits.dtype is torch.float64 else logits.float()
        return self.loss(wide, target)


def gradients(function, module, x, target, factor):
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    value = function(leaf, target)
    (value * factor.to(value.dtype)).sum().backward()
    return value.detach(), [leaf.grad, *(p.grad for p in module.parameters())]


def compare(module, x, target, calls=2, scale=2.0, **options):
    """Compares values with eager's, and errors of gradients (beside float64) with those of eager."""
    ours, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True, **options)
    soft = target.double() if target.is_floating_point() else target
    for _ in range(calls):
        factor = torch.randn(module(x, target).shape).to(torch.bfloat16)
        expected, of_eager = gradients(module, module, x, target, factor)
        actual, of_ours = gradients(fast, ours, x, target, factor)
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance(x.dtype))
        _, in_float64 = gradients(exact, exact, x.double(), soft, factor)
        for eager, other, true in zip(of_eager, of_ours, in_float64, strict=True):
            assert eager.dtype == other.dtype and eager.stride() == other.stride()
            assert bool((eager.isnan() == other.isnan()).all())
            error = (other.double() - true).nan_to_num().norm()
            assert error <= scale * (eager.double() - true).nan_to_num().norm() + 1e-5
    return fast


def tolerance(dtype):
    return {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


def half_ignored(logits, target):
    return F.cross_entropy(logits, target.where(target % 2 == 0, -100))


def weighted(logits, target):
    weight = torch.linspace(0.5, 2, logits.shape[-1], dtype=logits.dtype)
    return F.cross_entropy(logits, target, weight, reduction="none")


def with_z_loss(logits, target):
    return F.cross_entropy(logits, target) + 1e-3 * logits.logsumexp(-1).square().mean()


LOSSES = {
    "mean": F.cross_entropy,
    "sum": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "ignored": half_ignored,
    "weighted": weighted,
    "smoothed": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "z": with_z_loss,
    "entropy": lambda x, t: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1),
}


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_losses_of_language_models(loss, dtype):
    torch.manual_seed(0)
    module = Head(300, LOSSES[loss], cap=15.0).to(dtype)
    compare(module, torch.randn(24, 32, dtype=dtype) * 3, torch.randint(300, (24,)))


def test_a_loss_saves_16_bit_logits_and_two_numbers_a_row():
    torch.manual_seed(0)
    module = Head(1000, F.cross_entropy, cap=15.0).bfloat16()
    x, target = torch.randn(64, 32, dtype=torch.bfloat16), torch.randint(1000, (64,))
    fast = compare(module, x, target)
    saved = saved_by_ours(fast(x.requires_grad_(), target))
    inputs = sum(t.nbytes for t in (x, target, module.linear.weight))
    assert saved - inputs <= 64 * (1000 * 2 + 2 * 4) + 8


def test_probabilities_of_attention_in_float32_are_not_saved(monkeypatch):
    monkeypatch.setattr(softmax_recomputation, "SLOW_EXPONENTIALS", set())  # as on GPUs

    def attention(q, k, v, mask):
        scores = (q @ k.mT).float() / 8 + mask
        return (scores.softmax(-1)).to(v.dtype) @ v

    torch.manual_seed(0)
    inputs = [torch.randn(2, 64, 32).bfloat16().requires_grad_() for _ in range(3)]
    mask = torch.full((64, 64), float("-inf")).triu(1)
    fast = tracer_core.compile(attention, backend="inductor", fullgraph=True)
    for _ in range(2):
        expected, actual = attention(*inputs, mask), fast(*inputs, mask)
        weight = torch.randn_like(expected)
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
        saved = saved_by_ours(actual) - sum(x.nbytes for x in (*inputs, mask))
        assert saved <= 2 * 64 * (64 * 2 + 2 * 4)
        in_float64 = [x.detach().double().requires_grad_() for x in inputs]
        true = (in_float64[0] @ in_float64[1].mT / 8 + mask).softmax(-1) @ in_float64[2]
        rows = [
            torch.autograd.grad(value, leaves, weight.to(value.dtype))
            for value, leaves in ((expected, inputs), (actual, inputs), (true, in_float64))
        ]
        for eager, other, exact in zip(*rows, strict=True):
            error = (other.double() - exact).norm()
            assert error <= 1.5 * (eager.double() - exact).norm() + 1e-5


def test_rows_without_a_finite_element_are_nan_as_in_eager():
    def program(logits, mask, target):
        wide = logits.float().masked_fill(mask, float("-inf"))
        return F.nll_loss(F.log_softmax(wide, -1), target, reduction="none")

    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    mask = torch.zeros(6, 40, dtype=torch.bool)
    mask[1] = mask[3, 5:] = True
    target = torch.tensor([0, 1, 2, 3, 4, 5])
    for _ in range(2):
        logits = torch.randn(6, 40).bfloat16()
        logits[4, 7], logits[5, 3] = float("inf"), float("nan")
        leaves = [logits.clone().requires_grad_() for _ in range(2)]
        values = [f(leaf, mask, target) for f, leaf in zip((program, fast), leaves, strict=True)]
        for value in values:
            value.sum().backward()
        torch.testing.assert_close(values[1], values[0], equal_nan=True)
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad, equal_nan=True)


def test_images_any_dimension_and_any_size():
    def program(x, target):
        return F.cross_entropy(x.float() * 2, target) + F.softmax(x.float(), 0).square().sum()

    fast = tracer_core.compile(program, backend="inductor", fullgraph=True, dynamic=True)
    for classes, side in ((5, 6), (7, 4), (7, 9)):
        x = torch.randn(3, classes, side, side).bfloat16()
        target = torch.randint(classes, (3, side, side))
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        values = [f(leaf, target) for f, leaf in zip((program, fast), leaves, strict=True)]
        for value in values:
            value.backward()
        torch.testing.assert_close(values[1], values[0])
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


def test_second_derivatives():
    def program(x, target):
        return F.cross_entropy(x.float() * 3, target)

    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    x, target = torch.randn(4, 9), torch.randint(9, (4,))
    second = []
    for function in (program, fast):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf, target), leaf, create_graph=True)
        second += torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(second[1], second[0])


def test_the_element_that_is_looked_up_is_the_one_that_was_compared():
    """Rows are reduced in vectors, single elements are not: a function may differ in its last bit."""

    def program(x, target):
        y = torch.tanh(x) * 15 + 1
        return y.gather(1, target[:, None])[:, 0] == y.amax(1), y.log_softmax(1).amax(1)

    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    x = torch.randn(64, 333)
    for ours, eager in zip(fast(x, x.argmax(1)), program(x, x.argmax(1)), strict=True):
        torch.testing.assert_close(ours, eager)

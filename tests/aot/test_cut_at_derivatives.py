"""Operators whose derivative reads values run eagerly in both passes; all else is compiled."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core import limits
from tracer_core.testing import compare

BACKENDS = ["aten_eager", "inductor"]
ENDS = torch.tensor([2, 3, 6])


def scaled_groups(x, ends):
    out, start = torch.zeros_like(x), 0
    for number, end in enumerate(ends.tolist(), 1):
        out[start:end] = x[start:end] * number
        start = end
    return out


@torch.library.custom_op("test_cut_at_derivatives::groups", mutates_args=())
def groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """As a product of groups of rows in a library of models: each group by another number."""
    return scaled_groups(x, ends)


@groups.register_fake
def _groups_fake(x, ends):
    return torch.empty_like(x)


def _keep_ends(ctx, inputs, output):
    ctx.ends = inputs[1]


def _groups_backward(ctx, gradient):
    return scaled_groups(gradient, ctx.ends), None


groups.register_autograd(_groups_backward, setup_context=_keep_ends)


class Sorted(torch.autograd.Function):
    """Its backward reads how many are positive."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sort(0).values

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        count = sum(item > 0 for item in x.flatten().tolist())
        return gradient * count


def layers(x, w, times):
    for _ in range(times):
        x = groups(torch.tanh(x @ w), ENDS) @ w.mT
        x = x.masked_fill(x > ENDS.sum(), 0.5).relu() + x.sin()
    return x


def once(x, w):
    return layers(x, w, 1)


def again_and_again(x, w):
    return layers(x, w, 4)


def function(x, w):
    return Sorted.apply(torch.tanh(x @ w)).cos() @ w


def written_to_before(x, w):
    """The operator's own result is written to."""
    y = groups((x @ w).sin(), ENDS)
    y.mul_(2)
    return y.cos() @ w


def write_to_what_a_part_returns(x, w):
    y = (x @ w) * 1
    actual = groups(x.exp(), ENDS)
    y[0].mul_(2)
    y.index_add_(0, ENDS - 1, actual[:3])
    return y.cos() @ w


def too_often(x, w):
    return layers(x, w, limits.MAX_CUTS + 2)


PROGRAMS = [
    once,
    again_and_again,
    function,
    written_to_before,
    write_to_what_a_part_returns,
]


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def trained(run, seed):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(6, 6, dtype=torch.double, generator=generator) for _ in range(2))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = run(x, w)
    y.square().mean().backward()
    return [y, x.grad, w.grad]


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_all_else_is_compiled(program, backend):
    compiled = tracer_core.compile(program, backend=backend)
    for seed in range(3):
        compare(trained(program, seed), trained(compiled, seed))
    (fallback,) = fallbacks_of(compiled)
    assert "the graph is cut around it" in fallback


@pytest.mark.parametrize("backend", BACKENDS)
def test_beyond_the_limit_only_the_rest_runs_eagerly(backend):
    compiled = tracer_core.compile(too_often, backend=backend)
    for seed in range(3):
        compare(trained(too_often, seed), trained(compiled, seed))
    rest, full = fallbacks_of(compiled)
    assert "the captured graph runs eagerly" in rest
    assert "the graph is cut around it" in full


@pytest.mark.parametrize("backend", BACKENDS)
def test_double_backward(backend):
    """Of what is cut, as of eager's."""

    def penalty(run, seed):
        generator = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(6, 6, dtype=torch.double, generator=generator) for _ in range(2))
        x, w = x.requires_grad_(), w.requires_grad_()
        (slope,) = torch.autograd.grad(run(x, w).sin().sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [slope, x.grad, w.grad]

    compiled = tracer_core.compile(once, backend=backend)
    for seed in range(3):
        compare(penalty(once, seed), penalty(compiled, seed))

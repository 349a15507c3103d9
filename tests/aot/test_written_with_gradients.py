"""Writes of values that require grad into tensors from outside a graph run eagerly, all else is
compiled: mixtures of experts that add up the results of their experts in place, for instance."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.experts import Experts, compare_training
from tracer_core.testing import compare

BACKENDS = ["aten_eager", "inductor"]
IDX = torch.tensor([0, 2, 2, 5])


class Hit(Experts):
    """Those of the chosen experts that any token has, one after the other."""

    def forward(self, x):
        tokens, weights, mask = self.routed(x)
        final = torch.zeros_like(tokens)
        for expert in mask.sum((-1, -2)).gt(0).nonzero():
            place, token = torch.where(mask[expert].squeeze(0))
            actual = self.experts[int(expert[0])](tokens[token])
            final.index_add_(0, token, actual * weights[token, place, None])
        return final.view(x.shape)


def add_to_rows(final, x, w):
    h = torch.tanh(x @ w)
    final.index_add_(0, IDX, h[IDX] * 2)
    return (h * 3).sin().sum()


def read_before_and_after(final, x, w):
    """What the first product saves for its backward is no part of what is written to."""
    y = final.exp() @ w
    final.index_add_(0, IDX, torch.tanh(x @ w)[IDX] * 2)
    return y.sin().sum() + final.cos().sum()


def write_to_a_view(final, x, w):
    h = torch.tanh(x @ w)
    rows = final[1:]
    rows.mul_(h[1:])
    return (rows * 3).sin().sum()


def write_with_and_without(final, x, w):
    h = torch.tanh(x @ w)
    with torch.no_grad():
        final.add_(h)
    final[0] = h[1]
    return (h * 3).sin().sum() + final.sum()


PROGRAMS = [add_to_rows, read_before_and_after, write_to_a_view, write_with_and_without]


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def only_cuts(fallbacks):
    return fallbacks and all("the graph is cut around it" in fallback for fallback in fallbacks)


def trained(run, base, x, w, is_made):
    """Returns the loss, what is written to, and all gradients."""
    x, w, base = (value.clone().requires_grad_() for value in (x, w, base))
    final = base * 1 if is_made else base.detach().clone()
    before = final._version
    loss = run(final, x, w)
    kind = type(final.grad_fn).__name__
    (loss + final.square().sum()).backward()
    return [loss, final, final._version - before, kind, x.grad, w.grad, base.grad]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_made", [False, True], ids=["plain", "with_history"])
@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("program", PROGRAMS)
def test_written_inputs_get_their_history(program, is_made, backend):
    compiled = tracer_core.compile(program, backend=backend)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(6, 6, dtype=torch.double, generator=generator) for _ in range(3)]
        compare(trained(program, *inputs, is_made), trained(compiled, *inputs, is_made))
    assert only_cuts(fallbacks_of(compiled))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_that_are_hit(backend, caplog):
    torch.manual_seed(0)
    compare_training(Hit(6, 8).double(), backend)
    assert "the graph is cut around it" in caplog.text
    assert "the captured graph runs eagerly" not in caplog.text

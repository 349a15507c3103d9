"""Memory that several parts of a graph with data-dependent sizes write to, in training: each part
returns what it writes to, and all of them are compiled."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.experts import Experts, compare_training
from tracer_core.testing import compare

BACKENDS = ["aten_eager", "inductor"]


class AddedUp(Experts):
    """All experts in one graph, whose results are added up in a way."""

    def __init__(self, experts, size, add):
        super().__init__(experts, size)
        self.add = add

    def forward(self, x):
        tokens, weights, mask = self.routed(x)
        final = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            place, token = torch.where(mask[number])
            self.add(final, token, expert(tokens[token]) * weights[token, place, None])
        return final.view(x.shape)


def index_add(final, token, actual):
    final.index_add_(0, token, actual)


def setitem(final, token, actual):
    final[token] += actual


def scatter(final, token, actual):
    final.scatter_add_(0, token[:, None].expand_as(actual), actual)


def view_of_rows(final, token, actual):
    columns = final[:, :4]
    columns.index_add_(0, token, actual[:, :4])


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("add", [index_add, setitem, scatter, view_of_rows])
def test_experts(add, backend, caplog):
    torch.manual_seed(0)
    compare_training(AddedUp(12, 8, add).double(), backend)
    assert "eager" not in caplog.text.replace("aten_eager", "")


def two_writes(x, w, between, after):
    """Two writes in parts of their own; something happens between and after them."""
    y = torch.zeros_like(x)
    rows = torch.where(x[:, 0] > 0)[0]
    y.index_add_(0, rows, torch.tanh(x[rows] @ w))
    seen = between(y, x)
    others = torch.where(x[:, 1] > 0)[0]
    y.index_add_(0, others, (x[others] @ w).sin())
    return after(y, seen), y


def nothing(y, x):
    return x


def view(y, x):
    return y[1:]


def detached(y, x):
    return y.detach()


def sum_of_it(y, x):
    return y.sum() * x


def written_view(y, x):
    part = y[:2]
    part.mul_(x[:2])
    return part


def without_gradients(y, x):
    with torch.no_grad():
        y.add_(x.detach())
    return x


def product(y, seen):
    return (y[: seen.shape[0]] * seen).sum()


def writes_through(y, seen):
    seen.mul_(2)
    return y.sum()


def only_seen(y, seen):
    return seen.sum() * 2


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("after", [product, only_seen, writes_through])
@pytest.mark.parametrize(
    "between", [nothing, view, detached, sum_of_it, written_view, without_gradients]
)
def test_views_see_all_writes(between, after, backend):
    def program(x, w):
        x = x * 1
        return two_writes(x, w, between, after)

    compiled = tracer_core.compile(program, backend=backend)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(6, 6, dtype=torch.double, generator=generator) for _ in range(2)]
        results, raised = [], []
        for run in (program, compiled):
            x, w = (item.clone().requires_grad_() for item in inputs)
            try:
                loss, y = run(x, w)
                (loss + y.cos().sum()).backward()
            except RuntimeError as error:
                raised.append(str(error)[:40])
                continue
            results.append([loss, y, x.grad, w.grad])
        if not raised:
            compare(*results)
        else:
            assert len(raised) == 2, raised

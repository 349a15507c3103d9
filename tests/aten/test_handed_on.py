"""Memory that several parts of a graph with data-dependent sizes write to, in training: each part
returns what it writes to, and all of them are compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.testing import compare

BACKENDS = ["aten_eager", "inductor"]


class Experts(nn.Module):
    """All experts in one graph, whose results are added up in a way."""

    def __init__(self, experts, size, add):
        super().__init__()
        self.add = add
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))
            for _ in range(experts)
        )

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        mask = nn.functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        final = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            place, token = torch.where(mask[number])
            self.add(final, token, expert(tokens[token]) * weights[token, place, None])
        return final.view(x.shape)


def index_add(final, token, found):
    final.index_add_(0, token, found)


def setitem(final, token, found):
    final[token] += found


def scatter(final, token, found):
    final.scatter_add_(0, token[:, None].expand_as(found), found)


def view_of_rows(final, token, found):
    columns = final[:, :4]
    columns.index_add_(0, token, found[:, :4])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("add", [index_add, setitem, scatter, view_of_rows])
def test_experts(add, backend, caplog):
    torch.manual_seed(0)
    plain = Experts(12, 8, add).double()
    target = copy.deepcopy(plain)
    compiled = tracer_core.compile(target, backend=backend)
    for seed in range(4):
        x = torch.randn(2, 5 + seed, 8, dtype=torch.double)
        results = []
        for module, run in ((plain, plain), (target, compiled)):
            module.zero_grad()
            leaf = x.clone().requires_grad_()
            y = run(leaf)
            y.square().sum().backward()
            results.append([y, leaf.grad, [one.grad for one in module.parameters()]])
        compare(*results)
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
        given = [torch.randn(6, 6, dtype=torch.double, generator=generator) for _ in range(2)]
        results, raised = [], []
        for run in (program, compiled):
            x, w = (one.clone().requires_grad_() for one in given)
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

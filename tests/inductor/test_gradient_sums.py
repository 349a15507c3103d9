"""A weight that is looked up and multiplied with: its two gradients meet in one memory."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from tests.inductor.compiling import compiled
from tests.inductor.test_operators import I, R
from tests.support.comparison import assert_same_calls

aten = torch.ops.aten


class Words(nn.Module):
    """Tied: the words' vectors are the last layer's weights, and looked up twice where `twice`."""

    def __init__(self, twice: bool, padding: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 24, padding_idx=padding)
        self.inner = nn.Linear(24, 24)
        self.twice = twice

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner(self.words(tokens))
        if self.twice:
            x = x + self.words(tokens.flip(-1)).tanh()
        return x @ self.words.weight.t()


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("twice", [False, True])
def test_tied_words_learn_as_in_eager(twice, padding):
    torch.manual_seed(2)
    model = Words(twice, padding)
    exact = copy.deepcopy(model).double()
    fast = tracer_core.compile(model, backend="inductor")
    for seed in (1, 2):
        torch.manual_seed(seed)
        tokens = torch.randint(0, 40, (3, 7))
        tokens[0] = 3  # many of one word, padding among them
        for function, module in ((fast, model), (exact, exact)):
            module.zero_grad()
            F.cross_entropy(function(tokens).flatten(0, 1), tokens.roll(1, 1).flatten()).backward()
        for parameter, other in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.double(), other.grad, rtol=1e-5, atol=1e-6)


def gradient(dy, indices):
    return aten.embedding_dense_backward(dy, indices, 40, -1, False)


DY, INDICES = R(9, 24), I(0, 40, 9)
X, Y = R(40, 16), R(16, 24)


def check(result, fn, *inputs):
    assert_same_calls(result, fn, *inputs, calls=1, rtol=1e-5, atol=1e-5)


def test_the_product_s_memory_is_added_to():
    def fn(x, y, dy, indices):
        return [x @ y + gradient(dy, indices)]

    def turned_twice(x, y, dy, indices):
        return [(x @ y).t().t() + gradient(dy, indices)]

    for value in (fn, turned_twice):
        result = compiled(value, X, Y, DY, INDICES)
        assert "scatter_base" not in result.source
        check(result, value, X, Y, DY, INDICES)


def test_a_turned_product_is_copied():
    def fn(x, y, dy, indices):
        return [(x @ y).t() + gradient(dy, indices)]

    check(compiled(fn, R(24, 16), R(16, 40), DY, INDICES), fn, R(24, 16), R(16, 40), DY, INDICES)


def test_a_product_that_is_read_elsewhere_stays_as_it_is():
    def read_after(x, y, dy, indices):
        product = x @ y
        return [gradient(dy, indices) + product, product * 2]

    def returned(x, y, dy, indices):
        product = x @ y
        return [product + gradient(dy, indices), product]

    def seen_through_a_view(x, y, dy, indices):
        product = x @ y
        view = product.view(20, 48)
        return [product + gradient(dy, indices), view.sum(0)]

    def seen_through_the_view(x, y, dy, indices):
        product = (x @ y).t()
        return [product.t() + gradient(dy, indices), product.sum(0)]

    for fn in (read_after, returned, seen_through_a_view, seen_through_the_view):
        check(compiled(fn, X, Y, DY, INDICES), fn, X, Y, DY, INDICES)


def test_an_input_is_never_added_to():
    def fn(x, dy, indices):
        return [x + gradient(dy, indices)]

    x = R(40, 24)
    before = x.clone()
    check(compiled(fn, x, DY, INDICES), fn, x, DY, INDICES)
    assert torch.equal(x, before)


def test_two_lookups_share_one_memory():
    def fn(dy, indices, dz):
        return [gradient(dy, indices) + gradient(dz, indices)]

    result = compiled(fn, DY, INDICES, R(9, 24))
    check(result, fn, DY, INDICES, R(9, 24))
    assert result.source.count("= 0.0") <= 1


def test_what_the_product_depends_on_may_be_the_gradient_itself():
    def fn(x, dy, indices):
        actual = gradient(dy, indices)
        return [actual + (x @ actual.t()) @ actual]

    check(compiled(fn, R(40, 24), DY, INDICES), fn, R(40, 24), DY, INDICES)


class ParallelResiduals(nn.Module):
    """Two layers on two norms of one value, as GPT-NeoX has them: the norms' gradients are sums of the same rows,
    each of which has several means and factors."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))

    def forward(self, x):
        for _ in range(2):
            x = x + sum(f(norm(x)) for f, norm in zip(self.layers, self.norms, strict=True))
        return x


def test_sums_over_rows_with_many_means_read_rows_in_their_order(texts) -> None:
    model, x = ParallelResiduals(), torch.randn(4, 24, 128)
    gradients = []
    for function in (model, tracer_core.compile(model, backend="inductor")):
        model.zero_grad()
        function(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert not any(re.search(r"\[(r\d+ \+ )?\w+ \* i\d+( \+ r\d+)?\]", text) for text in texts)

"""Random numbers: two calls differ, a seed gives them again, and with ``fallback_random`` they are
eager's.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1)).to(
    memory_format=torch.channels_last
)
P = torch.rand(6, 8, generator=torch.Generator().manual_seed(2))

#: name -> (a program, its input).
PROGRAMS = {
    "dropout": (lambda x: F.dropout(x * 2, 0.3) + 1, X),
    "dropouts": (lambda x: F.dropout(F.dropout(x.sin(), 0.3).cos(), 0.7) + F.dropout(x), X),
    "dropout of an image": (lambda x: F.dropout(x + 1, 0.5) * F.dropout2d(x, 0.5), IMAGE),
    "dropout of a transposed": (lambda x: F.dropout(x.t() + 1, 0.5), X),
    "dropout of bfloat16": (lambda x: F.dropout(x.bfloat16() * 2, 0.4), X),
    "alpha dropout": (lambda x: F.alpha_dropout(x, 0.3, training=True), X),
    "rand": (lambda x: torch.rand(6, 8) + x, X),
    "randn and randint": (lambda x: torch.randn(6, 8) * x + torch.randint(0, 9, (8,)), X),
    "like": (lambda x: torch.rand_like(x) + torch.randn_like(x) + torch.randint_like(x, 7), X),
    "double": (lambda x: torch.rand(6, 8, dtype=torch.float64) + x, X),
    "bernoulli": (lambda p: torch.bernoulli(p) + p.bernoulli(0.3), P),
    "bernoulli of a transposed": (lambda p: torch.bernoulli(p.t(), 0.3), P),
    "in place": (lambda x: torch.empty_like(x).uniform_(-1, 2) + x.clone().normal_(1, 2), X),
    "in place, others": (lambda p: p.clone().bernoulli_(0.3) + p.clone().exponential_(2.0), P),
    "in place, with gaps": (lambda p: torch.cat([p.clone()[:, ::2].uniform_(), p.new_empty(6,
    16)[:, ::4].exponential_()], 1), P),
    "in place, turned": (lambda p: p.clone().t().random_(3, 90) + p.new_empty(6,
    8).random_(2**20).t(), P),
    "in place, columns": (lambda p: (p.new_zeros(6, 32)[:, ::4].normal_() + p, p.new_zeros(9,
    9).t().normal_())[0], P),
    "normal": (lambda p: torch.normal(p, p + 1) + torch.normal(0.0, 1.0, (6, 8)), P),
    "permutation": (lambda x: x[torch.randperm(6)] + x, X),
    "multinomial": (lambda p: torch.multinomial(p, 3) + 1, P),
    "unused": (lambda x: (torch.rand(5), torch.rand_like(x) + x)[1], X),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.4, training=True) * 2, X),
    "gumbel": (lambda x: F.gumbel_softmax(x, tau=0.5), X),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4), X.reshape(1, 2,
    3, 8)),
}  # fmt: skip


def compiled(program, **options):
    return tracer_core.compile(program, backend="inductor", options=options)


@pytest.mark.sweep(keep=14)
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_differ_and_a_seed_gives_them_again(name, fallback):
    program, x = PROGRAMS[name]
    run = compiled(program, fallback_random=fallback)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(run(x), first) and torch.equal(run(x), second)


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_eagers_numbers(name):
    """Of several calls, and of what eager draws after them."""
    program, x = PROGRAMS[name]
    result = []
    for run in (program, compiled(program, fallback_random=True)):
        torch.manual_seed(5)
        result.append(([run(x) for _ in range(3)], torch.rand(4), torch.get_rng_state()))
    (expected, later, state), (actual, ours_later, ours_state) = result
    torch.testing.assert_close(actual, expected)
    for item, other in zip(actual, expected, strict=True):
        assert torch.equal(item == 0, other == 0)
        assert item.stride() == other.stride()
    assert torch.equal(ours_later, later) and torch.equal(ours_state, state)


def draws(x):
    """What is drawn itself, without arithmetic that may round otherwise."""
    return (
        torch.rand(3, 5), torch.randn(40), torch.randint(0, 100, (7,)), torch.bernoulli(x),
        torch.rand_like(x),
        torch.randn(3, dtype=torch.float64), torch.empty(9).exponential_(), torch.randperm(11),
        F.dropout(x, 0.5),
    )  # fmt: skip


def test_draws_are_eagers_bit_for_bit():
    run = compiled(draws, fallback_random=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = draws(P)
        torch.manual_seed(seed)
        for item, other in zip(run(P), expected, strict=True):
            assert torch.equal(item, other)


@pytest.mark.parametrize("fallback", [False, True])
def test_training_uses_the_mask_that_it_drew(fallback):
    """Gradients are of the numbers that the forward dropped; with fallback_random they are
    eager's.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4),
        torch.nn.Dropout(0.2)
    )  # fmt: skip
    run = compiled(model, fallback_random=fallback)
    for _ in range(2):
        sides = []
        for value in (model, run):
            torch.manual_seed(7)
            x = X.clone().requires_grad_()
            result = value(x)
            sides.append(
                (result, *torch.autograd.grad(result.square().sum(), [x, *model.parameters()]))
            )
        if fallback:
            torch.testing.assert_close(sides[1], sides[0])
    x = X.clone().requires_grad_()
    drop = compiled(lambda x: F.dropout(x * 3, 0.5), fallback_random=fallback)
    result = drop(x)
    result.sum().backward()
    assert torch.equal(x.grad, torch.where(result == 0, 0.0, 6.0))


def test_sizes_that_change():
    program = lambda x: F.dropout(x * 2, 0.3) + torch.rand_like(x)
    run = tracer_core.compile(
        program, backend="inductor", dynamic=True, options={"fallback_random": True}
    )
    for rows in (3, 5, 17):
        x = torch.randn(rows, 8)
        torch.manual_seed(rows)
        expected = program(x)
        torch.manual_seed(rows)
        torch.testing.assert_close(run(x), expected)

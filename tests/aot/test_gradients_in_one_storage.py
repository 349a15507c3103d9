"""Gradients that autograd gives as parts of one tensor, which no call of the program returns, are
compiled: those of what a program concatenates."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.testing import compare, compare_aliasing

BACKENDS = ["aten_eager", "inductor"]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((6, 6), (6, 12), (4,), (4,), (4,))
    return [torch.randn(*size, generator=generator, dtype=torch.double) for size in sizes]


def loss_of(x, w, q, k, v):
    """As attention with weights of its own for queries, keys and values."""
    return (x @ w + torch.cat((q, k, v))).sin().sum()


def all_biases(x, w, q, k, v):
    return torch.autograd.grad(loss_of(x, w, q, k, v), (w, q, k, v))


def two_biases(x, w, q, k, v):
    """Keys are not trained."""
    return torch.autograd.grad(loss_of(x, w, q, k, v), (w, v, q))


def transposed(x, w, q, k, v):
    joined = torch.cat((w[:, :6].mT, w[:, 6:].mT, x))
    return torch.autograd.grad((joined.sin() @ x).sum(), (x, w))


def parts_of_columns(x, w, q, k, v):
    """The parts do not lie one behind the other."""
    joined = torch.cat((x, w), 1)
    return torch.autograd.grad((joined.sin() @ joined.mT).sum(), (x, w))


def stacked(x, w, q, k, v):
    return torch.autograd.grad((torch.stack((q, k, v)).exp() * k).sum(), (v, k, q))


def steps_of_momentum(x, w, q, k, v):
    """Their first momentum is the gradient, without a copy."""
    actual = torch.autograd.grad(loss_of(x, w, q, k, v), (q, k, v))
    return [*actual, *(item.detach() for item in actual)], actual[1] * 2


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def flat(result):
    return [leaf for item in result for leaf in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [all_biases, two_biases, transposed, stacked, steps_of_momentum]
)
def test_gradients(program, backend):
    compiled = tracer_core.compile(program, backend=backend)
    for seed in range(3):
        mine, theirs = ([tensor.requires_grad_() for tensor in tensors(seed)] for _ in range(2))
        expected, actual = program(*mine), compiled(*theirs)
        compare(expected, actual)
        compare_aliasing(flat(expected), flat(actual), program.__name__)
        for value in (
            flat(expected),
            flat(actual),
        ):  # a write to one is seen in those that share its memory
            with torch.no_grad():
                value[0].add_(1)
        compare(expected, actual)
    assert not fallbacks_of(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_interleaved_parts(backend):
    compiled = tracer_core.compile(parts_of_columns, backend=backend)
    for seed in range(3):
        mine, theirs = ([tensor.requires_grad_() for tensor in tensors(seed)] for _ in range(2))
        compare(parts_of_columns(*mine), compiled(*theirs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_steps(backend):
    results = []
    for compile_ in (lambda step: step, lambda step: tracer_core.compile(step, backend=backend)):
        x, *parameters = tensors(0)
        update = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for parameter in parameters:
            parameter.requires_grad_()

        def step(x, parameters=parameters, update=update):
            update.zero_grad()
            loss = loss_of(x, *parameters)
            loss.backward()
            update.step()
            return loss.detach()

        run = compile_(step)
        losses = [run(x) for _ in range(4)]
        gradients = [parameter.grad for parameter in parameters]
        momenta = [update.state[parameter]["momentum_buffer"] for parameter in parameters]
        results.append([losses, parameters, gradients, momenta])
        if run is not step:
            assert not fallbacks_of(run)
    compare(*results)

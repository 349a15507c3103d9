"""Training that one process captured: a later one has its forward, its backward and whole steps."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

import tracer_core
from tests.support.comparison import assert_same_training
from tests.support.persistent_programs import (
    cache_status,
    captures,
)
from tests.support.stored_backend import OTHER_RNG, as_its_rng
from tracer_core.aot import rng_saved
from tracer_core.aot.recompute_forward import RecomputeForward
from tracer_core.execution.store import persistent_cache
from tracer_core.limits import MAX_UNKNOWN_BACKWARDS

MODEL = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(6, 8, bias=False)
            self.norm, self.last = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

        def forward(self, x):
            x = torch.relu(self.norm(self.first(x)))
            return self.last(torch.nn.functional.dropout(x, 0.3, self.training)) * 2

    def run(x):
        return x
"""


def data(dtype=torch.float32):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(dtype)


def pair(module):
    torch.manual_seed(0)
    net = module.Net()
    return net, copy.deepcopy(net)


def test_forward_and_backward_are_found(program):
    for expected in ("miss", "hit", "hit"):
        net, theirs = pair(program.started(MODEL))
        fast = tracer_core.compile(net)
        for number in range(3):
            x, y = data().requires_grad_(), data().requires_grad_()
            for item, inputs in ((fast, x), (theirs, y)):
                torch.manual_seed(number)
                item(inputs).square().sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
        assert_same_training(net, theirs)
        assert cache_status(fast).startswith(expected)
        assert captures(fast) == (expected == "miss")


def test_gradients_are_those_of_float64(program):
    text = MODEL.replace("0.3, self.training", "0.0")
    for _ in range(2):
        net, _ = pair(program.started(text))
        exact = copy.deepcopy(net).double()
        fast = tracer_core.compile(net)
        fast(data()).square().sum().backward()
        exact(data(torch.float64)).square().sum().backward()
        for parameter, other in zip(net.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.double(), other.grad, rtol=1e-4, atol=1e-4)
    assert cache_status(fast).startswith("hit")


def test_a_gradient_of_a_gradient(program):
    text = """
        def run(x, w):
            return (x @ w).tanh() * w.sum()
    """
    for _ in range(2):
        module = program.started(text)
        actual = []
        for function in (program.fast, module.run):
            x = data().requires_grad_()
            w = torch.linspace(-1, 1, 6).requires_grad_()
            function(x, w).sum().backward()
            (first,) = torch.autograd.grad(function(x, w).sum(), [w], create_graph=True)
            first.square().sum().backward()
            actual.append((x.grad, w.grad, first))
        torch.testing.assert_close(*actual)
    assert captures(program.fast) == 0


def test_gradients_of_some_outputs_alone(program):
    text = """
        def run(x, w):
            return (x * w).sin(), (x + w).cos(), x.detach() * 2
    """
    wanted = ([0, 1], [0], [1], [1, 0])
    for round_ in range(3):
        module = program.started(text)
        # what no graph of the first process computes, the captured graph does
        for outputs in wanted[: 2 + round_]:
            actual = []
            for function in (program.fast, module.run):
                x, w = data().requires_grad_(), torch.linspace(-1, 1, 6).requires_grad_()
                results = function(x, w)
                sum(results[i].sum() for i in outputs).backward()
                actual.append((x.grad, w.grad, results))
            torch.testing.assert_close(*actual)
        assert captures(program.fast) == (round_ == 0)


def test_backwards_that_are_compiled_later_are_written_too(program, monkeypatch):
    text = """
        def run(x, w):
            return (x * w).sin(), (x + w).cos()
    """
    eager, reference = [], RecomputeForward.gradients_alone

    def gradients_alone(*args):
        eager.append(args[-1])
        return reference(*args)

    monkeypatch.setattr(RecomputeForward, "gradients_alone", gradients_alone)

    def train(outputs):
        actual = []
        for function in (program.fast, sys.modules[program.name].run):
            x, w = data().requires_grad_(), torch.linspace(-1, 1, 6).requires_grad_()
            results = function(x, w)
            sum(results[i].sum() for i in outputs).backward()
            actual.append((x.grad, w.grad))
        torch.testing.assert_close(*actual)

    program.started(text)
    train([0, 1])
    persistent_cache.flush()
    train([0])  # after the entry was written
    program.started(text)
    for outputs in ([0, 1], [0]):
        train(outputs)
    assert captures(program.fast) == 0 and not eager
    for _ in range(3):
        train([1])  # no graph of the first process computes it: the forward is captured again
    assert captures(program.fast) == 1 and len(eager) == MAX_UNKNOWN_BACKWARDS
    eager.clear()
    program.started(text)
    for outputs in ([0, 1], [0], [1]):
        train(outputs)
    assert captures(program.fast) == 0 and not eager


DRAWING = """
    import torch
    from torch.nn import functional as F

    def run(x, w):
        hidden = F.dropout((x * w).sin(), 0.4)
        logits = F.dropout(hidden.square() + x, 0.2) * w
        return logits.square().mean(), logits
"""


def gradients_of(function, seed, wanted, second=False):
    """The results of one call, the gradients of some of them, and the gradients of those."""
    x, w = data().requires_grad_(), torch.linspace(-1, 1, 6).requires_grad_()
    torch.manual_seed(seed)
    results = function(x, w)
    loss = sum(results[i].sum() for i in wanted)
    first = torch.autograd.grad(loss, [x, w], create_graph=second)
    if not second:
        return results, first
    return results, first, torch.autograd.grad(sum(item.square().sum() for item in first), [x, w])


def test_numbers_of_kernels_are_kept_for_gradients_that_no_graph_computes(
    program,
    monkeypatch,
):
    """As on a GPU, where kernels draw other random numbers than eager."""
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: True)
    again, eager = [], RecomputeForward.gradients

    def gradients(*args, **how):
        again.append(args)
        return eager(*args, **how)

    monkeypatch.setattr(RecomputeForward, "gradients", gradients)
    usual, others = ([0], False), [([1], False), ([0, 1], True), ([1], True)]
    for cases in ([usual], [usual, *others]):
        module = program.started(DRAWING, backend=OTHER_RNG)
        for seed, case in enumerate(cases):
            actual = gradients_of(program.fast, seed, *case)
            with as_its_rng():
                torch.testing.assert_close(actual, gradients_of(module.run, seed, *case))
    assert cache_status(program.fast).startswith("hit") and captures(program.fast) == 0
    assert len(again) == len(others)


def test_eagers_numbers_would_be_others(program, monkeypatch):
    """What the test above would see if nothing was remembered."""
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: False)
    for _ in range(2):
        module = program.started(DRAWING, backend=OTHER_RNG)
        gradients_of(program.fast, 0, [0])
    assert captures(program.fast) == 0
    gradients = gradients_of(program.fast, 0, [1])
    with as_its_rng():
        expected = gradients_of(module.run, 0, [1])
    torch.testing.assert_close(gradients[0], expected[0])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients[1], expected[1])


def test_numbers_that_the_backward_does_not_need_are_a_reason(program, monkeypatch):
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: True)
    text = """
        import torch

        def run(x, w):
            return (x * w).sum(), (x + torch.rand(64).sum()) * 2
    """
    for expected in ("nothing was stored of this function", "does not save those of rand"):
        program.started(text, backend=OTHER_RNG)
        gradients_of(program.fast, 0, [0])
        assert expected in cache_status(program.fast)
        assert captures(program.fast) == 1


STEP = """
    import torch

    def made(net, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()
        return step

    def run(x):
        return x
"""


def _SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _AdamW(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("make", [_SGD, _AdamW])
def test_whole_steps_are_found(program, make):
    # The first AdamW step makes state: only where a later process makes that step too is its graph
    # compiled, and stored.
    known = [("miss", 1), ("hit", 0)] if make is _SGD else [("miss", 1), ("hit", 1), ("hit", 0)]
    for expected, n_captures in known:
        module = program.started(MODEL.replace("def run(x):\n        return x\n", "") + STEP)
        net, theirs = pair(module)
        ours, other = make(net.parameters()), make(theirs.parameters())
        fast, step = tracer_core.compile(module.made(net, ours)), module.made(theirs, other)
        y = torch.ones(5, 3)
        for number in range(5):
            torch.manual_seed(number)
            got = fast(data(), y)
            torch.manual_seed(number)
            torch.testing.assert_close(got, step(data(), y))
        for parameter, two in zip(net.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter, two)
        for item, two in zip(ours.state.values(), other.state.values(), strict=True):
            torch.testing.assert_close(item, two)
        assert cache_status(fast).startswith(expected)
        assert captures(fast) == n_captures  # in the last call that captured
        assert tracer_core.progress(fast, wait=60).is_done


def test_a_change_of_the_model_is_seen(program):
    for text in (MODEL, MODEL.replace("* 2", "* 3"), MODEL):
        net, theirs = pair(program.started(text))
        fast = tracer_core.compile(net)
        for value in (fast, theirs):
            torch.manual_seed(4)
            value(data()).square().sum().backward()
        assert_same_training(net, theirs)


def test_a_function_of_autograd_is_captured_anew(program):
    text = """
        import torch

        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * 5

        def run(x):
            return F.apply(x) + 1
    """
    for factor in (5, 7):
        program.started(text.replace("g * 5", f"g * {factor}"))
        x = data().requires_grad_()
        program.fast(x).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, factor))


def test_a_forward_is_kept_when_its_backward_has_run(program, fresh_cache):
    text = "def run(x):\n    return x.sin() * 2"
    program.started(text)
    x = data().requires_grad_()
    result = program.fast(x)
    persistent_cache.flush()
    result.sum().backward()
    program.started(text)
    y = data().requires_grad_()
    program.fast(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert cache_status(program.fast).startswith("hit") and captures(program.fast) == 0

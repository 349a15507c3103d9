"""Hooks and retained gradients of outputs that other outputs of the same graph are computed from:
they get the gradient through those too, as in eager mode.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import tracer_core

BACKENDS = ["eager", "aten_eager", "inductor"]


class Classifier(torch.nn.Module):
    """Returns its features beside the scores, for class activation maps."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)

    def forward(self, x, drop=0.0):
        features = self.encoder(x)
        activations = F.dropout(features.tanh(), drop)
        return self.head(activations), activations, features


def both(step, backend):
    """Returns what a training step records in eager mode and compiled."""
    torch.manual_seed(0)
    model, x = Classifier(), torch.randn(2, 5)
    results = []
    for compile_ in (lambda net: net, lambda net: tracer_core.compile(net, backend=backend)):
        net = copy.deepcopy(model)
        torch.manual_seed(1)
        seen = step(compile_(net), x)
        results.append([*seen, *(p.grad for p in net.parameters())])
    return results


def compare_steps(step, backend):
    want, got = both(step, backend)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_retained_gradient_of_features(backend):
    def step(net, x):
        maps = []
        for _ in range(2):
            scores, activations, features = net(x)
            activations.retain_grad()
            features.retain_grad()
            scores[:, 1].sum().backward()
            maps += [activations.grad, features.grad]
        return maps

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_retained_gradient_of_features_with_a_loss_of_their_own(backend):
    def step(net, x):
        scores, activations, features = net(x)
        features.retain_grad()
        (scores.square().sum() + features.square().sum()).backward(retain_graph=True)
        first = features.grad.clone()
        scores.sum().backward()
        return first, features.grad

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_features_replaces_their_gradient(backend):
    def step(net, x):
        seen = []
        scores, activations, features = net(x, 0.5)
        features.register_hook(seen.append)
        activations.register_hook(lambda gradient: gradient * 3)
        activations.register_hook(seen.append)
        activations.retain_grad()
        scores.square().sum().backward()
        return *seen, activations.grad, torch.rand(2)

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_that_was_removed_is_not_called(backend):
    def step(net, x):
        seen = []
        scores, _, features = net(x)
        features.register_hook(seen.append).remove()
        scores.sum().backward()
        return seen

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_features_with_a_loss_of_their_own(backend):
    def step(net, x):
        seen = []
        scores, activations, features = net(x)
        features.register_hook(lambda gradient: gradient * gradient)
        features.register_hook(seen.append)
        features.retain_grad()
        (scores.sum() + features.square().sum()).backward()
        return *seen, features.grad

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_outlives_its_tensor(backend):
    def step(net, x):
        seen = []
        scores, _, features = net(x)
        features.register_hook(seen.append)
        del features
        scores.sum().backward()
        return seen

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_features_written_in_place(backend):
    def step(net, x):
        seen = []
        scores, _, features = net(x)
        features.register_hook(seen.append)
        features.mul_(2)
        features.register_hook(seen.append)
        features.retain_grad()
        features.sum().backward()
        return *seen, features.grad

    compare_steps(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_penalty_with_a_hook_on_features(backend):
    def step(net, x):
        seen, x = [], x.clone().requires_grad_()
        scores, _, features = net(x)
        features.register_hook(lambda gradient: gradient * 2)
        features.register_hook(seen.append)
        (gradient,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return *(value.detach() for value in seen), x.grad

    compare_steps(step, backend)


def test_a_hook_that_lacks_a_part_of_the_gradient_is_warned_about():
    def f(x, w):
        y = x.sin() * w
        x.add_(1)
        return y, y.exp() * x

    fast, seen = tracer_core.compile(f, backend="aten_eager"), []
    first, second = fast(torch.randn(3), torch.randn(3, requires_grad=True))
    first.register_hook(seen.append)
    with pytest.warns(UserWarning, match="lacks the gradient through the other outputs"):
        (first.sum() + second.sum()).backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_an_output_without_a_gradient_is_not_called(backend):
    def heads(x):
        shared = x.exp()
        return shared.sin(), shared.cos()

    fast, seen = tracer_core.compile(heads, backend=backend), []
    sines, cosines = fast(torch.randn(4, requires_grad=True))
    cosines.register_hook(seen.append)
    sines.register_hook(seen.append)
    sines.sum().backward()
    assert [value.tolist() for value in seen] == [[1.0] * 4]


def test_outputs_that_nothing_is_computed_from_run_the_compiled_backward():
    def heads(x):
        shared = x.exp()
        return shared.sin(), shared.cos()

    fast = tracer_core.compile(heads, backend="aten_eager")
    x = torch.randn(4, requires_grad=True)
    sines, cosines = fast(x)
    cosines.retain_grad()
    (sines.sum() + cosines.sum()).backward()
    assert torch.equal(cosines.grad, torch.ones(4))

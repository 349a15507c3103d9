"""Models whose outputs are gradients, and that are trained on them: forces of an energy, a gradient
penalty. A forward with the inner gradient in it and a backward are compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.torch_private.memory_layout import same_strides


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def stages_of(compiled):
    return [record.name for record in tracer_core.last_compile(compiled)]


class Energy(nn.Module):
    """The energy of particles, from their distances."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
        )

    def forward(self, positions):
        apart = (positions[:, None] - positions[None]).square().sum(-1, keepdim=True)
        return self.net(apart).sum()


def forces(net, positions):
    positions = positions.detach().requires_grad_(True)
    energy = net(positions)
    (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
    return energy, -slope


def forces_at_a_leaf(net, positions):
    energy = net(positions)
    (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
    return energy, -slope


def only_forces(net, positions):
    return forces(net, positions)[1]


def forces_with_noise(net, positions):
    noisy = nn.functional.dropout(positions.detach(), 0.25).requires_grad_(True)
    energy = net(noisy)
    (slope,) = torch.autograd.grad(energy, noisy, create_graph=True)
    return energy, -slope


def penalty(net, positions):
    """The gradient penalty of a critic; the energy is returned too."""
    positions = positions.detach().requires_grad_(True)
    energy = net(positions)
    (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
    return energy, (slope.norm(2, -1) - 1).square()


def trained(function, net, positions, target):
    """Everything that a step of training sees."""
    torch.manual_seed(1)
    actual = function(net, positions)
    actual = actual if isinstance(actual, tuple) else (actual,)
    loss = sum((item - target.sum() / item.numel()).square().mean() for item in actual)
    loss.backward()
    gradients = [parameter.grad for parameter in net.parameters()]
    gradients += [] if positions.grad is None else [positions.grad]
    net.zero_grad()
    positions.grad = None
    return [item.detach() for item in actual], gradients


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("backend", ["inductor", "aten_eager"])
@pytest.mark.parametrize(
    "function", [forces, forces_at_a_leaf, only_forces, forces_with_noise, penalty]
)
def test_gradients_are_those_of_double_precision(function, backend):
    torch.manual_seed(0)
    net, positions, target = Energy(), torch.randn(6, 3), torch.randn(6, 3)
    positions.requires_grad_(function is forces_at_a_leaf)
    precise = copy.deepcopy(net).double()
    there = positions.detach().double().requires_grad_(positions.requires_grad)
    fast = tracer_core.compile(function, backend=backend)
    for _ in range(2):
        actual, gradients = trained(fast, net, positions, target)
        if function is forces_with_noise:  # draws other numbers in double precision
            expected, slopes = trained(function, net, positions, target)
        else:
            expected, slopes = trained(function, precise, there, target.double())
        for item, other in zip((*actual, *gradients), (*expected, *slopes), strict=True):
            if item is None or other is None:  # the last bias of forces alone
                assert item is other
                continue
            torch.testing.assert_close(item.double(), other.double(), rtol=1e-4, atol=1e-5)
            assert same_strides(item, other)
    assert not fallbacks_of(fast)
    assert stages_of(fast).count("compile") == 2  # forward and backward


def test_the_backward_of_one_output_alone():
    torch.manual_seed(0)
    net, positions = Energy(), torch.randn(6, 3)
    fast = tracer_core.compile(forces)
    for at in (0, 1):
        for function in (forces, fast):
            function(net, positions)[at].square().sum().backward()
            if function is forces:
                expected = [parameter.grad for parameter in net.parameters()]
                net.zero_grad()
        for parameter, other in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, other)
        net.zero_grad()


def test_a_third_derivative():
    torch.manual_seed(0)
    net, positions = Energy(), torch.randn(4, 3)

    def curvature(function):
        energy, slope = function(net, positions)
        (actual,) = torch.autograd.grad(
            slope.square().sum() + energy, net.net[0].weight, create_graph=True
        )
        actual.square().sum().backward()
        gradients = [parameter.grad for parameter in net.parameters()]
        net.zero_grad()
        return gradients

    actual, expected = curvature(tracer_core.compile(forces)), curvature(forces)
    for item, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-4)


def test_a_whole_step_of_training_on_forces():
    torch.manual_seed(0)
    net, positions, target = Energy(), torch.randn(6, 3), torch.randn(6, 3)
    other = copy.deepcopy(net)

    def step(net, optimizer):
        optimizer.zero_grad()
        energy, actual = forces(net, positions)
        loss = (actual - target).square().mean() + energy * 0.1
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast = tracer_core.compile(step)
    mine, theirs = (torch.optim.SGD(value.parameters(), lr=0.01) for value in (net, other))
    for _ in range(4):
        torch.testing.assert_close(fast(net, mine), step(other, theirs), rtol=1e-4, atol=1e-5)
    for parameter, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, two, rtol=1e-4, atol=1e-5)


def test_what_was_freed_raises_as_in_eager():
    def used_up(net, positions):
        positions = positions.detach().requires_grad_(True)
        energy = net(positions)
        (slope,) = torch.autograd.grad(energy, positions)
        return energy, slope

    net, positions = Energy(), torch.randn(6, 3)
    for function in (used_up, tracer_core.compile(used_up)):
        energy, slope = function(net, positions)
        assert energy.requires_grad and not slope.requires_grad
        with pytest.raises(RuntimeError, match="second time"):
            energy.backward()


def slopes_of_what_is_no_input(positions):
    with torch.enable_grad():
        positions = positions.detach().requires_grad_(True)
        energy = (positions.square().sum(-1) + 1).log().sum()
        (slope,) = torch.autograd.grad(energy, positions)
        return energy, -slope


@pytest.mark.parametrize("grad_mode", [True, False])
def test_a_leaf_made_in_the_function(grad_mode):
    """No input requires grad; the energy does, whose autograd graph the function has freed."""
    compiled = tracer_core.compile(slopes_of_what_is_no_input)
    for count in (5, 5, 8):
        positions = torch.randn(count, 3)
        with torch.set_grad_enabled(grad_mode):
            energy, force = compiled(positions)
            eager = slopes_of_what_is_no_input(positions)
        torch.testing.assert_close((energy, force), eager)
        assert [(x.requires_grad, x.is_leaf) for x in (energy, force)] == [
            (x.requires_grad, x.is_leaf) for x in eager
        ]
        for value in (energy, eager[0]):
            with pytest.raises(RuntimeError, match="a second time"):
                value.backward()
    assert fallbacks_of(compiled) == []

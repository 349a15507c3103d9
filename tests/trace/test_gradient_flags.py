"""requires_grad of parameters that is set inside: adapters that are switched, layers that are frozen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager
from tracer_core.testing import CaptureCounter


class Adapters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = torch.nn.Linear(3, 3)
        self.adapters = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in "ab"})
        self.active = "a"

    def use(self, name: str) -> None:
        for key, layer in self.adapters.items():
            for parameter in layer.parameters():
                if parameter.is_leaf:
                    parameter.requires_grad_(key == name)
        self.active = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapters[self.active](x)

    def flags(self) -> Any:
        return {name: parameter.requires_grad for name, parameter in self.named_parameters()}


def switched(net: Adapters) -> Any:
    def program(x: torch.Tensor, name: str) -> Any:
        net.use(name)
        first = net(x)
        asked = [parameter.requires_grad for parameter in net.adapters["a"].parameters()]
        net.adapters["a"].weight.requires_grad = True
        return first, asked, net.base.weight.requires_grad

    return program


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_adapters_are_switched_without_gradients(backend: str) -> None:
    def make() -> Any:
        net = Adapters()
        return switched(net), View(net.flags, net)

    def freeze(net: Adapters) -> None:
        net.base.requires_grad_(False)

    x = torch.randn(2, 3)
    with torch.no_grad():
        compare_with_eager(make, (x, "a"), (x, "b"), (x, "b"), (x, "a"), freeze, (x, "b"), breaks=0,
             backend=backend)  # fmt: skip


def test_flags_take_effect_after_the_call() -> None:
    net, other = Adapters(), Adapters()
    fast = tracer_core.compile(switched(net), backend="eager")
    x = torch.randn(2, 3)
    for name in "abba":
        with torch.no_grad():
            torch.testing.assert_close(fast(x, name), switched(other)(x, name))
        for value in (net, other):
            value.zero_grad()
            value(x).pow(2).sum().backward()
        for (_, mine), (_, theirs) in zip(
            net.named_parameters(), other.named_parameters(), strict=True
        ):
            assert mine.requires_grad == theirs.requires_grad
            torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients_that_are_recorded_later_end_the_graph(backend: str) -> None:
    def make() -> Any:
        net = Adapters()

        def program(x: torch.Tensor, name: str) -> Any:
            with torch.no_grad():
                net.use(name)
                before = net(x)
            loss = (net(x) - before).exp().sum()
            return torch.autograd.grad(loss, [net.adapters[name].weight])

        return program, View(net.flags)

    x = torch.randn(2, 3)
    actual = compare_with_eager(make, (x, "a"), (x, "b"), (x, "a"), backend=backend)
    assert {kind for kind, _, _ in actual.counter.breaks} == {"tensor_metadata_mutation"}


@pytest.mark.parametrize("leave", [
    lambda: torch.inference_mode(False), torch.enable_grad, lambda: torch.set_grad_enabled(True),
])  # fmt: skip
def test_each_way_to_switch_gradients_on(leave: Any) -> None:
    def make() -> Any:
        net = Adapters()

        def program(x: torch.Tensor) -> Any:
            net.use("b")
            with leave():
                y = net(x)
            return y.requires_grad, y.detach()

        return program, View(net.flags)

    for context in (torch.no_grad, torch.inference_mode):
        with context():
            compare_with_eager(make, (torch.ones(2, 3),), (torch.ones(2, 3),))


@pytest.mark.parametrize("flag", [False, True])
def test_views_of_what_was_switched(flag: bool) -> None:
    """A view of a parameter that requires gradients does so too, even where none are recorded."""

    def make() -> Any:
        net = Adapters()
        net.base.requires_grad_(not flag)

        def program(x: torch.Tensor) -> Any:
            net.base.weight.requires_grad_(flag)
            row = net.base.weight[0]
            return net(x), row, row.requires_grad

        return program, View(net.flags)

    with torch.no_grad():
        compare_with_eager(make, (torch.ones(2, 3),), (torch.ones(2, 3),), backend="aten_eager")


def test_an_error_leaves_the_flags_as_in_eager() -> None:
    def make() -> Any:
        net = Adapters()

        def program(x: torch.Tensor, at: torch.Tensor) -> Any:
            y = x[at]
            net.use("b")
            return net(y)

        return program, View(net.flags)

    x = torch.randn(2, 3)
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    with torch.no_grad():
        compare_with_eager(make, (x, bad), (x, good), (x, bad), breaks=0)


def test_what_cannot_require_gradients_is_refused() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.requires_grad_()

    with torch.no_grad(), CaptureCounter():
        compare_with_eager(lambda: program, (torch.tensor([1, 2]),), (torch.tensor([1.0, 2.0]),))

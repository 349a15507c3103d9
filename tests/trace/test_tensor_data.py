"""``tensor.data = value`` inside: parameters that are packed, cast or swapped for averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager

BACKENDS = ("eager", "aten_eager", "inductor")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)
        self.average = torch.nn.Linear(3, 3)
        self.register_buffer("flag", torch.zeros(()))
        self.outside = self.layer.weight.detach()  # another view of the first memory

    def look(self) -> Any:
        """Values, and which tensors share memory."""
        tensors = [*self.layer.parameters(), *self.average.parameters(), self.flag, self.outside]
        places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return [item.detach().clone() for item in tensors], [
            places.index(place) for place in places
        ]


def swapped(net: Net) -> Any:
    def program(x: torch.Tensor) -> torch.Tensor:
        for parameter, other in zip(net.layer.parameters(), net.average.parameters(), strict=True):
            parameter.data, other.data = other.data, parameter.data
        return net.layer(x)

    return program


def computed(net: Net) -> Any:
    def program(x: torch.Tensor) -> Any:
        weight = net.layer.weight
        weight.data = weight.data * 2 + x.sum()
        before = weight.sum()
        weight.add_(1)  # what was computed, not what is outside
        return net.layer(x), before, weight, weight.requires_grad, weight.is_leaf

    return program


def shared(net: Net) -> Any:
    def program(x: torch.Tensor) -> Any:
        net.layer.bias.data = net.average.weight.data[0]
        net.layer.bias.mul_(2)  # and so is the row of the other weight
        return net.layer(x), net.average(x)

    return program


def packed(net: Net) -> Any:
    def program(x: torch.Tensor) -> Any:
        weight = net.layer.weight
        if weight.dtype is torch.float32:
            weight.data = weight.data.to(torch.float64).reshape(1, 9)
        sizes = tuple(weight.shape), weight.dtype, weight.numel(), len(weight), weight.stride()
        return sizes, x @ weight.reshape(3, 3).to(x.dtype), [row.sum() for row in weight]

    return program


def written_first(net: Net) -> Any:
    def program(x: torch.Tensor) -> Any:
        weight = net.layer.weight
        weight.mul_(3)
        weight.data = weight.data.clone()
        weight.sub_(x.sum())
        return weight.sum(), net.outside.sum()

    return program


def read_early(net: Net) -> Any:
    def program(x: torch.Tensor) -> Any:
        first = 1 if net.flag else 2
        net.flag.data = net.flag.data + 1
        return x * (3 if net.flag > 1 else 4) * first, net.flag.item()

    return program


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [swapped, computed, shared, packed, written_first])
def test_parameters_without_gradients(program: Any, backend: str) -> None:
    def make() -> Any:
        net = Net()
        return program(net), View(net.look)

    calls = [(torch.randn(2, 3),) for _ in range(4)]
    with torch.no_grad():
        compare_with_eager(make, *calls, breaks=0, backend=backend)


def test_flags_that_are_read() -> None:
    def make() -> Any:
        net = Net()
        return read_early(net), View(net.look)

    with torch.no_grad():
        compare_with_eager(make, *[(torch.ones(2),) for _ in range(5)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_parameters_where_gradients_are_recorded(backend: str) -> None:
    def make() -> Any:
        net = Net()
        net.layer.requires_grad_(False)
        inside = computed(net)

        def program(x: torch.Tensor) -> Any:
            result, *rest = inside(x)
            (gradient,) = torch.autograd.grad(net.average(result).pow(2).sum(), x)
            return gradient, rest

        return program, View(net.look)

    x = torch.randn(2, 3, requires_grad=True)
    compare_with_eager(make, (x,), (x,), breaks=0, backend=backend)


def test_a_tensor_s_own_data_changes_nothing() -> None:
    def make() -> Any:
        net = Net()

        def program(x: torch.Tensor) -> Any:
            for parameter in net.layer.parameters():
                parameter.data = parameter.data.to(torch.float32)
            return torch.autograd.grad(net.layer(x).pow(2).sum(), list(net.layer.parameters()))

        return program, View(net.look)

    compare_with_eager(make, (torch.ones(2, 3),), (torch.ones(2, 3),), breaks=0)


def test_a_view_of_it_leaves() -> None:
    def make() -> Any:
        net = Net()

        def program(x: torch.Tensor) -> Any:
            net.layer.weight.data = net.layer.weight.data * 2
            row = net.layer.weight[0]
            return net.layer(x), row, row.requires_grad

        return program, View(net.look)

    with torch.no_grad():
        compare_with_eager(make, (torch.ones(2, 3),), (torch.ones(2, 3),), backend="aten_eager")


@pytest.mark.parametrize("switch", [False, True])
def test_gradients_that_would_reach_it_end_the_graph(switch: bool) -> None:
    def make() -> Any:
        net = Net()

        def program(x: torch.Tensor) -> Any:
            with torch.set_grad_enabled(not switch):
                net.layer.weight.data = net.layer.weight.data * 2
                first = net.layer(x).detach()
            return first, torch.autograd.grad(net.layer(x).pow(2).sum(), [net.layer.weight])

        return program, View(net.look)

    actual = compare_with_eager(make, (torch.ones(2, 3),), (torch.ones(2, 3),))
    assert {kind for kind, _, _ in actual.counter.breaks} == {"tensor_metadata_mutation"}


def test_an_error_comes_before_or_after_as_in_eager() -> None:
    def make() -> Any:
        net = Net()

        def program(x: torch.Tensor, at: torch.Tensor) -> Any:
            net.layer.weight.data = net.layer.weight.data * 2
            return net.layer(x[at])

        return program, View(net.look)

    x, good, bad = torch.randn(2, 3), torch.tensor([0, 1]), torch.tensor([0, 9])
    with torch.no_grad():
        compare_with_eager(make, (x, good), (x, bad), (x, good), (x, bad), breaks=0)


def test_what_torch_refuses() -> None:
    net = Net()

    def program(x: torch.Tensor, value: Any) -> Any:
        net.flag.data = value
        return x + net.flag

    fast = tracer_core.compile(program, backend="eager")
    for value in (3, None, torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,))):
        for function in (program, fast):
            with pytest.raises((TypeError, RuntimeError)):
                function(torch.ones(2), value)

"""Quantised layers, whose packed weights are objects of C++: nodes of the graph that read them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tracer_core.testing import CaptureCounter

pytestmark = pytest.mark.filterwarnings("ignore")
X, Y, WIDE = torch.randn(3, 8), torch.randn(3, 8), torch.randn(5, 8)
BACKENDS = ["eager", "aten_eager", "inductor"]


def quantized(module: nn.Module, dtype: torch.dtype = torch.qint8) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = {nn.Linear, nn.LSTM, nn.GRU}
        return torch.ao.quantization.quantize_dynamic(module.eval(), kinds, dtype=dtype)


def layers(dtype: torch.dtype = torch.qint8) -> Any:
    torch.manual_seed(0)
    return quantized(nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8)), dtype)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_are_one_graph(backend: str, dtype: torch.dtype) -> None:
    with torch.no_grad():
        compare_with_eager(
            lambda: layers(dtype), (X,), (Y,), (X * 3,), graphs=1, breaks=0, backend=backend
        )
        compare_with_eager(lambda: layers(dtype), (X,), breaks=0, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_sizes_are_one_more_graph(backend: str) -> None:
    sizes = [(torch.randn(n, 8),) for n in (3, 5, 7, 9)]
    with torch.no_grad():
        compare_with_eager(layers, *sizes, graphs=2, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_that_is_called_twice(backend: str) -> None:
    def make() -> Any:
        net = quantized(nn.Sequential(nn.Linear(8, 8)))
        return (lambda x: net(net(x).relu()) + net(x)), net

    torch.manual_seed(0)
    with torch.no_grad():
        state = torch.get_rng_state()

        def same() -> Any:
            torch.set_rng_state(state)
            return make()

        compare_with_eager(same, (X,), (Y,), graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_weights_are_seen(backend: str) -> None:
    def other(net: Any) -> None:
        weight = torch.quantize_per_tensor(torch.full((6, 8), 0.5), 0.01, 0, torch.qint8)
        net[0].set_weight_bias(weight, torch.ones(6))

    def make() -> Any:
        net = layers()
        return net, net

    with torch.no_grad():
        compare_with_eager(make, (X,), other, (X,), (Y,), breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_one_graph(kind: Any, backend: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = kind(8, 4, num_layers=2, bidirectional=True)

        def forward(self, x: torch.Tensor) -> Any:
            actual, state = self.inner(x * 2)
            return actual + 1, state

    calls = [(torch.randn(5, 2, 8),) for _ in range(3)]
    with torch.no_grad():
        compare_with_eager(lambda: quantized(Net()), *calls, graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_require_grad(backend: str) -> None:
    """The layers have no derivative; what stands beside them has."""

    def make() -> Any:
        net = layers()
        return lambda x: (net(x), x.sin())

    eager, fast = make(), tracer_core.compile(make(), backend=backend)
    for value in (X, Y):
        item, other = (value.clone().requires_grad_() for _ in range(2))
        want, got = eager(item), fast(other)
        assert [w.requires_grad for w in want] == [g.requires_grad for g in got]
        torch.testing.assert_close(list(got), list(want))
        want[1].sum().backward()
        got[1].sum().backward()
        torch.testing.assert_close(other.grad, item.grad)


def test_objects_that_are_arguments() -> None:
    first, second = (layers()[i]._packed_params._packed_params for i in (0, 2))
    narrow = quantized(nn.Sequential(nn.Linear(8, 3)))[0]._packed_params._packed_params

    def program(x: torch.Tensor, packed: Any) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic(x, packed, reduce_range=True) * 2

    fast = tracer_core.compile(program, backend="eager")
    with torch.no_grad(), CaptureCounter() as counter:
        for x, packed in ((X, first), (X[:, :6], second), (Y, first), (Y, narrow), (X, first)):
            assert torch.equal(fast(x, packed), program(x, packed))
    assert len(counter.graphs) == 3 and not counter.breaks


def test_what_is_made_inside_breaks_the_graph() -> None:
    weight = torch.quantize_per_tensor(torch.ones(6, 8), 0.01, 0, torch.qint8)

    def program(x: torch.Tensor) -> torch.Tensor:
        packed = torch.ops.quantized.linear_prepack(copy.copy(weight), None)
        return torch.ops.quantized.linear_dynamic(x + 1, packed, reduce_range=True) * 2

    with torch.no_grad():
        compare_with_eager(lambda: program, (X,), (Y,))

"""Numbers that change from call to call, for a callable of torch.compile's convention: 0-d tensors,
which the graph reads. A callable that cannot take them gets a graph for each value."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_training import Side, mlp, trained
from tracer_core.testing import CaptureCounter

X = torch.linspace(-1, 1, 24).reshape(6, 4)


class Keeping:
    """A callable that runs graphs as they are, and keeps them and their examples."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.examples: list[list[Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(gm)
        self.examples.append(inputs)
        return gm.forward


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {}),
    "AdamW-single": ("AdamW", {"foreach": False, "amsgrad": True}),
    "AdamW-fused": ("AdamW", {"fused": True}),
    "NAdam": ("NAdam", {}),
    "Adamax": ("Adamax", {}),
    "Adagrad": ("Adagrad", {"lr_decay": 0.1}),
    "SGD": ("SGD", {"momentum": 0.9}),
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_is_two_graphs_of_tensors(name: str, scheduled: bool) -> None:
    kind, options = OPTIMIZERS[name]

    def make() -> Side:
        model = mlp()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if scheduled:
                schedule.step()
            return loss.detach()

        return Side(step, [model, optimizer])

    backend = Keeping()
    trained(make, *((X,),) * 7, graphs=2, backend=backend)
    assert len(backend.graphs) == 2
    arguments = [value for inputs in backend.examples for value in inputs]
    assert all(isinstance(item, torch.Tensor) for item in arguments)
    assert all(isinstance(gm, torch.fx.GraphModule) for gm in backend.graphs)
    for gm in backend.graphs:
        gm.graph.lint()


def _numbers(x: Any, scale: float, count: int) -> Any:
    return (x[:count] * scale).sum(0) + torch.full((4,), scale + count) + count


def test_floats_and_whole_numbers_are_inputs() -> None:
    backend = Keeping()
    compiled = tracer_core.compile(_numbers, backend=backend)
    for scale, count in ((0.1, 2), (0.3, 3), (1e-300, 5), (-7.0, 4), (0.2, 3)):
        assert torch.equal(compiled(X, scale, count), _numbers(X, scale, count))
    assert len(backend.graphs) == 2
    dtypes = {item.dtype for item in backend.examples[1]}
    assert dtypes == {torch.float32, torch.float64, torch.int64}


def test_numbers_are_on_the_cpu_whatever_the_default_device() -> None:
    def scaled(x: Any, scale: float) -> Any:
        return x * scale

    backend = Keeping()
    compiled = tracer_core.compile(scaled, backend=backend)
    for scale in (0.1, 0.3, 0.7):
        with torch.device("meta"):
            assert torch.equal(compiled(X, scale), X * scale)
    assert len(backend.graphs) == 2


def _traced(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(gm, tuple(inputs))


def _differentiated(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_compiler

    return aot_module_simplified(
        gm, inputs, make_boxed_compiler(lambda graph, inputs: graph.forward)
    )


@pytest.mark.parametrize("backend", [_traced, _differentiated])
def test_a_callable_that_would_make_constants_of_them_gets_a_graph_for_each_value(
    backend: Any,
) -> None:
    def scaled(x: Any, scale: float) -> Any:
        return (x * scale).add(x, alpha=scale)

    compiled = tracer_core.compile(scaled, backend=backend)
    with CaptureCounter() as counter:
        for scale in (0.1, 0.3, 0.7, 0.3, 0.1):
            torch.testing.assert_close(compiled(X, scale), scaled(X, scale))
    assert len(counter.graphs) == 3

"""Whole training steps of models with many parameters, and functions of many numbers: two captures,
then settled. Step counters that are equal are one input of the graph.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_training import Side, trained
from tracer_core.contract.specs import Role
from tracer_core.plugin_api import Backend
from tracer_core.testing import CaptureCounter

OPTIMIZERS = {
    "Adam": {},
    "AdamW": {},
    "AdamW-fused": {"fused": True},
    "AdamW-single": {"foreach": False},
    "NAdam": {},
    "Adamax": {},
    "ASGD": {"foreach": True},
}


def _deep(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(4, 4), torch.nn.Tanh())]
    return torch.nn.Sequential(*parts)


def step_of(layers: int, name: str, **more: Any) -> Side:
    """A step of a model of linear layers, with an optimizer of torch.optim."""
    model = _deep(layers)
    kind = getattr(torch.optim, name.partition("-")[0])
    optimizer = kind(model.parameters(), lr=1e-2, **OPTIMIZERS.get(name, {}), **more)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Side(step, [model, optimizer])


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sixty_parameters_settle_after_two_captures(name: str) -> None:
    trained(lambda: step_of(30, name), *((X,),) * 5, graphs=2)


#: Class of torch.optim -> the graphs that its step is captured as, where it is not two: without state,
#: and with it. (SGD has none; RAdam computes otherwise after some steps.)
GRAPHS = {"SGD": 1, "RAdam": 3}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon",
                                  "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"])  # fmt: skip
def test_the_step_of_an_optimizer_alone_settles(name: str) -> None:
    def make() -> Side:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(12)]
        optimizer = getattr(torch.optim, name)(weights, lr=1e-2)

        def step(scale: Any) -> None:
            optimizer.step()

        def gradients() -> None:
            for number, weight in enumerate(weights):
                weight.grad = weight.detach().cos() * (number + 1)

        gradients()
        return Side(step, [optimizer, weights], {number: gradients for number in range(8)})

    trained(make, *((X,),) * 8, graphs=GRAPHS.get(name, 2))


@pytest.mark.full
def test_hundreds_of_parameters_settle_after_two_captures() -> None:
    trained(lambda: step_of(200, "AdamW"), *((X,),) * 4, graphs=2)


def _recording(actual: list[Any]) -> Backend:
    """A backend that runs what it is given, and notes its specs."""

    def compile_graph(graph: Any, spec: Any) -> Any:
        actual.append(spec)
        return lambda inputs: graph.forward(*inputs)

    return Backend(
        name="recording", compile=compile_graph, ir="aten", shapes="symbolic", numbers="inputs"
    )


def test_counters_that_are_equal_are_one_input() -> None:
    specs: list[Any] = []
    side = step_of(6, "AdamW")
    compiled = tracer_core.compile(side.step, backend=_recording(specs))
    for _ in range(4):
        compiled(X)
    numbers = [value for value in specs[-1].inputs if value.role is Role.NUMBER]
    few = len(numbers)
    specs.clear()
    side = step_of(12, "AdamW")
    compiled = tracer_core.compile(side.step, backend=_recording(specs))
    for _ in range(4):
        compiled(X)
    assert len(specs) == 1  # the first step's graph is not compiled
    assert sum(value.role is Role.NUMBER for value in specs[-1].inputs) == few


def test_a_counter_that_lags_behind_gets_a_number_of_its_own() -> None:
    """In one step a layer takes no part: its counters are one behind from then on."""

    def make() -> Side:
        model = _deep(4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Any, layers: int) -> Any:
            optimizer.zero_grad()
            loss = model[:layers](x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Side(step, [model, optimizer])

    calls = [(X, 8), (X, 8), (X, 8), (X, 6), (X, 8), (X, 8), (X, 8), (X, 8), (X, 8)]
    counter = trained(make, *calls)
    # for all layers: without state, with equal counters, with counters of two values; for six
    assert len(counter.graphs) <= 5


def test_counters_that_a_checkpoint_sets_are_read_anew() -> None:
    side, reference = step_of(3, "AdamW"), step_of(3, "AdamW")
    compiled = tracer_core.compile(side.step, backend="eager")
    for number in range(6):
        if number == 3:
            for value in (side, reference):
                saved = value.watched[1].state_dict()
                for state in saved["state"].values():
                    state["step"] = torch.tensor(100.0)
                value.watched[1].load_state_dict(saved)
        assert torch.equal(compiled(X), reference.step(X))
    for ours, eager in zip(
        side.watched[0].parameters(), reference.watched[0].parameters(), strict=True
    ):
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("count", [100, 600, 2000])
def test_a_dict_of_changing_numbers_settles(count: int) -> None:
    rates = {f"k{i}": 0.5 + i for i in range(count)}

    def f(x: Any) -> Any:
        for key in ("k0", "k50", f"k{count - 1}"):
            x = x * rates[key]
        return x * sum(rates[f"k{i}"] for i in range(count))

    with CaptureCounter() as counter:
        compiled = tracer_core.compile(f, backend="eager")
        for _ in range(5):
            for key in rates:
                rates[key] += 0.25
            assert torch.equal(compiled(X), f(X))
    assert len(counter.graphs) == 2


def test_numbers_that_were_always_equal_and_then_differ() -> None:
    rates = [1.0, 1.0, 1.0]

    def f(x: Any) -> Any:
        return x * rates[0] + rates[1] - rates[2]

    with CaptureCounter() as counter:
        compiled = tracer_core.compile(f, backend="eager")
        for number in range(8):
            rates[:] = [1.0 + number, 1.0 + number, 1.0 + number + (number > 4)]
            assert torch.equal(compiled(X), f(X))
        rates[:] = [0.0, -0.0, 0.0]
        assert torch.equal(compiled(X), f(X))
    assert len(counter.graphs) <= 4


def test_the_gradients_of_the_step_before_are_gone_while_the_graph_runs() -> None:
    """As in eager mode, whose zero_grad() drops them before the forward: they would double the
    memory of gradients."""
    alive: list[int] = []
    watched: list[weakref.ref[Any]] = []

    def compile_graph(graph: Any, spec: Any) -> Any:
        def run(inputs: list[Any]) -> Any:
            gc.collect()
            alive.append(sum(item() is not None for item in watched))
            return graph.forward(*inputs)

        return run

    backend = Backend(name="watching", compile=compile_graph, ir="aten", numbers="inputs")
    side = step_of(3, "SGD")
    compiled = tracer_core.compile(side.step, backend=backend)
    for _ in range(4):
        compiled(X)
        watched[:] = [weakref.ref(p.grad) for p in side.watched[0].parameters()]
    assert alive == [0, 0, 0, 0]


def test_gradients_that_the_program_still_reads_stay() -> None:
    def make() -> Side:
        model = _deep(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        kept: list[Any] = []

        def step(x: Any) -> Any:
            kept[:] = [p.grad for p in model.parameters()]
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Side(step, [model, optimizer, kept])

    trained(make, *((X,),) * 4)


def test_a_step_that_raises_leaves_what_eager_leaves() -> None:
    table = torch.nn.Embedding(4, 4)
    reference = torch.nn.Embedding(4, 4)
    reference.load_state_dict(table.state_dict())

    def make(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)

        def step(at: Any) -> Any:
            optimizer.zero_grad()
            loss = module(at).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    ours, eager = tracer_core.compile(make(table)), make(reference)
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    for at in (good, good, good, bad, good):
        if at is bad:
            with pytest.raises(IndexError):
                ours(at)
            with pytest.raises(IndexError):
                eager(at)
            assert table.weight.grad is None and reference.weight.grad is None
        else:
            torch.testing.assert_close(ours(at), eager(at))
    torch.testing.assert_close(table.weight, reference.weight)


def test_captures_that_give_nothing_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose trace fails at every call: it must not be traced at every call."""
    from tracer_core.execution.capture import trace as capture

    traced: list[None] = []
    original = capture.capture
    monkeypatch.setattr(
        capture, "capture", lambda *a, **k: (traced.append(None), original(*a, **k))[1]
    )

    def deep(x: Any) -> Any:
        result: list[Any] = []
        for _ in range(2000):
            result = [result]
        return x + 1, result

    compiled = tracer_core.compile(deep, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(40):
            assert torch.equal(compiled(X)[0], X + 1)
    assert 1 <= len(traced) <= 5


def test_what_is_put_back_where_it_was_read_is_not_written() -> None:
    """``state["buffer"] = buffer`` of an optimizer, in which ``buffer`` is what was read there."""
    model = _deep(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state: dict[str, Any] = {"first": torch.zeros(2), "second": torch.ones(2), "n": 0}

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        first, second = state["first"], state.get("second")
        state["first"] = first  # put back
        state["second"], state["n"] = first, state["n"] + 1  # another place
        state.pop("first")
        state["first"] = first  # at the end now
        return loss.detach() + second.sum()

    compiled = tracer_core.compile(step)
    for number in range(1, 5):
        before = state["first"]
        compiled(X)
        assert list(state) == ["second", "n", "first"] and state["n"] == number
        assert state["first"] is before and state["second"] is before
    buffers = [item["momentum_buffer"] for item in optimizer.state.values()]
    compiled(X)
    assert all(
        item["momentum_buffer"] is buffer
        for item, buffer in zip(optimizer.state.values(), buffers, strict=True)
    )
    other = [torch.zeros_like(buffer) for buffer in buffers]
    for item, buffer in zip(optimizer.state.values(), other, strict=True):
        item["momentum_buffer"] = buffer  # a checkpoint was loaded
    compiled(X)
    assert all(
        item["momentum_buffer"] is buffer and buffer.any()
        for item, buffer in zip(optimizer.state.values(), other, strict=True)
        if buffer.numel() == 16
    )

"""Training by recorded forward and backward graphs: saved values stay valid, gradients are
eager's.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cudagraphs_backend import wrapping
from cudagraphs_backend.options import CudaGraphsOptions
from tests.support.comparison import assert_same_training
from tracer_core import torch_private
from tracer_core.plugin_api import CompileSpec, InputSpec, OutputSpec, Phase, Role


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


@pytest.fixture
def pair(world):
    """(the model that is compiled, the compiled module, its eager copy)"""
    model = Net().to(world.device)
    return model, world.compile(model), copy.deepcopy(model)


def seeded(seed, function, *args):
    torch.manual_seed(seed)
    return function(*args)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_of_an_optimizer(world, pair, set_to_none):
    model, compiled, reference = pair
    ours, eager = (
        torch.optim.SGD(value.parameters(), lr=0.1, momentum=0.9) for value in (model, reference)
    )
    losses = []
    for step in range(7):
        x = world.randn(16, 32)
        for module, called, optimizer in ((model, compiled, ours), (reference, reference, eager)):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = seeded(step, called, x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        assert_same_training(model, reference)
    for first, second in zip(losses[::2], losses[1::2], strict=True):
        torch.testing.assert_close(first, second)
    assert {row.phase for row in world.rows if row.replays >= 3} == {"forward", "backward"}, (
        world.rows
    )


def test_one_recording_of_each_suffices_for_a_plain_loop(world, pair):
    model, compiled, _ = pair
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        compiled(world.randn(16, 32)).square().mean().backward()
        optimizer.step()
    assert [row.recordings for row in world.rows] == [1, 1], world.rows


@pytest.mark.parametrize("forwards", [2, 3, 4])
def test_forwards_before_backwards(world, pair, forwards):
    model, compiled, reference = pair
    for turn in range(5):
        inputs = [world.randn(16, 32) for _ in range(forwards)]
        for module, called in ((model, compiled), (reference, reference)):
            module.zero_grad()
            results = [seeded(turn + 10 * i, called, x) for i, x in enumerate(inputs)]
            order = reversed(results) if turn % 2 else results
            for result in order:
                result.square().mean().backward()
        assert_same_training(model, reference)
    assert world.replays > 8


def test_gradients_accumulate(world, pair):
    model, compiled, reference = pair
    for turn in range(8):
        x = world.randn(16, 32)
        seeded(turn, compiled, x).square().mean().backward()
        seeded(turn, reference, x).square().mean().backward()
        assert_same_training(model, reference)


def test_a_backward_twice(world, pair):
    model, compiled, reference = pair
    for turn in range(5):
        x = world.randn(16, 32)
        for module, called in ((model, compiled), (reference, reference)):
            module.zero_grad()
            loss = seeded(turn, called, x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        assert_same_training(model, reference)


def test_forwards_without_a_backward(world, pair):
    model, compiled, reference = pair
    kept = []
    for turn in range(6):
        x = world.randn(16, 32)
        kept.append((seeded(turn, compiled, x), seeded(turn, reference, x)))
    for ours, eager in kept:
        torch.testing.assert_close(ours, eager)
    for ours, eager in reversed(kept):
        (ours.sum() + 0).backward()
        eager.sum().backward()
    assert_same_training(model, reference)


def test_gradients_of_inputs_are_kept(world, pair):
    model, compiled, reference = pair
    kept = []
    for turn in range(6):
        x = world.randn(16, 32, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        (ours,) = torch.autograd.grad(seeded(turn, compiled, x).sum(), x)
        (eager,) = torch.autograd.grad(seeded(turn, reference, y).sum(), y)
        kept.append((ours, eager))
        for a, b in kept:
            torch.testing.assert_close(a, b)


def test_training_and_evaluation_take_turns(world, pair):
    model, compiled, reference = pair
    for turn in range(5):
        x = world.randn(16, 32)
        for module, called in ((model, compiled), (reference, reference)):
            module.train()
            module.zero_grad()
            seeded(turn, called, x).square().mean().backward()
            module.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), reference(x))
        assert_same_training(model, reference)


def test_a_result_that_is_saved_too_and_kept_by_the_program(world):
    """It comes at a new address each time: from some step on the backward reads a copy."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh()).to(world.device)
    compiled, reference = world.compile(model), copy.deepcopy(model)
    kept = []
    for _ in range(12):
        x = world.randn(16, 32)
        results = []
        for module, called in ((model, compiled), (reference, reference)):
            module.zero_grad()
            results.append(called(x))
            results[-1].square().mean().backward()
        kept.append([result.detach() for result in results])
        assert_same_training(model, reference)
        for ours, eager in kept:
            torch.testing.assert_close(ours, eager)
    assert {row.phase for row in world.rows if row.replays >= 5} == {"forward", "backward"}, (
        world.rows
    )


@pytest.mark.parametrize("addresses", [1, 2, 3])
def test_a_small_saved_value_that_wanders_costs_no_second_recording(simulated, addresses):
    """As a result does that the program drops later than the backward runs; the large one is the
    forward's own.
    """
    graph = torch.fx.Graph()
    large, small, tangent = (graph.placeholder(name) for name in ("large", "small", "tangent"))
    fakes = torch_private.fake_tensor_mode(None)
    for node, size in ((large, 64), (small, 4), (tangent, 4)):
        node.meta["val"] = fakes.from_tensor(torch.randn(size, 8))
    first = graph.call_function(torch.ops.aten.mul.Tensor, (small, tangent))
    second = graph.call_function(torch.ops.aten.mul.Tensor, (large, 2.0))
    first.meta["val"], second.meta["val"] = small.meta["val"], large.meta["val"]
    graph.output((first, second))
    roles = (Role.SAVED_ACTIVATION, Role.SAVED_ACTIVATION, Role.USER_INPUT)
    outputs = [
        OutputSpec((size, 8), (8, 1), torch.float32, torch.device("cpu")) for size in (4, 64)
    ]
    spec = CompileSpec(
        "cudagraphs", "wandering", tuple(InputSpec(str(role), role, str(role)) for role in roles),
        tuple(outputs), (), (),
        Phase.BACKWARD, CudaGraphsOptions(), "default", torch.device("cpu"), "",
    )  # fmt: skip
    runner = wrapping.wrap(
        lambda inputs: [inputs[1] * inputs[2], inputs[0] * 2.0],
        torch.fx.GraphModule(torch.nn.Module(), graph),
        spec,
    )
    saved = torch.randn(64, 8)
    places = [torch.empty(4, 8) for _ in range(addresses)]
    for call in range(12):
        here, tangent = places[call % addresses].normal_(), torch.randn(4, 8)
        torch.testing.assert_close(runner([saved, here, tangent]), [here * tangent, saved * 2.0])
    (row,) = simulated.rows
    assert row.recordings == 1 and row.replays >= 8, row

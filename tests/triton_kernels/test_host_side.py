"""CPU tensors in a graph of a CUDA device: their operators run beside it, where they have nothing
to do with the device.

The device's side is run by fx on CPU tensors here; with ``-m gpu`` whole training steps run for
real.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

import tracer_core
from inductor_backend.passes.cpu_scalars import host_side, split
from inductor_backend.passes.op_support import supports
from inductor_backend.pipeline import start
from inductor_backend.plugin import BACKEND
from inductor_backend.stages import run_stages
from tests.support.fake_graphs import FakeGraph
from tests.support.training_steps import step, train_beside
from tracer_core.aot.capability_partition import backend_runner
from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.aot.request import Lowered
from tracer_core.plugin_api import Runner

aten = torch.ops.aten


def counted(feeds_the_device=False, returned=True):
    """x + 1 on the device, two counters on the host; the second is returned too."""
    g = FakeGraph()
    x, first, second = g.input("x", 3, device="cuda:0"), g.input("first"), g.input("second")
    more = g.call(aten._foreach_add.Scalar, [first, second], 1)
    items = [g.call(lambda values, k=k: values[k], more, k) for k in range(2)]
    for k, item in enumerate(items):
        item.target = __import__("operator").getitem
    result = g.call(aten.add.Tensor, x, 1)
    outputs = [result, items[1]][: 1 + returned]
    if feeds_the_device:
        there = g.call(lambda value, device: value.to(device), items[0], "cuda:0")
        there.target, there.args, there.kwargs = (
            aten._to_copy.default,
            (items[0],),
            {"device": torch.device("cuda:0")},
        )
        outputs.append(g.call(aten.mul.Tensor, result, there))
    for place, item in ((first, items[0]), (second, items[1])):
        g.call(aten.copy_.default, place, item)
    return g.done(outputs, (1, 2))


def test_both_sides_give_the_whole():
    gm, spec = counted()
    assert all(supports(node) is None for node in gm.graph.nodes if node.op == "call_function")
    cut = split(gm, spec)
    assert cut.spec.mutations == () and len(cut.spec.outputs) == 1
    assert not any(node.meta["val"].device.type == "cpu" for node in cut.graph.graph.nodes
                   if node.op == "call_function")  # fmt: skip
    order = []

    def device(inputs):
        order.append(inputs[1].item())
        return cut.graph.forward(*inputs)

    run = cut.join(Runner(device))
    x, first, second = torch.randn(3), torch.tensor(1.0), torch.tensor(5.0)
    for call in range(1, 3):
        version = first._version
        result, counter = run([x, first, second])
        torch.testing.assert_close(result, x + 1)
        assert (first.item(), second.item(), counter.item()) == (1.0 + call, 5.0 + call, 5.0 + call)
        assert counter is not second and counter.data_ptr() != second.data_ptr()
        assert first._version > version
    assert order == [1.0, 2.0]  # the device's side is launched before the counters go on


def test_counters_that_nothing_else_reads_are_written_in_place(monkeypatch):
    gm, spec = counted(returned=False)
    cut = split(gm, spec)
    run = cut.join(Runner(lambda inputs: cut.graph.forward(*inputs)))
    x, first, second = torch.randn(3), torch.tensor(1.0), torch.tensor(5.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        (result,) = run([x, first, second])
    torch.testing.assert_close(result, x + 1)
    assert (first.item(), second.item()) == (2.0, 6.0)
    names = {event.name for event in seen.events()}
    assert "aten::_foreach_add_" in names and "aten::_foreach_copy_" not in names


def test_what_the_device_reads_stays_with_it():
    gm, spec = counted(feeds_the_device=True)
    assert host_side(gm.graph) == frozenset()
    assert split(gm, spec) is None
    (node,) = (node for node in gm.graph.nodes if node.target is aten._foreach_add.Scalar)
    assert "a result on cpu" in supports(node)


def random_program(*places):
    """A kernel's result, and random numbers of the CPU, which the output or the device reads."""
    b = FakeGraph()
    x = b.input("x", 3, device="cuda:0")
    y = b.call(aten.add.Tensor, x, 1)
    outputs = [y]
    for place in places:
        number = b.call(aten.rand.default, [])
        if place == "device":
            outputs.append(b.call(aten.add.Tensor, y, number))
        elif place == "output":
            outputs.append(number)
    return b.done(outputs, ())


def test_random_numbers_of_the_cpu_run_beside_the_device():
    """Layerdrop's number of each layer, whether or not the program reads it."""
    gm, spec = random_program("output", "nobody", "output")
    assert all(supports(node) is None for node in gm.graph.nodes)
    sides = split(gm, spec)
    run = sides.join(Runner(lambda inputs: sides.graph.forward(*inputs)))
    torch.manual_seed(7)
    _, first, last = run([torch.randn(3)])
    after = torch.rand([])
    torch.manual_seed(7)
    torch.randn(3)
    expected = [torch.rand([]) for _ in range(4)]
    assert [first, last, after] == [expected[0], expected[2], expected[3]]


def test_random_numbers_keep_their_order():
    """One that the device reads stays with it, and so do the others: none may overtake it."""
    gm, _ = random_program("output", "device")
    assert host_side(gm.graph) == frozenset()


def test_a_cast_on_the_cpu_is_no_part_of_the_device(monkeypatch):
    """``x + (m == row).float().to(x.device)``: the matrix lies on the CPU, and is cast there."""
    g = FakeGraph()
    x = g.input("x", 3, 3, device="cuda:0")
    ones = g.call(aten.eq.Tensor, g.input("m", 3, 3), g.input("row", 3))
    cast = g.call(lambda value: value.float(), ones)
    there = g.call(lambda value: value.to("cuda:0"), cast)
    for node, kwargs in (
        (cast, {"dtype": torch.float32}),
        (there, {"device": torch.device("cuda:0")}),
    ):
        node.target, node.kwargs = aten._to_copy.default, kwargs
    gm, spec = g.done([g.call(aten.add.Tensor, x, there)], ())
    assert "a result on cpu" in supports(cast) and supports(there) is None

    lowered, kept = [], Lowered(gm, spec, OutputPlan.of_graph(1), "aten")

    def lower_only(part, its):
        lowered.append(run_stages(start(part, its), "lower", first="lower"))
        return len

    backend = dataclasses.replace(BACKEND, compile=lower_only)
    backend_runner(backend, kept)
    (item,) = lowered
    assert item.program.device == torch.device("cuda:0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_table_made_on_the_cpu():
    def fn(x, scale):
        table = torch.eye(x.shape[0])  # on the CPU
        marks = (torch.arange(x.shape[1]) % 2 == 0).to(torch.float32)
        return (x * scale).tanh() + table.to(x.device) @ x * marks.to(x)

    x, scale = (
        torch.randn(6, 5, device="cuda", requires_grad=True),
        torch.randn(5, device="cuda", requires_grad=True),
    )
    fast = tracer_core.compile(fn)
    for _ in range(2):
        actual = [
            (r, *torch.autograd.grad(r.square().sum(), [x, scale]))
            for r in (fast(x, scale), fn(x, scale))
        ]
        torch.testing.assert_close(*actual)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "NAdam"])
def test_whole_steps_are_recorded(kind):
    """Counters on the CPU, numbers that change in each step, gradients and states of three
    recordings.
    """
    import cudagraphs_backend

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False),
        torch.nn.BatchNorm1d(32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 5),
    ).cuda()
    cudagraphs_backend.reset()
    train_beside(
        tracer_core.compile(step, mode="reduce-overhead", fullgraph=True),
        (theirs, copy.deepcopy(theirs)),
        lambda parameters: getattr(torch.optim, kind)(parameters, lr=0.01),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        ((torch.randn(24, 16).cuda(), torch.randint(5, (24,)).cuda()) for _ in range(8)),
        atol=1e-4, rtol=1e-3,
    )  # fmt: skip
    rows = cudagraphs_backend.report()
    assert sum(row.replays for row in rows) >= 5, rows

"""What a lowered forward saves for its backward: what is computed again, how a backend cuts the joint
graph, and when the saved tensors are freed."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tracer_core
from tests.support.comparison import assert_equal
from tests.support.lowered_training import Calls, first_tensor, parameter, step
from tracer_core.aot import autograd_runtime, verify
from tracer_core.plugin_api import Backend, BackendError, OptionError, Phase, Role, Training
from tracer_core.registry.eager import compile_eager

Loss = Callable[[Any], torch.Tensor]
pytestmark = pytest.mark.usefixtures("strict")
X = torch.linspace(-2, 2, 20).reshape(5, 4)


def test_checkpoint_computes_again_in_the_backward():
    model = Calls(
        lambda m, x: checkpoint(lambda z: (z * m.w).sin().exp(), x, use_reentrant=False),
        w=parameter(4),
    )
    graphs = lowered(model, X)
    sines = [n for n in graphs.backward.graph.graph.nodes if n.target is torch.ops.aten.sin.default]
    assert len(sines) == 1
    assert graphs.split.saved_bytes == 0


def lowered(model: nn.Module, *inputs: Any, backend: Any = "aten_eager", **options: Any) -> Any:
    """The forward and backward graphs that a model's training call is lowered to."""
    actual = []
    original = autograd_runtime.lower_training
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            autograd_runtime,
            "lower_training",
            lambda *args: actual.append(original(*args)) or actual[-1],
        )
        tracer_core.compile(model, backend=backend, options=options or None)(*inputs)
    return actual[0]


def test_cheap_values_are_computed_again_not_saved():
    model = Calls(lambda m, x: ((x @ m.w).sin().exp() * 2).cos(), w=parameter(4, 64))
    graphs = lowered(model, X)
    assert graphs.split.saved_bytes == 5 * 64 * 4  # the product alone


MESSAGES = {
    "rows": lambda h, i, j: h[i],
    "index_select": lambda h, i, j: h.index_select(0, i),
    "embedding": lambda h, i, j: F.embedding(i, h),
    "rows of two indices": lambda h, i, j: h.view(5, 1, 16)[j, i * 0],
    "rows behind a slice": lambda h, i, j: h.view(1, 5, 16)[:, i].squeeze(0),
}


@pytest.mark.parametrize("gathered", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_repeated_rows_are_gathered_again_by_backends_that_fuse(gathered, dynamic):
    """Messages along the edges of a graph: eager saves a row for each edge."""
    i, j = torch.arange(40) * 7 % 5, torch.arange(40) * 3 % 5

    def program(m, x, i, j):
        h = x @ m.w
        return torch.zeros_like(h).index_add(0, j, gathered(h, i, j) * (x[j, :1] @ m.v))

    model = Calls(program, w=parameter(4, 16), v=parameter(1, 16))
    options = {"backend": "inductor", "dynamic": dynamic}
    assert_steps_equal(model, (X, i, j), options)
    if not dynamic:
        saved = lowered(model, X, i, j, backend="inductor").split.saved_bytes
        # the product, the rows of x and `i * 0`, not the 40 gathered rows of h beside them
        assert saved <= 4 * (5 * 16 + 40 * 16 + 40) + 8 * 40


@pytest.mark.parametrize("columns", [7, 8])
def test_rows_of_less_than_32_bytes_are_saved_for_each_edge(columns):
    i, j = torch.arange(40) * 7 % 5, torch.arange(40) * 3 % 5

    def program(m, x, i, j):
        h = x @ m.w
        return torch.zeros_like(h).index_add(0, j, h[i] * (x[j, :1] @ m.v))

    model = Calls(program, w=parameter(4, columns), v=parameter(1, columns))
    assert_steps_equal(model, (X, i, j), {"backend": "inductor"})
    saved = lowered(model, X, i, j, backend="inductor").split.saved_bytes
    rows = 5 if columns == 8 else 40
    assert saved == 4 * (rows * columns + 40 * columns + 40)


def assert_steps_equal(model, inputs, options):
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    compiled = tracer_core.compile(ours, **options)
    for _ in range(3):
        compiled(*inputs).square().sum().backward()
        theirs(*inputs).square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_looked_up_rows_of_a_parameter_are_saved():
    """The parameter may change between the passes; eager does not read it in the backward."""
    model = Calls(lambda m, x, i: (m.w[i].sin() * x[:, :1]).cos(), w=parameter(2, 16))
    i = torch.tensor([0, 1, 1, 0, 1])
    step = tracer_core.compile(model, backend="inductor")
    expected = copy.deepcopy(model)
    for target in (step, expected):
        loss = target(X, i).sum()
        with torch.no_grad():
            (model if target is step else expected).w.data *= 3
        loss.backward()
    torch.testing.assert_close(model.w.grad, expected.w.grad)


def test_a_memory_budget_saves_less():
    def blocks(m, x):
        for weight in m.weights:
            x = torch.softmax(x @ weight, -1).sin()
        return x

    model = Calls(blocks, weights=nn.ParameterList(parameter(4, 4) for _ in range(8)))
    saved = [
        lowered(copy.deepcopy(model), X, memory_budget=b).split.saved_bytes for b in (1.0, 0.5, 0.0)
    ]
    assert saved[1] <= saved[0] / 2
    assert saved[2] == 0


def test_a_budget_outside_its_range_is_told_at_compile():
    with pytest.raises(OptionError, match="memory_budget=2: from 0 to 1"):
        tracer_core.compile(nn.Linear(4, 4), backend="aten_eager", options={"memory_budget": 2})


def sines(joint: torch.fx.GraphModule) -> list[str]:
    return [
        n.name
        for n in joint.graph.nodes
        if n.target is torch.ops.aten.sin.default and n.meta["phase"] == "forward"
    ]


def joint_backend(partition: Any) -> Backend:
    return Backend("own_cut", compile=compile_eager, training=Training.JOINT, partition=partition)


def test_a_backend_cuts_the_joint_graph_itself():
    model = Calls(lambda m, x: ((x @ m.w).sin().exp() * 2).cos(), w=parameter(4, 64))
    graphs = lowered(copy.deepcopy(model), X, backend=joint_backend(sines))
    assert "saved_sin_default" in {
        node.name for node in graphs.backward.graph.graph.find_nodes(op="placeholder")
    }
    reference = copy.deepcopy(model)
    compiled = tracer_core.compile(reference, backend=joint_backend(sines))
    assert_equal(
        *[
            step(f, item, [X], first_tensor, 0)
            for f, item in ((model, model), (compiled, reference))
        ]
    )


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (lambda joint: ["nothing"], "nothing, which are no forward nodes"),
        (lambda joint: [], "draws random numbers"),
        (lambda joint: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_cut_that_cannot_be_is_the_backends_error(partition, message):
    model = Calls(lambda m, x: F.dropout(x * m.w, 0.5).exp(), w=parameter(4))
    with pytest.raises(BackendError, match=message):
        tracer_core.compile(model, backend=joint_backend(partition))(X)


def test_joint_and_partition_go_together():
    with pytest.raises(ValueError, match="go together"):
        Backend("own_cut", compile=compile_eager, training=Training.JOINT)


def test_saved_tensors_are_freed_with_the_graph():
    compiled = tracer_core.compile(lambda x, w: (x @ w).sin().sum(), backend="aten_eager")
    x, w = torch.randn(50, 50), torch.randn(50, 50, requires_grad=True)
    compiled(x, w).backward()

    def tensors() -> int:
        gc.collect()
        return sum(type(obj) is torch.Tensor for obj in gc.get_objects())

    before = tensors()
    for _ in range(3):
        compiled(x, w).backward()
    assert tensors() <= before


def test_both_graphs_of_a_training_are_verified(monkeypatch):
    seen = []

    def rule(lowered):
        seen.append(lowered.spec.phase)
        return iter(())

    monkeypatch.setenv("TRACER_CHECK", "1")
    monkeypatch.setattr(verify, "RULES", (*verify.RULES, rule))
    model = nn.Linear(3, 2)
    tracer_core.compile(model, backend="aten_eager")(torch.ones(4, 3)).sum().backward()
    assert set(seen) == {Phase.FORWARD, Phase.BACKWARD}


def test_a_backward_is_the_last_to_hold_what_the_forward_saved():
    """So a runner that lets go of a saved tensor frees it; with retain_graph autograd keeps them
    all.
    """
    left: list[bool] = []

    def compile_graph(graph, spec):
        run = compile_eager(graph, spec)
        if spec.phase is not Phase.BACKWARD:
            return run
        saved = [k for k, value in enumerate(spec.inputs) if value.role is Role.SAVED_ACTIVATION]
        assert saved

        def call(args):
            items = list(args)
            args.clear()
            watched = [weakref.ref(items[k]) for k in saved]
            out = run(list(items))
            items.clear()
            left.append(any(item() is not None for item in watched))
            return out

        return call

    backend = Backend("watching", compile_graph, ir="aten", training=Training.FORWARD_BACKWARD)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 2)
    )
    fast = tracer_core.compile(model, backend=backend)
    loss = fast(torch.randn(3, 4)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert left == [True, False]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def greatest(m, x):
    """The greatest of values that are rounded, and cheap to compute again."""
    return F.silu(x @ m.w).amax(-1)


def test_values_that_are_compared_are_not_computed_again():
    """A backward that computes y anew, with another rounding, finds rows without any maximum."""
    graphs = lowered(Calls(greatest, w=parameter(8, 8)), torch.randn(4, 8), backend="inductor")
    comparisons = [
        n for n in graphs.backward.graph.graph.nodes if n.target is torch.ops.aten.eq.Tensor
    ]
    assert comparisons
    for node in comparisons:
        all_input_nodes = [source for source in node.all_input_nodes if source.op != "placeholder"]
        while all_input_nodes:
            source = all_input_nodes.pop()
            assert source.target is not torch.ops.aten.silu.default, node.format_node()
            all_input_nodes += [item for item in source.all_input_nodes if item.op != "placeholder"]


def test_an_input_that_is_a_view_of_another_input_is_saved():
    """JetMoe: "no cut is finite"."""

    def product(x, y, w):
        return (x.view(-1) @ w.view(-1)) * (y @ w).sin().sum()

    w = parameter(3, 3)
    x = torch.randn(3, 3)
    for _ in range(2):
        expected = torch.autograd.grad(product(x, x[:], w), w)
        actual = torch.autograd.grad(
            tracer_core.compile(product, backend="aten_eager")(x, x[:], w), w
        )
        torch.testing.assert_close(actual, expected)

"""The first call of a training step makes what its guards demand to be missing (an optimizer's state,
first gradients): its graph runs in eager mode, and a second call of the same kind compiles it."""

from __future__ import annotations

import copy

import pytest
import torch

import tracer_core
from tests.execution.test_steps_at_size import X, _deep, step_of
from tests.support.eager_training import trained
from tracer_core.errors import BackendError
from tracer_core.limits import MAX_COMPILED_FIRST_STEP

#: Layers of a model whose step has more operators than `MAX_COMPILED_FIRST_STEP`.
MANY = 24


def compiled_graphs(function):
    """Returns the names of the graphs that its last capture had compiled."""
    rows = tracer_core.last_compile(function)
    return {row.graph for row in rows if row.name.strip() == "inductor_build"}


def test_the_first_step_runs_as_captured():
    step = step_of(MANY, "AdamW").step
    fast = tracer_core.compile(step)
    fast(X)
    assert compiled_graphs(fast) == set()
    fast(X)
    assert len(compiled_graphs(fast)) == 1


def test_steps_are_those_of_eager_mode():
    trained(lambda: step_of(MANY, "AdamW"), *((X,),) * 5, graphs=2)


def test_small_graphs_are_compiled_at_once():
    step = step_of(1, "SGD").step
    fast = tracer_core.compile(step)
    fast(X)
    assert len(compiled_graphs(fast)) == 1


def accumulating(layers):
    """A step without zero_grad: the first call's gradients are new, later ones are added to."""
    model = _deep(layers)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return model, step


def test_a_program_that_drops_its_gradients_compiles_at_the_second_call():
    model, step = accumulating(MANY)
    reference = copy.deepcopy(model)
    fast = tracer_core.compile(step)
    for call in range(4):
        model.zero_grad()
        reference.zero_grad()
        loss, expected = fast(X), reference(X).square().mean()
        expected.backward()
        torch.testing.assert_close(loss, expected.detach())
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad)
        assert len(compiled_graphs(fast)) == (call > 0)


def test_later_calls_run_the_compiled_graph():
    """The second call must not leave the entry that it replaced as the one to try first."""
    model, step = accumulating(MANY)
    fast = tracer_core.compile(step)
    for call in range(3):
        model.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            fast(X)
        names = {event.key for event in profile.key_averages()}
        assert ("aten::mean" in names) == (call < 2)


def test_state_that_a_module_makes_at_its_first_call():
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None
            self.layers = _deep(MANY)

        def forward(self, x):
            if self.table is None:
                self.table = torch.linspace(0, 1, 4)
            for _ in range(2):
                x = self.layers(x)
            return x + self.table

    module = Cached().eval()
    reference = copy.deepcopy(module)
    fast = tracer_core.compile(module)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(X), reference(X))
    assert module.table is not None


def test_nothing_of_the_first_call_is_kept():
    import gc
    import weakref

    _, step = accumulating(MANY)
    fast = tracer_core.compile(step)
    x = X.clone()
    fast(x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_a_failing_backend_is_told_at_the_second_call():
    def compile(graph, spec):
        raise RuntimeError("no such kernel")

    model, step = accumulating(MANY)
    backend = tracer_core.plugin_api.Backend(
        name="failing", compile=compile, ir="aten", training=tracer_core.plugin_api.Training.FORWARD_BACKWARD
    )  # fmt: skip
    fast = tracer_core.compile(step, backend=backend, fullgraph=True)
    fast(X)
    model.zero_grad()
    with pytest.raises(BackendError, match="no such kernel"):
        fast(X)


@pytest.mark.parametrize("layers", [1, MANY])
def test_a_callable_backend_gets_the_graph_at_once(layers):
    seen = []

    def backend(gm, inputs):
        seen.append(len(gm.graph.nodes))
        return gm

    model, step = accumulating(layers)
    tracer_core.compile(step, backend=backend)(X)
    assert len(seen) == 1 and (seen[0] > MAX_COMPILED_FIRST_STEP) == (layers == MANY)

"""The public API with the real tracer: what users write, compared with what it does without
compile().
"""

from __future__ import annotations

import copy
import functools

import pluggy
import pytest
import torch
from torch import nn

import tracer_core
from tests.support.comparison import assert_same_calls
from tracer_core.plugin_api import hookimpl


class Graphs(list):
    """A backend in torch.compile's convention that keeps the graphs it is given."""

    def __call__(self, gm, example_inputs):
        self.append(gm)
        return gm.forward


@pytest.fixture
def graphs():
    yield Graphs()
    tracer_core.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x

    def generate(self, x, steps):
        for _ in range(steps):
            x = self(x)
        return x


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block().eval()


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


X = torch.linspace(-1, 1, 4)


def cosine(x, y):
    return torch.cos(x) + torch.sin(y)


def test_function_decorator_and_method(graphs):
    assert_same_calls(tracer_core.compile(cosine, backend=graphs), cosine, X, X)

    class Model:
        scale = 3.0

        @tracer_core.compile(backend=graphs, fullgraph=True)
        def run(self, x):
            return torch.tanh(x) * self.scale

        def other(self, x):
            return x - self.scale

    model = Model()
    assert_same_calls(model.run, lambda x: torch.tanh(x) * 3.0, X)
    assert_same_calls(tracer_core.compile(model.other, backend=graphs), model.other, X)
    assert len(graphs) == 3


def test_callable_objects(graphs):
    assert_same_calls(tracer_core.compile(torch.neg, backend=graphs), torch.neg, X)
    half = functools.partial(cosine, X)
    assert_same_calls(tracer_core.compile(half, backend=graphs), half, X)
    assert len(graphs) == 2


def test_module_with_hooks(graphs, block):
    fast = tracer_core.compile(block, backend=graphs, fullgraph=True)
    assert_same_calls(fast, block, X)
    block.register_forward_hook(lambda module, args, output: output * 2)
    assert_same_calls(fast, block, X)
    block.linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert_same_calls(fast, block, X)
    assert len(graphs) == 3, "each new hook is a guard that fails once"


def test_module_changed_after_compile(graphs, block):
    fast = tracer_core.compile(block, backend=graphs, fullgraph=True)
    assert_same_calls(fast, block, X)
    block.linear.weight.mul_(2)
    assert_same_calls(fast, block, X)
    block.load_state_dict(Block().state_dict())
    assert_same_calls(fast, block, X)
    assert len(graphs) == 1, "parameters are inputs: new values need no new graph"
    block.linear = nn.Linear(4, 4, bias=False)
    assert_same_calls(fast, block, X)
    block.double()
    assert_same_calls(fast, block, X.double())


def test_methods_reach_the_compiled_forward(graphs, block):
    fast = tracer_core.compile(block, backend=graphs, fullgraph=True)
    torch.testing.assert_close(fast.generate(X, 3), block.generate(X, 3))
    assert len(graphs) == 1


def test_a_wrapper_and_a_copy(graphs, block):
    fast = tracer_core.compile(block, backend=graphs, fullgraph=True)

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    assert_same_calls(Wrapper(fast), block, X)
    other = copy.deepcopy(fast)
    other.linear.weight.zero_()
    assert_same_calls(fast, block, X)
    assert not torch.equal(other(X), fast(X))
    assert len(graphs) == 1


def test_compiled_inside_compiled_is_one_graph(graphs, block):
    inner = tracer_core.compile(block, backend=graphs)
    function = tracer_core.compile(cosine, backend=graphs)

    def outer(x):
        return function(inner(x), x) * 2

    def plain(x):
        return cosine(block(x), x) * 2

    assert_same_calls(tracer_core.compile(outer, backend=graphs, fullgraph=True), plain, X)
    assert len(graphs) == 1
    assert_same_calls(
        tracer_core.compile(nn.Sequential(inner, nn.Tanh()), backend=graphs, fullgraph=True),
        nn.Sequential(block, nn.Tanh()),
        X,
    )
    assert len(graphs) == 2


def test_a_decorator_above_compile_keeps_its_effect_when_inlined(graphs):
    def doubled(fn):
        @functools.wraps(fn)
        def outer(*args):
            return 2 * fn(*args)

        return outer

    inner = doubled(tracer_core.compile(cosine, backend=graphs))
    assert_same_calls(
        tracer_core.compile(lambda x: inner(x, x), backend=graphs), lambda x: 2 * cosine(x, x), X
    )


def test_disable_runs_natively_between_two_graphs(graphs):
    seen = []

    @tracer_core.disable
    def native(x):
        seen.append(type(x))
        return x.add(1)

    def f(x):
        return native(x * 2) * 3

    fast = tracer_core.compile(f, backend=graphs)
    torch.testing.assert_close(fast(X), (X * 2 + 1) * 3)
    assert seen == [torch.Tensor]
    assert len(graphs) == 2
    with pytest.raises(tracer_core.errors.GraphBreakError, match="test_end_to_end.py"):
        tracer_core.compile(f, backend=graphs, fullgraph=True)(X)


def test_torchs_disable_is_honoured(graphs):
    native = torch.compiler.disable(lambda x: x.add(1))
    fast = tracer_core.compile(lambda x: native(x * 2) * 3, backend=graphs)
    assert_same_calls(fast, lambda x: (x * 2 + 1) * 3, X)
    assert len(graphs) == 2


def test_a_disabled_module_breaks_the_graph(graphs, block):
    native = tracer_core.disable(block)
    assert_same_calls(
        tracer_core.compile(lambda x: native(x * 2) * 3, backend=graphs),
        lambda x: block(x * 2) * 3,
        X,
    )
    assert len(graphs) == 2


def test_graph_break(graphs):
    def f(x):
        x = x * 2
        tracer_core.graph_break("on purpose")
        return x + 1

    assert_same_calls(tracer_core.compile(f, backend=graphs), lambda x: x * 2 + 1, X)
    assert len(graphs) == 2


def test_is_compiling(graphs):
    def f(x):
        ours = tracer_core.is_compiling()
        theirs = torch.compiler.is_compiling()
        return x + 1 if ours and theirs else x - 1

    torch.testing.assert_close(tracer_core.compile(f, backend=graphs)(X), X + 1)
    torch.testing.assert_close(f(X), X - 1)


def test_allow_in_graph_is_one_node(graphs):
    @tracer_core.allow_in_graph
    def opaque(x):
        return x.sin().cos()

    assert_same_calls(
        tracer_core.compile(lambda x: opaque(x) + 1, backend=graphs, fullgraph=True),
        lambda x: x.sin().cos() + 1,
        X,
    )
    targets = [
        node.target for node in graphs[0].graph.find_nodes(op="call_function", target=opaque)
    ]
    assert targets == [opaque]


def test_disallow_in_graph_breaks(graphs):
    def refused(x):
        return x.sin()

    tracer_core.disallow_in_graph(refused)
    assert_same_calls(
        tracer_core.compile(lambda x: refused(x * 2) + 1, backend=graphs),
        lambda x: (x * 2).sin() + 1,
        X,
    )
    assert len(graphs) == 2


def test_assume_constant_result(graphs):
    calls = []

    @tracer_core.assume_constant_result
    def setting():
        calls.append(1)
        return len(calls)

    fast = tracer_core.compile(lambda x: x + setting(), backend=graphs, fullgraph=True)
    torch.testing.assert_close(fast(X), X + 1)
    torch.testing.assert_close(fast(X), X + 1)
    assert len(graphs) == 1


def test_mark_dynamic_serves_every_size_with_one_graph(graphs):
    fast = tracer_core.compile(lambda x: x.sin() * x.shape[0], backend=graphs, fullgraph=True)
    for size in (4, 5, 9):
        x = torch.randn(size, 3)
        tracer_core.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), x.sin() * size)
    assert len(graphs) == 1


def test_mark_static_keeps_a_size_constant(graphs):
    fast = tracer_core.compile(lambda x: x.sin(), backend=graphs, fullgraph=True)
    for size in (4, 5, 9):
        x = torch.randn(size, 3)
        tracer_core.mark_static(x)
        torch.testing.assert_close(fast(x), x.sin())
    assert len(graphs) == 3


def test_reset_compiles_again(graphs):
    fast = tracer_core.compile(cosine, backend=graphs)
    assert_same_calls(fast, cosine, X, X)
    tracer_core.reset()
    assert_same_calls(fast, cosine, X, X)
    assert len(graphs) == 2


def test_last_compile_and_the_debug_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    fast = tracer_core.compile(cosine, backend="eager")
    fast(X, X)
    records = tracer_core.last_compile(fast)
    assert records and all(record.seconds >= 0 for record in records)
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files and all(name[:2].isdigit() for name in files)


class Listener:
    def __init__(self):
        self.events = []

    @hookimpl
    def tracer_graph_captured(self, name, backend):
        self.events.append(("graph", backend))

    @hookimpl
    def tracer_graph_break(self, location):
        self.events.append(("break", "test_end_to_end.py" in location))

    @hookimpl
    def tracer_recompile(self, count):
        self.events.append(("recompile", count))


def test_listeners_hear_of_graphs_breaks_and_recompiles():
    listener = Listener()
    unregister = tracer_core.register(listener)
    try:

        def f(x):
            x = x * 2
            tracer_core.graph_break()
            return x + 1

        fast = tracer_core.compile(f, backend="eager")
        fast(X)
        assert listener.events.count(("graph", "eager")) == 2
        assert ("break", True) in listener.events
        before = len(listener.events)
        fast(X)
        assert len(listener.events) == before, "a compiled call told listeners something"
        fast(X.double())
        assert any(event == "recompile" for event, _ in listener.events[before:])
    finally:
        unregister()


def test_pluggy_is_not_on_the_path_of_a_call(monkeypatch, block):
    fast = tracer_core.compile(block, backend="eager")
    expected = fast(X)

    called = []
    with monkeypatch.context() as patch:  # pytest itself needs pluggy again right after
        patch.setattr(pluggy.HookCaller, "__call__", lambda *args, **kwargs: called.append(args))
        patch.setattr(pluggy.HookCaller, "get_hookimpls", lambda *args: called.append(args) or [])
        result = fast(X)
    assert called == []
    torch.testing.assert_close(result, expected)


def test_explain(block):
    def f(x):
        x = block(x)
        tracer_core.graph_break()
        return x + 1

    for target in (f, tracer_core.compile(f, backend="eager")):
        report = tracer_core.explain(target)(X)
        assert (report.graph_count, report.graph_break_count) == (2, 1)
        assert report.op_count >= 3
        assert "test_end_to_end.py" in str(report)


def test_gradients_are_never_lost(block):
    fast = tracer_core.compile(block, backend="eager")
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        fast(x).sum().backward()
        ours = x.grad.clone(), block.linear.weight.grad.clone()
        x.grad = block.linear.weight.grad = None
        block(x).sum().backward()
    torch.testing.assert_close(ours, (x.grad, block.linear.weight.grad))

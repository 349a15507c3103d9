"""Our backends under torch.compile, through the entry points that the packages publish.

The one place where torch's own compiler is meant to run: it is the caller here.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import torch

import tracer_core
from tracer_core import bridges
from tracer_core.plugin_api import Backend
from tracer_core.registry import torch_style


def gated(x, y):
    return torch.relu(x + y) * torch.cos(y), x.sum()


@pytest.fixture(autouse=True)
def fresh_torch_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_the_entry_points_are_published():
    published = {entry.name: entry.value for entry in entry_points(group=torch_style.GROUP)}
    for name in ("tracer_eager", "tracer_inductor", "tracer_onnxrt"):
        assert published[name] == f"tracer_core.bridges:{name}"


def same(results, expected):
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other)


@pytest.mark.parametrize("dynamic", [False, True])
def test_by_name(dynamic):
    fast = torch.compile(gated, backend="tracer_eager", fullgraph=True, dynamic=dynamic)
    for size in (3, 5, 8):
        x, y = torch.randn(size, size), torch.randn(size, size)
        same(fast(x, y), gated(x, y))


def test_an_aten_backend_gets_lowered_graphs():
    seen = []

    def compile_and_look(graph, spec):
        seen.extend(
            str(node.target)
            for node in graph.graph.find_nodes(
                op="call_function", target=torch.ops.aten.relu.default
            )
        )
        forward = graph.forward
        return lambda inputs: forward(*inputs)

    ours = Backend(name="looks", compile=compile_and_look, ir="aten")
    fast = torch.compile(gated, backend=bridges.torch_backend_of(ours), fullgraph=True)
    with torch.no_grad():
        x, y = torch.randn(4), torch.randn(4)
        for _ in range(2):
            same(fast(x, y), gated(x, y))
    assert seen == ["aten.relu.default"]


def test_gradients_flow():
    fast = torch.compile(gated, backend="tracer_eager")
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    (fast(x, y)[0].sum() + fast(x, y)[1]).backward()
    ours = x.grad.clone(), y.grad.clone()
    x.grad = y.grad = None
    (gated(x, y)[0].sum() + gated(x, y)[1]).backward()
    same(ours, (x.grad, y.grad))


def test_settings_are_checked_like_ours():
    fast = torch.compile(gated, backend="tracer_eager", options={"speed": 11})
    with pytest.raises(Exception, match="backend 'eager' has no options"):
        fast(torch.ones(2), torch.ones(2))


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.tanh(x) * self.weight


@pytest.mark.parametrize("warm", [False, True])
def test_ours_inside_torch_compile(warm):
    """torch.compile traces the original function, not our machinery."""
    module = Scaled()
    function, compiled = (
        tracer_core.compile(gated, backend="eager"),
        tracer_core.compile(module, backend="eager"),
    )
    x, y = torch.randn(4), torch.randn(4)
    with torch.no_grad():
        if warm:
            function(x, y), compiled(x)
        outer = torch.compile(
            lambda x, y: function(compiled(x), y), backend="eager", fullgraph=True
        )
        for _ in range(2):
            same(outer(x, y), gated(module(x), y))


def test_torch_compile_inside_ours():
    function = torch.compile(gated, backend="eager")
    module = torch.compile(Scaled(), backend="eager")
    outer = tracer_core.compile(lambda x, y: function(module(x) + 1, y), backend="eager")
    x, y = torch.randn(4), torch.randn(4)
    with torch.no_grad():
        for _ in range(2):
            same(outer(x, y), gated(module(x) + 1, y))


def test_inductor_under_torch_compile():
    """``torch.compile(m, backend="tracer_inductor")``: inference, sizes that change, training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    fast = torch.compile(model, backend="tracer_inductor", fullgraph=True)
    with torch.no_grad():
        for batch in (4, 7, 9):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    x = torch.randn(5, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fast(x).square().sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    for item, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(item, parameter.grad, rtol=1e-4, atol=1e-5)


def test_the_graph_is_inductors(tmp_path, monkeypatch):
    """What runs is generated by us, not eager."""
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    fast = torch.compile(gated, backend="tracer_inductor", fullgraph=True)
    with torch.no_grad():
        x, y = torch.randn(64), torch.randn(64)
        same(fast(x, y), gated(x, y))
    assert [file for file in tmp_path.rglob("*.py") if "module" in file.name], list(
        tmp_path.rglob("*")
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_sizes_made_of_symbols_reach_upsampling(mode):
    def program(x):
        return torch.nn.functional.interpolate(x, size=(7, x.shape[3] * 2), mode=mode)

    fast = torch.compile(program, backend="tracer_inductor", dynamic=True)
    for size in (6, 9):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(fast(x), program(x), rtol=1e-4, atol=1e-5)

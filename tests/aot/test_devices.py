"""Graphs of several GPUs are compiled apart, one part a GPU at a time; on fakes, which need no
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inductor_backend.passes.op_support import supports
from tracer_core.aot.capability_partition import backend_runner
from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.aot.request import Lowered, Request, default_specs, output_specs
from tracer_core.plugin_api import Phase
from tracer_core.registry.eager import ATEN_EAGER

BACKEND = replace(ATEN_EAGER, devices=frozenset({"cpu", "cuda"}))


def there_and_back(x, w, v):
    y = torch.tanh(x @ w).to("cuda:1")
    return (torch.relu(y @ v) * 2).to("cuda:0") + x.sum()


def side_by_side(x, w, v):
    return torch.tanh(x @ w), torch.relu(v * 2) @ v


def two_results_of_one_operator(x, w, v):
    values, places = (x @ w).to("cuda:1").mul(2).max(1)
    return values + 1, places.to("cuda:0") + x.shape[0], torch.split(v * 2, 4)[1].sin()


def to_the_cpu(x, w, v):
    y = (x @ w).to("cuda:1")
    return torch.cos(y).cpu(), (y @ v).sum().cpu() + 1


def transposed(x, w, v):
    return torch.tanh(x @ w).to("cuda:1") @ v.t() + v.t().sum(0)


def built(program: Callable, backend):
    """The mode of the inputs, the inputs, which lie on two GPUs, and the lowered graph."""
    mode = FakeTensorMode()
    with mode:
        inputs = [
            torch.empty(4, 8, device="cuda:0"),
            *(torch.empty(8, 8, device=f"cuda:{k}") for k in (0, 1)),
        ]
        gm = make_fx(program)(*inputs)
    (output,) = gm.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    output.args = (tuple(results),)
    request = Request(backend, None, "default", "graph_0", Phase.INFERENCE)
    outputs = output_specs([node.meta["val"] for node in results], inputs)
    return (
        mode,
        inputs,
        Lowered(
            gm,
            request.spec(gm, default_specs(gm, inputs), (), outputs),
            OutputPlan.of_graph(len(results)),
            "aten",
        ),
    )


@pytest.mark.parametrize(
    "program", [there_and_back, side_by_side, two_results_of_one_operator, to_the_cpu, transposed]
)
@pytest.mark.parametrize("with_supports", [False, True])
def test_each_part_lies_on_one_gpu(program, with_supports):
    parts = []

    def compiled(gm, spec):
        parts.append(gm)
        return lambda inputs: gm.forward(*inputs)

    backend = replace(BACKEND, compile=compiled, supports=supports if with_supports else None)
    mode, arguments, lowered = built(program, backend)
    run, messages = backend_runner(backend, lowered)
    assert messages.reason.endswith("compiled apart for cuda:0 and cuda:1")
    with mode:
        result, expected = run(list(arguments)), program(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert [(item.shape, item.stride(), item.dtype, item.device) for item in result] == [
        (item.shape, item.stride(), item.dtype, item.device) for item in expected
    ]
    homes = []
    for gm in parts:
        values = [node.meta["val"] for node in gm.graph.nodes if node.op != "output"]
        flat = [
            item
            for value in values
            for item in (value if isinstance(value, (tuple, list)) else (value,))
        ]
        gpus = {leaf.device for leaf in flat if leaf.device.type != "cpu"}
        assert len(gpus) == 1, gm.code
        homes += gpus
    assert set(map(str, homes)) == {"cuda:0", "cuda:1"}
    operators = sum(node.op == "call_function" for gm in parts for node in gm.graph.nodes)
    assert operators >= 4


def test_what_runs_between_is_told():
    backend = replace(BACKEND, compile=lambda gm, spec: lambda inputs: gm.forward(*inputs))
    _, _, lowered = built(there_and_back, backend)
    _, messages = backend_runner(backend, lowered)
    reasons = [reason for _, reason in messages.operators]
    assert "2 of " in messages.reason and len(reasons) == 2
    assert "from cuda:0 to cuda:1" in reasons[0] and "from cuda:1 to cuda:0" in reasons[1]


def test_one_gpu_is_one_graph():
    graphs = []

    def compiled(gm, spec):
        graphs.append(gm)
        return lambda inputs: gm.forward(*inputs)

    backend = replace(BACKEND, compile=compiled)
    _, _, lowered = built(lambda x, w, v: torch.tanh(x @ w) * 2, backend)
    lowered.graph.graph.erase_node(lowered.graph.graph.find_nodes(op="placeholder")[2])
    _, messages = backend_runner(backend, lowered)
    assert messages is None and len(graphs) == 1

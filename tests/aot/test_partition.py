"""Splitting a graph by what a backend supports keeps the program, whatever is refused."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.aot.programs import PROGRAMS, randn, runs_as_eager
from tests.aot.test_lower import interpreter
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.options import CompileConfig
from tracer_core.plugin_api import Backend
from tracer_core.testing import torch_graph

aten = torch.ops.aten


def recording(supports, shapes="symbolic"):
    """A backend that refuses by `supports`, and the graphs it was given."""
    graphs: list[tuple[str, list[str]]] = []

    def compile_it(graph, spec):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append((spec.name, names))
        assert all(spec.alias_of_input is None for spec in spec.outputs)
        return interpreter(graph, spec)

    return Backend(name="recording", compile=compile_it, supports=supports, shapes=shapes), graphs


def compiled(fn, backend, *inputs, dynamic=False):
    with torch.no_grad():
        captured = torch_graph(fn, inputs, dynamic=dynamic)
        runner = compile_graph(captured, CompileConfig(backend))
    return runner, list(captured.real_inputs[len(inputs) :])


def refuse(*names):
    return lambda node: "no kernel for it" if str(node.target) in names else None


def test_one_graph_where_all_is_supported():
    backend, graphs = recording(refuse())
    runner, _ = compiled(lambda x: (x + 1).relu().sin(), backend, randn(3))
    assert graphs == [("graph_0", ["aten.add.Tensor", "aten.relu.default", "aten.sin.default"])]
    assert runner.fallback is None


def test_a_transposed_parameter_goes_to_the_part_that_reads_it():
    """As an input it could be a constant; as a view from outside it would be copied on every
    call.
    """
    weight = randn(4, 3)
    backend, graphs = recording(refuse("aten.relu.default"))
    fn = lambda x: x.sin().relu() @ weight.t() + weight[0, 0]
    runner, extra = compiled(fn, backend, randn(5, 3))
    assert {"aten.t.default", "aten.permute.default", "aten.transpose.int"} & set(graphs[-1][1])
    assert runner.fallback.reason.startswith("1 of")
    x = randn(5, 3)
    torch.testing.assert_close(runner([x, *extra])[0], fn(x))


def test_parts_before_and_after_what_is_refused():
    backend, graphs = recording(refuse("aten.relu.default"))
    runner, _ = compiled(lambda x: (x + 1).relu().sin() * x.cos(), backend, randn(3))
    assert [name for name, _ in graphs] == ["graph_0_part0", "graph_0_part1"]
    assert (
        "aten.cos.default" in graphs[0][1]
    )  # it needs nothing that was refused: no part of its own
    fallback = runner.fallback
    assert fallback is not None and fallback.kind == "unsupported"
    assert (
        fallback.reason == "1 of 5 operators run eagerly: aten.relu.default (1x: no kernel for it)"
    )
    x = randn(3)
    torch.testing.assert_close(runner([x])[0], (x + 1).relu().sin() * x.cos())


def test_it_says_so_once(caplog):
    backend, _ = recording(refuse("aten.tan.default"))
    for _ in range(2):
        compiled(lambda x: x.tan() + 1, backend, randn(4))
    assert sum("aten.tan.default" in record.message for record in caplog.records) == 1


def test_everything_refused_runs_eagerly():
    backend, graphs = recording(lambda node: "never")
    runner, _ = compiled(lambda x: x.sin() + 1, backend, randn(3))
    x = randn(3)
    torch.testing.assert_close(runner([x])[0], x.sin() + 1)
    assert graphs == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.sweep(keep=80)
def test_any_partition_is_the_program(program, seed):
    choice = random.Random(f"{seed} {program.name}")
    decided: dict[torch.fx.Node, bool] = {}
    backend, _ = recording(
        lambda node: (
            "refused by chance" if decided.setdefault(node, choice.random() < 0.5) else None
        )
    )
    runner, extra = compiled(program.fn, backend, *program.inputs())
    runs_as_eager(program, runner, extra)


def test_what_is_not_core_runs_eagerly_for_a_core_backend():
    graphs = []

    def compile_it(graph, spec):
        graphs.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return interpreter(graph, spec)

    backend = Backend(name="core", compile=compile_it, ir="core_aten")
    runner, _ = compiled(lambda x: F.silu(torch.linalg.qr(x)[0]), backend, randn(3, 3))
    assert "aten.linalg_qr.default (1x: not a core ATen operator" in runner.fallback.reason
    assert graphs == ["aten.sigmoid.default", "aten.mul.Tensor"]
    x = randn(3, 3)
    torch.testing.assert_close(runner([x])[0], F.silu(torch.linalg.qr(x)[0]))


def test_a_part_gets_the_sizes_that_its_inputs_do_not_show():
    backend, graphs = recording(refuse("aten.sin.default"))
    runner, _ = compiled(
        lambda x: (x.view(-1) + x.shape[0]).sin().cos(), backend, randn(4, 5), dynamic=True
    )
    for rows in (4, 7):
        x = randn(rows, 5)
        torch.testing.assert_close(runner([x])[0], (x.view(-1) + rows).sin().cos())
    assert len(graphs) == 2


class SlidingKeys(torch.nn.Module):
    """A cache that keeps the last entries: a view that begins further on in each call."""

    def __init__(self):
        super().__init__()
        self.keys = torch.zeros(2, 1, 4)

    def forward(self, x):
        full = torch.cat([self.keys, x], dim=1)
        self.keys = full[:, -6:]
        return (self.keys.relu().sin() * x[:, -1:]).cos()


def test_a_view_that_begins_anywhere_in_its_storage():
    backend, _ = recording(refuse("aten.relu.default"))
    keys, target = SlidingKeys(), SlidingKeys()
    fast = tracer_core.compile(target, backend=backend)
    reasons = set()
    with torch.no_grad():
        for n in (6, 1, 2, 3, 2, 4, 1, 1, 5):
            x = randn(2, n, 4)
            torch.testing.assert_close(fast(x), keys(x))
            torch.testing.assert_close(target.keys, keys.keys)
            assert target.keys.storage_offset() == keys.keys.storage_offset()
            rows = tracer_core.last_compile(fast)
            reasons |= {row.text for row in rows if row.name == "fallback"}
    assert reasons and all("aten.relu.default" in reason for reason in reasons)  # nothing more

"""Symbolic sizes: one lowering serves every size, and sizes are read from the inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.aot.programs import randn
from tests.aot.test_lower import ATEN, interpreter, lowered
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.options import CompileConfig
from tracer_core.plugin_api import Backend
from tracer_core.testing import compare, compare_aliasing, torch_graph

W = randn(6, 4)

PROGRAMS = {
    "pointwise": lambda x: (x + 1).relu(),
    "reduction": lambda x: x.softmax(0).sum(1),
    "matmul": lambda x: x @ W,
    "matmul of a stack": lambda x: torch.stack([x, x]) @ W,
    "method of a stack": lambda x: torch.stack([x, x]).matmul(W[:, 0]),
    "linear of a stack": lambda x: F.linear(torch.stack([x, x]), W.t(), W[0]),
    "linalg.matmul of a stack": lambda x: torch.linalg.matmul(torch.stack([x, x]), W),
    "views of the input": lambda x: (x.t(), x[1:], x.view(-1)),
    "parts of a result": lambda x: (x + 1).chunk(2, 1),
    "arithmetic on sizes": lambda x: (x + 1).view(x.shape[0] * 2, 3),
    "a size as result": lambda x: (x + 1, x.shape[0], x.shape[0] * 2 + 1),
    "a size as value": lambda x: x.mean() + x.shape[0] / 2,
    "arange": lambda x: x + torch.arange(x.shape[0]).unsqueeze(1),
    "write to a part": lambda x: (x[1:].add_(1), x.sum())[1],
    "concatenation": lambda x: torch.cat([x, x[:1]], 0).flip(0),
    "padding by a size": lambda x: F.pad(x, (0, 1, x.shape[0], 0), value=2.0),
    "padding to a multiple": lambda x: F.pad(x.t() + 1, (0, 8 - x.shape[0] % 8)),
    "negative padding": lambda x: F.pad(x + 1, (0, 0, -(x.shape[0] // 2), 1)),
    "circular padding": lambda x: F.pad(x.t()[None], (x.shape[0] // 2, 1), mode="circular"),
    "padded images": lambda x: F.pad(
        x.expand(2, 3, -1, -1).contiguous(memory_format=torch.channels_last), (x.shape[0], 0)
    ),
    "quarter turn": lambda x: (x + 1).rot90(),
}


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_lowering_serves_many_sizes(name):
    fn = PROGRAMS[name]
    captured, low = lowered(fn, randn(3, 6), dynamic=True)
    sizes = [(size.input_index, size.dim, size.hint) for size in low.spec.sizes]
    assert sizes in ([(0, 0, 3), (0, 1, 6)], [(0, 0, 3)])  # a matmul fixes the second one
    runner = low.plan.bind(interpreter(low.graph, low.spec))
    for rows in (3, 5, 9):
        ours, eager = randn(rows, 6), randn(rows, 6)
        expected = fn(eager)
        expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
        actual = tuple(runner([ours, *captured.real_inputs[1:]]))
        compare(expected, actual)
        compare(eager, ours, path="input")
        compare_aliasing([eager, expected], [ours, actual])


def test_convolution_over_batches():
    fn = lambda x, w: F.conv2d(x, w, padding=1).relu()
    low = lowered(fn, randn(2, 3, 8, 8), randn(4, 3, 3, 3), dynamic=True)[1]
    runner = low.plan.bind(interpreter(low.graph, low.spec))
    w = randn(4, 3, 3, 3)
    for batch in (2, 5):
        x = randn(batch, 3, 8, 8)
        compare((fn(x, w),), tuple(runner([x, w])))


def counting(shapes: str) -> tuple[Backend, list[str]]:
    compiled: list[str] = []

    def compile_it(graph, spec):
        compiled.append(spec.name)
        assert (spec.sizes == ()) is (shapes == "static")
        return interpreter(graph, spec)

    return Backend(name="counting", compile=compile_it, shapes=shapes), compiled


@pytest.mark.parametrize(("shapes", "compiles"), [("symbolic", 1), ("static", 3)])
def test_a_static_backend_compiles_for_each_size(shapes, compiles):
    backend, compiled = counting(shapes)
    fn = lambda x: (x.relu(), x.t())
    with torch.no_grad():
        runner = compile_graph(torch_graph(fn, [randn(3, 6)], dynamic=True), CompileConfig(backend))
        for rows in (3, 5, 9, 3, 5):
            x = randn(rows, 6)
            compare(fn(x), tuple(runner([x])))
    assert len(compiled) == compiles


def test_the_first_result_is_checked_with_the_sizes_of_the_call():
    backend = Backend(name="symbolic", compile=interpreter, shapes="symbolic")
    with torch.no_grad():
        runner = compile_graph(
            torch_graph(lambda x: x + 1, [randn(3, 6)], dynamic=True), CompileConfig(backend)
        )
        assert tuple(runner([randn(7, 6)])[0].shape) == (7, 6)


def test_symbols_are_in_the_cache_key():
    static = lowered(lambda x: x + 1, randn(3, 6))[1].spec.cache_key
    dynamic = lowered(lambda x: x + 1, randn(3, 6), dynamic=True)[1].spec.cache_key
    assert static != dynamic
    assert ATEN.shapes == "symbolic"

"""The question whether an engine can run an operator: which nodes are asked about, and what is
found.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tracer_core.plugin_api import lower, op_support_check
from tracer_core.testing import torch_graph


class Engine:
    """Runs what PyTorch runs; wrong is where a (function of the operands' sizes) is true."""

    def __init__(self, wrong=lambda *shapes: False):
        self.asked, self.probe = [], op_support_check(self.build, "the engine")
        self.wrong = wrong

    def build(self, graph):
        shapes = [tuple(node.meta["val"].shape) for node in graph.find_nodes(op="placeholder")]
        self.asked.append(shapes)
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        return lambda data: [value + self.wrong(*shapes) for value in module(*data)]

    def answers(self, fn, *shapes):
        """For the last operator of a function."""
        captured = torch_graph(fn, [torch.randn(shape) for shape in shapes])
        lowered = lower(
            captured.gm, captured.real_inputs, "aten_eager", input_specs=captured.inputs
        )
        *_, last = (node for node in lowered.graph.graph.nodes if node.op == "call_function")
        return self.probe(last)


def pool(x):
    return F.avg_pool2d(x, 2, 2, 0, True)


#: function, then shapes of operands: those that look alike to every engine are in one group.
ALIKE = {
    "windows": (pool, [[(4, 3, 5, 5)], [(12, 3, 5, 5)]], [[(4, 3, 5, 6)]], [[(4, 3, 7, 7)]]),
    "broadcast": (torch.add, [[(4, 6), (4, 6)], [(3, 7), (3, 7)]], [[(4, 6), (1, 6)], [(7, 3), (1,
    3)]], [[(4, 4), (4, 4)]]),
    "products": (
        torch.mm, [[(16, 64), (64, 48)], [(16, 96), (96, 80)]], [[(16, 63), (63, 48)]], [[(16,
        1024), (1024, 48)]],
        [[(16, 64), (64, 64)]],
    ),
    "lists": (lambda *parts: torch.cat(parts), [[(2, 3)] * 5, [(4, 7)] * 9], [[(2, 3)] * 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_nodes_that_look_alike_are_asked_about_once(name):
    fn, *groups = ALIKE[name]
    engine = Engine()
    for group in groups * 2:
        for shapes in group:
            assert engine.answers(fn, *shapes) is None
    assert len(engine.asked) == len(groups)


def test_an_engine_that_is_wrong_for_some_sizes_is_found():
    engine = Engine(wrong=lambda *shapes: shapes[0][-1] % 2 == 1)
    for size, right in ((6, True), (5, False), (8, True), (7, False)):
        answer = engine.answers(pool, (2, 3, 4, size))
        assert (answer is None) is right
        assert right or answer == "its form in the engine computes other values than PyTorch"
    assert engine.answers(torch.mm, (4, 6), (6, 8)) is None
    assert engine.answers(torch.mm, (4, 7), (7, 8)) is not None
    engine.probe.reset()
    engine.wrong = lambda *shapes: False
    assert engine.answers(pool, (2, 3, 4, 5)) is None

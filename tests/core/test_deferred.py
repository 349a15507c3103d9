"""A graph module that writes its code late is a graph module like any other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tracer_core.torch_private.lazy_graph_module import Deferred


def traced():
    return torch.fx.symbolic_trace(lambda x: torch.sin(x) + 1)


@pytest.fixture
def module():
    return Deferred({}, traced().graph, class_name="Late")


def is_written(module):
    return "forward" in vars(type(module))


def test_nobody_asks(module):
    assert not is_written(module) and isinstance(module, torch.fx.GraphModule)
    assert len(module.graph.nodes) == 4 and "sin" in module.print_readable(print_output=False)
    assert not is_written(module)


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m(x),
        lambda m, x: m.forward(x),
        lambda m, x: copy.deepcopy(m)(x),
        lambda m, x: copy.copy(m)(x),
        lambda m, x: pickle.loads(pickle.dumps(m))(x),
        lambda m, x: torch.fx.GraphModule(m, m.graph)(x),
        lambda m, x: torch.fx.Interpreter(m).run(x),
    ],
)
def test_whoever_asks_gets_the_graph(module, use):
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(use(module, x), x.sin() + 1)


def test_the_function_is_plain_once_it_is_written(module):
    first = module.forward
    assert first.__func__ is module.forward.__func__ is vars(type(module))["forward"]


def test_text(module):
    assert module.code == traced().code.replace("GraphModule", "Late")
    assert "torch.sin" in str(module)


def test_changes_need_a_recompile(module):
    x = torch.randn(3)
    module(x)
    (node,) = (node for node in module.graph.nodes if node.target is torch.sin)
    node.target = torch.cos
    torch.testing.assert_close(module(x), x.sin() + 1)
    module.recompile()
    torch.testing.assert_close(module(x), x.cos() + 1)


def test_two_modules_do_not_share_their_code(module):
    other = Deferred({}, torch.fx.symbolic_trace(lambda x: x * 2).graph)
    x = torch.randn(3)
    torch.testing.assert_close((other(x), module(x)), (x * 2, x.sin() + 1))

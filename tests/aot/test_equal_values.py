"""What a program computes several times is computed once; results, gradients and effects stay
eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tracer_core
from tests.aot.test_lower import interpreter
from tests.support.comparison import assert_same
from tracer_core.plugin_api import Backend


@pytest.fixture
def graphs():
    """A backend that runs graphs operator by operator, and the operators of each."""
    names = {}

    def compile_it(graph, spec):
        calls = [node for node in graph.graph.nodes if node.op == "call_function"]
        names[spec.name] = [str(node.target) for node in calls]
        return interpreter(graph, spec)

    return Backend(name="counting", compile=compile_it), names


class Attention(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x, memory):
        scores = self.q(x) @ self.k(memory).transpose(-1, -2)
        return scores.softmax(-1) @ self.v(memory)


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x, memory):
        memory = memory * 2
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (8,)), memory)
        return x


def step(net, x, memory):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x, memory)


def test_autocast_casts_an_activation_once(graphs):
    backend, names = graphs
    net = Decoder()
    fast = tracer_core.compile(step, backend=backend)
    with torch.no_grad():
        x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
        assert_same(fast(net, x, memory), step(net, x, memory))
    (operators,) = names.values()
    weights, activations = 2 * 9, 3 + 1  # a weight and a bias of nine layers; three x, one memory
    casts = operators.count("aten._to_copy.default")
    assert casts <= weights + activations + 3  # and the softmax of each layer


def test_gradients_of_a_value_that_several_layers_cast(graphs):
    net = Decoder()
    for backend in (graphs[0], "inductor"):
        fast = tracer_core.compile(step, backend=backend)
        for _ in range(2):
            x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8, requires_grad=True)
            inputs = [memory, *net.parameters()]
            mine = torch.autograd.grad(fast(net, x, memory).square().sum(), inputs)
            theirs = torch.autograd.grad(step(net, x, memory).square().sum(), inputs)
            for item, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(item, other, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("grad", [False, True])
def test_two_results_of_one_value_are_two_tensors(grad, graphs):
    def program(x):
        first, second = x.exp(), x.exp()
        return first, second, first.view(-1), x.exp() + 1

    fast = tracer_core.compile(program, backend=graphs[0])
    x = torch.randn(3, 2, requires_grad=grad)
    mine, theirs = fast(x), program(x)
    assert_same(mine, theirs)
    with torch.no_grad():
        for results in (mine, theirs):
            results[0].zero_()
    assert_same(mine, theirs)


def test_a_value_that_changes_between_two_reads(graphs):
    def program(x, y):
        before = x + 1
        x.mul_(y)
        after = x + 1
        return before * after, (x + 1).sum()

    fast = tracer_core.compile(program, backend=graphs[0])
    for _ in range(2):
        mine, y = torch.randn(4), torch.randn(4)
        theirs = mine.clone()
        assert_same(fast(mine, y), program(theirs, y))
        assert_same(mine, theirs)


def test_constants_that_compare_equal_stay_apart(graphs):
    def program(x):
        zeros = (x * 0.0, x * -0.0, x * 0, x * False)
        powers = (x**1, x**1.0, x + 1, x + True, x + 1.0)
        return [torch.signbit(item) for item in zeros], [item * 2 for item in (*zeros, *powers)]

    for x in (torch.tensor([1.0, -1.0]), torch.tensor([1, -1])):
        fast = tracer_core.compile(program, backend=graphs[0])
        assert_same(fast(x), program(x))


def test_random_numbers_differ_each_time(graphs):
    def program(x):
        return F.dropout(x, 0.5) + F.dropout(x, 0.5), torch.rand_like(x) - torch.rand_like(x)

    fast = tracer_core.compile(program, backend=graphs[0])
    x = torch.randn(100)
    torch.manual_seed(3)
    mine = fast(x)
    torch.manual_seed(3)
    assert_same(mine, program(x))


def test_a_checkpoint_in_a_step_computes_again(graphs):
    """Its backward's values are those of the forward, and holding these is what it avoids."""
    backend, names = graphs
    weight = torch.randn(4, 4, requires_grad=True)

    def block(x):
        return (x @ weight).sin().exp()

    def program(x):
        loss = checkpoint(block, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, weight)

    fast = tracer_core.compile(program, backend=backend)
    x = torch.randn(2, 4)
    assert_same(fast(x), program(x))
    assert sum(item.count("aten.sin.default") for item in names.values()) == 2


def test_what_some_outputs_alone_need(graphs):
    """A backward for some of the outputs is made later, of the same forward."""

    def program(x):
        half = x.to(torch.bfloat16)
        return (half * half).float(), x.to(torch.bfloat16).exp().float().sum()

    fast = tracer_core.compile(program, backend=graphs[0])
    for which in (0, 1, 0):
        x = torch.randn(5, requires_grad=True)
        (mine,) = torch.autograd.grad(fast(x)[which].sum(), x)
        (theirs,) = torch.autograd.grad(program(x)[which].sum(), x)
        assert_same(mine, theirs)

"""Graphs that begin with grad mode off and switch it on: what is computed after the switch has
gradients, as in eager.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.dispatch.compile_graph import compile_torch_graph

pytestmark = pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])


def seeded_input(seed, *sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


class Frozen(nn.Module):
    """Features under no_grad, then a head that is trained."""

    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Linear(4, 4), nn.Linear(4, 3)


class BreakInNoGrad(Frozen):
    def forward(self, x):
        with torch.no_grad():
            x = self.features(x)
            tracer_core.graph_break()
            x = self.features(x).tanh()
        return self.head(x)


class BreakUnderAnotherContext(Frozen):
    """As pe_audio of transformers."""

    def forward(self, x):
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
            x = self.features(x).tanh()
        return self.head(x)


class SwitchedByHand(Frozen):
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        x = self.features(x)
        tracer_core.graph_break()
        x = self.features(x).tanh()
        torch.set_grad_enabled(mode=before)
        return self.head(x)


class EnabledInside(Frozen):
    """Under the caller's no_grad the head alone has gradients."""

    def forward(self, x):
        x = self.features(x).tanh()
        with torch.enable_grad():
            y = self.head(x)
        return y, self.head(x)


class OwnGradient(Frozen):
    """Guidance: a sampler runs under no_grad, and differentiates a score inside."""

    def forward(self, x):
        x = self.features(x).tanh()
        with torch.enable_grad():
            score = self.head(x + self.features.bias).square().sum()
            (slope,) = torch.autograd.grad(score, [self.features.bias])
        return x.detach() - 0.1 * slope


class WrittenFirst(Frozen):
    """A parameter is changed under no_grad, and then used."""

    def forward(self, x):
        with torch.no_grad():
            tracer_core.graph_break()
            self.head.weight.mul_(0.9)
        return self.head(self.features(x))


def outcome(model, call, x, grad):
    """Results, what each requires, and every gradient."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(grad):
        results = call(x)
        after = torch.is_grad_enabled()
    results = results if isinstance(results, tuple) else (results,)
    wanted = [result for result in results if result.requires_grad]
    if wanted:
        sum(item.square().sum() for item in wanted).backward()
    gradients = {name: item.grad for name, item in (*model.named_parameters(), ("x", x))}
    state = [parameter.detach().clone() for parameter in model.parameters()]
    return (
        [result.detach() for result in results],
        [result.requires_grad for result in results],
        gradients,
        state,
        after,
    )


def compared(model, backend, grad):
    eager, mine = model, copy.deepcopy(model)
    compiled = tracer_core.compile(mine, backend=backend)
    for seed in range(3):
        x = seeded_input(seed, 5, 4)
        want = outcome(eager, eager, x.clone().requires_grad_(), grad)
        got = outcome(mine, compiled, x.clone().requires_grad_(), grad)
        torch.testing.assert_close(got, want)


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        BreakInNoGrad,
        BreakUnderAnotherContext,
        SwitchedByHand,
        EnabledInside,
        OwnGradient,
        WrittenFirst,
    ],
)
def test_gradients_after_the_switch(kind, backend, grad):
    torch.manual_seed(0)
    compared(kind(), backend, grad)


def test_a_gradient_of_a_gradient(backend):
    """The graph runs again for it, and begins without gradients again."""
    torch.manual_seed(0)
    grad = BreakInNoGrad()
    mine = copy.deepcopy(grad)
    actual = []
    for model, call in ((grad, grad), (mine, tracer_core.compile(mine, backend=backend))):
        x = seeded_input(0, 5, 4)
        loss = call(x).square().sum()
        (first,) = torch.autograd.grad(loss, [model.head.weight], create_graph=True)
        first.square().sum().backward()
        actual.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(actual[1], actual[0])


def test_a_graph_of_another_tracer(backend):
    """torch.compile hands over graphs that switch the grad mode, also under no_grad."""
    weight = seeded_input(1, 4, 4).requires_grad_()
    graph = torch.fx.Graph()
    inputs, matrix = graph.placeholder("x"), graph.placeholder("weight")
    hidden = graph.call_function(torch.matmul, (inputs, matrix))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_function(torch.matmul, (hidden, matrix)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    x = seeded_input(2, 5, 4)
    with torch.no_grad():
        run = compile_torch_graph(gm, [x, weight], backend)
        (result,) = run([x, weight])
        assert torch.is_grad_enabled()  # as the graph leaves it
    (slope,) = torch.autograd.grad(result.sum(), [weight])
    hidden = (x @ weight).detach()
    (want,) = torch.autograd.grad((hidden @ weight).sum(), [weight])
    torch.testing.assert_close(slope, want)

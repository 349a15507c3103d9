"""torch.utils.checkpoint: one node, computed again in the backward pass."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, noop_context_fn

import tracer_core
from tests.support.autograd_functions import Scale
from tests.support.eager_reference import same
from tests.support.gradients import OperatorCount, same_gradients
from tests.support.releases import RELEASE

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)


# -- checkpoint --


class Blocks(nn.Module):
    def __init__(self, use_reentrant=False, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(drop)) for _ in range(3)]
        )
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = x * 2
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


def closure(x):
    y = x * 3
    return checkpoint(lambda t: torch.sin(t) * y, x, use_reentrant=False) + y


def structure(x):
    a, b = checkpoint(lambda t, k: (t.sin(), {"b": t * k}), x, 3, use_reentrant=False)
    return a * b["b"]


CHECKPOINTS = {
    "lambda": (lambda x: checkpoint(lambda t: torch.sin(t) * 2, x, use_reentrant=False), (G,),
    (H,)),
    "reentrant": (lambda x: checkpoint(lambda t: torch.sin(t) * 2, x * 1, use_reentrant=True),
    (G,), (H,)),
    "closure over an intermediate": (closure, (G,), (H,)),
    "structured": (structure, (G,), (H,)),
    "identity": (lambda x: checkpoint(lambda t: t, x * 2, use_reentrant=False), (G,), (H,)),
    "keywords": (lambda x: checkpoint(lambda t, k: t.exp() * k, x, use_reentrant=False, k=2), (G,),
    (H,)),
    "nested": (lambda x: checkpoint(lambda t: checkpoint(torch.sin, t.cos(),
    use_reentrant=False) * t, x,
                                    use_reentrant=False), (G,), (H,)),
    "with a Function inside": (lambda x: checkpoint(lambda t: Scale.apply(t.sin(), 2.0), x,
    use_reentrant=False), (G,), (H,)),
    "partial": (lambda x, ck=functools.partial(checkpoint, use_reentrant=False): ck(torch.sin, x),
    (G,), (H,)),
    "preserve_rng_state": (lambda x: checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False,
                                                preserve_rng_state=True), (G,), (H,)),
    "the function as a keyword": (lambda x: checkpoint(function=torch.sin, input=x * 2,
    use_reentrant=False), (G,), (H,)),
    "no contexts": (lambda x: checkpoint(torch.sin, x, use_reentrant=False,
    context_fn=noop_context_fn), (G,), (H,)),
    "no gradients": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), (X,), (Y,)),
    "autocast inside": (lambda x: checkpoint(lambda t: _cast(t), x, use_reentrant=False), (G,),
    (H,)),
}  # fmt: skip


def _cast(t):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return t @ t.T


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(name):
    function, *calls = CHECKPOINTS[name]
    same_gradients(lambda: function, *calls, graphs=1)


def test_checkpoint_without_a_function():
    """Gives a decorator since torch 2.14, and an error before."""

    def f(x):
        try:
            return checkpoint(use_reentrant=False)(torch.sin)(x)
        except TypeError as error:
            return x, str(error)

    same(f, (X,), breaks=0 if RELEASE >= (2, 14) else 1)


@pytest.mark.skipif(RELEASE < (2, 14), reason="checkpoint is no decorator before torch 2.14")
def test_checkpoint_as_a_decorator():
    @checkpoint(use_reentrant=False)
    def outside(t, scale=1):
        return torch.tanh(t * scale) * Y

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 4)

        @checkpoint(use_reentrant=True, preserve_rng_state=False)
        def hidden(self, x):
            return self.fc(x).sin()

        def forward(self, x):
            inside = checkpoint(use_reentrant=False, respect_saved_tensors_hooks=True)(torch.cos)
            return self.hidden(x) + outside(x, scale=2) + inside(x)

    same_gradients(Layer, (G,), (H,), graphs=1)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_checkpointed_blocks(use_reentrant, drop):
    counter = same_gradients(lambda: Blocks(use_reentrant, drop), (G,), (H,), (G,), graphs=1)
    assert not counter.recompiles


def test_checkpoint_sequential():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])

    def f(x, m=make()):
        return checkpoint_sequential(m, 2, x, use_reentrant=False)

    same_gradients(lambda: f, (G,), (H,), graphs=1)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_recomputes_in_backward(use_reentrant):
    """Each sine runs once forward and once more in backward: memory is traded for time, as
    asked.
    """

    def f(x):
        for _ in range(3):
            x = checkpoint(lambda t: torch.sin(torch.sin(t)), x, use_reentrant=use_reentrant)
        return x.sum()

    counts = []
    for fn in (f, tracer_core.compile(f, backend="eager")):
        fn(G * 1)
        with OperatorCount() as forward:
            pass
        out = fn(G * 1)
        with OperatorCount() as backward:
            out.backward()
        counts.append((forward.counts, backward.counts["sin"]))
        G.grad = None
    assert (
        counts[0] == counts[1] and counts[1][1] == 6
        if use_reentrant
        else counts[0][1] == counts[1][1] > 0
    )


def test_a_checkpointed_function_with_side_effects_breaks():
    seen = []

    def f(x):
        def inner(t):
            seen.append(1)
            return t.sin()

        return checkpoint(inner, x * 2, use_reentrant=False) + 1

    compiled = tracer_core.compile(f, backend="eager")
    for fn in (f, compiled, compiled):
        seen.clear()
        fn(G).sum().backward()
        assert len(seen) == 2

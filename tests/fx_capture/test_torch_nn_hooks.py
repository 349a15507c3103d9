"""Hooks and parametrizations of modules: eager's results and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import (
    parametrizations,
    parametrize,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)

from tests.support.eager_reference import compare_with_eager
from tests.support.gradients import same_gradients
from tests.support.seeded_modules import seeded

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
# -- hooks --

HOOKS = {
    "forward": lambda m: m[0].register_forward_hook(lambda m, args, out: out * 2),
    "forward, with keywords": lambda m: m[0].register_forward_hook(lambda m, a, k, o: o * 2,
    with_kwargs=True, always_call=True),
    "forward, prepended": lambda m: (m[0].register_forward_hook(lambda m, a, o: o * 2),
                                     m[0].register_forward_hook(lambda m, a, o: o + 1,
                                     prepend=True)),
    "pre, with keywords": lambda m: m[0].register_forward_pre_hook(lambda m, a, k: ((a[0] * 2,),
    k), with_kwargs=True),
    "pre": lambda m: m[2].register_forward_pre_hook(lambda m, a: a[0] + 1),
    "on the root": lambda m: m.register_forward_hook(lambda m, a, o: o * 2),
    "state": lambda m: m[0].register_forward_hook(lambda m, a, o: setattr(m, "last", o.shape)),
}  # fmt: skip
BACKWARD_HOOKS = {
    "full backward": lambda m: m[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)),
    "full backward pre": lambda m: m[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "both": lambda m: (m[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,)),
                       m[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))),
}  # fmt: skip


def three():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def hooked(hook):
    def make():
        result = seeded(three)()
        hook(result)
        return result

    return make


@pytest.mark.parametrize("name", HOOKS)
def test_hook(name):
    same_gradients(hooked(HOOKS[name]), (G,), (H,), graphs=1)


@pytest.mark.parametrize("name", BACKWARD_HOOKS)
def test_backward_hook(name):
    """The module is called eagerly, and its hooks run in backward; the rest is captured."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = hooked(BACKWARD_HOOKS[name])()

        def forward(self, x):
            x = self.inner[0](x * 2)
            x = self.inner[1](x)
            return self.inner[2](x) * 3

    counter = same_gradients(Around, (G,), (H,), graphs=2, breaks=1)
    assert counter.breaks[0][0] == "autograd_in_graph"


def test_hook_added_and_removed():
    handles = []

    def make():
        m = seeded(three)()
        return m, m

    compare_with_eager(
        make, (X,), lambda m: handles.append(m[0].register_forward_hook(lambda m, a, o: o * 2)),
        (X,), (Y,),
        lambda m: handles.pop(0).remove(), (X,), graphs=2, breaks=0,
    )  # fmt: skip


def test_global_hook():
    def make():
        return seeded(three)(), None

    handles = []

    def add(_):
        if not handles:
            handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 2))

    def remove(_):
        while handles:
            handles.pop().remove()

    try:
        compare_with_eager(make, (X,), add, (X,), remove, (Y,), breaks=0)
    finally:
        remove(None)


# -- parametrizations --


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


def symmetric():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer)


PARAMETRIZED = {
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))),
    "weight_norm, old": lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))),
    "spectral_norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4))),
    "spectral_norm, old": lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4))),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))),
    "own": symmetric,
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrization(name):
    same_gradients(seeded(PARAMETRIZED[name]), (G,), (H,), graphs=1)


@pytest.mark.parametrize(("name", "remove"), [
    ("weight_norm", lambda m: parametrize.remove_parametrizations(m[0], "weight")),
    ("weight_norm, old", lambda m: remove_weight_norm(m[0])),
    ("own", lambda m: parametrize.remove_parametrizations(m[0], "weight",
    leave_parametrized=False)),
])  # fmt: skip
def test_parametrization_removed(name, remove):
    def made():
        m = seeded(PARAMETRIZED[name])()
        return m, m

    compare_with_eager(made, (X,), remove, (X,), (Y,), graphs=2, breaks=0, recompiles=1)

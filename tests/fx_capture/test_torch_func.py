"""torch.func's transforms: vmap, grad, jvp, functional_call and their combinations."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap

import tracer_core
from tests.support.eager_reference import same
from tests.support.gradients import same_gradients
from tracer_core.fx_capture import fake_cache

X, Y = torch.randn(3, 4), torch.randn(3, 4)
SCALE = 2.0


# -- torch.func --


def net(p, x):
    return torch.tanh(x @ p["w"]) + p["b"]


P = {"w": torch.randn(4, 4), "b": torch.randn(4)}
LINEAR = nn.Linear(4, 4)


def per_sample(p, x):
    def loss(p, t):
        return net(p, t).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(p, x)


def module_per_sample(x):
    params = dict(LINEAR.named_parameters())

    def loss(p, t):
        return functional_call(LINEAR, p, (t,)).sum().sin()

    return vmap(grad(loss), in_dims=(None, 0))(params, x)


def closed_over(x, y):
    z = y * 2
    return vmap(lambda t: t * z.sum() + y[0])(x)


def nested_vmap(x):
    return vmap(vmap(lambda t: t.sin() * 2))(x), vmap(
        lambda row: vmap(lambda t: t + row.sum())(row)
    )(x)


def ensembled(x):
    models = torch.stack([P["w"], P["w"] * 2])
    return vmap(lambda w: x @ w)(models)


def inner_loop(x):
    w = P["w"]
    for _ in range(3):
        w = w - 0.1 * grad(lambda w: (x @ w).pow(2).mean())(w)
    return x @ w


def has_aux(x):
    return grad(lambda t: (t.pow(2).sum(), {"sum": t.sum(), "twice": t * 2}), has_aux=True)(x)


TRANSFORMS = {
    "vmap of an operator": (lambda x: vmap(torch.sin)(x), (X,), (Y,)),
    "vmap of a lambda": (lambda x: vmap(lambda t: t.sum() * t)(x), (X,), (Y,)),
    "vmap in_dims": (lambda x, y: vmap(lambda a, b: a @ b, in_dims=(0, None))(x, y.T), (X, Y), (Y,
    X)),
    "vmap out_dims": (lambda x: vmap(lambda t: t * 2, in_dims=1, out_dims=1)(x), (X,), (Y,)),
    "vmap of several results": (lambda x: vmap(lambda t: (t.sum(), t.max()))(x), (X,), (Y,)),
    "vmap over a dictionary": (lambda x: vmap(lambda d: d["a"] * d["b"].sum())({"a": x, "b": x}),
    (X,), (Y,)),
    "vmap nested": (nested_vmap, (X,), (Y,)),
    "vmap closed over tensors": (closed_over, (X, Y), (Y, X)),
    "vmap over weights": (ensembled, (X,), (Y,)),
    "grad": (lambda x: grad(lambda t: (t**2).sum())(x), (X,), (Y,)),
    "grad argnums": (lambda x, y: grad(lambda a, b: (a * b.exp()).sum(), argnums=(0, 1))(x, y), (X,
    Y), (Y, X)),
    "grad has_aux": (has_aux, (X,), (Y,)),
    "grad of grad": (lambda x: grad(lambda t: grad(lambda u: (u**3).sum())(t).sum())(x), (X,),
    (Y,)),
    "grad_and_value": (lambda x: grad_and_value(lambda t: t.sin().sum())(x), (X,), (Y,)),
    "gradient descent": (inner_loop, (X,), (Y,)),
    "per-sample gradients": (per_sample, (P, X), (P, Y)),
    "per-sample gradients of a module": (module_per_sample, (X,), (Y,)),
    "jvp": (lambda x, y: jvp(torch.sin, (x,), (y,)), (X, Y), (Y, X)),
    "jacrev": (lambda x: jacrev(torch.sin)(x[0]), (X,), (Y,)),
    "jacfwd": (lambda x: jacfwd(lambda t: t.sin() * t.sum())(x[0]), (X,), (Y,)),
    "hessian": (lambda x: hessian(lambda t: (t**3).sum())(x[0]), (X,), (Y,)),
    "functional_call": (lambda x: functional_call(LINEAR, {"weight": torch.ones(4, 4)}, (x,)),
    (X,), (Y,)),
    "functional_call with new parameters": (
        lambda x: functional_call(LINEAR, {k: v * 2 for k, v in LINEAR.named_parameters()}, x),
        (X,), (Y,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    function, *calls = TRANSFORMS[name]
    same(function, *calls, graphs=1)


@pytest.mark.parametrize("name", ["vmap of a lambda", "vmap closed over tensors", "grad",
"gradient descent", "jvp", "hessian",
                                  "vmap in_dims", "functional_call",
                                  "per-sample gradients of a module"])  # fmt: skip
def test_transform_with_inductor(name):
    function, *calls = TRANSFORMS[name]
    with torch.no_grad():
        same(function, *calls, graphs=1, backend="inductor")


@pytest.mark.parametrize("name", ["vmap of a lambda", "vmap closed over tensors", "vmap nested",
"grad", "gradient descent",
                                  "vmap in_dims", "per-sample gradients of a module",
                                  "jacrev"])  # fmt: skip
def test_gradient_of_a_transform(name):
    function, *calls = TRANSFORMS[name]
    leaves = [tuple(a.clone().requires_grad_() for a in call) for call in calls]
    same_gradients(lambda: function, *leaves, graphs=1)


def test_a_closure_that_changes():
    def f(x, k):
        return vmap(lambda t: t * k)(x)

    same(f, (X, 2), (Y, 2), (X, 3), (X, 2), graphs=2, recompiles=1)


def test_transform_made_outside():
    mapped = vmap(lambda t: t.sin() * 2)
    sloped = grad(lambda t: t.sin().sum())
    same(lambda x: mapped(x) + sloped(x), (X,), (Y,), graphs=1)


def test_transform_returned():
    compiled = tracer_core.compile(lambda x: (jacrev(torch.sin), x * 2)[0], backend="eager")
    torch.testing.assert_close(compiled(X)(X[0]), jacrev(torch.sin)(X[0]))


def test_compiled_under_a_transform():
    """A compiled function that a transform calls runs eagerly: its tensors are the transform's."""
    compiled = tracer_core.compile(lambda t: t.sin() * 2, backend="eager")
    compiled(X[0])
    torch.testing.assert_close(vmap(compiled)(X), X.sin() * 2)
    torch.testing.assert_close(grad(lambda t: compiled(t).sum())(X[0]), X[0].cos() * 2)


@pytest.mark.parametrize("name", ["value inside", "side effect"])
def test_transform_that_breaks(name):
    log: list[int] = []

    programs = {
        "value inside": lambda x: (
            vmap(lambda t: t * SCALE if t.shape[0] > 1 else t.sum().item())(x) + x.sum().item()
        ),
        "side effect": lambda x: (vmap(lambda t: (log.append(1), t * 2)[1])(x), len(log) > 0),
    }
    same(programs[name], (X,), (Y,), kinds=None)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("energy", [lambda x: (x * x).sum(), lambda x: (x.sin() * x.roll(1)).sum()])
def test_hessians_under_vmap_when_no_operator_is_known_yet(energy, backend):
    fake_cache._cached.clear()  # as in a process's first capture
    with torch.no_grad():
        same(lambda x: vmap(hessian(energy))(x), (X,), (Y,), graphs=1, backend=backend)

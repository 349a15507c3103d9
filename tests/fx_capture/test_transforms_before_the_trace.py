"""torch.func.jacrev(f) and the like from before the compiled call: compiled themselves, or
called by a compiled function."""

import functools

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import tracer_core

SCALE = 1.0


def energy(x, w):
    return torch.tanh(w @ x) * x.sum() * SCALE


def total(x, w):
    return energy(x, w).sum()


def pair(x, w):
    return energy(x, w), x.sum()


TRANSFORMS = {
    "jacrev": jacrev(energy),
    "both": jacrev(energy, argnums=(0, 1)),
    "chunks": jacrev(energy, 1, chunk_size=2),
    "aux": jacrev(pair, has_aux=True),
    "jacfwd": jacfwd(energy, argnums=1),
    "hessian": hessian(total),
    "grad": grad(total),
    "vmap": vmap(jacrev(energy), in_dims=(0, None)),
    "jacobian of a gradient": jacrev(grad(total)),
}


@pytest.mark.parametrize("way", ["itself", "inside"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_one_graph(name, way, monkeypatch):
    torch.manual_seed(0)
    transform = TRANSFORMS[name]
    n = (4, 3) if name == "vmap" else (3,)
    fast = tracer_core.compile(
        transform if way == "itself" else lambda x, w: transform(x, w),
        backend="aten_eager",
        fullgraph=True,
    )
    for scale in (1.0, 1.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        x, w = torch.randn(n), torch.randn(3, 3)
        torch.testing.assert_close(fast(x, w), transform(x, w))


def test_a_partial_of_a_transform():
    x, w = torch.randn(3), torch.randn(3, 3)
    transform = functools.partial(jacfwd(energy, argnums=1), x)
    fast = tracer_core.compile(transform, backend="aten_eager", fullgraph=True)
    torch.testing.assert_close(fast(w), transform(w))

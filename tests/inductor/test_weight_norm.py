"""torch.nn.utils.parametrizations.weight_norm and its gradients, as loops."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import tracer_core
from tests.inductor.test_operators import R

MODULES = {
    "positions of wav2vec2": (lambda: weight_norm(nn.Conv1d(8, 16, 5, groups=4), dim=2), (2, 8, 20)),
    "rows": (lambda: weight_norm(nn.Linear(8, 5)), (3, 8)),
    "columns": (lambda: weight_norm(nn.Linear(8, 5), dim=1), (3, 8)),
    "images": (lambda: weight_norm(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last), (2, 3, 9, 9)),
}  # fmt: skip


def built(make, dtype):
    torch.manual_seed(0)
    return make().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_a_step(name, dtype):
    make, shape = MODULES[name]
    model, eager, exact = built(make, dtype), built(make, dtype), built(make, torch.float64)
    exact.load_state_dict(model.state_dict())  # float64 copies of the rounded parameters
    fast = tracer_core.compile(model)
    for seed in range(3):
        torch.manual_seed(seed)
        x = R(*shape).to(dtype)
        results = [f(x).float().square().mean() for f in (fast, eager)]
        reference = exact(x.double()).square().mean()
        for result in (*results, reference):
            result.backward()
        for ours, theirs, true in zip(
            *(m.parameters() for m in (model, eager, exact)), strict=True
        ):
            assert ours.grad.dtype is dtype and ours.grad.stride() == theirs.grad.stride()
            scale = true.grad.norm()
            error, allowed = ((p.grad.double() - true.grad).norm() / scale for p in (ours, theirs))
            assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps
        for module in (model, eager, exact):
            module.zero_grad()


def test_a_direction_of_zeros_gives_eager_nans():
    def fn(v, g):
        return torch._weight_norm_interface(v, g, 0)

    v, g = R(3, 4), R(3, 1)
    v[1] = 0
    for ours, theirs in zip(tracer_core.compile(fn)(v, g), fn(v, g), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)

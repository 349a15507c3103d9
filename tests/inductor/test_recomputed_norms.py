"""Outputs of normalisations are computed again by the backward instead of being saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core


def saved_by_eager(function, *args):
    """Bytes that autograd saves of a call, each memory once."""
    actual = {}

    def pack(tensor):
        actual[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*args)
    return sum(actual.values())


def saved_by_ours(result):
    """The same for the result of one compiled graph."""
    memory = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in result.grad_fn.saved_tensors
    }
    return sum(memory.values())


def convolutions(width=16):
    layers = []
    for before, after in ((3, width), (width, width), (width, width)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def gradients(function, module, x):
    module.zero_grad()
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    function(leaf).square().sum().backward()
    return [leaf.grad, *(p.grad for p in module.parameters())]


def compare(make, x, calls=2, scale=3.0):
    torch.manual_seed(0)
    module = make()
    ours, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True)
    for _ in range(calls):
        expected, actual = gradients(module, module, x), gradients(fast, ours, x)
        in_float64 = gradients(exact, exact, x.double())
        for value, other, true in zip(expected, actual, in_float64, strict=True):
            assert value.dtype == other.dtype and value.stride() == other.stride()
            limit = scale * (value.double() - true).norm() + 1e-5 * true.norm() + 1e-6
            assert (other.double() - true).norm() <= limit
    for name, item in module.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], item, rtol=1e-4, atol=1e-5)
    return module, ours, fast


@pytest.mark.full
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_net_of_convolutions_saves_much_less_than_eager(layout):
    x = torch.randn(2, 3, 12, 12).to(memory_format=layout)
    module, _, fast = compare(convolutions, x)
    assert saved_by_ours(fast(x)) < 0.65 * saved_by_eager(module, x)


def test_any_batch():
    torch.manual_seed(0)
    module = convolutions()
    ours = copy.deepcopy(module)
    fast = tracer_core.compile(ours, backend="inductor", dynamic=True)
    for count in (2, 3, 5):
        x = torch.randn(count, 3, 8, 8)
        expected, actual = gradients(module, module, x), gradients(fast, ours, x)
        for item, other in zip(expected, actual, strict=True):
            torch.testing.assert_close(other, item, rtol=2e-3, atol=2e-4)


class Scaled(nn.Module):
    """What multiplies the parameter is the parameter's gradient."""

    def __init__(self, norm, shape):
        super().__init__()
        self.norm, self.factor = norm, nn.Parameter(torch.ones(shape))

    def forward(self, x):
        y = torch.relu(self.norm(x))
        return y * self.factor, y


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm2d(5), (3, 5, 6, 7)),
        (nn.BatchNorm2d(5, affine=False), (3, 5, 6, 7)),
        (nn.BatchNorm2d(5, track_running_stats=False), (3, 5, 6, 7)),
        (nn.BatchNorm1d(5), (8, 5)),
        (nn.LayerNorm(33), (4, 33)),
        (nn.LayerNorm((3, 11), bias=False), (4, 3, 11)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_computed_again_is_what_the_forward_gave(norm, shape, dtype):
    torch.manual_seed(0)
    module = Scaled(copy.deepcopy(norm), shape).to(dtype)
    fast = tracer_core.compile(module, backend="inductor", fullgraph=True)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    fast(x)
    product, y = fast(x)
    product.sum().backward()
    close = (
        {"rtol": 1e-6, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 1e-13, "atol": 1e-13}
    )
    torch.testing.assert_close(module.factor.grad, y.detach(), **close)
    assert bool(((module.factor.grad > 0) == (y > 0)).all())


def test_low_precision_statistics_stay_wide():
    x = torch.randn(4, 33, dtype=torch.bfloat16)
    compare(
        lambda: nn.Sequential(nn.LayerNorm(33), nn.ReLU(), nn.Linear(33, 8)).bfloat16(),
        x,
        scale=4.0,
    )


def test_a_norm_whose_output_is_returned_and_changed_in_place():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)

    def program(x, w):
        y = norm(x)
        z = y * w
        return y, z

    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    x, w = torch.randn(2, 4, 3, 3, requires_grad=True), torch.randn(2, 4, 3, 3, requires_grad=True)
    y, z = fast(x, w)
    before = y.detach().clone()
    z.sum().backward()
    torch.testing.assert_close(w.grad, before)


def test_statistics_of_the_running_kind_are_left_alone():
    torch.manual_seed(0)
    module = convolutions().eval()
    ours = copy.deepcopy(module)
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    for one, other in zip(gradients(module, module, x), gradients(fast, ours, x), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)

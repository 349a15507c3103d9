"""Matmuls, convolutions and attention of bfloat16 and float16 on processors that multiply none: computed in
float32, and at least as accurate as eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.passes import float32_compute
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate

DTYPES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def without_16_bit_instructions(monkeypatch):
    monkeypatch.setattr(float32_compute, "multiplies_16_bits", lambda dtype: False)


class Attention(nn.Module):
    """Projections to heads, attention, a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down = nn.Linear(48, 96, bias=False), nn.Linear(96, 48)

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Images(nn.Module):
    """Convolutions, one of them in groups, one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, groups=4)
        self.back = nn.ConvTranspose2d(32, 8, 2, 2)

    def forward(self, x):
        return self.back(F.silu(self.second(F.relu(self.first(x)))))


def batched(q, k, v, bias):
    return torch.baddbmm(bias, q, k.mT).softmax(-1) @ v


PROGRAMS = {
    "attention": (Attention, lambda: (torch.randn(2, 20, 48),)),
    "images": (Images, lambda: (torch.randn(2, 3, 21, 19),)),
    "batches": (
        lambda: batched,
        lambda: (*torch.randn(3, 4, 9, 16).unbind(), torch.randn(4, 9, 9)),
    ),
}


def cast(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor | nn.Module) else value


def run(function, make, dtype, train, exact=False):
    """Results of three calls, and gradients of the inputs and parameters; compiled by `function`. exact: of the
    same rounded values, in float64."""
    build, arguments = make
    torch.manual_seed(7)
    target, inputs = cast(build(), dtype), arguments()
    if exact:
        target = cast(target, torch.float64)
    fast, results = function(target), []
    for scale in (1.0, 0.5, 2.0):
        args = [cast(value, dtype) * scale for value in inputs]
        args = [cast(value, torch.float64) if exact else value for value in args]
        args = [value.requires_grad_(train) for value in args]
        value = fast(*args)
        results.append(value.detach())
        if train:
            parameters = list(target.parameters()) if isinstance(target, nn.Module) else []
            results += torch.autograd.grad(value.square().mean(), [*args, *parameters])
    return results


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_accurate_as_eager(name, dtype, train):
    with torch.set_grad_enabled(train):
        actual = run(tracer_core.compile, PROGRAMS[name], dtype, train)
        eager = run(lambda target: target, PROGRAMS[name], dtype, train)
        exact = run(lambda target: target, PROGRAMS[name], dtype, train, exact=True)
    assert [value.dtype for value in actual] == [value.dtype for value in eager]
    for ours, theirs, true in zip(actual, eager, exact, strict=True):
        # a gradient's strides are its leaf's
        ours, theirs, true = (value.double().contiguous() for value in (ours, theirs, true))
        assert_as_accurate(ours, theirs, true, floor=2e-3)


def test_operands_are_rounded_first():
    """What is computed in 16 bits before a matmul is rounded to them, as where it is stored."""

    def scaled(x, w, scale):
        return (x * scale) @ (w.t() * scale)

    torch.manual_seed(0)
    x, w, scale = (
        torch.randn(9, 64).bfloat16(),
        torch.randn(33, 64).bfloat16(),
        torch.tensor(0.7).bfloat16(),
    )
    fast = tracer_core.compile(scaled)
    exact = (x * scale).double() @ (w.t() * scale).double()
    for _ in range(3):
        torch.testing.assert_close(fast(x, w, scale), exact.bfloat16(), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_some_gradients_of_a_convolution(dtype):
    """Those of the weight alone: the operator has no result for the others."""
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 8, 3, bias=False).to(dtype), torch.randn(2, 3, 12, 12).to(dtype)
    fast = tracer_core.compile(lambda x: net(x).sin())
    for _ in range(3):
        (ours,) = torch.autograd.grad(fast(x).square().mean(), net.weight)
        (theirs,) = torch.autograd.grad(net(x).sin().square().mean(), net.weight)
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=1e-3)


def test_frozen_weights_are_converted_once():
    torch.manual_seed(0)
    net, x = nn.Linear(64, 128).bfloat16().eval(), torch.randn(80, 64).bfloat16()
    with torch.no_grad():
        fast = tracer_core.compile(net, options={"freeze": True})
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x))


def dtypes_of_operands(dtype):
    """Of the operands that the rewritten graph of ``a @ b`` multiplies."""
    a, b = torch.randn(80, 32, dtype=dtype), torch.randn(32, 16, dtype=dtype)
    c = compiled(lambda a, b: a @ b, a, b).compilation
    graph = float32_compute.with_float32_compute(c.gm, c.spec).graph
    (matmul,) = [node for node in graph.nodes if "mm" in str(node.target)]
    return {node.meta["val"].dtype for node in matmul.args}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_matmul_of_16_bits_is_left(dtype):
    assert dtypes_of_operands(dtype) == {torch.float32}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmuls_stay_where_the_processor_has_them(dtype, monkeypatch):
    monkeypatch.setattr(float32_compute, "multiplies_16_bits", lambda dtype: True)
    assert dtypes_of_operands(dtype) == {dtype}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_under_autocast(train):
    """The graph is compiled while autocast is on, which the backend's own nodes must not see."""
    torch.manual_seed(0)
    net, x = Attention(), torch.randn(2, 20, 48)
    fast = tracer_core.compile(net)
    parameters = list(net.parameters())
    for scale in (1.0, 0.5, 2.0):
        gradients = []
        for target in (fast, net):
            with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16):
                result = target(x * scale)
            gradients.append([result.detach()])
            if train:
                gradients[-1] += torch.autograd.grad(result.float().square().mean(), parameters)
        for ours, theirs in zip(*gradients, strict=True):
            largest = theirs.abs().max().item()
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 * largest)

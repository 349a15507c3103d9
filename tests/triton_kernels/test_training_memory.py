"""What a training graph for a GPU holds and launches: counted without one, so that neither grows
unseen.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import tracer_core
from benchmarks.gpu_programs.issue_models import VaeDecoder
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import compiled
from tests.triton_kernels.simulated_memory import MiB, of_inference, of_module
from tracer_core.aot import saved_tensors

F = torch.nn.functional
aten = torch.ops.aten


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Positions of maxima are kept as they are on CUDA devices; TF32 is allowed, so that images are
    channels-last.
    """
    monkeypatch.setattr(saved_tensors, "FUSES_INTEGERS", {"cpu"})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


class Stem(nn.Module):
    """The first layers of a residual network, and a block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.first, self.second = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(64) for _ in range(3)])

    def forward(self, x):
        x = F.max_pool2d(self.norms[0](self.stem(x)).relu(), 3, 2, 1)
        y = self.norms[1](self.first(x)).relu()
        return F.relu(self.norms[2](self.second(y)) + x).mean((2, 3))


@pytest.fixture(scope="module")
def stem():
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.setattr(saved_tensors, "FUSES_INTEGERS", {"cpu"})
        patch.setattr(torch.backends.cudnn, "allow_tf32", True)
        return of_module(Stem().train(), torch.empty(8, 3, 64, 64))


def test_what_is_saved_for_a_backward(stem):
    """Results of convolutions, one byte for each position of a maximum, one image of what blocks
    add up.
    """
    split = stem.graphs.split
    conv, pooled = 8 * 64 * 32 * 32, 8 * 64 * 16 * 16
    assert split.saved_bytes <= 4 * (conv + 3 * pooled) + pooled + 64 * 1024
    kinds = {
        node.meta["val"].dtype
        for node in stem.graphs.backward.graph.graph.find_nodes(op="placeholder")
    }
    assert torch.int8 in kinds and torch.int64 not in kinds


def test_peaks_and_launches_of_a_step(stem):
    stem.step()
    conv = 4 * 8 * 64 * 32 * 32 / MiB
    forward, backward = (stem.memory[name].peak / MiB for name in ("forward", "backward"))
    assert forward <= 3.6 * conv and backward <= 3.8 * conv
    launches = stem.launches()
    assert launches["forward"] <= 18 and launches["backward"] <= 21


def test_gradients_are_laid_out_as_soon_as_they_are_there(as_on_gpus):
    """Of weights, from channels-last: else all would be held twice in the end."""
    layers = [nn.Conv2d(a, b, 3, bias=False) for a, b in ((3, 16), (16, 32), (32, 48), (48, 64))]
    with torch.device("meta"):
        named = [
            (f"layer_{at}", part.to("meta"))
            for at, layer in enumerate(layers)
            for part in (layer, nn.ReLU())
        ]
        net = nn.Sequential(
            OrderedDict((f"{name}_{type(part).__name__}", part) for name, part in named)
        )
        backward = of_module(net.train(), torch.empty(4, 3, 32, 32)).backward
    result = {
        name: at
        for at, group in enumerate(backward.plan.groups)
        for node in group.nodes
        for name in node.writes
    }
    weights = [
        group.extern
        for group in backward.plan.groups
        if group.extern is not None and group.extern.outputs[1]
    ]
    copies = [
        (at, result[weight.outputs[1]])
        for weight in weights
        for at, group in enumerate(backward.plan.groups)
        if group.extern is None and weight.outputs[1] in group.nodes[0].reads()
    ]
    assert len(copies) == 4 and all(at == producer + 1 for at, producer in copies), copies


def test_a_first_convolution_gets_its_gradient_as_the_others_do(stem):
    """Channels innermost, although no gradient of the image is asked for."""
    program = stem.backward.program
    nodes = [
        n for n in program.nodes if getattr(n, "target", None) is aten.convolution_backward.default
    ]
    assert len(nodes) == 5
    assert all(arg.layout.strides[1] == 1 for node in nodes for arg in node.args[:3])
    assert not any(
        "max_pool" in str(step.extern.target)
        for step in stem.backward.steps
        if step.extern is not None
    )


def test_attention_layers_without_gradients_are_compiled_whole():
    """Input, the sums before and after, a norm and the widest activation (four inputs): no part of
    a graph holds more.
    """
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, batch_first=True, norm_first=True, activation="gelu"
    )
    layers = {f"layer_{number}": copy.deepcopy(layer).to("meta") for number in range(3)}
    x = torch.empty(8, 128, 64, device="meta")
    memory, made = of_inference(nn.Sequential(OrderedDict(layers)).eval(), x)
    parameters = 3 * sum(parameter.nbytes for parameter in layer.parameters())
    assert memory.peak - parameters <= 8.1 * x.nbytes
    assert "fused_gelu" in made.text and "bmm" not in made.text


POOLS = {
    "3x3 by 2": (3, 2, 1),
    "2x2": (2, 2, 0),
    "3x3 by 1": (3, 1, 1),
    "uneven": ((3, 2), (2, 3), (1, 0)),
    "gaps": (2, 3, 0),
    "whole": ((9, 8), 1, 0),
}


@pytest.mark.sweep(keep=2)
@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("narrow", [False, True])
def test_gradients_of_max_pools(name, narrow, as_on_gpus, monkeypatch):
    """Equal maxima, NaN and infinities among them; what is saved may be a byte."""
    monkeypatch.setattr(saved_tensors, "FUSES_INTEGERS", {"cpu"} if narrow else set())
    torch.manual_seed(0)
    kernel, stride, padding = POOLS[name]
    x = torch.randn(2, 3, 9, 8).round(decimals=0)
    x[0, 0, 4, 4], x[1, 1, 2, 3], x[1, 2] = float("nan"), float("inf"), float("-inf")

    def pooled(x):
        return F.max_pool2d(x * 2, kernel, stride, padding, ceil_mode=name == "3x3 by 2")

    with interpreted():
        fast = tracer_core.compile(pooled)
        for value in (x, x.contiguous(memory_format=torch.channels_last), x[0]):
            ours, theirs = (value.clone().requires_grad_() for _ in range(2))
            results = fast(ours), pooled(theirs)
            weights = torch.randn(results[1].shape)
            for result in results:
                result.backward(weights)
            torch.testing.assert_close(results[0], results[1], equal_nan=True, rtol=0, atol=0)
            torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_windows_with_gaps_and_other_dtypes(dtype):
    x = torch.randn(2, 3, 11, 10).to(dtype)
    y, where = F.max_pool2d(x, 3, 2, 1, 2, return_indices=True)
    dy = torch.randn(y.shape).to(dtype)

    def gradient(dy, x, where):
        return aten.max_pool2d_with_indices_backward(dy * 2, x, [3], [2], [1], [2], False, where)

    with interpreted():
        result = compiled(gradient, dy, x, where)
    assert result.compilation.runner.artifact.fallbacks == ()
    exact = gradient(dy.double(), x.double(), where).to(dtype)
    torch.testing.assert_close(result(dy, x, where)[0], exact)


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
def test_many_windows_over_an_element_stay_with_aten():
    x = torch.randn(1, 2, 12, 12)
    y, where = F.max_pool2d(x, 5, 1, 0, return_indices=True)

    def gradient(y, x, where):
        return (
            aten.max_pool2d_with_indices_backward(
                y, x, [5, 5], [1, 1], [0, 0], [1, 1], False, where
            )
            * 2
        )

    with interpreted():
        result = compiled(gradient, y, x, where)
    assert result.compilation.runner.artifact.fallbacks == (
        "aten.max_pool2d_with_indices_backward.default",
    )
    torch.testing.assert_close(result(y, x, where)[0], gradient(y, x, where))


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
def test_positions_that_the_program_sees_are_whole(as_on_gpus):
    def both(x):
        y, where = F.max_pool2d(x.sin(), 2, return_indices=True)
        return y, where

    x = torch.randn(1, 2, 6, 6)
    with interpreted():
        fast = tracer_core.compile(both)
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        (y, where), (expected, there) = fast(ours), both(theirs)
        y.sum().backward()
        expected.sum().backward()
    assert where.dtype is torch.int64
    torch.testing.assert_close((y, where, ours.grad), (expected, there, theirs.grad))


class OtherWindows(torch.autograd.Function):
    """Reads the positions that windows of 2x2 chose with windows of 3x3 around them."""

    @staticmethod
    def forward(ctx, x):
        y, where = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
        ctx.save_for_backward(x, where)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, where = ctx.saved_tensors
        return aten.max_pool2d_with_indices_backward(
            dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, where
        )


def _frequencies(y):
    """Complex numbers, which are computed eagerly: the backward is compiled in parts."""
    return torch.fft.rfft(y).abs()


def _unpooled(x):
    y, where = F.max_pool2d(x * 2, 2, return_indices=True)
    return F.max_unpool2d(_frequencies(y) + y[..., :1], where[..., :5] // 2, 2)


def _through_views(x):
    y, where = F.max_pool2d(x * 2, 2, return_indices=True)
    where = where.flatten(2).transpose(1, 2).contiguous().clone().transpose(1, 2)
    return _frequencies(y).sum() + (x.flatten(2).gather(2, where) * x.mean()).sin()


CUT = {
    "max_pool1d": lambda x: _frequencies(F.max_pool1d(x[0] * 2, 3, 2, 1)),
    "max_pool2d": lambda x: _frequencies(F.max_pool2d(x * 2, 3, 2, 1)),
    "two pools": lambda x: F.max_pool2d(_frequencies(F.max_pool2d(x * 2, 3, 2, 1)).sin(), 2),
    "max_pool3d": lambda x: _frequencies(F.max_pool3d(x * 2, (1, 2, 2))),
    "dilation": lambda x: _frequencies(F.max_pool2d(x * 2, 2, 2, dilation=2)),
    "adaptive": lambda x: _frequencies(F.adaptive_max_pool2d(x * 2, (5, 4))),
    "adaptive 1d": lambda x: _frequencies(F.adaptive_max_pool1d(x[0] * 2, 5)),
    "fractional": lambda x: _frequencies(
        F.fractional_max_pool2d(x * 2, 2, (7, 6), _random_samples=torch.full((2, 3, 2), 0.3))
    ),
    "unpooled": _unpooled,
    "through views": _through_views,
    "other windows": lambda x: OtherWindows.apply(x * 2) * 2,
}


@pytest.mark.sweep(keep=4)
@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
@pytest.mark.parametrize("name", CUT)
def test_gradients_of_pools_in_a_backward_of_several_parts(name, as_on_gpus):
    """Positions that one part unpacks and another one reads, or that other windows read."""
    torch.manual_seed(0)
    ours, theirs = (torch.randn(2, 3, 16, 16).requires_grad_() for _ in range(2))
    ours.data.copy_(theirs)
    with interpreted():
        result, expected = tracer_core.compile(CUT[name])(ours), CUT[name](theirs)
        weights = torch.randn(expected.shape)
        result.backward(weights)
        expected.backward(weights)
    torch.testing.assert_close((result, ours.grad), (expected, theirs.grad))


def test_a_large_temporary_dies_before_a_later_convolution(monkeypatch):
    """The decoder of an autoencoder: its largest images are its last ones, and a buffer of an earlier
    size that only kernels touch held 64 MiB of the call's arena until then."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with torch.device("meta"):
        decoder = VaeDecoder((64, 64, 32, 32)).half().eval().to(memory_format=torch.channels_last)
        images = torch.empty(2, 4, 64, 64, dtype=torch.float16)
    memory, _ = of_inference(decoder, images.to(memory_format=torch.channels_last))
    assert memory.peak < 100 * MiB


def test_a_run_of_kernels_gives_back_memory_in_between():
    """Five scans of 16 MiB, each of which reads what the last one wrote, then a product of 64 MiB:
    kernels in a row would hold all five at once, the arena two beside the product and what it gives."""

    class Scans(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(128, 1 << 18, bias=False)

        def forward(self, x):
            for _ in range(5):
                x = (x + x.flip(0)).tanh().cumsum(1)
            return self.head(x.sum(1)).softmax(1).cumsum(0).amax(1)

    with torch.device("meta"):
        net, x = Scans(), torch.empty(64, 512, 128)
    memory, compilation = of_inference(net, x)
    arguments = 16 * MiB + 128 * MiB  # the input and the weight
    assert memory.peak < arguments + 130 * MiB  # two results of 64 MiB

"""Convolutions of sequences (N, C, L), and of images that are made of tokens, in inference: results,
strides, and what is copied."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import packed_ops, packed_weights
from inductor_backend.kernels.packed_weights import Geometry
from tests.support.comparison import assert_as_accurate, assert_as_accurate_as_eager, assert_same

FREEZE = pytest.mark.parametrize("freeze", [False, True], ids=["default", "frozen"])

#: channels, count, kernel_size, stride, padding, dilation, groups
CONVOLUTIONS = {
    "tokens": (48, 96, 1, 1, 0, 1, 1),
    "grouped tokens": (48, 96, 1, 1, 0, 1, 4),
    "groups of 16": (64, 64, 9, 1, 4, 1, 4),
    "depthwise": (64, 64, 7, 1, 3, 1, 64),
    "strided": (33, 41, 3, 2, 1, 1, 1),
    "dilated": (24, 40, 3, 1, 2, 2, 1),
    "wave": (1, 64, 10, 5, 0, 1, 1),
    "few channels": (3, 32, 5, 1, 2, 1, 1),
    "padded more than long": (32, 16, 2, 1, 40, 1, 1),
}


@pytest.fixture(autouse=True)
def threads_as_before():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@FREEZE
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_sequences(name, bias, freeze):
    *sizes, groups = CONVOLUTIONS[name]
    model = nn.Conv1d(*sizes, groups, bias=bias).eval()
    fast = tracer_core.compile(model, options={"freeze": freeze}, dynamic=True)
    with torch.no_grad():
        for threads, length in ((1, 301), (2, 64), (5, 513), (2, 38)):
            torch.set_num_threads(threads)
            x = torch.randn(5, sizes[0], length)
            assert_as_accurate_as_eager(fast(x), model, x)


class Block(nn.Module):
    """Convolutions as audio models have them: norms, activations, a residual, and a part with rows."""

    def __init__(self, width=32):
        super().__init__()
        self.first = nn.Conv1d(1, width, 10, 5, bias=False)
        self.group_norm = nn.GroupNorm(width, width)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.batch_norm = nn.BatchNorm1d(width)
        self.third = nn.Conv1d(width, width, 1, groups=2)
        self.rows = nn.Linear(width, width)

    def forward(self, x):
        x = F.gelu(self.group_norm(self.first(x)))
        x = x + F.silu(self.batch_norm(self.second(x)))
        x = F.relu(x + self.third(x).tanh())
        return x, self.rows(x.transpose(1, 2)).softmax(-1), x.view(x.shape[0], 4, -1, x.shape[2])


@FREEZE
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_of_audio_models(threads, freeze):
    torch.set_num_threads(threads)
    model = Block().eval()
    model.batch_norm.running_mean.uniform_(-1, 1)
    model.batch_norm.running_var.uniform_(0.5, 2)
    fast = tracer_core.compile(model, options={"freeze": freeze})
    with torch.no_grad():
        x = torch.randn(3, 1, 2000)
        assert_as_accurate_as_eager(fast(x), model, x)


def rows_of(call):
    """The kernels and operators of a call, as a profile shows them, without their lines."""
    with torch.profiler.profile() as profile:
        call()
    names = {event.key.partition(" (")[0] for event in profile.key_averages()}
    return {name for name in names if name.startswith(("fused_", "packed.convolution", "aten."))}


def test_a_chain_of_convolutions_copies_no_sequence():
    """Between convolutions, activations and normalizations of tokens sequences are channels-last."""

    def chain(x, first, second):
        y = F.gelu(F.conv1d(x, first, padding=1)) + x
        y = F.layer_norm(y.transpose(1, 2), [64]).transpose(1, 2)
        return F.conv1d(y, second, groups=4).transpose(1, 2).contiguous()

    weights = [torch.randn(64, 64, 3), torch.randn(64, 16, 1)]
    inputs = [torch.randn(4, 96, 64).transpose(1, 2), *weights]
    fast = tracer_core.compile(chain)
    with torch.no_grad():
        assert_same(fast(*inputs), chain(*inputs), rtol=1e-4, atol=1e-4)
        rows = rows_of(lambda: fast(*inputs))
    assert rows == {
        "packed.convolution by run_packed",
        "packed.convolution by run_grouped_16",
        "fused_var_layer_norm_0",
    }


def test_short_sequences_and_training_stay_with_aten():
    x, weight = torch.randn(2, 64, 60), torch.randn(64, 64, 3, requires_grad=True)
    fast = tracer_core.compile(lambda x, weight: F.conv1d(x, weight))
    with torch.no_grad():
        fast(x, weight)
        assert rows_of(lambda: fast(x, weight)) == {"aten.convolution.default"}
    long = torch.randn(2, 64, 600)
    assert_same(fast(long, weight), F.conv1d(long, weight), rtol=1e-4, atol=1e-4)
    assert "aten.convolution.default" in rows_of(lambda: fast(long, weight).sum().backward())


def test_the_python_functions_take_sequences():
    x, weight = torch.randn(3, 16, 70), torch.randn(24, 16, 5)
    g = Geometry(16, 24, (1, 5), (1, 2), (0, 1), (1, 1), 1)
    packed = packed_weights.pack(weight, g)
    eager = F.conv1d(x, weight, None, 2, 1)
    residual = torch.randn_like(eager)
    ours = packed_ops.convolution(x, packed, None, packed_ops.numbers_of(g), "relu", residual)
    assert_same(ours, eager.relu() + residual, rtol=1e-4, atol=1e-4, strides=False)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_resized_images_of_tokens_are_not_copied(mode):
    """Eager mode makes a single image contiguous; a convolution reads it channels-last."""

    def decode(small, large, weight):
        images = [
            F.interpolate(
                tokens.transpose(1, 2).unflatten(2, (size, size)), size=(24, 24), mode=mode
            )
            for tokens, size in ((small, 6), (large, 12))
        ]
        return F.conv2d(torch.cat(images, 1), weight).relu()

    inputs = torch.randn(1, 36, 32), torch.randn(1, 144, 32), torch.randn(48, 64, 1, 1)
    fast = tracer_core.compile(decode)
    with torch.no_grad():
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            exact = decode(*(value.double() for value in inputs))
            assert_as_accurate(fast(*inputs), decode(*inputs), exact)
        assert not [row for row in rows_of(lambda: fast(*inputs)) if "copy" in row]

"""Every lowering against eager, three ways: the loop IR, the fused bodies, and the C++ kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.inductor.compiling import compiled, flat, same_three_ways


def R(*sizes):
    generator = torch.Generator().manual_seed(sum(sizes) + len(sizes))
    return torch.randn(*sizes, generator=generator)


def I(low, high, *sizes):
    return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(3))


NAN = torch.tensor([1.0, float("nan"), -float("inf"), float("inf"), -0.0, 0.0])

PROGRAMS = {
    "add number": (lambda x: x + 1, R(3, 4)),
    "broadcast": (lambda x, y: x * y + 2 * x, R(5, 6, 7), R(7)),
    "scaled add and sub": (
        lambda x, y: torch.add(x, y, alpha=3) - torch.sub(x, y, alpha=2),
        R(9),
        R(9),
    ),
    "zero dimensions": (lambda x: x * 2 + 1, torch.tensor(3.0)),
    "no elements": (lambda x: (x + 1, x.sum(0)), R(0, 4)),
    "math": (
        lambda x: (
            x.sin() + x.cos() * x.exp() - x.abs().log1p().sqrt() + x.tanh() + x.erf() + x.sigmoid()
        ),
        R(333),
    ),
    "more math": (
        lambda x: x.expm1() + x.atan() + x.sinh() + x.abs().rsqrt() + x.exp2() + x.erfc(),
        R(65),
    ),
    "activations": (
        lambda x: F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh") + F.elu(x) + F.softplus(x),
        R(200),
    ),
    "hard activations": (
        lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.leaky_relu(x) + F.relu6(x),
        R(200) * 5,
    ),
    "powers": (lambda x: x**3 + x**-1 + x.abs() ** 0.5 + x.abs() ** 1.7, R(100)),
    "rounding": (lambda x: x.sign() + x.floor() + x.round() + x.ceil() + x.trunc(), R(400) * 4),
    "nan and inf": (
        lambda x: (x.relu(), x.clamp(-1, 1), x.maximum(x.flip(0)), x.sign(), x + 1),
        NAN,
    ),
    "nan in reductions": (lambda x: (x.amax(), x.amin(), x.sum(), x.argmax()), NAN),
    "nan tests": (lambda x: x.isnan() | x.isinf(), NAN),
    "where": (lambda x: torch.where(x > 0, x, 0.0), R(10, 20)),
    "masked fill": (lambda x: x.masked_fill(x > 0, -1), R(10, 20)),
    "triangles": (lambda x: x.tril() + x.triu(1), R(10, 20)),
    "int floor division": (
        lambda x: (x // 3, x % 7, torch.div(x, 3, rounding_mode="trunc"), torch.fmod(x, 7)),
        I(-50, 50, 100),
    ),
    "int true division": (lambda x: x / 2, I(-50, 50, 100)),
    "int32 wraps": (lambda x: x * 65537 * 65537, I(-50, 50, 100).to(torch.int32)),
    "uint8 wraps": (lambda x: x + 200, I(0, 255, 100).to(torch.uint8)),
    "float floor division": (lambda x: (x // 3.0, x % 0.7), R(50)),
    "bits": (lambda x: (x & 12) | (x ^ 5), I(-50, 50, 100)),
    "logic": (lambda x: ((x > 0) & (x < 1)) | ~(x > -1), R(100)),
    "numbers before tensors": (
        lambda i: (7 % (i + 9), 3 & i, 5 | i, 6 ^ i, torch.remainder(7, i + 9)),
        I(-3, 3, 50),
    ),
    "comparison promotes": (lambda x, y: (x < y, x == y), I(-3, 3, 50), R(50)),
    "int to float": (lambda x: x.exp() + x.mean(dtype=torch.float32), I(-5, 5, 50)),
    "float to int": (lambda x: x.to(torch.int64) + x.to(torch.uint8), R(40).abs() * 10),
    "double": (lambda x: (x.double().exp() + x.double().sin()).sum(), R(500)),
    "bfloat16": (lambda x: x.to(torch.bfloat16) * 2, R(33)),
    "bfloat16 memory": (lambda x: (x + 1).softmax(-1), R(5, 33).bfloat16()),
    "half softmax": (lambda x: x.half().softmax(-1), R(4, 40)),
    "explicit rounding": (lambda x: x.bfloat16().float() - x, R(100)),
    "sum": (lambda x: x.sum(), R(100, 33)),
    "sum rows": (lambda x: x.sum(1), R(100, 33)),
    "sum columns": (lambda x: x.sum(0), R(100, 33)),
    "sum outside": (lambda x: x.sum((0, 2)), R(5, 6, 7)),
    "sum middle": (lambda x: x.sum(1, keepdim=True), R(5, 70, 7)),
    "long rows": (lambda x: (x.sum(-1), x.amax(-1), x.var(-1)), R(3, 5000)),
    "one long row": (
        lambda x: (x.sum(), x.amax(), x.var(), (x > 3).any(), x.double().amin()),
        R(200_003),
    ),
    "sum of ints": (lambda x: (x.sum(), (x > 0).sum(-1)), I(-50, 50, 30, 20).to(torch.int32)),
    "mean of pixels": (lambda x: x.mean((2, 3)), R(2, 3, 14, 15)),
    "any and all": (lambda x: ((x > 2).any(-1), (x > -3).all(0), (x > -9).all()), R(10, 20)),
    "prod": (lambda x: x.prod(-1), R(10, 20)),
    "extremes": (lambda x: (x.amax(0), x.min(), x.amin((0, 1))), R(10, 20)),
    "argmax": (lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), R(30, 40)),
    "max with index": (lambda x: (*x.max(1), *x.min(0)), R(30, 40)),
    "variance": (
        lambda x: (x.var(-1), x.std(0), *torch.var_mean(x, (0, 1), correction=0)),
        R(30, 40),
    ),
    "standardise": (lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), R(50, 60)),
    "softmax": (lambda x: x.softmax(-1), R(33, 77)),
    "softmax over columns": (lambda x: x.softmax(1), R(4, 33, 7)),
    "softmax of a transpose": (lambda x: x.t().softmax(-1), R(50, 60)),
    "log_softmax": (lambda x: x.log_softmax(-1), R(5, 1000)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), R(5, 50)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), R(3, 5, 64), R(64), R(64)),
    "layer norm of two dims": (lambda x: F.layer_norm(x, (5, 64)), R(3, 5, 64)),
    "group norm": (lambda x, w, b: F.group_norm(x, 4, w, b), R(2, 8, 5, 6), R(8), R(8)),
    "rms norm": (lambda x, w: F.rms_norm(x, (64,), w), R(3, 5, 64), R(64)),
    "batch norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b).relu(),
        R(2, 8, 5, 6),
        R(8),
        R(8).abs(),
        R(8),
        R(8),
    ),
    "batch norm in training": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
        R(4, 3, 5, 5),
        R(3),
        R(3).abs(),
        R(3),
        R(3),
    ),
    "transpose and flatten": (lambda x: x.transpose(1, 2).contiguous().view(4, -1) + 1, R(4, 5, 6)),
    "permute": (lambda x: x.permute(2, 0, 1).relu(), R(4, 5, 6)),
    "split a dimension": (lambda x: x.view(4, 2, 3, 5).sum(2).reshape(8, 5) * 2, R(8, 15)),
    "reshape across": (lambda x: x.reshape(10, 9).sum(0), R(6, 15)),
    "slices": (lambda x: x[1:, ::2] * 2 + x[:-1, 1::2], R(4, 6)),
    "negative select": (lambda x: x[:, -1] + x.select(1, 0), R(2, 3, 4)),
    "chunks": (lambda x: torch.mul(*x.chunk(2, -1)), R(3, 8)),
    "expand": (lambda x: x.expand(4, 3, 5).clone() + 1, R(3, 5)),
    "flip and repeat": (lambda x: x.flip(0).repeat(2, 3), R(3, 5)),
    "flip and reshape": (
        lambda x: x.flip(0).reshape(10, 9) * 2 + x.flip(1).reshape(9, 10).t(),
        R(6, 15),
    ),
    "unfold": (lambda x: x.unfold(0, 3, 2) * 2, R(9)),
    "diagonal": (lambda x: x.diagonal(1) + 1, R(5, 6)),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1), R(3, 4, 5), R(3, 2, 5)),
    "cat of dtypes": (lambda x, y: torch.cat([x, y]), R(3), I(0, 9, 4)),
    "cat of cats": (
        lambda x, y: torch.cat([torch.cat([x, y], 1), x + 1], 1).relu(),
        R(2, 3, 4),
        R(2, 2, 4),
    ),
    "stack": (lambda x: torch.stack([x, x + 1], 1), R(3, 4)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), R(2, 3, 4)),
    "pad less": (lambda x: F.pad(x, (-1, 2)), R(2, 5)),
    "roll": (lambda x: x.roll(1, 0) + 1, R(4, 5)),
    "arange": (lambda x: x + torch.arange(5) + torch.arange(0, 1, 0.2), R(3, 5)),
    "constants": (lambda x: x.new_zeros(3) + torch.ones(3) * x + torch.full((3,), 2.5), R(3)),
    "embedding": (lambda w, i: F.embedding(i, w) + 1, R(50, 16), I(0, 50, 3, 4)),
    "index": (lambda x, i: (x[i], x[:, i % 5]), R(10, 5), I(-10, 10, 2, 2)),
    "gather": (lambda x, i: x.gather(1, i), R(4, 5), I(0, 5, 4, 3)),
    "index_select": (lambda x, i: x.index_select(1, i), R(4, 5), I(0, 5, 3)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), R(2, 3, 17, 18)),
    "max pool with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), R(2, 3, 6, 6)),
    "avg pool": (lambda x: F.avg_pool2d(x, 2, 2), R(2, 3, 16, 18)),
    "avg pool not counting": (
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        R(2, 3, 9, 8),
    ),
    "adaptive pool": (
        lambda x: (F.adaptive_avg_pool2d(x, (1, 1)), F.adaptive_avg_pool2d(x, (4, 6))),
        R(2, 3, 16, 18),
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1, R(1, 2, 4, 4)),
    "channels last": (lambda x: x.to(memory_format=torch.channels_last).relu() + 1, R(2, 3, 4, 5)),
    "matmul": (lambda x, y: x @ y, R(5, 6), R(6, 7)),
    "linear": (lambda x, y, b: F.linear(x, y, b).relu(), R(2, 5, 6), R(7, 6), R(7)),
    "large linear": (lambda x, y, b: F.gelu(F.linear(x, y, b)), R(12, 256), R(128, 256), R(128)),
    "product as result": (lambda x, y: F.linear(x, y), R(2, 6, 256), R(128, 256)),
    "two layers": (
        lambda x, y, b: F.linear(F.gelu(F.linear(x, y, b)), y.t()) + 1,
        R(2, 12, 256) / 16,
        R(128, 256) / 16,
        R(128),
    ),
    "linear of an input's slice": (lambda x, y: F.linear(x[:, 8:264], y), R(12, 300), R(128, 256)),
    "matmul of a flip": (lambda x, y: x.flip(1) @ y.flip(0), R(5, 6), R(6, 7)),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)), R(3, 5, 6), R(3, 8, 6)),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        R(2, 3, 8, 8),
        R(4, 3, 3, 3),
        R(4),
    ),
    "own convolution": (
        lambda x, w: F.conv2d(x + 1, w, padding=1).relu(),
        R(1, 64, 4, 4),
        R(64, 64, 3, 3),
    ),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=2), R(2, 4, 8, 8), R(4, 2, 3, 3)),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 5, 24) + 1,
        R(2, 3, 5, 8),
    ),
    "causal attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        R(2, 3, 5, 8),
    ),
    "fallbacks": (
        lambda x: x.cumsum(0) * 2 + torch.sort(x, 0)[0] + torch.topk(x, 5, 0)[0],
        R(5, 6),
    ),
    "write to an input": (lambda x, y: (x.add_(y), x * 2)[1], R(3), R(3)),
    "write through a view": (lambda x: (x[1:].mul_(2), x.sum())[1], R(4, 3)),
    "reverse in place": (lambda x: x.copy_(x.flip(0)).sum(), R(7)),
    "swap": (lambda x, y: (x.copy_(y + 0 * x), y.add_(x), None)[0], R(4), R(5)[:4]),
    "several results": (lambda x: (x.view(2, -1) + 1, x.sum(), x.t() * 2), R(4, 5)),
}


@pytest.mark.sweep(keep=25)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    same_three_ways(fn, *inputs)


@pytest.mark.parametrize(
    "name",
    [
        "math",
        "layer norm",
        "softmax",
        "sum",
        "large linear",
        "batch norm",
        "long rows",
        "one long row",
    ],
)
def test_error_against_float64_is_at_most_three_times_eagers(name):
    fn, *inputs = PROGRAMS[name]
    exact = flat(fn(*(x.double() for x in inputs)))
    eager = flat(fn(*inputs))
    exact, eager = ([t.double() for t in side] for side in (exact, eager))
    ours = compiled(fn, *inputs)(*inputs)
    for t, e, o in zip(exact, eager, ours, strict=True):
        o, scale = o.double(), t.abs().max()
        assert (o - t).abs().max() <= 3 * (e - t).abs().max() + 2e-7 * scale


def test_an_index_out_of_range_raises():
    run = compiled(lambda w, i: F.embedding(i, w) * 2, R(50, 16), I(0, 50, 4))
    with pytest.raises(IndexError):
        run(R(50, 16), torch.tensor([1, 2, 50, 3]))
    assert torch.equal(run(R(50, 16), torch.tensor([1, 2, 49, 3]))[0], R(50, 16)[[1, 2, 49, 3]] * 2)


@pytest.mark.parametrize("size", [(4, 8), (3, 5), (4, 1)])
def test_sums_of_negative_zeros_are_zeros(size):
    def program(x):
        means = torch.var_mean(x, 1)[1], x.mean(1), x.nanmean(1)
        return x.sum(1), x.sum(), x.cumsum(1), x.double().sum(1), *means, x.prod(1), x.amax(1)

    x = -torch.zeros(size)
    for ours, eager in zip(compiled(program, x)(x), program(x), strict=True):
        assert torch.equal(ours.signbit(), eager.signbit())

"""Normalisations and reductions of rows with infinities, or with values near the largest float: what
shows in eager, or in float64, shows in compiled code.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from inductor_backend.ir.target import interpreted

INF, NAN = float("inf"), float("nan")
LENGTHS = (33, 600)


def rows(length, dtype):
    """Rows that a diverging training run may have."""
    largest = torch.finfo(dtype).max
    eager = torch.linspace(-2, 3, length, dtype=torch.float64)

    def with_values(**values):
        row = eager.clone()
        for place, value in values.items():
            row[int(place[1:])] = value
        return row

    actual = [
        eager, with_values(_0=INF), with_values(_5=-INF), with_values(_0=INF, _9=-INF),
        with_values(_3=NAN), with_values(_2=NAN, _4=INF), with_values(_7=largest),
        torch.linspace(0.5, 1, length, dtype=torch.float64) * largest,
        torch.linspace(-1, -0.5, length, dtype=torch.float64) * largest,
        eager * largest**0.5, torch.zeros(length, dtype=torch.float64),
        -torch.zeros(length, dtype=torch.float64),
    ]  # fmt: skip
    return torch.stack(actual).to(dtype)


def columns(x):
    return x.mT.contiguous()


def scaled(x, size):
    return x.new_full((size,), 2.0), x.new_full((size,), 0.5)


PROGRAMS = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer_norm, weighted": lambda x: F.layer_norm(x, x.shape[1:], *scaled(x, x.shape[1])),
    "statistics of layer_norm": lambda x: torch.native_layer_norm(x, x.shape[1:], None, None, 1e-5)[1:],
    "batch_norm": lambda x: F.batch_norm(columns(x), None, None, training=True),
    "batch_norm, weighted": lambda x: F.batch_norm(
        columns(x), None, None, *scaled(x, x.shape[0]), training=True
    ),
    "group_norm": lambda x: F.group_norm(x.reshape(x.shape[0], -1, 1), 1),
    "group_norm of three": lambda x: F.group_norm(x.reshape(x.shape[0], 3, -1), 3),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "nansum": lambda x: x.nansum(1),
    "prod": lambda x: x[:, :33].prod(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "cumsum": lambda x: x.cumsum(1),
    "cummax": lambda x: x.cummax(1).values,
    "avg_pool": lambda x: F.avg_pool1d(x[None], 3),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool1d(x[None], x.shape[1] // 3),
}  # fmt: skip


def results(actual):
    return actual if isinstance(actual, tuple) else (actual,)


def agrees(got, want, dtype):
    """Returns where the values agree, signs of zeros included."""
    some = {torch.float32: (1e-4, 1e-5), torch.float16: (4e-3, 1e-3)}
    rtol, atol = some.get(dtype, (2e-2, 1e-2))
    close = torch.isclose(got.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True)
    opposite = (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    return close & ~opposite


def check(function, compiled, x):
    exact = results(function(x.double()))
    for got, want, right in zip(results(compiled(x)), results(function(x)), exact, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        same = agrees(got, want, x.dtype) | agrees(got, right.to(want.dtype), x.dtype)
        assert same.all(), (got[~same][:3], want[~same][:3], right[~same][:3])


@pytest.mark.sweep(keep=20)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_cpp(name, dtype):
    compiled = tracer_core.compile(PROGRAMS[name], fullgraph=True, dynamic=False)
    for length in LENGTHS:
        x = rows(length, dtype)
        for _ in range(2):
            check(PROGRAMS[name], compiled, x)


INFINITE = slice(1, 6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["layer_norm", "batch_norm", "group_norm", "var_mean", "rms_norm"])
def test_infinities_in_triton(name):
    def function(x):
        return PROGRAMS[name](x)

    with interpreted():
        compiled = tracer_core.compile(function, fullgraph=True, dynamic=False)
        check(function, compiled, rows(33, torch.float32)[INFINITE])


def test_a_row_of_float64_beyond_its_squares_is_nan():
    x = rows(32, torch.float64)[7:9]  # of 33 elements eager's layer_norm has zeros
    assert PROGRAMS["layer_norm"](x).isnan().all()
    for name in ("layer_norm", "batch_norm", "group_norm"):
        for length in (32, 33):
            x = rows(length, torch.float64)[7:9]
            assert tracer_core.compile(PROGRAMS[name])(x).isnan().all()


def gradient(function, x):
    x = x.clone().requires_grad_()
    function(x).backward(torch.linspace(0.5, 1, x.numel(), dtype=x.dtype).reshape(x.shape))
    return x.grad


SHAPED = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x.reshape(x.shape[0], 3, -1), 3).reshape(x.shape),
    "softmax": lambda x: x.softmax(1),
    **{
        name: getattr(F, name)
        for name in (
            "elu",
            "selu",
            "celu",
            "hardswish",
            "hardtanh",
            "relu6",
            "softshrink",
            "hardshrink",
        )
    },
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", SHAPED)
def test_gradients_at_infinities(name):
    x = rows(48, torch.float32)[:7]
    want = gradient(SHAPED[name], x)
    right = gradient(SHAPED[name], x.double()).float()
    compiled = tracer_core.compile(SHAPED[name], fullgraph=True)
    for _ in range(2):
        got = gradient(compiled, x)
        same = agrees(got, want, x.dtype) | agrees(got, right, x.dtype)
        assert same.all(), (got[~same][:3], want[~same][:3], right[~same][:3])


@pytest.mark.parametrize("eps", [None, 0.1])
def test_the_gradient_of_logit_at_zeros(eps):
    def function(x):
        return torch.logit(x, eps)

    x = torch.tensor([0.0, -0.0, 1.0, 0.5, 2.0, -1.0, NAN, 0.1] * 8)
    compiled = tracer_core.compile(function, dynamic=False)
    for size in (64, 5):
        want, got = gradient(function, x[:size]), gradient(compiled, x[:size])
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("length", [33, 600])
def test_running_statistics_show_an_infinity(length):
    x = rows(length, torch.float32)[:6].mT.contiguous()
    want, got = (torch.nn.BatchNorm1d(6) for _ in range(2))
    tracer_core.compile(got)(x)
    want(x)
    for mine, other in zip(got.buffers(), want.buffers(), strict=True):
        assert torch.equal(mine.isfinite(), other.isfinite())
        torch.testing.assert_close(mine[other.isfinite()], other[other.isfinite()])

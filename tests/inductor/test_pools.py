"""Pools and their gradients against eager, three ways: the loop IR, the fused bodies, and the C++
kernels.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.inductor.compiling import compiled, same_three_ways

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def R(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def last(x):
    return x.to(memory_format=torch.channels_last)


def odd():
    """Two NaNs in one window, and windows of -inf only."""
    x = R(1, 2, 9, 9)
    x[0, 0, 2:4, 3] = NAN
    x[0, 1] = -INF
    return x


def pair(value):
    return [value, value] if isinstance(value, int) else list(value)


#: kernel, stride, padding, ceil_mode
WINDOWS = {
    "usual": (3, 2, 1, False),
    "even": (2, 2, 0, False),
    "uneven": ((3, 2), (2, 1), (1, 0), True),
    "ceil": (3, 3, 1, True),
    "gaps": (2, 3, 0, False),
}


@pytest.mark.parametrize("name", ["usual", "uneven"])
def test_max_pool_with_positions(name):
    kernel, stride, padding, ceil = WINDOWS[name]

    def fn(*xs):
        return tuple(
            part
            for x in xs
            for part in F.max_pool2d(x, kernel, stride, padding, 1, ceil, return_indices=True)
        )

    c = same_three_ways(fn, R(2, 3, 11, 12), last(R(2, 3, 10, 9)), odd())
    assert c.compilation.runner.artifact.externs == ()


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", ["even", "uneven", "ceil", "gaps"])
def test_average_pool_and_its_gradient(name):
    kernel, stride, padding, ceil = WINDOWS[name]

    def fn(*xs):
        actual = []
        for x in xs:
            for padded, divisor in ((True, None), (False, None), (True, 5)):
                y = F.avg_pool2d(x, kernel, stride, padding, ceil, padded, divisor)
                how = pair(kernel), pair(stride), pair(padding), ceil, padded, divisor
                actual += [y, aten.avg_pool2d_backward(y * 2, x, *how)]
        return tuple(actual)

    c = same_three_ways(fn, R(2, 3, 11, 12), last(R(2, 3, 10, 9)))
    assert c.compilation.runner.artifact.externs == ()


PROGRAMS = {
    "dilated": (lambda x: F.max_pool2d(x, 3, 1, 1, 2, return_indices=True), R(2, 3, 9, 8)),
    "one dimension": (
        lambda x: (*F.max_pool1d(x, 3, 2, 1, return_indices=True), F.avg_pool1d(x, 3, 2, 1)),
        R(2, 3, 20),
    ),
    "three dimensions": (
        lambda x: (
            *F.max_pool3d(x, 2, 2, return_indices=True),
            F.avg_pool3d(x, 3, 2, 1, True, False),
        ),
        R(2, 3, 6, 7, 8),
    ),
    "ints": (lambda x: F.max_pool2d(x, 2, return_indices=True), (R(1, 2, 6, 6) * 9).long()),
    "16 bits": (
        lambda x: (*F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, 1)),
        R(1, 2, 9, 9).bfloat16(),
    ),
    "no batch": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 3)),
        R(2, 9, 9),
    ),
    "adaptive means": (
        lambda x, y: tuple(
            F.adaptive_avg_pool2d(v, s) for v in (x, y) for s in ((1, 1), (2, 3), (11, 6), (13, 15))
        ),
        R(2, 3, 11, 12),
        last(R(2, 3, 11, 12)),
    ),
    "adaptive maxima": (
        lambda x, y: tuple(
            part
            for v in (x, y)
            for s in ((2, 3), (11, 6), (13, 15))
            for part in F.adaptive_max_pool2d(v, s, return_indices=True)
        ),
        R(2, 3, 11, 12),
        last(R(2, 3, 11, 12)),
    ),
    "adaptive, large windows": (
        lambda x, y: (F.adaptive_avg_pool2d(x, (2, 5)), F.adaptive_avg_pool2d(y, (3, 4))),
        R(2, 3, 40, 50),
        last(R(1, 3, 40, 50)),
    ),
    "adaptive, other ranks": (
        lambda x, y: (
            F.adaptive_avg_pool1d(x, 5),
            F.adaptive_max_pool1d(x, 5),
            F.adaptive_avg_pool3d(y, (2, 3, 2)),
            F.adaptive_max_pool3d(y, (2, 3, 2)),
            F.adaptive_avg_pool3d(y, 1),
        ),
        R(2, 3, 17),
        R(2, 3, 5, 6, 7),
    ),
    "adaptive gradients": (
        lambda x: tuple(
            aten._adaptive_avg_pool2d_backward(F.adaptive_avg_pool2d(x, s) * 2, x)
            for s in ((1, 1), (2, 3), (4, 6), (5, 7))
        ),
        R(2, 3, 8, 12),
    ),
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    same_three_ways(fn, *inputs)


def test_sizes_may_change():
    def fn(x):
        y, i = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        z = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + F.adaptive_avg_pool2d(x, 1)
        return y, i, z, F.avg_pool2d(x, 2, count_include_pad=False)

    fast = tracer_core.compile(fn, dynamic=True)
    for sizes in ((2, 3, 11, 12), (3, 2, 7, 30)):
        for ours, eager in zip(fast(R(*sizes)), fn(R(*sizes)), strict=True):
            torch.testing.assert_close(ours, eager)


def test_values_and_positions_are_one_kernel():
    c = compiled(lambda x: F.max_pool2d(x, 2, return_indices=True), R(2, 3, 12, 12))
    assert c.kernels == 1

"""Padding, shuffles, columns, interpolation and grids against eager, three ways."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.inductor.compiling import compiled, same_three_ways

aten = torch.ops.aten


def R(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def last(x):
    return x.to(memory_format=torch.channels_last)


def pads(*xs):
    return tuple(
        F.pad(x, ((1, 2), (2, 1, 1, 0), (1, 2, 1, 0, 2, 1))[x.dim() - 3], mode=mode)
        for x in xs
        for mode in ("reflect", "replicate")
    )


def pad_gradients(g, x):
    return tuple(
        getattr(aten, f"{mode}_pad2d_backward")(g, x, [1, 2, 3, 1])
        for mode in ("reflection", "replication")
    )


#: How a picture of 5 by 6 is resized.
RESIZES = {
    "twice": {"scale_factor": 2},
    "thrice": {"scale_factor": (3.0, 4.0)},
    "smaller": {"size": (3, 4)},
    "one way": {"size": (5, 12)},
    "odd": {"scale_factor": (1.7, 0.6)},
}


def resized(how, modes):
    def fn(*xs):
        actual = []
        for x in xs:
            for mode in modes:
                corners = (False, True) if mode.startswith(("bi", "tri", "lin")) else (None,)
                actual += [F.interpolate(x, mode=mode, align_corners=c, **how) * 2 for c in corners]
        return tuple(actual)

    return fn


PROGRAMS = {
    "pads": (pads, R(2, 3, 5), R(2, 3, 5, 6), last(R(2, 3, 5, 6)), R(2, 2, 4, 5, 6),
             R(2, 4, 5, 6, 2).permute(0, 4, 1, 2, 3)),
    "pads that cut": (
        lambda x: (F.pad(x, (-1, 2, 1, -2), mode="replicate"), F.pad(x, (2, 0, 1, 1),
        mode="circular")),
        R(1, 3, 5, 6),
    ),
    "gradients of pads": (pad_gradients, R(2, 3, 9, 9), R(2, 3, 5, 6)),
    "shuffles": (
        lambda x, y: (F.pixel_shuffle(x, 2) + 1, F.pixel_unshuffle(y, 2) * 2, F.channel_shuffle(x,
        4) * 3),
        R(2, 8, 3, 4),
        R(2, 3, 4, 6),
    ),
    "columns": (
        lambda x, y: (
            F.unfold(x, 3),
            F.unfold(x[0], (2, 3), dilation=2, padding=(1, 2), stride=(2, 1)),
            F.fold(y, (7, 8), (2, 3), dilation=2, padding=(1, 2), stride=(2, 1)),
        ),
        R(2, 3, 7, 8),
        R(2, 18, 32),
    ),
    "nearest of many sizes": (
        lambda x: tuple(
            F.interpolate(x, size=(n, 7 * n % 51 + 1), mode=mode)
            for n in (3, 13, 29, 41, 64, 93)
            for mode in ("nearest", "nearest-exact")
        ),
        R(1, 1, 31, 47),
    ),
    "one dimension": (resized({"scale_factor": 2}, ("linear", "nearest")), R(2, 3, 5)),
    "three dimensions": (resized({"size": (4, 4, 10)}, ("trilinear", "nearest")), R(1, 2, 3, 4, 5)),
    "float64": (resized({"size": (7, 12)}, ("bilinear", "bicubic", "nearest")), R(2, 3, 5,
    6).double()),
    "16 bits": (resized({"size": (7, 12)}, ("bilinear", "nearest")), R(2, 3, 5, 6).bfloat16()),
    "gradients": (
        lambda g, h: (
            aten.upsample_nearest2d_backward(g, [8, 9], [2, 3, 5, 6]),
            aten._upsample_nearest_exact2d_backward(g, [8, 9], [2, 3, 4, 3]),
            aten.upsample_bilinear2d_backward(g, [8, 9], [2, 3, 5, 9], False),
            aten.upsample_bilinear2d_backward(h, [8, 9], [2, 3, 5, 6], False),
            aten.upsample_bilinear2d_backward(h, [8, 9], [2, 3, 5, 9], True),
            aten.upsample_bicubic2d_backward(h, [8, 9], [2, 3, 5, 6], False),
        ),
        R(2, 3, 8, 9),
        last(R(2, 3, 8, 9)),
    ),
}  # fmt: skip


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    same_three_ways(fn, *inputs)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", RESIZES)
def test_interpolation(name):
    fn = resized(RESIZES[name], ("nearest", "nearest-exact", "bilinear", "bicubic"))
    same_three_ways(fn, R(2, 3, 5, 6), last(R(2, 3, 5, 6)))


@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
def test_grid(outside):
    grid = R(2, 4, 5, 2) * 0.8
    if outside == "zeros":
        odd = [[float("nan"), 0.0], [float("inf"), 1.0], [1.0, -1.0], [1e20, -1.0]]
        grid[0, 0, :4] = torch.tensor(odd)

    def fn(x, y, grid):
        return tuple(
            F.grid_sample(v, grid, mode=mode, padding_mode=outside, align_corners=corners)
            for v in (x, y)
            for mode in ("bilinear", "nearest")
            for corners in (True, False)
        )

    same_three_ways(fn, last(R(2, 3, 6, 7)), R(2, 3, 6, 7), grid)


def test_resizing_fuses_with_what_follows_channels_last():
    x, y = last(R(2, 3, 5, 6)), last(R(2, 3, 10, 12))
    c = compiled(lambda x, y: (F.interpolate(x, scale_factor=2, mode="bilinear") + y).relu(), x, y)
    assert c.kernels == 1


def test_sizes_may_change():
    def fn(x):
        return (
            F.pad(x, (1, 2, 2, 1), mode="reflect"),
            F.pixel_shuffle(x, 2),
            F.interpolate(x, scale_factor=2),
        )

    fast = tracer_core.compile(fn, dynamic=True)
    for sizes in ((2, 4, 5, 6), (1, 8, 9, 4), (3, 4, 7, 7)):
        for ours, eager in zip(fast(R(*sizes)), fn(R(*sizes)), strict=True):
            torch.testing.assert_close(ours, eager)

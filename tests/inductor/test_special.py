"""Special functions and rarer functions of two numbers against eager, three ways."""

from __future__ import annotations

import pytest
import torch

from tests.inductor.compiling import compiled, same_three_ways

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 7.5, -40.0, NAN, INF, -INF, 1e-30, 1e30]
)
OTHER = EDGES.flip(0)[torch.arange(15) * 4 % 15]
INTS = torch.tensor([-(2**31), -9, -1, 0, 1, 6, 12, 2**31 - 1], dtype=torch.int32)


def every_pair(x, fn):
    """fn of each element with each other."""
    return fn(x[:, None], x[None, :])


def shifted(x, u, by):
    small = by.to(torch.uint8)
    return (
        x[:, None] << by,
        x[:, None] >> by,
        u[:, None] << small,
        u[:, None] >> small,
        x << 3,
        x >> 40,
    )


PROGRAMS = {
    "of one number": (
        lambda x: (torch.erfinv(x), torch.digamma(x), torch.special.i0e(x), torch.special.i1e(x),
        torch.special.entr(x)),
        EDGES,
    ),
    "Bessel": (lambda x: (torch.i0(x), torch.special.i1(x)), torch.linspace(-80, 80, 99)),
    "of ints": (lambda x: (torch.digamma(x), torch.i0(x), torch.special.entr(x)), torch.arange(-4,
    9)),
    "of 16 bits": (lambda x: (torch.digamma(x), torch.i0(x), x.erfinv()), EDGES[:10].bfloat16()),
    "of float64": (lambda x: (torch.digamma(x), torch.i0(x), x.erfinv() + 1, torch.hypot(x, x)),
    EDGES.double()),
    "pairs": (
        lambda x: tuple(
            every_pair(x, fn)
            for fn in (torch.hypot, torch.copysign, torch.nextafter, torch.heaviside,
            torch.special.xlog1py, torch.xlogy)
        ),
        EDGES,
    ),
    "numbers": (lambda x: (torch.copysign(x, -2.0), torch.special.xlog1py(2.0, x),
    torch.special.xlog1py(x, 3.0)), EDGES),
    "pairs of ints": (
        lambda x: (every_pair(x, torch.gcd), every_pair(x, torch.lcm), every_pair(x,
        torch.copysign), torch.heaviside(x, x)),
        INTS[1:7].long(),
    ),
    "multiples beyond the type": (
        lambda x, y: (every_pair(x, torch.lcm), every_pair(y, torch.lcm)),
        torch.tensor([127, 126, 2, 3, -100, 0], dtype=torch.int8),
        torch.tensor([32767, 2, 3, -181], dtype=torch.int16),
    ),
    "shifts": (
        shifted,
        INTS,
        torch.tensor([1, 200, 5], dtype=torch.uint8),
        torch.tensor([-1, 0, 3, 7, 8, 31, 32, 33, 70], dtype=torch.int32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    same_three_ways(fn, *inputs)


def test_they_fuse():
    c = compiled(lambda x: (torch.erfinv(x * 0.5) + torch.i0(x)).hypot(x).sum(), torch.rand(50, 60))
    assert c.kernels == 1

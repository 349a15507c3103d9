"""Scans and scatters against eager, three ways: the loop IR, the fused bodies, and the C++
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
ODD = torch.tensor([[1.0, 2.0, NAN, 3.0], [INF, -INF, 1.0, 2.0], [-0.0, 0.0, -1.0, 1.0]])


def R(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def I(low, high, *sizes):
    return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(5))


def reduced(*, self_included):
    """scatter_reduce in every way, along both dimensions."""

    def run(x, i, s):
        return tuple(
            x.scatter_reduce(dim, i, s, how, include_self=self_included)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for dim in (0, 1)
        )

    return run


def index_reduced(x, i, s):
    return tuple(
        x.index_reduce(0, i, s, how, include_self=own)
        for how in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    )


def put_columns(x, i, v, w):
    y, z = x.clone(), x.clone()
    y[:, i] = v
    z[i % 3, :, i % 2] += w
    return y, z


def chained(x, i, s):
    """Each writer goes on in the buffer of the one before, where nobody else reads that."""
    y = x.index_add(0, i, s)
    return y.index_add(0, i, s).index_copy(0, i + 1, s) * 2 + y


PROGRAMS = {
    "running values": (
        lambda x: (x.cumsum(0), x.cumsum(1), x.cumsum(2), x.cumprod(1).exp(), x.logcumsumexp(-1)),
        R(5, 7, 90),
    ),
    "running values of nan and inf": (
        lambda x: (x.cumsum(0), x.cumsum(1), x.cumprod(1), x.logcumsumexp(0), x.logcumsumexp(1)),
        ODD,
    ),
    "running extremes of nan and inf": (
        lambda x: (*x.cummax(0), *x.cummax(1), *x.cummin(0), *x.cummin(1), x.cummax(1).values + 1),
        ODD,
    ),
    "running extremes of equal ints": (lambda x: (*x.cummax(0), *x.cummin(-1)), I(0, 4, 6, 9)),
    "running values of ints and bools": (
        lambda x: (
            x.cumsum(0),
            x.cumsum(0, dtype=torch.int32),
            x.cumprod(-1),
            (x > 0).cumsum(1),
            *(x > 0).cummax(0),
        ),
        I(-3, 4, 6, 9).to(torch.int8),
    ),
    "running values of 16 bits": (lambda x: x.cumsum(-1), R(4, 50).bfloat16()),
    "running values of nothing and of one": (
        lambda x, y, z: (
            x.cumsum(0),
            *x.cummax(0),
            y.cumsum(1),
            *y.cummin(1),
            z.cumsum(0),
            z.cumsum(1),
        ),
        torch.tensor(3.0),
        R(4, 1, 3),
        R(4, 0),
    ),
    "running values of a transpose": (lambda x: (x.t().cumsum(0), x.t().cumsum(1)), R(4, 9)),
    "scatter": (
        lambda x, i, s: (x.scatter(1, i, s), x.scatter(0, i % 4, s) + 1),
        R(4, 5),
        I(0, 5, 4, 5),
        R(4, 5),
    ),
    "scatter a number": (lambda i: torch.zeros(8, 5).scatter(1, i, 1.0), I(0, 5, 8, 1)),
    "scatter part of a source": (
        lambda x, i, s: (x.scatter_add(0, i, s), x.scatter(0, i, s, reduce="multiply")),
        R(40, 6),
        I(0, 40, 90, 3),
        R(93, 6),
    ),
    "scatter to one row": (lambda x, i, s: x.scatter_add(0, i, s), R(40), I(0, 40, 300), R(300)),
    "scatter small ints": (
        lambda x, i, s: x.scatter_add(0, i, s),
        I(0, 9, 7, 5).to(torch.int8),
        I(0, 7, 30, 5),
        I(0, 99, 30, 5).to(torch.int8),
    ),
    "scatter 16 bits": (
        lambda x, i, s: x.scatter_add(0, i, s),
        R(7, 5).half(),
        I(0, 7, 9, 5),
        R(9, 5).half(),
    ),
    "scatter transposed": (
        lambda x, i, s: x.t().scatter_add(0, i.t(), s.t()),
        R(4, 5),
        I(0, 5, 4, 3),
        R(4, 6),
    ),
    "scatter nothing": (
        lambda x, i, s, e: (x.scatter(1, i, s), e.index_add(0, torch.tensor([0, 0]), e[:2])),
        R(4, 5),
        I(0, 5, 0, 0),
        R(0, 0),
        R(3, 0),
    ),
    "reduce onto itself": (
        reduced(self_included=True),
        ODD[:, :3],
        I(0, 3, 3, 3),
        ODD[:, 1:].flip(0),
    ),
    "reduce afresh": (reduced(self_included=False), ODD[:, :3], I(0, 3, 3, 3), ODD[:, 1:].flip(0)),
    "reduce ints": (reduced(self_included=False), I(-5, 5, 3, 3), I(0, 3, 3, 3), I(-9, 9, 3, 3)),
    "index_reduce": (index_reduced, R(5, 3), I(0, 5, 7), R(7, 3)),
    "index_add": (
        lambda x, i, s, t: (
            x.index_add(0, i.int(), s),
            x.index_add(1, i % 4, t, alpha=2),
            (x > 0).index_add(0, i, s > 0),
        ),
        R(6, 4),
        I(0, 6, 9),
        R(9, 4),
        R(6, 9),
    ),
    "index_copy keeps the last": (
        lambda x, s: (
            x.index_copy(0, torch.tensor([1, 5, 1]), s),
            x.index_fill(1, torch.tensor([0, -1]), 3.0),
        ),
        R(6, 4),
        R(3, 4),
    ),
    "index_put": (
        lambda x, i, v: (
            x.index_put((i,), v, accumulate=True),
            x.index_put((i, i % 3), v.sum(1), accumulate=True),
        ),
        R(6, 4),
        I(-6, 6, 20),
        R(20, 4),
    ),
    "index_put keeps the last": (
        lambda x, v: x.index_put((torch.tensor([1, -1, 1]),), v),
        R(6, 4),
        R(3, 4),
    ),
    "columns": (put_columns, R(3, 4, 3), I(0, 3, 5), R(3, 5, 3), R(5, 4)),
    "masks": (
        lambda x: (
            x.index_put((x > 0,), torch.tensor(5.0)),
            x.index_put((x[:, 0] > 0,), torch.tensor(5.0), True),
        ),
        R(6, 4),
    ),
    "put": (
        lambda x, i, s: (x.put(i, s), x.put(i, s, accumulate=True)),
        R(6, 4),
        I(-24, 24, 3, 3),
        R(3, 3),
    ),
    "chain": (chained, R(6, 4), I(0, 5, 3), R(3, 4)),
    "read again at the same places": (
        lambda x, i, s: x.index_add(0, i, s)[i] * 2,
        R(6, 4),
        I(0, 5, 9),
        R(9, 4),
    ),
    "gradient of an embedding": (
        lambda g, i: (
            aten.embedding_dense_backward(g, i, 10, -1, False),
            aten.embedding_dense_backward(g, i, 10, 3, False),
        ),
        R(3, 7, 16),
        I(0, 10, 3, 7),
    ),
    "gradient of windows": (lambda g: aten.unfold_backward(g, [9, 4], 0, 3, 2), R(4, 4, 3)),
}


@pytest.mark.sweep(keep=7)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name, monkeypatch):
    monkeypatch.setenv("TRACER_CHECK", "1")
    fn, *inputs = PROGRAMS[name]
    c = same_three_ways(fn, *inputs)
    assert c.compilation.runner.artifact.externs == ()


@pytest.mark.parametrize(
    "form", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels_last"]
)
@pytest.mark.parametrize(
    "how", [(3, 2, 1, 1), (2, 1, 0, 1), (3, 2, 1, 2)], ids=["usual", "overlapping", "dilated"]
)
def test_gradient_of_max_pool(how, form):
    kernel, stride, padding, dilation = how
    x = R(2, 3, 12, 11).to(memory_format=form)

    def both_ways(x):
        y, i = F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
        sizes = [[n, n] for n in how]
        return aten.max_pool2d_with_indices_backward(y * 2, x, *sizes, False, i)

    same_three_ways(both_ways, x)


def test_scans_join_what_is_around_them():
    c = compiled(lambda x: x.softmax(-1).cumsum(-1).cumsum(-1) / 3, R(40, 90))
    assert c.kernels == 1 and c.compilation.memory.size == 0
    c = compiled(lambda x: ((x * 2).cumsum(0) - x).softmax(0), R(90, 40))
    assert c.kernels == 1


@pytest.mark.parametrize("bad", [-1, 6])
def test_positions_outside_are_eagers_error_and_write_nothing(bad):
    def fn(x, i, s):
        return x.index_add(0, i, s) * 2

    fast = tracer_core.compile(fn)
    x, s = R(6, 4), R(2, 4)
    torch.testing.assert_close(fast(x, torch.tensor([0, 5]), s), fn(x, torch.tensor([0, 5]), s))
    with pytest.raises((IndexError, RuntimeError), match="out of bounds|out of range"):
        fast(x, torch.tensor([0, bad]), s)
    torch.testing.assert_close(fast(x, torch.tensor([5, 5]), s), fn(x, torch.tensor([5, 5]), s))


def test_sizes_may_change():
    def fn(x, i, s):
        y = x.index_put((i,), s.cumsum(0), accumulate=True)
        return y.cumsum(1).scatter_add(0, i[:, None].expand_as(s), s)

    fast = tracer_core.compile(fn, dynamic=True)
    for rows, picked, columns in ((6, 9, 4), (3, 20, 7), (200, 3, 65), (5, 2, 2)):
        args = R(rows, columns), I(0, rows, picked), R(picked, columns)
        torch.testing.assert_close(fast(*args), fn(*args))


def test_gradients_of_gathers_are_kernels():
    def loss(table, x, i):
        return (
            (F.embedding(i, table) * x[i]).sum()
            + x.index_select(1, i % 4).pow(2).sum()
            + x[:, i % 3].sin().sum()
        )

    table, x, i = R(10, 4).requires_grad_(), R(10, 4).requires_grad_(), I(0, 10, 30)
    expected = torch.autograd.grad(loss(table, x, i), (table, x))
    actual = torch.autograd.grad(tracer_core.compile(loss)(table, x, i), (table, x))
    for ours, eager in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5)


def test_complex_numbers_stay_with_aten():
    x, i = torch.complex(R(6, 4), R(4, 6).t()), I(0, 6, 9)

    def fn(x, i):
        return x.cumsum(0).index_add(0, i, x[i]).real * 2

    torch.testing.assert_close(tracer_core.compile(fn)(x, i), fn(x, i))


NONE = torch.zeros(0, dtype=torch.int64)
EAGERS = {
    "no positions": (lambda x, i: x.put(i, x[:0, 0]) + 1, R(3, 4), NONE),
    "nothing to put into": (lambda x, i: x.put(i, torch.ones(3)), R(0), I(0, 1, 3)),
    "fewer positions than rows": (lambda x, i: x.index_reduce(0, i, x, "amax"), R(3, 4), NONE),
    "fewer positions than rows, added": (lambda x, i: x.index_add(0, i, x), R(3, 4), NONE),
    "a mask of other sizes": (
        lambda x, i: x.index_put((i > 0,), torch.tensor(1.0)),
        R(3, 4),
        I(0, 2, 2),
    ),
    "a scalar's second dimension": (lambda x, i: x.cummax(1).values + i, torch.tensor(1.0), NONE),
    "an index into a scalar": (
        lambda x, i: x.index_put((i,), x),
        torch.tensor(1.0),
        torch.tensor(True),
    ),
}


@pytest.mark.parametrize("name", EAGERS)
def test_what_eager_rejects_is_rejected(name):
    fn, *inputs = EAGERS[name]
    try:
        expected = fn(*inputs)
    except Exception as error:
        with pytest.raises(type(error)):
            tracer_core.compile(fn)(*inputs)
    else:
        torch.testing.assert_close(tracer_core.compile(fn)(*inputs), expected)

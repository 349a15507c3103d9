"""Norms, distances, losses: values against eager, three ways, and how many kernels reductions of
the same rows take.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.inductor.compiling import compiled, same_three_ways

NAN, INF = float("nan"), float("inf")


def R(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def I(low, high, *sizes):
    return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(5))


ODD = torch.tensor([[1.0, NAN, 3.0], [INF, -INF, 2.0], [-0.0, 0.0, -1.0]])
ORDERS = (0, 0.5, 1, 2, 3, INF, -INF)

PROGRAMS = {
    "norms": (
        lambda x: tuple(torch.linalg.vector_norm(x, p, dim=d) for p in ORDERS for d in (None, 1,
        (0, 2))),
        R(4, 5, 6),
    ),
    "norms of nan and inf": (lambda x: tuple(torch.linalg.vector_norm(x, p,
    dim=1) for p in ORDERS), ODD),
    "norms of other dtypes": (
        lambda x, y: (x.norm(dim=0), torch.linalg.vector_norm(x, dtype=torch.float64),
        y.norm(dim=-1), x[:0].norm()),
        R(40, 3).bfloat16(),
        R(4, 3).double(),
    ),
    "both extremes": (lambda x, y: (*x.aminmax(dim=1), *x.aminmax(), *y.aminmax(dim=0)), ODD, I(-9,
    9, 5, 3)),
    "distances": (
        lambda x, y: tuple(torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist") for p in (0.0, 1.0,
        2.0, 3.0, INF)),
        R(3, 20, 8),
        R(9, 8),
    ),
    "margin losses": (
        lambda x, t, w: tuple(
            F.multi_margin_loss(x, t, p, 0.7, weight, reduction=how)
            for p in (1, 2)
            for weight in (None, w)
            for how in ("none", "mean", "sum")
        ),
        R(6, 10),
        I(0, 10, 6),
        R(10).abs(),
    ),
    "cosine": (lambda x, y: (F.cosine_similarity(x, y), F.normalize(x, dim=0), F.normalize(y,
    p=1.0)), R(6, 10), R(6, 10)),
    "a gather of a log_softmax": (lambda x, t: F.cross_entropy(x, t, reduction="none") + 1, R(6,
    10), I(0, 10, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    c = same_three_ways(fn, *inputs)
    assert c.compilation.runner.artifact.externs == ()


def statistics(dim):
    def fn(x):
        kinds = (
            x.mean(dim),
            x.amax(dim),
            x.amin(dim),
            x.sum(dim),
            x.argmax(dim),
            x.argmin(dim),
            x.norm(dim=dim),
        )
        return (x.var(dim), *kinds, (x > 0).any(dim), x.std(dim))

    return fn


#: name -> (program, sizes): one kernel each, whatever is reduced, for fixed and for changing sizes.
ONE_KERNEL = {
    "softmax": (lambda x: x.softmax(-1), (64, 100)),
    "softmax of columns": (lambda x: x.softmax(1), (4, 100, 64)),
    "log_softmax": (lambda x: x.log_softmax(-1), (64, 100)),
    "log_softmax of columns": (lambda x: x.log_softmax(0), (100, 64)),
    "logsumexp": (lambda x: x.logsumexp(0), (100, 64)),
    "layer_norm": (lambda x: F.layer_norm(x, (100,)), (64, 100)),
    "rms_norm": (lambda x: F.rms_norm(x, (100,)), (64, 100)),
    "normalize": (lambda x: F.normalize(x, dim=1), (4, 100, 64)),
    "statistics": (statistics(-1), (64, 100)),
    "statistics of columns": (statistics(0), (100, 64)),
    "likelihood": (
        lambda x: F.nll_loss(x.log_softmax(1), x.argmin(1), reduction="none"),
        (64, 100),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "changing"])
@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_reductions_of_the_same_rows_are_one_kernel(name, dynamic):
    fn, sizes = ONE_KERNEL[name]
    c = compiled(fn, R(*sizes), dynamic=dynamic, until="fuse")
    assert len(c.compilation.plan.groups) == 1
    assert c.compilation.plan.groups[0].extern is None


def test_cross_entropy_never_stores_the_likelihoods_of_all_classes():
    x, t = R(64, 1000), I(0, 1000, 64)
    c = compiled(F.cross_entropy, x, t)
    assert c.kernels == 2 and c.compilation.memory.size < 64 * 1000
    torch.testing.assert_close(c(x, t)[0], F.cross_entropy(x, t))


@pytest.mark.parametrize("columns", [64, 1000, 4097])
def test_the_variance_of_equal_numbers_is_zero(columns):
    """The sum of a row is rounded, and its mean with it: the distances to that are no variance."""
    x = torch.full((3, columns), 1000.1)
    x[1] += 1e-3 * R(columns)

    def program(x):
        return x.var(1), x.std(1), F.layer_norm(x, x.shape[-1:])

    variance, deviation, normal = compiled(program, x)(x)
    expected = program(x.double())
    assert variance[[0, 2]].tolist() == [0.0, 0.0] == deviation[[0, 2]].tolist()
    assert not normal[[0, 2]].any()
    # row 1: as exact as its mean, which is rounded to float32 between steps of 6e-5
    torch.testing.assert_close(variance[1].double(), expected[0][1], rtol=1e-4, atol=0)
    eager = program(x)[2][1].double()
    limit = 2 * (eager - expected[2][1]).abs().max() + 1e-6
    assert (normal[1].double() - expected[2][1]).abs().max() <= limit

"""Programs whose size goes through a limit of the backend `inductor`, by the limit's name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import inductor_backend.pipeline
import inductor_backend.runtime.arena  # noqa: F401
from tests.limits.case import Case

CASES: dict[str, Case] = {}
ROWS = torch.linspace(-1, 1, 40 * 6).reshape(40, 6)
IMAGE = torch.linspace(-1, 1, 2 * 32 * 14 * 56).reshape(2, 32, 14, 56)


def case(name: str, calls: Any, **facts: Any) -> Any:
    """Registers the decorated function, which builds a program of a size."""

    def register(make: Any) -> Any:
        result = (lambda n: [calls(n)] * 5) if callable(calls) else (lambda n: [calls] * 5)
        CASES[name] = Case(make, result, options={"backend": "inductor"}, **facts)
        return make

    return register


@case("MAX_BODY_VALUES", (ROWS,), limit=20, under=3, over=40)
def a_long_formula(n):
    def f(x):
        y = x
        for i in range(n):
            y = y * x + i
        return (y * 0.5).relu() + y.sum(1, keepdim=True)

    return f


@case("MAX_KERNEL_INSTRUCTIONS", (ROWS,), limit=100, under=2, over=12)
def many_sines(n):
    def f(x):
        return tuple((x + i).sin() for i in range(n))

    return f


@case(
    "MAX_KERNEL_POINTERS",
    lambda n: (list(ROWS[: n % 40 + 1].repeat(2, 1)),),
    is_compared=False,
    under=10,
    over=39,
)
def a_sum_of_many(n):
    def f(xs):
        return sum(xs), [x * 2 for x in xs]

    return f


@case(
    "MAX_LOCAL_ROW",
    lambda n: (torch.linspace(-1, 1, 3 * n).reshape(3, n),),
    limit=100,
    under=100,
    over=101,
)
def a_softmax(n):
    return lambda x: F.layer_norm((x * 2).softmax(-1), (n,))


@case(
    "MAX_MIXED_CHANNELS",
    lambda n: (torch.linspace(-1, 1, n * 60).reshape(n, 60), torch.eye(n) + 0.5),
    limit=4,
    under=4,
    over=5,
)
def a_mixture(n):
    return lambda x, w: x.t() @ w


@case("MAX_FOLDED_ELEMENTS", lambda n: (torch.ones(n),), limit=100, under=100, over=101)
def positions(n):
    return lambda x: x + torch.arange(n).float().sin().cumsum(0)


@case("MAX_FOLDED_ELEMENTS_OF_GRAPH", lambda n: (torch.ones(n),), limit=100, under=40, over=80)
def several_tables(n):
    def f(x):
        for i in range(2):
            x = x * (torch.arange(n) + i).float().sin().cumsum(0)
        return x

    return f


@case("MAX_POOL_REGIONS", (IMAGE,), limits=(12, 1))
def a_padded_pool(n):
    return lambda x: F.max_pool2d(x, 3, 2, 1)


@case("MAX_UNROLLED_WINDOW", (IMAGE,), limit=16, under=4, over=5)
def a_wide_pool(n):
    return lambda x: F.max_pool2d(x, n, 2)


@case("MAX_UNROLLED_RESIZE", (IMAGE[:, :2],), under=4, over=5)
def a_larger_image(n):
    return lambda x: F.interpolate(x, scale_factor=float(n), mode="nearest") + 1


@case("MAX_SINGLE_SOURCE", (ROWS,), limits=(12_000, 10))
def several_kernels(n):
    return lambda x: (x.softmax(0), x.t().contiguous().cumsum(1), F.layer_norm(x, (6,)))


LARGE = torch.linspace(-1, 1, 600 * 600).reshape(600, 600)


@case("MAX_FREE_ARENAS", (LARGE,), limits=(8, 1))
def intermediate_results(n):
    return lambda x: ((x.softmax(0) @ x.t()).softmax(1) @ x).relu()

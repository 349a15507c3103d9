"""16-bit values inside kernels: what a discontinuous operation reads is what eager computes, float16
overflows where eager's does, smooth chains keep more bits, numerics="eager" keeps none.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from inductor_backend.ir.target import interpreted
from tests.support.comparison import assert_equal

DTYPES = [torch.bfloat16, torch.float16]
LANGUAGES = ["cpp", "triton"]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: What is computed first, in several operators.
CHAINS = {
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "sum of products": lambda a, b: a * a + b * 0.1,
    "cancellation": lambda a, b: (a + 2048) - 2048,
    "beyond the range": lambda a, b: (a * 300) * (a * 300) / b,
    "below the range": lambda a, b: a * 1e-3 * b * 1e-4,
    "activation": lambda a, b: F.silu(a) * b,
    "choice": lambda a, b: torch.where(a > b, a * 1.1, b * 0.9),
    "view": lambda a, b: (a * b).mT.flip(0).mT,
    "joined": lambda a, b: torch.cat([a * 1.1, b * 1.3], 1)[:, 3:43],
    "sum of a row": lambda a, b: (a * b).sum(1, keepdim=True) + a,
    "running sum": lambda a, b: (a * b).cumsum(1),
    "written in place": lambda a, b: (a * b).add_(b).mul_(1.1),
    "padded": lambda a, b: F.pad(a * b, (1, 1))[:, :40],
}  # fmt: skip

#: Discontinuous functions of it.
FUNCTIONS = {
    "trunc": lambda y, a, b: y.trunc(),
    "floor": lambda y, a, b: y.floor(),
    "ceil": lambda y, a, b: y.ceil(),
    "round": lambda y, a, b: y.round(),
    "frac": lambda y, a, b: y.frac(),
    "sign": lambda y, a, b: y.sign(),
    "integers": lambda y, a, b: y.clamp(-1e4, 1e4).int(),
    "bools": lambda y, a, b: y.bool(),
    "remainder": lambda y, a, b: (y % 0.3, y.fmod(0.3), b % y),
    "floor division": lambda y, a, b: (y // 0.3, y // b, torch.div(y, b, rounding_mode="trunc")),
    "comparisons": lambda y, a, b: (y == a, y != b, y < a * b, y >= 0.5, y > 65504),
    "isinf": lambda y, a, b: (y.isinf(), y.isnan(), y.isfinite()),
    "where": lambda y, a, b: torch.where(y.isinf() | (y > a), torch.zeros_like(y), y),
    "places": lambda y, a, b: (y.argmax(1), y.argmin(0), y.max(1).indices, y.cummax(1).indices),
    "sorted": lambda y, a, b: (y.sort(dim=1, stable=True).indices, y.kthvalue(3, 1).values),
    "index": lambda y, a, b: b.gather(1, y.nan_to_num(0, 39, 0).clamp(0, 39).long()),
    "counts": lambda y, a, b: ((y > 1).sum(), y.count_nonzero(1), y.any(1), y.all(1)),
    "bits of integers": lambda y, a, b: (y * 4).clamp(-99, 99).to(torch.int32) & 3,
    "decimals": lambda y, a, b: y.round(decimals=1),
    "histogram": lambda y, a, b: torch.histc(y.float().nan_to_num(0, 3, -3), 20, -3, 3),
    "pooling": lambda y, a, b: F.max_pool1d(y[None], 2, return_indices=True)[1],
}  # fmt: skip


def operands(dtype, seed=0):
    make = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(24, 40, generator=make) * size for size in (3, 1))
    a[0, :4] = torch.tensor([1.0, 6.0, 300.0, 3.0])
    b[0, :4] = torch.tensor([0.1, 0.2, 300.0, 0.3])
    return a.to(dtype), b.to(dtype)


def together(chain):
    """Every function of one chain, in one program."""

    def program(a, b):
        actual = []
        for function in FUNCTIONS.values():
            result = function(chain(a, b), a, b)
            actual += result if isinstance(result, tuple) else [result]
        return actual

    return program


def written_in(language):
    return interpreted() if language == "triton" else contextlib.nullcontext()


@pytest.mark.sweep(keep=7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("chain", CHAINS)
def test_equals_eager(chain, language, dtype):
    program = together(CHAINS[chain])
    with written_in(language):
        compiled = tracer_core.compile(program, dynamic=False)
        for seed in range(1 if language == "triton" else 3):
            a, b = operands(dtype, seed)
            assert_equal(compiled(a.clone(), b.clone()), program(a.clone(), b.clone()))


def overflows(x):
    y = x * x
    return (
        y.isinf(),
        y / x,
        torch.where(y.isinf(), 0.0, y),
        y > 65504,
        (x + 2048) - 2048 == x,
        y - y,
    )


def vanishes(x):
    y = (x * 1e-4) * 1e-5
    return 1 / y, y.log(), x / y, y.rsqrt(), y == 0


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("program", [overflows, vanishes])
def test_half_beyond_its_range(program, language):
    with written_in(language):
        compiled = tracer_core.compile(program)
        for value in (300.0, 200.0, -257.0, 1.0):
            x = torch.full((40,), value, dtype=torch.float16)
            for got, want in zip(compiled(x), program(x), strict=True):
                torch.testing.assert_close(got, want, rtol=2e-3, atol=0, equal_nan=True)


def division(a, b):
    modes = ("trunc", "floor")
    quotients = [torch.div(a, b, rounding_mode=mode) for mode in modes]
    by_number = [torch.div(a, 0.1, rounding_mode=mode) for mode in modes]
    by_one = [torch.div(a, b[3:4], rounding_mode=mode) for mode in modes]
    return [*quotients, *by_number, *by_one, a // b, 3.0 // b]


@pytest.mark.parametrize("dtype", DTYPES)
def test_division_with_rounding(dtype):
    make = torch.Generator().manual_seed(0)
    special = torch.tensor(
        [0.0, -0.0, 1, -1, 6e4, -6e4, 6e-8, 0.1, -0.1, 3e-3, 1e9, -1e9, float("nan")]
    )
    a = torch.cat([torch.randn(5000, generator=make) * 30, special.repeat(13)]).to(dtype)
    b = torch.cat([torch.randn(5000, generator=make), special.repeat_interleave(13)]).to(dtype)
    got, want = tracer_core.compile(division)(a, b), division(a, b)
    assert_equal(got, want)
    for mine, other in zip(got[:2], want[:2], strict=True):
        zeros = other == 0
        assert torch.equal(mine[zeros].signbit(), other[zeros].signbit())


def with_numbers(x, i):
    number = torch.tensor(0.3)
    return [
        x + 0.3, x - 0.3, 0.3 - x, x * 0.3, x / 0.3, torch.add(x, x, alpha=1.7),
        torch.sub(x, 0.3, alpha=1.7), x + number, x - number, x * number, x + i, x * i, x - i,
        x.abs() ** 0.7, x.abs() ** number, x % 0.3, torch.fmod(x, number), x > number,
        torch.atan2(x, number),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_beside_16_bits_are_rounded_where_eager_rounds_them(dtype):
    make = torch.Generator().manual_seed(0)
    x = (torch.randn(4000, generator=make) * 4).to(dtype)
    i = torch.randint(-5000, 5000, (4000,), generator=make)
    assert_equal(tracer_core.compile(with_numbers)(x, i), with_numbers(x, i))


def chain_of_sums(x, y):
    return ((x * y + x) * y - x) * 1.1 + y


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_numerics_round_every_result(dtype, language):
    x, y = operands(dtype)
    with written_in(language):
        compiled = tracer_core.compile(chain_of_sums, options={"numerics": "eager"})
        assert_equal([compiled(x, y)], [chain_of_sums(x, y)])


def test_smooth_chains_keep_more_bits():
    x, y = operands(torch.bfloat16)
    got, want = tracer_core.compile(chain_of_sums)(x, y), chain_of_sums(x, y)
    exact = chain_of_sums(x.double(), y.double())
    assert (got - exact).abs().mean() < (want - exact).abs().mean()


def test_other_numerics_are_refused():
    with pytest.raises(tracer_core.errors.OptionError, match="must be one of 'fused', 'eager'"):
        tracer_core.compile(chain_of_sums, options={"numerics": "exact"})


def masks(x, w):
    y = F.relu(x * w - 0.3)
    return (torch.where(y > 0.7, y, y * 0.5) * (y.floor() + 1)).sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_choose_as_eager_does(dtype):
    """The gradient of where is 0.5 or 1 times another one: a wrong choice is far off."""
    compiled = tracer_core.compile(masks)
    for seed in range(3):
        inputs = [operand.clone().requires_grad_() for operand in operands(dtype, seed)]
        others = [item.detach().clone().requires_grad_() for item in inputs]
        masks(*inputs).backward()
        compiled(*others).backward()
        for got, want in zip(others, inputs, strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=3e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_sizes_that_change(dtype):
    def program(a, b):
        return (a / b).trunc(), (a * b + a).argmax(1), (a * b).int()

    compiled = tracer_core.compile(program, dynamic=True)
    for rows in (3, 7, 24):
        a, b = (operand[:rows] for operand in operands(dtype))
        b = b.clamp_min(0.1)
        assert_equal(compiled(a, b), program(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_that_are_decomposed_round_once(dtype):
    """Eager computes each in one kernel, in float32."""

    def program(a, b):
        big = a.abs() * 3e3
        actual = [
            F.normalize(big, dim=1), F.mse_loss(big, b, reduction="none").sqrt(),
            torch.addcdiv(b, big, b.abs() + 0.1, value=0.01), F.mish(big), F.cosine_similarity(big, b),
            F.gaussian_nll_loss(a, b, b.abs() + 1e-2, reduction="none"), big.norm(dim=1),
            F.pairwise_distance(big, b), torch.logaddexp(big, b), F.huber_loss(big, b), big.std(1),
        ]  # fmt: skip
        return actual

    a, b = operands(dtype)
    for got, want in zip(tracer_core.compile(program)(a, b), program(a, b), strict=True):
        assert torch.equal(got.isinf(), want.isinf())
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, equal_nan=True)

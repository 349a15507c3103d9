"""Loops in explicit vectors: values, ends of rows, special values, memory at the edge of a
page.
"""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
from torch.nn import functional as F

import tracer_core
from inductor_backend.codegen.cpp import column_writer, streaming, tiling, vectors
from tests.support.comparison import assert_same

pytestmark = pytest.mark.skipif(not vectors.available(), reason="no vectors for this processor")

SIZES = [(5, 17), (7, 100), (3, 1040)]

PROGRAMS = {
    "arithmetic": lambda x: (x + 1.5) * x - x / 3.0,
    "steps": lambda x: torch.where(x > 0.5, x, -x).clamp(-0.75, 0.9),
    "truths of rows": lambda x: torch.where((x > 0) & ~(x > 1), x, x.mean(1, keepdim=True)),
    "truth as a number": lambda x: (x > 0).float() * 2 + (x == x.amax(1, keepdim=True)).float(),
    "gelu": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "activations": lambda x: (
        F.silu(x) * x.tanh() + x.sigmoid() + F.softplus(x) + F.elu(x) + F.mish(x)
    ),
    "waves": lambda x: x.sin() + x.cos(),
    "exponentials": lambda x: (x.exp(), x.expm1(), (x.abs() + 0.1).log(), x.abs().log1p()),
    "roots": lambda x: (x.abs().sqrt(), (x.abs() + 1e-3).rsqrt(), x.erf()),
    "rounded": lambda x: (x.floor(), x.ceil(), x.trunc(), x.round()),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer_norm in a chain": lambda x: F.gelu(F.layer_norm(x * 2, x.shape[1:])).softmax(1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
    # without std, which is computed in double and not in vectors
    "sums": lambda x: (x.sum(1), (x * x).sum(1), x.var(1)),
    "extremes": lambda x: (x.amax(1), x.amin(1), (x * -2).amax(1)),
    "of a constant row": lambda x: (x.reciprocal() * 0 + 1).sum(1),
    "bfloat16 results": lambda x: (x * 2).to(torch.bfloat16),
    "half results": lambda x: (x * 2).half(),
    "across": lambda x: x + x.new_ones(x.shape[1], x.shape[0]).t() * 2,
    "rows of a table": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)] * 2 + x,
    "two results, one long": lambda x: (x.exp(), x.exp().sum(1)),
}


@pytest.fixture
def written(monkeypatch):
    """How many loops were written in vectors."""
    count = [0]
    write = vectors.write

    def counted(*arguments):
        count[0] += 1
        write(*arguments)

    monkeypatch.setattr(vectors, "write", counted)
    return count


STREAMED = ("two results, one long", "across", "bfloat16 results", "softmax")


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize(
    ("name", "streamed"),
    [*((name, False) for name in PROGRAMS), *((name, True) for name in STREAMED)],
)
def test_values(name, streamed, written, monkeypatch):
    if streamed:
        monkeypatch.setattr(streaming, "STREAMED", 0)
    function = PROGRAMS[name]
    compiled = tracer_core.compile(function, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        ours, eager = compiled(x), function(x)
        if name.startswith(("bfloat16", "half")):
            assert torch.equal(ours, eager)
        assert_same(ours, eager, rtol=2e-5, atol=2e-6)
    assert written[0] > 0


SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-45,
    -1e-45,
    3.4e38,
    -3.4e38,
    1.0,
]


@pytest.mark.parametrize(
    "name", ["steps", "truths of rows", "gelu", "exponentials", "rounded", "extremes", "softmax"]
)
def test_special_values_at_any_place(name, written):
    function = PROGRAMS[name]
    compiled = tracer_core.compile(function)
    for place in (0, 15, 16, 40, 99):
        x = torch.randn(len(SPECIAL), 100)
        x[:, place] = torch.tensor(SPECIAL)
        if name == "gelu":  # at infinity eager's depends on the vector that an element falls into
            x[x.isinf()] = 1.0
        assert_same(compiled(x), function(x), rtol=2e-5, atol=2e-6)
    assert written[0] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_rows(dtype, written):
    def function(x, mask):
        return F.layer_norm(torch.where(mask, x, 0.5), x.shape[1:]).relu() + x.softmax(1)

    compiled = tracer_core.compile(function, dynamic=True)
    for size in SIZES:
        x, mask = torch.randn(size).to(dtype), torch.rand(size) > 0.3
        torch.testing.assert_close(compiled(x, mask), function(x, mask), rtol=2e-2, atol=2e-2)
    assert written[0] > 0


def test_gradients(written):
    def function(x, w):
        return (F.layer_norm(F.gelu(x * w), x.shape[1:]).softmax(1) * x).sum()

    compiled = tracer_core.compile(function)
    for size in SIZES[:2]:
        x, w = torch.randn(size, requires_grad=True), torch.randn(size[1], requires_grad=True)
        ours = torch.autograd.grad(compiled(x, w), (x, w))
        assert_same(ours, torch.autograd.grad(function(x, w), (x, w)), rtol=2e-5, atol=2e-6)
    assert written[0] > 0


@pytest.mark.parametrize("rows", [3, 8, 67])
def test_column_sums_of_what_is_equal_along_the_columns(rows):
    x, weight = torch.rand(rows, 90) + 0.5, torch.randn(rows, 1)
    for function in (
        lambda x, w: (x * w + w).sum(0),
        lambda x, w: (x.pow(w) * w.exp()).sum(0),
        lambda x, w: (x.sum(0), (x * x).sum(0), x.amax(0)),
        lambda x, w: x.softmax(0) * w,
    ):
        assert_same(
            tracer_core.compile(function)(x, weight), function(x, weight), rtol=2e-5, atol=2e-6
        )


def before_a_hole(count):
    """A row of floats whose last one is followed by memory that nobody may touch; what keeps it
    alive.
    """
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    assert libc.mprotect(first + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    offset = mmap.PAGESIZE - 4 * count
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=offset), memory


@pytest.mark.parametrize("count", [17, 31, 100])
def test_nothing_beyond_a_row_is_touched(count, written):
    row, memory = before_a_hole(count)
    row.copy_(torch.randn(count))

    def function(x):
        y = x.softmax(0).sum() + x.exp()
        x.mul_(2)
        return y

    reference = row.clone()
    assert_same(tracer_core.compile(function)(row), function(reference), rtol=2e-5, atol=2e-6)
    assert_same(row, reference, rtol=2e-5, atol=2e-6)
    assert written[0] > 0
    del memory


def test_plain_loops_give_the_same(monkeypatch):
    """Rows shorter than a vector, integers, float64 and processors without these vectors keep
    the plain loop.
    """
    for available in (True, False):
        monkeypatch.setattr(vectors, "available", lambda available=available: available)
        for name in ("softmax", "layer_norm", "gelu", "sums"):
            function = PROGRAMS[name]
            for x in (
                torch.randn(4, 5),
                torch.randn(3, 40, dtype=torch.float64),
                torch.randn(3, 40),
            ):
                assert_same(tracer_core.compile(function)(x), function(x), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("place", [0, 16, 31, 40, 99])
def test_waves_of_large_numbers_at_any_place(place, written):
    """A vector with a number past the fast range is computed once more, by libm: nothing of it may
    count twice.
    """

    def function(x):
        y = x.sin() - x.cos()
        return y, (x.cos() * 2).sum(1), x.sin().amax(1)

    def in_place(x):
        return x.sin_().cos_()

    x = torch.randn(4, 100)
    x[1:, place] = torch.tensor([3e5, -1.7e30, 3.1e4])
    for step in (function, in_place):
        compiled = tracer_core.compile(step)
        assert_same(compiled(x.clone()), step(x.clone()), rtol=2e-5, atol=2e-6)
        x[0, place] = float("inf")  # once more, with NaN as the result
        assert_same(compiled(x.clone()), step(x.clone()), rtol=2e-5, atol=2e-6)
        x[0, place] = 1.0
    assert written[0] > 1


DIVISIONS = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


def in_float64(name, a, b):
    """The exact result, rounded once: what eager's vectors have for quotients that floats hold."""
    return DIVISIONS[name](a.double(), b.double()).float()


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions(name, written):
    """Of quotients that are integers or nearly so, of both signs, and of those beyond 2^22, which are
    computed lane by lane."""
    divide = DIVISIONS[name]
    compiled = tracer_core.compile(divide)
    torch.manual_seed(0)
    divisor = torch.randn(3, 1000) + 0.01
    multiples = torch.randint(-4_000_000, 4_000_000, divisor.shape) * divisor
    for a, b in (
        (torch.randn(3, 1000) * 50, divisor),
        (multiples, divisor),
        (torch.nextafter(multiples, torch.zeros(())), divisor),
        (torch.randn(3, 1000).exp() ** 9, divisor),
        (torch.randn(3, 21), torch.randn(3, 21) * 1e-3),
    ):
        ours, eager = compiled(a, b), divide(a, b)
        assert torch.equal(ours, eager)
        assert torch.equal(ours.signbit(), eager.signbit())
        if name in ("fmod", "remainder"):
            assert_same(ours, in_float64(name, a, b), rtol=1e-6, atol=1e-6)
    assert written[0] > 0


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_of_special_values_at_any_place(name, written):
    divide = DIVISIONS[name]
    compiled = tracer_core.compile(divide)
    normal = [value for value in SPECIAL if abs(value) > 1e-30 or value == 0]
    for place in (0, 15, 16, 40, 99):
        a, b = torch.randn(len(normal), 100), torch.randn(len(normal), 100)
        for row in range(len(normal)):
            a[:, place] = torch.tensor(normal)
            b[:, place] = normal[row]
            ours, eager = compiled(a, b), divide(a, b)
            assert_same(ours, eager, rtol=0, atol=0)
            assert torch.equal(ours.signbit() & ~ours.isnan(), eager.signbit() & ~eager.isnan())
    assert written[0] > 0


def test_sums_of_remainders_with_a_far_one():
    """A vector with such a quotient is computed once more: its elements count once."""

    def function(x):
        return (x % 0.3).sum(1), torch.div(x, 0.3, rounding_mode="floor").amax(1)

    x = torch.randn(4, 100)
    x[1:, 40] = torch.tensor([3e9, -1.7e30, 3.1e7])
    assert_same(tracer_core.compile(function)(x), function(x), rtol=2e-5, atol=2e-6)


def test_wide_column_sums_past_the_caches(monkeypatch):
    monkeypatch.setattr(column_writer, "STREAMED", 0)
    x = torch.randn(301, 200)
    compiled = tracer_core.compile(lambda x: (x.sum(0), (x * x).mean(0)))
    assert_same(
        compiled(x),
        (x.double().sum(0).float(), (x * x).double().mean(0).float()),
        rtol=2e-5,
        atol=2e-6,
    )


def test_gelu_at_the_ends_is_that_of_eager():
    x = torch.tensor(
        [-float("inf"), float("nan"), -3e38, -20.0, -0.0, 0.0, 1.0, 1e-40, -1e-40, 3e38] * 5
    )
    ours, eager = tracer_core.compile(F.gelu)(x), F.gelu(x.double()).float()
    assert_same(ours, eager, rtol=2e-5, atol=2e-6)
    assert torch.equal(ours.signbit()[4:6], eager.signbit()[4:6])
    # eager itself: inf for one float, for strided floats and for doubles, NaN in a row of floats
    assert tracer_core.compile(F.gelu)(torch.full((40,), float("inf"))).isposinf().all()


def test_tiles_are_turned_in_vectors(monkeypatch):
    monkeypatch.setattr(tiling, "LINES_IN_CACHE", 0)
    seen = []
    transposes = vectors.transposes
    monkeypatch.setattr(
        vectors, "transposes", lambda load: seen.append(transposes(load)) or seen[-1]
    )
    for rows, columns in ((16, 16), (47, 33), (150, 211), (128, 300)):
        x, y, z = (
            torch.randn(rows, columns),
            torch.randn(columns, rows),
            torch.randn(columns, rows).half(),
        )
        for function in (lambda x, y, z: x + y.t(), lambda x, y, z: x - y.t() * z.t()):
            assert_same(
                tracer_core.compile(function)(x, y, z), function(x, y, z), rtol=2e-5, atol=2e-6
            )
    assert {True, False} == set(seen)

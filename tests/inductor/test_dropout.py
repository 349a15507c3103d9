"""Dropout draws eager's own stream: values, gradients and the generator afterwards, bit for bit."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tracer_core
from inductor_backend.kernels import rng


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    torch.manual_seed(0)


def run(f: Any, *args: torch.Tensor, seed: int, steps: int = 3) -> tuple[list[Any], torch.Tensor]:
    """Results and gradients of some calls, and the state of the generator after them."""
    torch.manual_seed(seed)
    actual = []
    for _ in range(steps):
        leaves = [arg.clone().requires_grad_(arg.is_floating_point()) for arg in args]
        out = f(*leaves)
        out.sum().backward()
        actual.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    return actual, torch.get_rng_state()


def compare(f: Any, *args: torch.Tensor) -> Any:
    fast = tracer_core.compile(f, backend="inductor")
    for seed in (0, 1):
        expected, state = run(f, *args, seed=seed)
        actual, after = run(fast, *args, seed=seed)
        assert torch.equal(state, after)
        for item, other in zip(actual, expected, strict=True):
            for got, wanted in zip(item, other, strict=True):
                assert got.dtype == wanted.dtype and got.stride() == wanted.stride()
                assert torch.equal(got == 0, wanted == 0)
                coarse = {"atol": 0.02, "rtol": 0.02} if got.dtype is torch.bfloat16 else {}
                torch.testing.assert_close(got, wanted, **coarse)  # fused kernels round less often
    return fast


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_are_eagers(p: float, dtype: torch.dtype) -> None:
    compare(
        lambda x: F.dropout(torch.tanh(x), p) * 2 + F.dropout(x, 0.3),
        torch.randn(7, 45, dtype=dtype),
    )


def test_mixed_with_other_draws_and_layouts() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x)
        y = F.dropout(x.t(), 0.2).t() + F.dropout(x, 0.2) * noise
        return F.dropout1d(y, 0.5) + torch.randn(5) + torch.bernoulli(torch.full((5,), 0.5))

    compare(f, torch.randn(6, 5))


def test_sizes_that_change() -> None:
    fast = tracer_core.compile(lambda x: F.dropout(x, 0.4) + 1, backend="inductor", dynamic=True)
    for n in (3, 700, 1250, 313):
        x = torch.randn(n, 2)
        torch.manual_seed(n)
        expected = F.dropout(x, 0.4) + 1
        torch.manual_seed(n)
        torch.testing.assert_close(fast(x), expected)


def test_a_mask_as_a_result_is_its_own_tensor() -> None:
    def f(x: torch.Tensor) -> Any:
        mask = torch.bernoulli(x, 0.5)
        return mask, mask.bool(), mask.bool(), mask * x

    fast = tracer_core.compile(f, backend="inductor")
    x = torch.rand(40, 3)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = f(x)
        torch.manual_seed(seed)
        actual = fast(x)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
        actual[1].zero_()
        assert torch.equal(actual[2], expected[2]) and torch.equal(actual[0], expected[0])


CHECKPOINTS = {
    "plain": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "other numbers the second time": {"use_reentrant": False, "preserve_rng_state": False},
}


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_what_a_checkpoint_computes_again_has_the_same_mask(how: str) -> None:
    def block(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(torch.sin(F.dropout(x.t(), p).t()), 0.3) + torch.rand_like(x) * x

    def f(x: torch.Tensor) -> torch.Tensor:
        for p in (0.1, 0.2):
            x = checkpoint(block, F.dropout(x, 0.1), p, **CHECKPOINTS[how]) * x
        return F.dropout(x, 0.4)

    compare(f, torch.randn(30, 4, dtype=torch.float64))


@pytest.mark.parametrize("keeps", [True, False])
def test_checkpoints_inside_checkpoints(keeps: bool) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.sin(F.dropout(x, 0.2)), 0.3)

    def outer(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(inner, F.dropout(x, 0.1), use_reentrant=False, preserve_rng_state=keeps)
        return x.sin() * F.dropout(x, 0.4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(outer, x * 1.1, use_reentrant=False) * F.dropout(x, 0.5)

    compare(f, torch.randn(30, 4, dtype=torch.float64))


def test_threads_beside_a_lowering_draw_from_the_generator_of_the_program() -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.3)) for _ in range(20)]
    fast = tracer_core.compile(torch.nn.Sequential(*layers), backend="aten_eager")
    torch.manual_seed(3)
    seeds, done = set(), threading.Event()

    def look() -> None:
        while not done.is_set():
            seeds.add(torch.initial_seed())

    beside = threading.Thread(target=look)
    beside.start()
    try:
        fast(torch.ones(4, 8)).sum().backward()
    finally:
        done.set()
        beside.join()
    assert seeds == {3}


def test_a_lowering_leaves_the_generator_alone() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    fast = tracer_core.compile(lambda x: F.dropout(x, 0.0) * 2, backend="inductor")
    fast(torch.randn(3, generator=torch.Generator(), requires_grad=True)).sum().backward()
    expected = torch.empty(3).bernoulli_(1.0)
    del expected
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    F.dropout(torch.randn(3, generator=torch.Generator()), 0.0) * 2
    torch.empty(3).bernoulli_(1.0)
    assert torch.equal(after, torch.get_rng_state())


class _SeededNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return slope + torch.rand_like(slope)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_backward_that_seeds_the_generator(checkpointed: bool) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return _SeededNoise.apply(x.sin())

    def f(x: torch.Tensor) -> torch.Tensor:
        return (checkpoint(noisy, x, use_reentrant=False) if checkpointed else noisy(x)).cos()

    compare(f, torch.randn(30, 4, dtype=torch.float64))


def test_gradients_of_gradients() -> None:
    fast = tracer_core.compile(lambda x: F.dropout(x**3, 0.5), backend="inductor")
    x = torch.randn(50, requires_grad=True)
    actual = []
    for f in (lambda x: F.dropout(x**3, 0.5), fast):
        torch.manual_seed(5)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        actual.append((first.detach(), *torch.autograd.grad(first.sum(), x)))
    for got, wanted in zip(actual[1], actual[0], strict=True):
        torch.testing.assert_close(got, wanted)


def test_two_calls_differ_and_an_untouched_generator_stays() -> None:
    fast = tracer_core.compile(lambda x: F.dropout(x, 0.5), backend="inductor")
    x = torch.ones(400)
    assert not torch.equal(fast(x), fast(x))
    state = torch.get_rng_state()
    assert rng.same_stream(torch.float32) in (True, False)
    rng.same_stream.cache_clear()
    rng.same_stream(torch.float32)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.skipif(
    not rng.same_stream(torch.float32), reason="torch draws by MKL on this processor"
)
@pytest.mark.parametrize("taken", [0, 1, 623, 624, 1247])
def test_every_place_among_the_generators_words(taken: int) -> None:
    for count in (0, 1, 311, 312, 313, 5000):
        torch.manual_seed(count)
        torch.empty(taken, dtype=torch.int32).random_()
        before = torch.get_rng_state()
        expected, after = torch.empty(count).bernoulli_(0.3), torch.get_rng_state()
        torch.set_rng_state(before)
        assert torch.equal(rng.bernoulli((count,), 0.3), expected.bool())
        assert torch.equal(torch.get_rng_state(), after)

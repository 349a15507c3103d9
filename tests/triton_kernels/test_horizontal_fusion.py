"""Independent kernels that share a launch: results against eager in float64, over several calls, and
the order of those that depend on each other. Run by Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import horizontal_fusion
from inductor_backend.schedule.horizontal_fusion import Launch, independent_kernels
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import R
from tracer_core.plugin_api import BackendError

interpreted_only = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(matmul, "MIN_LOOPED_MATRIX", 64)


def run(fn, *inputs, dynamic=False):
    """Compares several calls with eager in float64, mutated inputs too; returns what was compiled."""
    with interpreted():
        built = compiled(fn, *clones(inputs), dynamic=dynamic)
    for _ in range(3):
        ours = clones(inputs)
        wide = [x.double() if x.is_floating_point() else x.clone() for x in inputs]
        results, expected = flat(built(*ours)), flat(fn(*wide))
        for actual, wanted in zip([*results, *ours], [*expected, *wide], strict=True):
            assert actual.shape == wanted.shape
            limits = tolerance(actual.dtype)
            torch.testing.assert_close(actual, wanted.to(actual.dtype), **limits)
    return built


def qkv(x, norm, q, k, v):
    """Queries, keys and values of grouped heads, of a row that is normalized first."""
    x = F.rms_norm(x, (x.shape[-1],), norm)
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


@interpreted_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_keys_and_values_are_one_launch(dtype):
    built = run(qkv, *(t.to(dtype) for t in (R(1, 32), R(32), R(48, 32), R(12, 32), R(20, 32))))
    assert built.kernels == 2  # and the norm
    (text,) = [text for text in built.compilation.sources if text.count("@triton.jit") > 1]
    assert "    if pid < " in text and "elif pid < " in text and text.count("(pid") == 3


@interpreted_only
def test_small_updates_of_several_sizes_share_launches():
    def step(*tensors):
        count = len(tensors) // 2
        for parameter, gradient in zip(tensors[:count], tensors[count:], strict=True):
            parameter.sub_(0.1 * gradient)
        return tensors[0]

    sizes = [(3,), (5, 4), (200,), (7, 2, 3), (1,), (64,)]
    built = run(step, *(R(*size) for size in (*sizes, *sizes)))
    assert built.kernels == 2  # four, and two


@interpreted_only
def test_sizes_that_are_symbols():
    def program(x, y):
        return x.exp(), y.sum(1), (y * 2).t().contiguous()

    with interpreted():
        fast = tracer_core.compile(program, backend="inductor", dynamic=True)
        for rows, columns in ((300, 40), (7, 600), (129, 1), (2, 3)):
            x, y = R(columns, 3), R(rows, columns)
            torch.testing.assert_close(fast(x, y), program(x, y))
    built = run(program, R(40, 3), R(300, 40), dynamic=True)
    assert built.kernels == 1 and "pid < ks" in built.source


@interpreted_only
def test_one_that_reads_anothers_result_follows_it():
    def program(x, w):
        y = (x @ w).sin()  # a call of the operator: what follows it may not pass it
        return y.sum(0), F.softmax(y, 1).cumsum(1).sum(0), x.cos()

    assert run(program, R(9, 12), R(12, 30)).kernels > 1


@interpreted_only
def test_a_chain_beside_another_shares_each_step():
    """Each step needs the whole result of the one before: three launches for six kernels."""

    def program(x, y):
        results = []
        for value in (x, y):
            value = F.softmax(value, 0).t().contiguous()
            value = F.softmax(value, 0).t().contiguous()
            results.append(value.sum(0))
        return results

    built = run(program, R(70, 130), R(65, 90))
    plan = built.compilation.plan.groups
    assert all(len(group.parts) == 2 for group in plan)


@interpreted_only
def test_an_input_is_read_before_another_kernel_writes_it():
    def step(cache, other, x):
        total = cache.sum(1)
        cache.copy_(x.t() * 2)
        return total, other.exp()

    built = run(step, R(70, 130), R(9), R(130, 70))
    assert built.kernels == 2  # `other` beside one of the two


@interpreted_only
def test_writes_to_two_views_of_an_input_keep_their_order():
    def step(x, y):
        x[::2] += y
        x[1:] *= 2
        return x.sum(0), y.exp()

    run(step, R(10, 4), R(5, 4))


@interpreted_only
def test_memory_that_another_kernel_of_the_launch_reads_is_not_written_over():
    """The result of a matmul is read at the same points by one kernel, and in another order by one that
    shares its launch."""

    def program(x, w):
        y = x @ w
        return y.exp(), y.t().contiguous().sin() + 1

    built = run(program, R(40, 50), R(50, 60))
    (shared,) = [group for group in built.compilation.plan.groups if group.parts]
    assert len(shared.parts) == 2 and not built.compilation.memory.over


@interpreted_only
def test_calls_in_the_background_of_a_module_that_trains():
    """Forward and backward, whose reductions of different sizes share launches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 30), torch.nn.LayerNorm(30), torch.nn.Linear(30, 7)
    )
    wide = torch.nn.Sequential(
        torch.nn.Linear(12, 30), torch.nn.LayerNorm(30), torch.nn.Linear(30, 7)
    ).double()
    wide.load_state_dict(model.state_dict())
    with interpreted():
        fast = tracer_core.compile(model, backend="inductor")
        for _ in range(3):
            x = R(70, 12)
            fast(x).square().sum().backward()
            wide(x.double()).square().sum().backward()
    for mine, theirs in zip(model.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad.float(), rtol=1e-4, atol=1e-4)


@interpreted_only
def test_the_verifier_finds_a_launch_of_dependent_kernels(monkeypatch):
    def program(x):
        return F.softmax(F.softmax(x, 0).t().contiguous(), 0).t().contiguous()

    monkeypatch.setattr(horizontal_fusion._Launches, "depends", lambda self, launch: False)
    with interpreted():
        monkeypatch.setenv("TRACER_CHECK", "1")
        with pytest.raises(BackendError, match="shares a launch with what it depends on"):
            compiled(program, R(70, 130), until="combine")


def launch(reads="", writes="", nbytes=8, temporary=0, parameters=2, tile=None, alone=False):
    written = frozenset(writes)
    return Launch(written | set(reads), written, nbytes, temporary, parameters, tile, alone)


@pytest.mark.parametrize(
    "why, launches, expected",
    [
        ("independent", [launch("a", "b"), launch("a", "c")], [[0, 1]]),
        ("a result", [launch("a", "b"), launch("b", "c")], [[0], [1]]),
        ("a result of a result", [launch("a", "b"), launch("b", "c"), launch("c", "d")], [[0], [1], [2]]),
        ("overwritten", [launch("a", "b"), launch("c", "a")], [[0], [1]]),
        ("written twice", [launch("a", "b"), launch("c", "b")], [[0], [1]]),
        ("around another", [launch("a", "b"), launch("b", "c"), launch("a", "d")], [[0, 2], [1]]),
        ("past another", [launch("a", "b"), launch("b", "c", 1 << 30), launch("a", "d")], [[0, 2], [1]]),
        ("not past what it reads", [launch("a", "b"), launch("b", "c", 1 << 30), launch("c", "d")], [[0], [1], [2]]),
        ("not past a call", [launch("a", "b"), None, launch("a", "d")], [[0], [1], [2]]),
        ("large results stay", [launch("a", "b"), launch("b", "c", 1 << 30), launch("a", "d", 8, 1 << 30)], [[0], [1], [2]]),
        ("a template", [launch("a", "b", alone=True), launch("a", "c")], [[0], [1]]),
        ("too many", [launch("a", x) for x in "bcdef"], [[0, 1, 2, 3], [4]]),
        ("too many arguments", [launch("a", "b", parameters=200), launch("a", "c", parameters=60)], [[0], [1]]),
        ("reductions of one tile", [launch("a", x, 30 << 20, tile=(1, 2048)) for x in "bcd"], [[0, 1], [2]]),
        ("of two tiles", [launch("a", "b", 8 << 20, tile=1), launch("a", "c", 8 << 20, tile=2)], [[0], [1]]),
    ],
)  # fmt: skip
def test_which_kernels_share_a_launch(why, launches, expected):
    assert independent_kernels(launches) == expected

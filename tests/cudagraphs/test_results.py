"""Recorded graphs give what eager gives, whatever the program does with results, inputs and
sizes.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.comparison import assert_equal

#: Elements: results of this size stay in the recording's memory, for graphs of few operators.
LARGE = 1 << 20


def small(x, y):
    return (x.cos() + y.sin()).relu()


def large(x):
    return (x * 2).tanh(), x + 1


def test_results_are_kept_across_calls(world):
    compiled = world.compile(small)
    kept = []
    for _ in range(6):
        x, y = world.randn(64), world.randn(64)
        kept.append((compiled(x, y), small(x, y)))
        for actual, expected in kept:
            assert_equal(actual, expected)
    assert world.replays == 5 and world.recordings == 1


@pytest.mark.parametrize("hold", ["tensor", "view", "storage", "detached", "second result"])
def test_large_results_are_kept_across_calls(world, hold):
    compiled = world.compile(large)
    kept = []
    for _ in range(5):
        x = world.randn(LARGE)
        first, second = compiled(x)
        expected = large(x)
        assert_equal((first, second), expected)
        if hold == "tensor":
            kept.append((first, expected[0]))
        elif hold == "view":
            kept.append((first.view(2, -1)[1], expected[0].view(2, -1)[1]))
        elif hold == "storage":
            kept.append((first.untyped_storage(), expected[0].untyped_storage()))
        elif hold == "detached":
            kept.append((first.detach(), expected[0]))
        else:
            kept.append((second, expected[1]))
        del first, second
        for actual, wanted in kept:
            if hold == "storage":
                actual, wanted = (torch.empty(0, device=x.device).set_(s) for s in (actual, wanted))
            assert_equal(actual, wanted)
            del actual, wanted
    assert world.replays == 4
    assert (
        world.recordings == 3
    )  # two whose results are alive, and one whose results are copied out


def test_large_results_that_are_dropped_need_one_recording(world):
    compiled = world.compile(large)
    for _ in range(5):
        x = world.randn(LARGE)
        assert_equal(compiled(x), large(x))
    assert world.recordings == 1 and world.replays == 4


def test_a_loop_that_rebinds_its_result_needs_two(world):
    compiled = world.compile(large)
    for _ in range(7):
        x = world.randn(LARGE)
        result = compiled(x)
        assert_equal(result, large(x))
    assert world.recordings == 2 and world.replays == 6


def test_results_may_be_written_to(world):
    compiled = world.compile(large)
    for _ in range(5):
        x = world.randn(LARGE)
        first, second = compiled(x)
        first.add_(1)
        second.zero_()
        second.requires_grad_()
        assert_equal(first, large(x)[0] + 1)
        assert not compiled(x)[1].requires_grad
        assert_equal(second.detach(), torch.zeros_like(x))


@pytest.mark.gpu
def test_a_result_whose_storage_is_resized(world):
    if world.simulated is not None:
        pytest.skip("the stand-in's storages cannot be resized")
    compiled = world.compile(large)
    for _ in range(5):
        x = world.randn(LARGE)
        first, second = compiled(x)
        assert_equal((first, second), large(x))
        first.untyped_storage().resize_(0)
        kept = compiled(x)
        assert_equal(kept, large(x))


def test_two_models_take_turns(world):
    models = [
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(world.device)
        for _ in range(2)
    ]
    compiled = [world.compile(model.eval()) for model in models]
    wide = [world.compile(lambda x, k=k: x * k + 1) for k in (2.0, 3.0)]
    with torch.no_grad():
        kept = []
        for turn in range(10):
            which = turn % 2
            x, z = world.randn(4, 16), world.randn(LARGE)
            kept.append((compiled[which](x), models[which](x)))
            kept.append((wide[which](z), z * (2.0 + which) + 1))
            kept = kept[-5:]
            for actual, expected in kept:
                torch.testing.assert_close(actual, expected)


def test_sizes_change(world):
    compiled = world.compile(small)
    kept = []
    for size in [5, 7, 9, 7, 9, 5, 11, 9, 7, 7, 64, 9]:
        x, y = world.randn(size, 3), world.randn(size, 3)
        kept.append((compiled(x, y), small(x, y)))
    for actual, expected in kept:
        assert_equal(actual, expected)
    assert world.replays >= 4


def test_numbers_change(world):
    def program(x, k):
        return x * k + k

    compiled = world.compile(program)
    for k in [1.5, 2.5, 3.5, 2.5, 2.5, -0.0, 0.0, 3, 4, 3, 3]:
        x = world.randn(8)
        assert_equal(compiled(x, k), program(x, k))


def test_results_fed_back_as_inputs(world):
    def step(cache, x):
        cache = torch.cat([cache[1:], x[None]])
        return cache, cache.mean(0)

    for size in (8, LARGE // 8):
        compiled = world.compile(step)
        ours = eager = world.randn(8, size)
        for _ in range(8):
            x = world.randn(size)
            ours, mean = compiled(ours, x)
            eager, wanted = step(eager, x)
            assert_equal((ours, mean), (eager, wanted))


def test_inputs_are_written_to(world):
    def program(cache, x, at):
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    compiled = world.compile(program)
    lasting, reference = world.randn(4, 8), None
    reference = lasting.clone()
    for turn in range(6):
        x, at = world.randn(1, 8), torch.tensor([turn % 4], device=world.device)
        before = lasting._version
        assert_equal(compiled(lasting, x, at), program(reference, x, at))
        assert_equal(lasting, reference)
        assert lasting._version > before  # autograd would miss a write
    for turn in range(6):  # a cache at another address each time
        fresh = [world.randn(4, 8) for _ in range(turn + 1)][-1]
        other = fresh.clone()
        x, at = world.randn(1, 8), torch.tensor([turn % 4], device=world.device)
        assert_equal(compiled(fresh, x, at), program(other, x, at))
        assert_equal(fresh, other)
    assert world.replays > 6


def test_buffers_are_written_to(world):
    model = nn.BatchNorm1d(8).to(world.device)
    reference = nn.BatchNorm1d(8).to(world.device)
    compiled = world.compile(model)
    for _ in range(5):
        x = world.randn(16, 8)
        torch.testing.assert_close(compiled(x), reference(x))
        assert_equal(dict(model.named_buffers()), dict(reference.named_buffers()))
    assert world.replays == 4


def _append(cache, x):
    cache.mul_(0.5).add_(x)
    return cache.sum(0) * 2


def test_a_cache_is_written_in_place_again_after_it_was_replaced(world):
    """As in a generation of text: one cache for many calls, then another."""
    compiled = world.compile(_append)
    caches = [(cache, cache.clone()) for cache in (world.randn(8, 16) for _ in range(3))]
    for turn, (cache, expected) in enumerate([*caches, *caches]):
        for _ in range(40):
            x = world.randn(8, 16)
            assert_equal(compiled(cache, x), _append(expected, x))
            assert_equal(cache, expected)
        assert world.recordings == min(turn, 2) + 1
        assert all(0 in plan.direct and plan.written == (0,) for plan in world.plans)
    assert world.plain <= 2  # of the first cache alone


def test_an_input_that_begins_to_move_is_copied(world):
    compiled = world.compile(_append)
    cache = world.randn(8, 16)
    expected = cache.clone()
    for _ in range(40):
        x = world.randn(8, 16)
        assert_equal(compiled(cache, x), _append(expected, x))
    eager = world.plain
    held = []
    for _ in range(20):
        cache = world.randn(8, 16)
        expected = cache.clone()
        held.append(cache)
        x = world.randn(8, 16)
        assert_equal(compiled(cache, x), _append(expected, x))
        assert_equal(cache, expected)
    assert world.plain <= eager + 2
    assert [plan.direct for plan in world.plans] == [()]


def test_parameters_move(world):
    model = nn.Linear(8, 8).to(world.device).eval()
    compiled = world.compile(model)
    held = []
    with torch.no_grad():
        for turn in range(16):
            if turn % 2:
                held.append(model.weight.data)
                model.weight.data = world.randn(8, 8)
            x = world.randn(4, 8)
            torch.testing.assert_close(compiled(x), F.linear(x, model.weight, model.bias))
    assert "addresses" in world.reasons


def test_dropout_draws_anew_and_by_seed(world):
    def program(x):
        return F.dropout(x, 0.5, training=True) + torch.rand_like(x)

    compiled = world.compile(program)
    x = world.randn(256)
    for _ in range(4):
        torch.manual_seed(7)
        first, second = compiled(x), compiled(x)
        after = torch.rand(4, device=world.device)
        assert not torch.equal(first, second)
        torch.manual_seed(7)
        assert_equal((first, second), (program(x), program(x)))
        assert_equal(after, torch.rand(4, device=world.device))
    assert world.replays >= 6


def test_inputs_of_every_layout(world):
    def program(x, y):
        return x + y, x.T, y.sum()

    compiled = world.compile(program)
    base = world.randn(6, 8)
    for turn in range(6):
        x = world.randn(8, 6).T
        y = [base[:1].expand(6, 8), world.randn(6, 16)[:, ::2], world.randn(1, 8).expand(6, 8)][
            turn % 3
        ]
        actual, expected = compiled(x, y), program(x, y)
        assert_equal(actual, expected)
        assert actual[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    empty = world.randn(0, 8)
    for _ in range(4):
        assert_equal(compiled(empty.T, world.randn(8, 0)), program(empty.T, world.randn(8, 0)))


def test_inference_mode_and_settings(world):
    compiled = world.compile(large)
    for _ in range(3):
        with torch.inference_mode():
            x = world.randn(LARGE)
            assert_equal(compiled(x), large(x))
        x = world.randn(LARGE, requires_grad=True)
        with torch.no_grad():
            first, _ = compiled(x)
        first.requires_grad_()  # an inference tensor refuses
        assert_equal(first.detach(), large(x)[0].detach())


def test_precision_that_is_set_by_backend(world):
    """As torch's notes advise: its older switches raise when they are asked from then on."""
    compiled = world.compile(lambda x: (x @ x).relu())
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for precision in ("ieee", "tf32", "ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            for _ in range(3):
                x = world.randn(256, 256)
                assert_equal(compiled(x), (x @ x).relu())
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = before
    assert world.replays == 10  # each precision has a recording of its own


def test_random_schedules(world):
    """Programs that share a pool, called in random order, with results kept, dropped and fed back
    at random.
    """
    programs = [
        lambda a, b: (a * 2 + b).tanh(),
        lambda a, b: (a.roll(1, 0) + b.flip(0), a - b),
        lambda a, b: torch.cat([a, b])[::2] * 3,
        lambda a, b: a.add_(1) * b,
        lambda a, b: (a.view(-1)[: b.numel()] + 1).reshape(b.shape),
    ]
    draw = random.Random(3)
    for options in ({}, {"outputs": "copy"}, {"copies": 1, "recordings": 6}):
        compiled = [world.compile(program, **options) for program in programs]
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(60):
            size = draw.choice([8, 8, LARGE // 2])
            pair = []
            for _ in range(2):
                fitting = [item for item in held if item[0].numel() == size]
                if fitting and draw.random() < 0.6:
                    pair.append(draw.choice(fitting))
                else:
                    fresh = world.randn(size)
                    pair.append((fresh, fresh.clone()))
            if pair[0][0].untyped_storage()._cdata == pair[1][0].untyped_storage()._cdata:
                continue
            which = draw.randrange(len(programs))
            actual = compiled[which](pair[0][0], pair[1][0])
            expected = programs[which](pair[0][1], pair[1][1])
            result = (
                zip(actual, expected, strict=True)
                if isinstance(actual, tuple)
                else [(actual, expected)]
            )
            held += result
            draw.shuffle(held)
            del actual, expected, result, pair
            held = held[: draw.randrange(1, 10)]
            for ours, eager in held:
                assert_equal(ours, eager)


def _by_offset(x):
    return torch.as_strided(x, (3,), (1,), 5) + 1, torch.as_strided(x * 2, (2, 2), (2, 1)), x.cos()


@pytest.mark.parametrize("part", [slice(4, 12), slice(2, 18, 2)], ids=["dense", "gaps"])
def test_memory_that_is_read_by_its_offset(world, part):
    """A copy of the input begins elsewhere, and has nothing in its gaps."""
    compiled = world.compile(_by_offset)
    kept = []
    for _ in range(6):
        kept.append(world.randn(40))
        x = kept[-1][part]
        for ours, eager in zip(compiled(x), _by_offset(x), strict=True):
            assert_equal(ours, eager)

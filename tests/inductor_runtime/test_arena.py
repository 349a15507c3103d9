"""Arenas: alignment, views, and that two running calls never share one."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from inductor_backend.runtime import arena as arena_module
from inductor_backend.runtime.arena import ArenaPool
from tests.support.threads import together

VIEWS = [
    (0, torch.float32, (4, 8), (8, 1), 0),
    (128, torch.int64, (3,), (1,), 2),
    (256, torch.bfloat16, (8, 4), (1, 8), 0),
]


def test_views_lie_where_they_were_put() -> None:
    pool = ArenaPool(1024, VIEWS)
    arena = pool.take()
    a, b, c = arena.views
    assert arena.address % 64 == 0
    assert a.data_ptr() == arena.address and a.shape == (4, 8) and a.stride() == (8, 1)
    assert b.data_ptr() == arena.address + 128 + 2 * 8 and b.dtype == torch.int64
    assert (
        c.data_ptr() == arena.address + 256 and c.stride() == (1, 8) and c.dtype == torch.bfloat16
    )
    a.fill_(1.0)
    b.fill_(7)
    assert a.sum() == 32 and b.tolist() == [7] * 3


def test_a_view_beyond_the_arena_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside the arena"):
        ArenaPool(64, [(0, torch.float32, (17,), (1,), 0)]).take()


def test_an_arena_is_reused_only_after_it_was_given_back() -> None:
    pool = ArenaPool(256, VIEWS[:1])
    first, second = pool.take(), pool.take()
    assert first.address != second.address and pool.allocated == 2
    pool.give(first)
    assert pool.take() is first and pool.allocated == 2


def assert_never_shared(pools: list[ArenaPool], turns: int) -> None:
    """Four threads take arenas of the pools by turns, and find in each what they have written
    there.
    """
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(turns):
            pool = pools[(turn + number) % len(pools)]
            arena = pool.take()
            arena.views[0].fill_(number)
            if not bool((arena.views[0] == number).all()):
                wrong.append(number)
            pool.give(arena)

    together(work, threads=4)
    assert not wrong


def test_threads_never_share_an_arena() -> None:
    pool = ArenaPool(4096, [(0, torch.int64, (512,), (1,), 0)])
    assert_never_shared([pool], 300)
    assert pool.allocated <= 4


BIG = 3 << 20
BIG_VIEW = [(0, torch.int64, (1024,), (1,), 0)]


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of this test alone."""
    fresh = arena_module.Blocks()
    monkeypatch.setattr(arena_module, "BLOCKS", fresh)
    return fresh


def test_graphs_that_run_one_after_the_other_share_a_block(blocks) -> None:
    forward, backward = ArenaPool(BIG, BIG_VIEW), ArenaPool(2 * BIG, BIG_VIEW)
    first = forward.take()
    small = weakref.ref(first.block)
    forward.give(first)
    second = backward.take()
    del first
    assert small() is None  # the larger one took its place, views and all
    backward.give(second)
    for _ in range(3):
        again = forward.take()
        assert again.address == second.address and again.views[0].data_ptr() == again.address
        forward.give(again)
        backward.give(backward.take())
    assert forward.allocated == 2 and backward.allocated == 1


def test_calls_that_run_at_once_never_share_a_block(blocks) -> None:
    pools = [ArenaPool(BIG, BIG_VIEW), ArenaPool(2 * BIG, BIG_VIEW)]
    held = [pool.take() for pool in pools for _ in range(2)]
    assert len({arena.address for arena in held}) == 4
    assert_never_shared(pools, 200)


def test_a_block_goes_with_the_last_graph_that_needs_it(blocks) -> None:
    small, large = ArenaPool(BIG, BIG_VIEW), ArenaPool(2 * BIG, BIG_VIEW)
    block = weakref.ref(large.take().block)
    assert block() is None  # a call that raised dropped it
    arena = large.take()
    block = weakref.ref(arena.block)
    large.give(arena)
    del arena
    assert block() is not None
    del large
    gc.collect()
    assert block() is None
    small.give(small.take())


def test_views_taken_under_inference_mode_are_ordinary_tensors() -> None:
    pool = ArenaPool(256, VIEWS[:1])
    with torch.inference_mode():
        arena = pool.take()
    assert not arena.views[0].is_inference()

"""Arenas: alignment, views, and that two running calls never share one."""

from __future__ import annotations

import threading

import pytest
import torch

from inductor_backend.runtime.arena import ArenaPool
from inductor_backend.runtime.measure import median_seconds

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
    assert c.data_ptr() == arena.address + 256 and c.stride() == (1, 8) and c.dtype == torch.bfloat16
    a.fill_(1.0)
    b.fill_(7)
    assert a.sum() == 32 and b.tolist() == [7] * 3


def test_a_view_beyond_the_arena_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside the arena"):
        ArenaPool(64, [(0, torch.float32, (17,), (1,), 0)]).take()


def test_an_arena_is_reused_only_after_it_was_given_back() -> None:
    pool = ArenaPool(256, VIEWS[:1])
    first, second = pool.take(), pool.take()
    assert first.address != second.address and pool.made == 2
    pool.give(first)
    assert pool.take() is first and pool.made == 2


def test_threads_never_share_an_arena() -> None:
    pool, wrong = ArenaPool(4096, [(0, torch.int64, (512,), (1,), 0)]), []

    def work(number: int) -> None:
        for _ in range(300):
            arena = pool.take()
            arena.views[0].fill_(number)
            if not bool((arena.views[0] == number).all()):
                wrong.append(number)
            pool.give(arena)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and pool.made <= 4


def test_views_taken_under_inference_mode_are_ordinary_tensors() -> None:
    pool = ArenaPool(256, VIEWS[:1])
    with torch.inference_mode():
        arena = pool.take()
    assert not arena.views[0].is_inference()


def test_medians_come_from_alternating_rounds() -> None:
    order: list[str] = []
    result = median_seconds(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, budget=0.001
    )
    assert set(result) == {"a", "b"} and all(seconds > 0 for seconds in result.values())
    changes = sum(x != y for x, y in zip(order, order[1:], strict=False))
    assert changes >= 6

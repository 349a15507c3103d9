"""Comparisons of operands and containers that change between the calls."""

from __future__ import annotations

import collections

import pytest
import torch

import tracer_core


def test_a_changed_operand_is_seen():
    import tracer_core

    world = {"other": {"a": 2, "b": 1}}

    def f(x):
        return x + 1 if collections.Counter("aab") == world["other"] else x - 1

    compiled = tracer_core.compile(f, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
    world["other"]["b"] = 5
    assert torch.equal(compiled(x), x - 1)
    world["other"] = collections.Counter("aab")
    assert torch.equal(compiled(x), x + 1)


class Thing:
    """Compares by identity."""


def pairs_of_containers():
    thing, other, kind = Thing(), Thing(), type("Kind", (), {})
    return [
        ((Thing, kind), (Thing, Thing)),
        ((thing, 1), (other, 1)),
        ([thing, other], [thing, thing]),
        ([thing, [other]], [thing, [thing]]),
        ((thing, {"a": other}), (thing, {"a": thing})),
        ((thing,), (thing, other)),
        ((Thing, 1), (Thing, 2)),
        ((Thing, 1), (Thing, thing)),
        ([thing, 1], (thing, 1)),
        ([(1, thing), 2], [(1, other), 2]),
    ]


@pytest.mark.parametrize("at", range(len(pairs_of_containers())))
@pytest.mark.parametrize("negated", [False, True])
def test_containers_of_objects_that_differ_and_then_do_not(at, negated):
    def f(x, item, other):
        return x * 2 if (item != other if negated else item == other) else x * 3

    x, (value, other) = torch.ones(2), pairs_of_containers()[at]
    fast = tracer_core.compile(f, backend="eager")
    for left, right in [
        (value, other),
        (value, type(other)(value)),
        (value, other),
        (other, other),
    ]:
        for _ in range(2):
            assert torch.equal(fast(x, left, right), f(x, left, right))


def test_a_list_of_objects_that_becomes_equal_in_place():
    thing, other, x = Thing(), Thing(), torch.ones(2)

    def f(x, left, right):
        return x * 2 if left == right else x * 3

    fast = tracer_core.compile(f, backend="eager")
    left, right = [thing, other, 1], [thing, thing, 1]
    for item in (thing, other, thing, thing, 1):
        right[1] = item
        assert torch.equal(fast(x, left, right), f(x, left, right))
        left[1] = item
        assert torch.equal(fast(x, left, right), f(x, left, right))

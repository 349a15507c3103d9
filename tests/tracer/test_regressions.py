"""Programs that random generation, made small, found to differ from eager. The number is the generator's seed."""

from __future__ import annotations

import collections

import pytest
import torch
import torch.nn.functional as F

from tests.tracer.twin import same, twin

X = torch.randn(2, 3)


class World:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_counter_of_a_list_53():
    same(lambda x, items: (collections.Counter(items), x + 1), (X, [1, 1, 2]), (X, [3]), graphs=2)


def test_strides_that_follow_from_no_size_66():
    wide = torch.arange(12.0).reshape(2, 6)
    same(lambda x: 1 * x, (torch.ones(1, 3),), (wide[:, ::2],), (torch.arange(30.0).reshape(3, 10)[:, ::3],))


def test_a_set_changed_before_the_graph_raises_144():
    def make():
        world = World(seen={4})

        def fn(x):
            world.seen.add(7)
            return x.add_(1)

        return fn, world

    overlapping = torch.ones(3)[None].expand(2, 3)
    twin(make, (overlapping,), (X,), (overlapping,))


def test_an_attribute_set_before_the_graph_raises_246():
    def make():
        world = World(seen=torch.zeros(2))

        def fn(x):
            world.seen = x
            return True - x

        return fn, world

    twin(make, (X,), (X,))


def test_a_handler_around_an_operator_that_fails_only_for_real_219():
    weight = torch.ones(3, 3)

    def fn(x):
        try:
            return F.linear(x, weight)
        except RuntimeError as error:
            return str(error), x + 1

    same(fn, (X.double(),), (X.double(),), breaks=0)


def test_grad_mode_is_as_before_when_a_graph_raises():
    def fn(x, index):
        with torch.no_grad():
            y = x[index]
        return y, torch.is_grad_enabled()

    same(fn, (X, torch.tensor([5])), (X, torch.tensor([1])), (X, torch.tensor([7])))


def test_random_numbers_of_a_graph_that_raises_are_drawn_once():
    def fn(x, index):
        noise = torch.rand(3)
        try:
            x = x[index]
        except IndexError:
            return noise, torch.rand(2)
        return x + noise

    same(fn, (X, torch.tensor([5])), (X, torch.tensor([1])), (X, torch.tensor([7])))


@pytest.mark.parametrize("base", [dict, list])
def test_super_init_of_a_container_subclass(base):
    class Kept(base):
        def __init__(self, items):
            super().__init__(items)
            self.n = len(self)

    def fn(x, items):
        kept = Kept(items)
        return x + kept.n, list(kept)

    same(fn, (X, [(1, 2)]), (X, [(1, 2), (3, 4)]))

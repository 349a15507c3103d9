"""Programs that random generation, made small, found to differ from eager: attributes, classes and
cells."""

from __future__ import annotations

import collections
import copy
import datetime
import enum
import fractions
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.guard_facts import Box

X = torch.randn(2, 3)


def test_an_attribute_set_before_the_graph_raises():
    def make():
        world = Box(seen=torch.zeros(2))

        def fn(x):
            world.seen = x
            return True - x

        return fn, world

    compare_with_eager(make, (X,), (X,))


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


def test_attributes_of_classes_hide_those_of_instances():
    def fn(x, function):
        return (
            x + len(function.__class__.__name__),
            type(x.neg).__name__,
            function.__class__.__qualname__,
        )

    same(fn, (X, len), (X, fn), graphs=2)


def test_a_static_method_is_stored_as_it_is():
    class Owner:
        @staticmethod
        def helper(n):
            return n

        @classmethod
        def made(cls):
            return cls

    def make():
        world = Box()

        def fn(x):
            world.last = Owner.helper
            return (
                Owner().helper is Owner.helper,
                Owner.made.__func__ is world.__class__,
                Owner.helper,
                x + 1,
            )

        return fn, world

    seen = compare_with_eager(make, (X,), (X,), graphs=1)
    assert seen.results[1][2] is Owner.helper


def test_an_attribute_that_a_tensor_lacks():
    def fn(x):
        y = torch.tanh(x)
        try:
            y.note += 1
        except AttributeError as error:
            return str(error), y

    same(fn, (X,), (X,), breaks=None)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def test_text_of_a_member_of_an_int_enumeration():
    def f(x, level):
        return (
            x + level,
            str(level),
            f"{level}",
            repr(level),
            f"{level!r:>20}",
            format(level, "03d"),
        )

    same(f, (X, Level.LOW), (X, Level.HIGH), (X, Level.LOW))


def test_contents_of_a_cell_read_by_hand():
    def make():
        total = 0

        def add(n):
            nonlocal total
            total += n

        cell = add.__closure__[0]

        def f(x):
            before = cell.cell_contents
            add(before + 1)
            return x + cell.cell_contents, before

        return f, None

    compare_with_eager(make, (X,), (X,), (X + 1,))


def test_an_empty_cell_read_by_hand():
    cell = types.CellType()

    def f(x):
        try:
            return x + cell.cell_contents
        except ValueError as error:
            return x, str(error)

    def make():
        return f, None

    compare_with_eager(
        make, (X,), (X,), lambda _: setattr(cell, "cell_contents", 2), (X,), breaks=0
    )


def test_a_generator_as_the_name_of_a_class_attribute():
    class Plain:
        pass

    def f(x):
        try:
            type.__setattr__(Plain, (i for i in range(3)), 1)
        except TypeError as error:
            return x, str(error)

    same(f, (X,), (X,), breaks=None)


def test_a_week_of_a_date_is_no_plain_tuple():
    def f(x, year):
        return x + 1, datetime.date(year, 1, 4).isocalendar()

    same(f, (X, 2020), (X, 2021), breaks=None)
    assert tracer_core.compile(f, backend="eager")(X, 2020)[1].week == 1


def test_a_property_that_holds_an_argument():
    def f(x, value):
        return x + 1, property(value).fget, staticmethod(value).__func__, property(value)

    first, second = [1], [2]
    compiled = tracer_core.compile(f, backend="eager")
    for value in (first, first, second):
        _, getter, function, result = compiled(X, value)
        assert getter is function is result.fget is value


def test_unequal_by_object_is_the_opposite_of_equal():
    class Odd:
        def __eq__(self, other):
            return other == 1 or NotImplemented

        __hash__ = None

    def f(x, item):
        return (
            x + 1,
            object.__ne__(3, -3),
            object.__ne__(item, 1),
            object.__ne__(item, 2),
            object.__ne__(x, 1),
        )

    same(f, (X, Odd()), (X, Odd()), breaks=None)


def test_a_deep_copy_notes_what_it_made_in_the_memo_given():
    def f(x, memo, value):
        result = copy.deepcopy(value, memo)
        kept = memo[id(value)] is result
        memo.clear()  # of addresses
        return x + 1, result, kept

    same(f, (X, {}, [1]), (X, {}, [2]), breaks=None)


def test_object_init_takes_no_arguments():
    class Base:
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.n = 1

    def fn(x, obj, *args):
        actual = []
        for call in (
            lambda: object.__init__(obj, *args),
            lambda: Base(*args).n,
            lambda: Base(k=1).n,
        ):
            try:
                actual.append(call())
            except TypeError as error:
                actual.append(str(error))
        return x + 1, actual

    same(fn, (X, "s"), (X, "s", 1), (X, {1}, 1), (X, 2.5, 1), graphs=None, kinds=())


def test_the_name_of_a_class_attribute_is_text():
    def fn(x, cls, name):
        try:
            text = type.__getattribute__(cls, name)
        except TypeError as error:
            text = str(error)
        return x + 1, text

    same(
        fn,
        (X, Box, "__name__"),
        (X, Box, Box(a=1)),
        (X, Box, 1),
        (X, int, "__name__"),
        breaks=None,
    )


def test_attributes_that_objects_of_c_types_lack():
    def fn(x, name):
        actual = []
        for obj in (
            collections.deque([1]),
            datetime.timedelta(2),
            fractions.Fraction(1, 2),
            Box(),
            [1],
        ):
            try:
                actual.append(object.__getattribute__(obj, name))
            except AttributeError as error:
                actual.append(str(error))
        return x + 1, actual

    same(fn, (X, "_pending_removals"), (X, "no_such_name"), breaks=None)


# -- tuples that override what native code calls (e3nn's Irrep) --


class NoLength(tuple):
    def __len__(self):
        raise NotImplementedError


class AsLong(tuple):
    compared = 0

    def __eq__(self, other):
        AsLong.compared += 1
        return tuple.__len__(self) == tuple.__len__(other)

    __hash__ = None


@pytest.mark.parametrize("kind", [NoLength, AsLong])
def test_tuples_of_tuples_with_their_own_methods(kind):
    def f(x):
        item, other = (kind((1, 2)),), (kind((1, 3 if kind is AsLong else 2)),)
        return x * 2 if item == other and item in [other] else x * 3

    compiled = tracer_core.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    torch.testing.assert_close(f(x), x * 2)
    torch.testing.assert_close(compiled(x), x * 2)

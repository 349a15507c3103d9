"""Programs that random generation found to differ from eager: sets, iterators handed to C code,
operators in place and long arithmetic."""

from __future__ import annotations

import collections

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tracer_core.testing import compare

X = torch.arange(3.0)


def _made(*members):
    items = set()
    for member in members:
        items.add(member)
    return items


def test_equal_sets_are_met_in_their_own_order():
    def f(x, members):
        return (
            x + 1,
            list(members),
            [m for m in members],
            tuple(members),
            next(iter(members)),
            8 in members,
        )

    assert list(_made(0, 8)) != list(_made(8, 0))
    same(f, (X, _made(0, 8)), (X, _made(8, 0)), (X, _made(0, 8)), breaks=None)


def test_a_set_changed_and_looped_over():
    def f(x, members):
        members.discard(3)
        return x + 1, list(members)

    same(f, (X, _made(0, 8, 3)), (X, _made(8, 0, 3)), (X, _made(8, 0)), breaks=None)


def test_a_set_whose_old_order_cannot_be_restored():
    def f(x, members):
        members.add(7)
        members.discard(8)
        return x + 1, sorted([member for member in members])

    def sparse():
        members = set(range(200))
        for item in {*range(200)} - {3, 130}:  # these change places in a table of their own
            members.discard(item)
        return members

    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(3):
        mine, theirs = sparse(), sparse()
        compare(f(X, mine), compiled(X, theirs))
        assert mine == theirs


def test_members_are_taken_out_as_in_eager():
    def f(x, members):
        first = members.pop()
        tracer_core.graph_break()
        return x + first, members.pop(), len(members)

    same(f, (X, {1, 2, 3}), (X, _made(8, 0)), (X, _made(0, 8)), breaks=None)


def test_the_last_member_is_taken_out():
    same(lambda x, members: (x + members.pop(), len(members)), (X, {1}), (X, {2}), breaks=None)


def test_a_member_replaced_by_an_equal_one():
    def f(x, members):
        members.discard(True)
        members.add(True)
        return x + 1

    def run(compiled):
        members = {1}
        compiled(X, members)
        return [type(m) for m in members]

    assert run(f) == [bool]
    compiled = tracer_core.compile(f, backend="eager")
    assert run(compiled) == run(compiled) == [bool]


def test_a_generator_handed_to_a_method_written_in_c():
    def make(n):
        yield from range(n)

    def f(x, items):
        data = bytearray(b"a")
        data.extend(items)
        return x + 1, data, list(items)

    def run(call):
        return [call(X, make(n))[1:] for n in (3, 3, 2)] + [
            call(X, iter([1, 2]))[1:] for _ in range(2)
        ]

    assert run(tracer_core.compile(f, backend="eager")) == run(f)


def test_a_list_is_added_to_an_object_that_answers_first():
    class Right:
        def __radd__(self, other):
            return ("radd", list(other))

        def __rmul__(self, other):
            return ("rmul", list(other))

        def __iter__(self):
            return iter([1, 2])

    class Declines:
        def __radd__(self, other):
            return NotImplemented

        def __iter__(self):
            return iter([5])

    def f(x, kind):
        actual = []
        for target in ([1], collections.deque([1])):
            target += kind()
            actual.append(target)
        times = [1]
        if kind is Right:
            times *= kind()
        return x + 1, actual, times

    same(f, (X, Right), (X, Declines), (X, Right), breaks=None)


@pytest.mark.parametrize("rounds", [8, 150, 600])
def test_a_number_computed_again_and_again(rounds):
    def f(x, n):
        for i in range(rounds):
            n = n // 2 + i * 3 + n % 7
        return x * n, n

    same(f, (X, 3), (X, 4), (X, 5), breaks=0)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_strides_that_no_size_tells_are_returned(backend):
    def f(x):
        return x + 1, x.expand(2, 3).stride(), x.stride(), x * x.stride(0)

    parts = [torch.arange(n * 4.0).reshape(4, n)[:2, ::3][:, :3] for n in (12, 10, 15, 20)]
    compiled = tracer_core.compile(f, backend=backend)
    for part in (torch.ones(2, 1), *parts):
        compare(f(part), compiled(part))


def test_a_generator_that_raises_stop_iteration():
    def gen(x):
        yield x
        raise StopIteration(3)

    def f(x):
        try:
            return list(gen(x))
        except RuntimeError as error:
            return (
                x + 1,
                type(error.__cause__),
                error.__context__ is error.__cause__,
                error.__suppress_context__,
            )

    same(f, (X,), (X,), breaks=0)


def test_what_follows_a_break_asks_the_objects_own_operators():
    class Own:
        def __add__(self, other):
            return "add"

        def __iadd__(self, other):
            return "iadd"

        def __eq__(self, other):
            return "equal"

        __hash__ = None

    def f(x, value):
        seen = id(value) == id(value)
        value += seen
        return x + 1, value

    def g(x, value):
        seen = id(value) is None
        return x + 1, seen == value, value & seen if type(value) is list else 0

    same(
        f,
        (X, 1),
        (X, 2),
        *[(X, Own()) for _ in range(5)],
        (X, [1]),
        (X, [1]),
        (X, [1]),
        (X, [1]),
        breaks=None,
    )
    same(g, (X, 1), (X, 2), *[(X, Own()) for _ in range(5)], *[(X, [1])] * 5, breaks=None)


@pytest.mark.parametrize("make", [iter, enumerate, zip])
def test_an_iterator_over_a_new_set_is_given_back(make):
    def f(x, members):
        new = {1, 2}
        members.add(5)
        return x + 1, make(new), make({3}), make(members), make(set()), make(frozenset("a")), new

    def run(call):
        return [[list(item) for item in call(X, {n})[1:]] for n in (1, 1, 2)]

    assert run(tracer_core.compile(f, backend="eager")) == run(f)


def test_an_iterator_over_a_set_whose_member_holds_it():
    class Member:
        pass

    def f(x):
        member = Member()
        new = {member}
        member.it = iter(new)
        return x + 1, member.it, new

    def g(x):
        _, iterator, new = f(x)
        (member,) = new
        return member, iterator

    for call in (
        tracer_core.compile(f, backend="eager"),
        lambda x: (0, *tracer_core.compile(g, backend="eager")(x)),
    ):
        for _ in range(2):
            _, first, second = call(X)
            member, iterator = (
                (first, second) if isinstance(first, Member) else (next(iter(second)), first)
            )
            assert member.it is iterator and list(iterator) == [member]


def test_sets_of_dictionaries_have_the_order_that_c_code_gives_them():
    """Its table is larger from the start: strings are met in another order than one by one."""

    def f(x, table, members):
        result = set(table), frozenset(table), members.union("%d", table), {*table}
        members.update(table)
        # limits.md: the order of these is not always as C code made it
        changed = members.symmetric_difference(table), members.intersection(table)
        return x + 1, list(map(sorted, changed)), [list(item) for item in (*result, members)]

    tables = [dict.fromkeys(map(str, range(first, first + 9 * (first + 1)))) for first in range(5)]
    same(f, *[(X, table, {"a", "b"}) for table in tables], breaks=None)


def test_a_set_that_a_dictionary_was_added_to_has_its_order():
    def f(x, table, members):
        members.update(table)
        return x + 1, list(members)

    for first in range(12):  # for most seeds of hashes, texts collide in one of the tables
        table = dict.fromkeys(map(str, range(first, first + 9 * (first + 1))))
        ours, eager = {"a", "b"}, {"a", "b"}
        actual = tracer_core.compile(f, backend="eager")(X, table, ours)[1]
        assert actual == f(X, table, eager)[1] and list(ours) == list(eager)


@pytest.mark.parametrize("read_first", [False, True])
def test_a_set_of_colliding_members_keeps_its_order(read_first):
    """7 and 15 fall on the last place of a table of eight: which was first decides the order."""

    def f(x, members):
        order = list(members) if read_first else None
        members.add(1)
        x = x + len(members)
        members.discard(1)
        return x, order, list(members)

    for order in ([7, 15], [15, 7], [7, 15, 23], [23, 7, 15], [15, 23, 7]):
        same(f, *[(X, set(order)) for _ in range(3)], breaks=None)


def test_the_order_of_a_set_that_members_left():
    """15 lies where it gave way to 7, which is gone; nothing that is only filled has that order."""

    def f(x, members):
        members.add(3)
        return x + 1, list(members), members

    def made():
        members = {7, 15, 2}
        members.discard(7)
        return members

    same(f, *[(X, made()) for _ in range(3)], breaks=None)

    def g(x, members):
        members.discard(7)
        return x + 1, list(members)

    same(g, *[(X, {7, 15, 2, 5}) for _ in range(3)], breaks=None)

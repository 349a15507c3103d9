"""Iterators in the hands of C code: what it takes, when, and what the program sees meanwhile."""

from __future__ import annotations

import collections
import itertools
import operator

import pytest
import torch

import tracer_core
from tests.support.named_programs import Programs, texts_of

program = Programs()


def seen_while(container, count=3):
    """Yields how long the container is when each item is made."""
    for _ in range(count):
        yield len(container)


@program
def list_extend_sees_what_was_added(x):
    items = []
    items.extend(seen_while(items))
    items += seen_while(items, 2)
    return x + 1, items


@program
def list_extend_that_raises_keeps_items(x):
    def broken():
        yield 1
        yield 2
        raise ValueError("third")

    items = [0]
    says = texts_of(lambda: items.extend(broken()), errors=ValueError)
    more = collections.deque(items)
    says += texts_of(lambda: more.extend(broken()), errors=ValueError)
    table = {}
    says += texts_of(lambda: table.update((n, n) for n in broken()), errors=ValueError)
    actual = {0}
    says += texts_of(lambda: actual.update(broken()), errors=ValueError)
    return x + 1, items, more, table, actual, says


@program
def deque_takes_one_by_one(x):
    queue = collections.deque(maxlen=4)
    queue.extend(seen_while(queue, 6))
    queue.extendleft(seen_while(queue, 2))
    queue += seen_while(queue, 1)
    queue.extend(queue)
    return x + 1, queue


@program
def dict_update_sees_earlier_entries(x):
    table = {}
    table.update((n, len(table)) for n in range(4))
    counts = collections.OrderedDict()
    counts.update((n, len(counts)) for n in range(3))
    defaults = collections.defaultdict(list)
    defaults.update(((n, len(defaults)) for n in range(2)), more=len(defaults))
    return x + 1, table, counts, defaults


@program(graphs=None, breaks=None)
def dict_update_from_pairs_that_end(x):
    table = {}
    says = texts_of(
        lambda: table.update([(1, 2), (3,)]),
        lambda: table.update([(4, 5), 6]),
        lambda: table.update(7),
        errors=(TypeError, ValueError),
    )
    return x + 1, table, says


class Table:
    def __init__(self):
        self.notes = []

    def keys(self):
        self.notes.append("keys")
        return iter("ab")

    def __getitem__(self, key):
        self.notes.append(key)
        return key * 2


@program
def dict_update_from_a_mapping(x):
    source = Table()
    table = {"c": 1}
    table.update(source)
    table.update(source, d=4)
    return x + 1, table, source.notes, dict(source), {**source}


@program
def set_update_sees_earlier_members(x):
    items = set()
    items.update(seen_while(items), seen_while(items, 2))
    kept = {0, 1, 2, 5}
    kept.difference_update(len(kept) - n for n in range(3))
    return x + 1, items, kept, {1, 2} | set(seen_while(items, 1))


@program
def set_methods_stop_early(x):
    numbers = iter(range(10))
    apart = {3}.isdisjoint(numbers)
    rest = list(numbers)
    numbers = iter(range(10))
    above = {0, 1}.issuperset(numbers)
    return x + 1, apart, rest, above, list(numbers)


@program
def counter_counts_one_by_one(x):
    counts = collections.Counter()
    counts.update(sum(counts.values()) for _ in range(4))
    return x + 1, counts


@program
def slice_assignment_takes_all_first(x):
    items = [1, 2, 3]
    items[1:2] = (len(items) for _ in range(2))
    grown = [1, 2]

    def growing():
        grown.append(9)
        yield 5

    grown[:] = growing()
    return x + 1, items, grown


@program
def sort_hides_the_list(x):
    items = [3, 1, 2]
    seen = []

    def key(item):
        seen.append(list(items))
        return item

    items.sort(key=key)
    return x + 1, items, seen


@program
def sort_that_is_disturbed(x):
    items = [3, 1, 2]

    def key(item):
        items.append(item)
        return item

    says = texts_of(lambda: items.sort(key=key), errors=ValueError)
    return x + 1, items, says


@program
def sort_that_raises_keeps_the_items(x):
    items = [3, 1, 2, "a", 0]
    says = texts_of(
        lambda: items.sort(),
        lambda: items.sort(key=lambda v: v.real),
        errors=(TypeError, AttributeError),
    )
    return x + 1, sorted(map(str, items)), says


@program
def extremes_ask_one_by_one(x):
    notes = []

    def items():
        for n in (1, 3, 2):
            notes.append(("item", n))
            yield n

    def key(n):
        notes.append(("key", n))
        return -n

    return x + 1, max(items(), key=key), min(items(), key=key), max(items()), notes


@program
def extremes_of_nothing(x):
    return (
        x + 1,
        max([], default=4),
        min((n for n in ()), default=None),
        max(iter([2, 5])),
        max([3], default=1, key=None),
    )


class Added:
    def __init__(self, notes, n):
        self.notes, self.n = notes, n

    def __radd__(self, other):
        self.notes.append(self.n)
        return other + self.n


@program
def sum_adds_one_by_one(x):
    notes = []

    def items():
        for n in range(3):
            notes.append("item")
            yield Added(notes, n)

    return x + 1, sum(items()), notes, sum((0.1 for _ in range(10)), 1), sum([[1], [2]], [])  # noqa: RUF017


@program
def unpacking_takes_one_more(x):
    numbers = itertools.count()
    says = []
    try:
        a, b = numbers
    except ValueError as error:
        says.append(str(error))
    after = next(numbers)
    (c,) = (n for n in [7])
    rest = iter([1, 2, 3])
    d, *e = rest
    return x + 1, says, after, c, d, e, list(rest)


@program
def searches_stop(x):
    item, two, three = itertools.count(), itertools.count(), itertools.count(5)
    return (
        x + 1,
        3 in item,
        next(item),
        operator.indexOf(two, 4),
        next(two),
        any(n > 6 for n in three),
        next(three),
    )


@program
def generators_inside_constructors(x):
    result = []

    def noted(n):
        result.append(n)
        return n

    return (
        x + 1,
        list(noted(n) for n in range(3)),
        tuple(map(noted, "ab")),
        dict((noted(n), n) for n in range(2)),
        collections.deque((noted(n) for n in range(3)), 2),
        dict.fromkeys(noted(n) for n in "cd"),
        result,
    )


@program(graphs=None, breaks=None)
def wrong_argument_counts(x):
    class Items(list):
        pass

    class Table(dict):
        pass

    return x + 1, texts_of(
        lambda: bool(1, 2),
        lambda: set(1, 2),
        lambda: set([1], a=2),
        lambda: dict([], []),
        lambda: dict(1),
        lambda: map(),
        lambda: map(abs),
        lambda: filter(abs),
        lambda: zip([1], stric=True),
        lambda: max(),
        lambda: max(*[]),
        lambda: min(1),
        lambda: list([1], [2]),
        lambda: tuple(a=1),
        lambda: Items([], []),
        lambda: Items(a=1),
        lambda: Table([], []),
        lambda: frozenset([], []),
        lambda: range(),
        lambda: int(1, 2, 3),
        lambda: str(1, 2, 3, 4),
        lambda: {}.get(),
        lambda: {}.update(1, 2),
        lambda: [].append(),
        lambda: [].extend(),
        lambda: set().add(),
        lambda: set().isdisjoint(),
        lambda: collections.deque([], 1, 2),
        lambda: collections.deque().append(),
        lambda: collections.OrderedDict(1, 2),
        lambda: collections.Counter(1, 2),
        lambda: sorted(),
        lambda: sum(),
        lambda: enumerate(),
        lambda: isinstance(1),
        lambda: hash(),
        lambda: next(),
        lambda: len(),
        errors=(TypeError, ValueError),
    )


@program.cases()
def test_laziness_equals_cpython(name):
    program.run(name)


class Pairs:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key * 2


SOURCES = {
    "generator": lambda n: ((str(i), i) for i in range(n)),
    "iterator": lambda n: iter([("a", n), ("b", 2)]),
    "zip": lambda n: zip("abc", range(n), strict=False),
    "mapping": lambda n: Pairs(),
    "texts": lambda n: iter(["ab", "cd", "efg"][: n + 1]),
    "numbers": lambda n: iter([n, 2, 3]),
}


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.Counter])
@pytest.mark.parametrize("how", ["statement", "method"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_dictionary_takes_the_items_of_each_call(source, how, kind):
    """`d |= items` with an iterator from before the call."""

    def program(x, target, items):
        try:
            if how == "statement":
                target |= items
            else:
                target = type(target).__ior__(target, items)
        except (TypeError, ValueError, AttributeError) as error:
            return type(error), str(error), target
        return target, x + 1

    compiled = tracer_core.compile(program, backend="eager")
    for n in (1, 2, 3):
        actual = []
        for value in (program, compiled):
            items = SOURCES[source](n)
            first, *_ = value(torch.ones(1), kind(), items)
            left = list(items) if hasattr(items, "__next__") else None
            actual.append((str(first), left))
        assert actual[0] == actual[1]


class Unwilling(dict):
    def __or__(self, other):
        return NotImplemented


@pytest.mark.parametrize("left", [collections.Counter("ab"), Unwilling(a=1)])
@pytest.mark.parametrize(
    "right", [{"z": 1}, {"z": 1}.items(), collections.OrderedDict(q=2), {3}, 1]
)
def test_c_code_is_asked_after_a_method_that_declines(left, right):
    def program(x):
        try:
            return left | right
        except TypeError as error:
            return str(error)

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        actual, expected = compiled(torch.ones(1)), program(torch.ones(1))
        assert actual == expected and type(actual) is type(expected)


def test_a_view_of_a_dictionary_takes_the_rows_of_a_tensor():
    def program(x, d):
        return d.keys() ^ x, x + 1

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        rows, more = compiled(torch.ones(2), {"a": 1})
        assert sorted(map(str, rows)) == ["a", "tensor(1.)", "tensor(1.)"] and more.tolist() == [
            2,
            2,
        ]

"""The last reference to an object is dropped where eager mode drops it, and programs that ask about
references get eager's answers."""

from __future__ import annotations

import contextlib
import decimal
import enum
import functools
import gc
import os
import sys
import types
import warnings
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tests.support.object_ends import Thing

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Noted:
    """Notes its end."""

    ends: list = []

    def __init__(self, name):
        self.name = name

    def __del__(self):
        Noted.ends.append(self.name)


class Box:
    pass


GLOBAL = None


def n_ends():
    return len(Noted.ends)


def in_a_global(x):
    global GLOBAL
    GLOBAL = Noted(1)
    seen = [n_ends()]
    GLOBAL = None
    return x + 1, seen, n_ends()


def in_an_attribute(x):
    box = Box()
    box.one, box.two = Noted(1), Noted(2)
    seen = [n_ends()]
    box.one = None
    seen.append(n_ends())
    del box.two
    return x + 1, seen, n_ends()


def in_an_object(x):
    box = Box()
    box.held = [(Noted(1),)]
    seen = [n_ends()]
    del box
    return x + 1, seen, n_ends()


def in_containers(x):
    items, table = [Noted(1), Noted(2)], {"k": Noted(3), 5: Noted(4)}
    seen = [n_ends()]
    del items[0]
    seen.append(n_ends())
    items.clear()
    seen.append(n_ends())
    table["k"] = 0
    seen.append(n_ends())
    table = None
    return x + 1, seen, n_ends(), table


def in_a_callee(x):
    def inner(x):
        held = Noted(1)  # noqa: F841
        return x + 1

    seen = [n_ends()]
    x = inner(x)
    return x, seen, n_ends()


def in_an_argument(x):
    def inner(value):
        return len(value.name)

    n = inner(Noted("one"))
    return x + n, n_ends()


def in_a_cell(x):
    held = Noted(1)

    def inner():
        return held.name

    n, seen = inner(), [n_ends()]
    held = None
    return x + n, seen, n_ends()


def in_a_closure(x):
    def make():
        held = Noted(1)
        return lambda: held.name

    function = make()
    n, seen = function(), [n_ends()]
    function = None
    return x + n, seen, n_ends()


def in_an_exception(x):
    try:
        raise ValueError(Noted(1))
    except ValueError as error:
        n = len(error.args)
    return x + n, n_ends()


def a_temporary(x):
    n = len(Noted("one").name)
    return x + n, n_ends()


def passed_on(x):
    """The variable goes, its object does not."""
    pair = (Noted(1), Noted(2))
    first, second = pair
    del pair
    seen = [n_ends()]
    kept = [first]
    del first, second
    seen.append(n_ends())
    return x + 1, seen, kept[0].name


def noting(name):
    try:
        yield 1
        yield 2
    finally:
        Noted.ends.append(name)


def begun(name):
    result = noting(name)
    next(result)
    return result


def a_generator_in_a_callee(x):
    def inner():
        held = begun("callee")
        return next(held)

    n = inner()
    return x + n, n_ends()


def generators_in_containers(x):
    items, table, box = [begun("item")], {"k": begun("value")}, Box()
    box.held = begun("attribute")
    tracer_core.graph_break()
    seen = [n_ends()]
    items.clear()
    seen.append(n_ends())
    del table["k"]
    seen.append(n_ends())
    box.held = None
    return x + 1, seen, n_ends()


def a_generator_that_goes_on(x):
    held = noting("first")
    tracer_core.graph_break()
    next(held)
    seen = [n_ends()]
    held = begun("second")
    seen.append(n_ends())
    tracer_core.graph_break()
    seen.append(len(list(held)))
    held = None
    return x + 1, seen, n_ends()


def a_generator_in_an_iterator(x):
    pairs = zip(begun("zipped"), [1, 2, 3], strict=False)
    first = next(pairs)
    tracer_core.graph_break()
    seen = [n_ends()]
    pairs = None
    return x + first[0], seen, n_ends()


ENDS = [
    a_generator_in_a_callee, generators_in_containers, a_generator_that_goes_on,
    a_generator_in_an_iterator,
    in_a_global, in_an_attribute, in_an_object, in_containers, in_a_callee, in_an_argument,
    in_a_cell, in_a_closure, in_an_exception, a_temporary, passed_on,
]  # fmt: skip


@pytest.mark.parametrize("program", ENDS, ids=lambda program: program.__name__)
@pytest.mark.sweep(keep=7)
def test_the_last_reference_is_dropped_where_eager_drops_it(program, uncollected):
    Noted.ends = []
    expected, ends = program(X), list(Noted.ends)
    fast = tracer_core.compile(program, backend="eager")
    for _ in range(5):
        Noted.ends = []
        torch.testing.assert_close(fast(X), expected)
        assert Noted.ends == ends


def cycle_is_collected(x):
    thing, other = Thing(), Thing()
    thing.other, other.other = other, thing
    end = weakref.ref(thing)
    thing = other = None
    gc.collect()
    return x + 1, end() is None


def arguments_are_given_up(x):
    @contextlib.contextmanager
    def manager(item, two):
        ends = weakref.ref(item), weakref.ref(two)
        item = two = None
        gc.collect()
        yield [end() is None for end in ends]

    with manager(Thing(), two=Thing()) as ended:
        x = x + 1
    return x, ended


def callback_of_an_unused_variable(x):
    called = []
    thing = Thing()
    reference = weakref.ref(thing, called.append)  # noqa: F841
    print(end="")
    del thing
    return x + 1, len(called)


def references_are_counted(x):
    thing = Thing(2)
    item, proxy = weakref.ref(thing), weakref.proxy(thing)
    x = x * thing.n
    counts = [weakref.getweakrefcount(thing), len(weakref.getweakrefs(thing))]
    del proxy
    counts.append(weakref.getweakrefcount(thing))
    x = x + thing.n
    del item
    return x, [*counts, weakref.getweakrefcount(thing)]


def subclasses_are_asked(x):
    class Parent:
        pass

    class Child(Parent):
        pass

    seen = len(Parent.__subclasses__())
    del Child
    gc.collect()
    return x + 1, seen, len(Parent.__subclasses__())


def a_class_is_dropped(x):
    class Kind(enum.Enum):
        ONE = 1

    class Owner:
        @staticmethod
        def twice(x):
            return x * 2

        @classmethod
        def three(cls):
            return 3

        @staticmethod
        @functools.lru_cache
        def unused():
            return 0

        @property
        def four(self):
            return 4

    print(end="")
    ends = (
        weakref.ref(Owner), weakref.ref(Owner.twice), weakref.ref(Owner.three.__func__),
        weakref.ref(Owner.four.fget), weakref.ref(Owner.unused), weakref.ref(Kind.ONE),
    )  # fmt: skip
    x = Owner.twice(x) + Owner().four + Owner.three() + Kind.ONE.value
    del Owner, Kind
    gc.collect()
    return x, [end() is None for end in ends]


def functions_and_sets_are_dropped(x):
    def function():
        pass

    members = {1, 2}
    ends = weakref.ref(function), weakref.ref(members)
    seen = [end() is None for end in ends]
    del function, members
    return x + 1, seen, [end() is None for end in ends]


ASKED = [
    cycle_is_collected, arguments_are_given_up, callback_of_an_unused_variable,
    references_are_counted, subclasses_are_asked, a_class_is_dropped,
    functions_and_sets_are_dropped,
]  # fmt: skip


@pytest.mark.parametrize("program", ASKED, ids=lambda program: program.__name__)
def test_what_the_program_asks_about_references(program):
    expected = program(X)
    fast = tracer_core.compile(program, backend="eager")
    for _ in range(5):
        torch.testing.assert_close(fast(X), expected)


def test_a_function_that_counts_references_runs_natively():
    def f(x, held):
        y = x + 1
        print(end="")
        before = sys.getrefcount(held[0])
        also = held[0]  # noqa: F841
        return y, sys.getrefcount(held[0]) - before

    fast = tracer_core.compile(f, backend="eager")
    held = [Thing()]  # since 3.14 a variable may borrow the reference of its caller
    for _ in range(3):
        torch.testing.assert_close(fast(X, held), f(X, held))


def test_a_method_of_a_class_without_a_name_is_replaced():
    def make():
        def double(x):
            return x * 2

        def triple(x):
            return x * 3

        class Owner:
            one = other = staticmethod(double)
            size = property(lambda self: 1, doc="one")

        def f(x):
            same = vars(Owner)["one"] is vars(Owner)["other"]
            return Owner.one(x) + Owner().size, same, Owner.size.__doc__

        def other(_):
            Owner.other = staticmethod(double)

        def one(_):
            Owner.one = staticmethod(triple)

        def size(_):
            Owner.size = property(lambda self: 2, doc="two")

        return f, types.SimpleNamespace(other=other, one=one, size=size)

    compare_with_eager(
        make, (X,), (Y,), lambda w: w.other(0), (X,), lambda w: w.one(0), (X,),
        lambda w: w.size(0), (X,), (Y,), graphs=4, breaks=0,
    )  # fmt: skip


def test_an_object_dies_where_a_handler_deletes_it():
    happened = []

    class Watched:
        def __del__(self):
            happened.append("dies")

    def program(x):
        held = Watched()
        try:
            try:
                program.missing
            except AttributeError:
                del held
                happened.append("deleted")
                raise TypeError from None
        except TypeError:
            happened.append("handled")
        return x + 1

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(3):
        happened.clear()
        compiled(torch.ones(1))
        assert happened == ["dies", "deleted", "handled"]


def test_a_file_stays_open_while_its_dead_variable_lives(tmp_path):
    path = tmp_path / "text"
    path.write_text("root")

    def program(x):
        opened = open(path)
        raw = open(path, "rb", buffering=0)
        numbers = opened.fileno(), raw.fileno()
        tracer_core.graph_break()
        return x + 1, [os.read(number, 2) for number in numbers]

    def held(x):
        files, named = [open(path)], {"raw": (open(path, "rb", buffering=0),)}
        read = open(path).read
        numbers = files[0].fileno(), named["raw"][0].fileno(), read.__self__.fileno()
        tracer_core.graph_break()
        return x + 1, [os.read(number, 2) for number in numbers]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for function, count in ((program, 2), (held, 3)):
            compiled = tracer_core.compile(function, backend="eager")
            for _ in range(5):
                assert compiled(torch.ones(1))[1] == [b"ro"] * count


def test_an_object_of_c_that_another_points_into_is_kept_by_its_dead_variable():
    def program(x):
        context = decimal.Context(Emax=384)
        other = context.copy()
        try:
            other.power(decimal.Decimal("3.4e200"), 2)
        except decimal.Overflow:
            x = x + 1
        return x, context.flags[decimal.Overflow]

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(4):
        assert compiled(torch.ones(1))[1] is False

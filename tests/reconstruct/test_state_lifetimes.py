"""When objects die: finalizers and weak references see the same ends as in eager."""

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
from tests.support.eager_reference import View, twin
from tracer_core.dispatch.validation import build_config
from tracer_core.execution.compiled_function import CompiledFunction

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_finalizer_of_a_temporary():
    def make():
        seen = []

        class T:
            def __init__(self, n):
                self.n = n

            def __del__(self):
                seen.append(("died", self.n))

        def f(x):
            t = T(1)
            seen.append("made")
            del t
            seen.append("after")
            return x + 1

        return f, View(lambda: list(seen))

    twin(make, (X,), (X,), (Y,), graphs=1, kinds=("finalizer",))


def test_finalizer_when_a_variable_is_set_again():
    def make():
        seen = []

        class T:
            def __del__(self):
                seen.append("died")

        def f(x):
            t = T()
            seen.append("one")
            t = T()
            seen.append("two")
            t = None
            seen.append("three")
            return x + 1 if t is None else x

        return f, View(lambda: list(seen))

    twin(make, (X,), (X,), kinds=("finalizer",))


def test_weak_reference_to_a_temporary():
    def make():
        class T:
            pass

        def f(x):
            t = T()
            r = weakref.ref(t)
            alive = r() is t
            del t
            return x + 1, alive, r() is None

        return f

    twin(make, (X,), (X,), (Y,), graphs=1, kinds=("finalizer",))


def test_weakref_finalize():
    def make():
        seen = []

        class T:
            pass

        def f(x):
            t = T()
            weakref.finalize(t, seen.append, 1)
            del t
            return x + len(seen)

        return f, seen

    twin(make, (X,), (X,), (Y,))


def test_weak_dictionary_of_counts():
    def make():
        class T:
            pass

        d, k = weakref.WeakKeyDictionary(), T()

        def f(x):
            d[k] = d.get(k, 0) + 1
            return x * d[k]

        return f, View(lambda: d[k])

    twin(make, (X,), (X,), (Y,))


def test_weak_reference_that_existed_and_then_dies():
    def make():
        class T:
            k = 2

        held = [T()]
        r = weakref.ref(held[0])

        def f(x):
            t = r()
            return x if t is None else x * t.k

        return f, View(lambda: r() is None, held)

    twin(make, (X,), (X,), lambda held: held.clear(), (X,), breaks=0, recompiles=1)


def test_dictionary_read_by_objects():
    def make():
        class T:
            pass

        a, b = T(), T()
        d = {a: 1, b: 2, (a, 3): 4}

        def f(x):
            d[b] = d[b] + 1
            return x * d[a] + d[b] + d[a, 3]

        return f, View(lambda: list(d.values()), (d, a))

    twin(make, (X,), (X,), lambda w: w[0].update({w[1]: 7}), (Y,), breaks=0)


def test_a_trace_lets_go_of_what_it_saw():
    class Thing:
        pass

    def f(x, thing):
        result = [thing, x]
        return x + len(result)

    compiled = tracer_core.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        ends = []
        for _ in range(3):
            thing = Thing()
            ends.append(weakref.ref(thing))
            compiled(X, thing)
            del thing
        assert [end() for end in ends] == [None] * 3
    finally:
        gc.enable()


def test_a_trace_lets_go_of_its_tensors():
    def f(x):
        return x * 2 + 1

    compiled = tracer_core.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        x = torch.randn(5)
        end = weakref.ref(x)
        compiled(x)
        del x
        assert end() is None
    finally:
        gc.enable()


def test_generator_left_by_break():
    def make():
        log = []

        def numbers(n):
            try:
                for i in range(n):
                    log.append(i)
                    yield i
            finally:
                log.append("closed")

        def f(x):
            for i in numbers(4):
                x = x + i
                if i == 2:
                    break
            log.append("after")
            return x

        return f, log

    twin(make, (X,), (X,), (Y,), (X,))


def test_generator_left_in_a_variable():
    def make():
        log = []

        @contextlib.contextmanager
        def manager():
            log.append("in")
            try:
                yield
            finally:
                log.append("out")

        def numbers(n):
            with manager():
                yield from range(n)

        def f(x):
            g = numbers(4)
            x = x + next(g) + next(g)
            log.append("before")
            del g
            log.append("after")
            return x

        return f, log

    twin(make, (X,), (X,), (Y,), (X,))


def test_generator_left_without_handlers_is_captured():
    def make():
        log = []

        def numbers(n):
            for i in range(n):
                log.append(i)
                yield i

        def f(x):
            for i in numbers(4):
                x = x + i
                if i == 2:
                    break
            return x + len(log)

        return f, log

    twin(make, (X,), (X,), breaks=0)


class Thing:
    def __init__(self, n=1):
        self.n = n


def broken_helper(x):
    print(end="", flush=[])
    return x + 1


def watched_by_a_dictionary(x, kept):
    thing = Thing()
    kept["k"] = thing
    print(end="", flush=[])
    return x + kept["k"].n


def watched_after_the_break(x, kept):
    thing = Thing(3)
    box = [thing]
    x = broken_helper(x)
    kept["k"] = box.pop()
    x = broken_helper(x)
    return x + kept["k"].n


def watched_in_a_caller(x, kept):
    thing = Thing(2)
    reference = weakref.ref(thing)
    x = broken_helper(x)
    return x + (reference().n if reference() is not None else 100)


def watched_in_a_loop(x, kept):
    thing, total = Thing(4), 0
    kept["z"] = thing
    for _ in range(6):
        x = x + 1
        print(end="", flush=[])
        total += kept["z"].n
    return x, total


def set_again_in_a_loop(x, kept):
    seen = []
    for i in range(6):
        thing = Thing(i)
        kept[i] = thing
        x = x + 1
        print(end="", flush=[])
        seen.append(sorted(kept))
    return x, seen


@tracer_core.disable
def make_thing(n, kept):
    thing = Thing(n)
    kept[n] = thing
    return thing


def made_by_a_break(x, kept):
    seen = []
    for i in range(6):
        held = make_thing(i, kept)  # noqa: F841
        x = x + 1
        seen.append(sorted(kept))
        print(end="", flush=[])
        seen.append(sorted(kept))
    return x, seen


def taken_from_its_container(x, kept):
    things = {"a": Thing(5)}
    kept["a"] = things["a"]
    thing = things["a"]  # noqa: F841
    x = broken_helper(x)
    del things["a"]
    x = broken_helper(x)
    return x + len(kept)


def a_function_is_watched(x, kept):
    def inner():
        return 1

    kept["f"] = inner
    x = broken_helper(x)
    return x + len(kept)


WATCHED = [
    watched_by_a_dictionary, watched_after_the_break, watched_in_a_caller, watched_in_a_loop,
    set_again_in_a_loop,
    made_by_a_break, taken_from_its_container, a_function_is_watched,
]  # fmt: skip


@pytest.mark.parametrize("program", WATCHED, ids=lambda program: program.__name__)
def test_a_variable_holds_its_object_after_its_last_use(program):
    """Nothing reads the variable after a break; somebody else looks whether its object is still
    there.
    """

    def make():
        kept = weakref.WeakValueDictionary()
        return lambda x: program(x, kept), View(lambda: sorted(map(str, kept)))

    twin(make, (X,), (Y,), (X,), (X,))


def test_dead_tensors_and_numbers_are_let_go():
    """What nobody can watch does not outlive its last use, nor does it make a state longer."""

    def fn(x):
        y = x * 2
        n = y.sum().item()
        z = x + n
        print(end="", flush=[])
        return z + 1

    runner = CompiledFunction(fn, build_config(backend="eager"))
    runner(X)
    states = [len(key[0].locals) for key in runner.runtime.regions.inside]
    assert states == [2, 1]  # x and n; z


class Kept:
    """What a launch gives, which a cache of the library keeps."""


class Launcher:
    def __init__(self):
        self.kept = Kept()

    @tracer_core.disable
    def run(self, *args):
        return self.kept

    def __getitem__(self, grid):
        return lambda *args: self.run(*args)


LAUNCHER = Launcher()


def test_what_only_our_caches_watch_is_dropped_without_a_break():
    """Guards and caches of regions hold weak references, which no program sees."""

    def f(x):
        y = x * 2
        LAUNCHER[1](y)
        return y + 1

    fast = tracer_core.compile(f, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(fast(X), X * 2 + 1)
    assert weakref.getweakrefcount(LAUNCHER.kept)  # ours
    assert len(tracer_core.explain(f)(X).breaks) == 1


# -- what the tracer must not keep alive --


@pytest.fixture
def uncollected():
    """Cycles are collected only where a test asks for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Counts(torch.nn.Module):
    def __init__(self, to_parent):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.calls = 0
        if to_parent:
            object.__setattr__(self.inner, "parent", self)

    def forward(self, x):
        return self.inner(x)


class CountsCalls(Counts):
    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


MODEL = None


def call_model(x):
    return MODEL(x)


@pytest.mark.parametrize("kind, to_parent", [(Counts, False), (Counts, True), (CountsCalls, False)])
def test_a_model_dies_when_its_name_is_rebound(kind, to_parent, uncollected):
    """Not at the next call: the guards of the last one refer to it weakly."""
    global MODEL
    MODEL = kind(to_parent)
    fast = tracer_core.compile(call_model, backend="eager")
    for _ in range(5):
        fast(X)
    ends = [weakref.ref(MODEL), weakref.ref(MODEL.inner), weakref.ref(MODEL.inner[0].weight)]
    MODEL = None
    if to_parent:
        gc.collect()
    assert [end() for end in ends] == [None] * 3
    MODEL = kind(to_parent)
    torch.testing.assert_close(fast(X), MODEL.inner(X))
    MODEL = None


def test_an_optimizer_dies_when_its_name_is_rebound(uncollected):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    fast = tracer_core.compile(step, backend="eager")
    for _ in range(3):
        fast(X)
    ends = weakref.ref(model), weakref.ref(optimizer)
    model = optimizer = None
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_guards_do_not_keep_functions_and_classes():
    def make(n):
        class Scale:
            def __call__(self, x):
                return x * n

        return Scale(), lambda x: x + n

    def f(x, scale, add):
        return add(scale(x))

    fast = tracer_core.compile(f, backend="eager")
    ends = []
    for n in range(4):
        scale, add = make(n)
        for _ in range(2):
            torch.testing.assert_close(fast(X, scale, add), f(X, scale, add))
        ends += [weakref.ref(scale), weakref.ref(type(scale)), weakref.ref(add)]
    del scale, add
    gc.collect()
    assert [end() for end in ends] == [None] * 12
    scale, add = make(5)  # perhaps at the addresses of those that died
    torch.testing.assert_close(fast(X, scale, add), f(X, scale, add))


def test_a_traced_class_is_no_subclass_that_the_program_sees():
    class Base:
        pass

    def f(x):
        class Derived(Base):
            factor = 3

        return x * Derived.factor, len(Base.__subclasses__())

    fast = tracer_core.compile(f, backend="eager")
    for _ in range(3):
        gc.collect()
        torch.testing.assert_close(fast(X), (X * 3, 1))


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

    twin(
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

"""When objects die: finalizers and weak references see the same ends as in eager."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager
from tests.support.object_ends import Thing
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

    compare_with_eager(make, (X,), (X,), (Y,), graphs=1, kinds=("finalizer",))


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

    compare_with_eager(make, (X,), (X,), kinds=("finalizer",))


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

    compare_with_eager(make, (X,), (X,), (Y,), graphs=1, kinds=("finalizer",))


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

    compare_with_eager(make, (X,), (X,), (Y,))


def test_weak_dictionary_of_counts():
    def make():
        class T:
            pass

        d, k = weakref.WeakKeyDictionary(), T()

        def f(x):
            d[k] = d.get(k, 0) + 1
            return x * d[k]

        return f, View(lambda: d[k])

    compare_with_eager(make, (X,), (X,), (Y,))


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

    compare_with_eager(make, (X,), (X,), lambda held: held.clear(), (X,), breaks=0, recompiles=1)


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

    compare_with_eager(make, (X,), (X,), lambda w: w[0].update({w[1]: 7}), (Y,), breaks=0)


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

    compare_with_eager(make, (X,), (X,), (Y,), (X,))


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

    compare_with_eager(make, (X,), (X,), (Y,), (X,))


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

    compare_with_eager(make, (X,), (X,), breaks=0)


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

    compare_with_eager(make, (X,), (Y,), (X,), (X,))


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


def drops_by_iterator(x, handed, note):
    items = handed.pop()
    iterator = iter(items)
    del items
    for item in iterator:
        note(type(item).__name__)
    item = None
    note("after the loop")
    return x + 1


def drops_by_pop(x, handed, note):
    items = handed.pop()
    inner = [items]
    del items
    note("held")
    inner.pop()
    note("popped")
    return x + 1


def drops_by_clear(x, handed, note):
    items = handed.pop()
    table = {"a": items}
    del items
    note("held")
    table.clear()
    note("cleared")
    return x + 1


def drops_by_overwriting(x, handed, note):
    items = handed.pop()
    table = {"a": (items,)}
    del items
    table["a"] = None
    note("overwritten")
    return x + 1


def drops_by_cell(x, handed, note):
    items = handed.pop()

    def read():
        return len(items)

    note(read())
    items = ()
    note("rebound")
    return x + read()


def drops_by_unpacking(x, handed, note):
    items = handed.pop()
    pair = (items, 1)
    del items
    (first,), second = pair
    del pair
    note("unpacked")
    del first
    note("dropped")
    return x + second


def drops_by_return(x, handed, note):
    items = handed.pop()

    def inside(pair):
        held = pair.pop()
        note("inside")
        return len(held)

    pair = [items]
    del items
    n = inside(pair)
    note("returned")
    return x + n


def drops_by_generator(x, handed, note):
    items = handed.pop()

    def each(held):
        for item in held:
            yield 1
        del held, item
        yield 2

    steps = each(items)
    del items
    total = 0
    for step in steps:
        note(step)
        total += step
    return x + total


def drops_by_attribute(x, handed, note):
    items = handed.pop()
    holder = types.SimpleNamespace(items=items)
    del items
    note("held")
    holder.items = None
    note("set")
    return x + 1


@pytest.mark.parametrize("drops", [
    drops_by_iterator, drops_by_pop, drops_by_clear, drops_by_overwriting, drops_by_cell, drops_by_unpacking,
    drops_by_return, drops_by_generator, drops_by_attribute,
], ids=lambda drops: drops.__name__)  # fmt: skip
def test_an_object_that_only_the_activation_holds_dies_behind_a_graph_break(drops):
    """No argument is the object: where a tool watches frames (a debugger, torch.compile in the same
    process), CPython's caller holds arguments until the call ends."""

    def make():
        seen = []

        class T:
            def __del__(self):
                seen.append("died")

        def f(x):
            handed = [[T()]]
            y = x.sin() if x.sum() > -99 else x
            return drops(y, handed, seen.append)

        return f, View(lambda: list(seen))

    compare_with_eager(make, (X,), (Y,), (X,), graphs=None)

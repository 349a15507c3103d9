"""Attributes of objects, classes, functions and modules that a program sets and deletes: each
change happens once, whatever the attribute held before, and is seen by the next call."""

from __future__ import annotations

import torch

from tests.support.eager_reference import View, compare_with_eager, module
from tests.support.slotted_objects import Slots, space

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def slots_of(obj):
    return {name: getattr(obj, name) for name in ("a", "b") if hasattr(obj, name)}


# -- what is written is written whatever was there before --


def written_again(fn_of, start, other):
    """Two calls write the same; between them somebody else writes."""

    def make():
        obj = start()
        return fn_of(obj), View(lambda: vars(obj).copy(), obj)

    return compare_with_eager(make, (X,), other, (X,), (Y,), graphs=1, breaks=0, recompiles=0)


def test_attribute_set_to_what_it_was():
    def program(o):
        def f(x):
            o.flag = True
            return x + 1

        return f

    written_again(program, lambda: space(flag=True), lambda o: setattr(o, "flag", False))


def test_attribute_set_that_appears_and_disappears():
    def program(o):
        def f(x):
            o.n = 1
            return x + 1

        return f

    written_again(program, lambda: space(n=5), lambda o: delattr(o, "n"))


def test_attribute_added_and_deleted():
    def program(o):
        def f(x):
            o.tmp = x + 1
            y = o.tmp * 2
            del o.tmp
            return y

        return f

    written_again(program, lambda: space(b=2), lambda o: setattr(o, "tmp", 55))


def test_attribute_deleted_and_set_again_moves_last():
    def make():
        obj = space(a=1, b=2)

        def f(x):
            del obj.a
            obj.a = 7
            return x + 1

        return f, View(lambda: list(vars(obj).items()), obj)

    compare_with_eager(
        make, (X,), lambda o: setattr(o, "b", 55), (X,), graphs=1, breaks=0, recompiles=0
    )


def test_attribute_deleted_twice():
    def make():
        obj = space(a=2)

        def f(x):
            try:
                del obj.a
            except AttributeError as error:
                return x - 1, str(error)
            return x + 1, ""

        return f, obj

    compare_with_eager(make, (X,), (X,), (X,), graphs=2, breaks=0, recompiles=1)


def test_nonlocal_set_to_what_it_was():
    def make():
        n = 1

        def f(x):
            nonlocal n
            n = 1
            return x + 1

        def other(value):
            nonlocal n
            n = value

        return f, View(lambda: n, other)

    compare_with_eager(make, (X,), lambda other: other(2), (X,), graphs=1, breaks=0, recompiles=0)


def test_global_set_to_what_it_was():
    def make():
        m = module("n = 1\ndef f(x):\n    global n\n    n = 1\n    return x + 1\n")
        return m.f, m

    compare_with_eager(
        make, (X,), lambda m: setattr(m, "n", 2), (X,), graphs=1, breaks=0, recompiles=0
    )


def test_slot_set_to_what_it_was():
    def make():
        obj = Slots(a=1)

        def f(x):
            obj.a = 1
            return x + 1

        return f, View(lambda: slots_of(obj), obj)

    compare_with_eager(make, (X,), lambda o: setattr(o, "a", 2), (X,), lambda o: delattr(o, "a"), (X,), graphs=1,
    breaks=0,
         recompiles=0)  # fmt: skip


def test_class_attribute_set_to_what_it_was():
    def make():
        class C:
            n = 1

        def f(x):
            C.n = 1
            return x + 1

        return f, C

    compare_with_eager(
        make, (X,), lambda c: setattr(c, "n", 2), (X,), graphs=1, breaks=0, recompiles=0
    )


def test_dict_entry_set_to_what_it_was():
    def make():
        d = {"n": 1, "m": 2}

        def f(x):
            d["n"] = 1
            return x + 1

        return f, d

    compare_with_eager(
        make, (X,), lambda d: d.update(n=2, m=3), (X,), graphs=1, breaks=0, recompiles=0
    )


# -- slots --


def test_slots_counted():
    def make():
        p = Slots(a=1, b=[2])

        def f(x):
            p.a += 1
            p.b = [p.a, x * p.a]
            return x * p.a

        return f, View(lambda: slots_of(p))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


def test_slot_tensor_replaced():
    def make():
        p = Slots(a=torch.zeros(3, 4), b=None)

        def f(x):
            p.a, p.b = p.a + x, p.a
            return p.a * 2

        return f, View(lambda: slots_of(p))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_slot_deleted_and_set():
    def make():
        p = Slots(a=1)

        def f(x):
            if hasattr(p, "a"):
                del p.a
                return x
            p.a = 3
            return x * p.a

        return f, View(lambda: slots_of(p))

    compare_with_eager(make, (X,), (X,), (Y,), (Y,), breaks=0, recompiles=2)


def test_slot_missing_raises():
    def make():
        p = Slots(b=1)

        def f(x):
            try:
                del p.a
            except AttributeError as error:
                p.b += 1
                return x, str(error)
            return x + 1

        return f, View(lambda: slots_of(p))

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_slot_set_and_deleted():
    def make():
        p = Slots()

        def f(x):
            p.a = x + 1
            y = p.a * 2
            del p.a
            return y, hasattr(p, "a")

        return f, View(lambda: slots_of(p), p)

    compare_with_eager(
        make, (X,), lambda p: setattr(p, "a", 5), (X,), graphs=1, breaks=0, recompiles=0
    )


def test_slots_of_two_classes_with_one_name():
    class Base:
        __slots__ = ("k",)

    class Derived(Base):
        __slots__ = ("k",)

    def make():
        d = Derived()
        d.k = 1
        Base.k.__set__(d, 10)

        def f(x):
            d.k += 1
            return x * d.k

        return f, View(lambda: (d.k, Base.k.__get__(d)))

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_slots_with_dict():
    class Both:
        __slots__ = ("a", "__dict__")

    def make():
        b = Both()
        b.a, b.c = 1, 2

        def f(x):
            b.a, b.c = b.c, b.a
            b.d = x + b.a
            return b.d

        return f, View(lambda: (b.a, b.c, b.d))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_slot_that_does_not_exist():
    def make():
        p = Slots(a=1)

        def f(x):
            try:
                p.zzz = 3
            except AttributeError as error:
                return x, str(error)

        return f, View(lambda: slots_of(p))

    compare_with_eager(make, (X,), (X,), breaks=0)

"""Attributes of classes, functions, modules and globals that a program sets and deletes."""

from __future__ import annotations

import torch

from tests.support.eager_reference import View, compare_with_eager, module

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- classes --


def test_class_counter():
    def make():
        class C:
            n = 0

        def f(x):
            C.n += 1
            return x * C.n

        return f, C

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


def test_instances_number_themselves():
    def make():
        class C:
            made = 0

            def __init__(self):
                C.made += 1
                self.number = C.made

        def f(x):
            return x * C().number + C().number

        return f, View(lambda: {k: v for k, v in vars(C).items() if not k.startswith("__")})

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_class_attributes_by_type_setattr():
    def make():
        class C:
            n = 0

        def f(x):
            type.__setattr__(C, "n", C.n + 1)
            setattr(C, "m", x + 1)
            return x * C.n + C.m

        return f, C

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_class_attribute_added_and_deleted():
    def make():
        class C:
            n = 0

        def f(x):
            C.m = 1
            k = C.m
            del C.m
            if hasattr(C, "n"):
                del C.n
            return x * k, hasattr(C, "m"), hasattr(C, "n")

        return f, C

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


def test_class_attribute_missing_is_deleted():
    def make():
        class C:
            n = 0

        def f(x):
            try:
                del C.m
            except AttributeError as error:
                return x, str(error)
            return x + 1

        return f, View(lambda: hasattr(C, "m"), C)

    compare_with_eager(make, (X,), lambda c: setattr(c, "m", 3), (X,), (X,), breaks=0, recompiles=1)


def test_registry_on_class_shared_by_subclasses():
    def make():
        class C:
            n = 0
            items = []

            @classmethod
            def add(cls, v):
                cls.n += v
                cls.items.append(v)

        class D(C):
            pass

        def f(x):
            D.add(2)
            C.add(1)
            return x * D.n

        return f, View(lambda: (C.n, D.n, "n" in vars(D), list(C.items)))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_instance_sees_new_class_attribute():
    def make():
        class C:
            k = 2

        obj = C()

        def f(x):
            before = obj.k
            C.k = before + 1
            return x * obj.k + before

        return f, C

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_method_replaced_on_class():
    def make():
        class C:
            def go(self, x):
                return x + 1

        obj = C()

        def f(x):
            first = obj.go(x)
            C.go = lambda self, x: x - 1
            return first, obj.go(x)

        return f

    compare_with_eager(make, (X,), breaks=0)


def test_special_method_given_to_class():
    def make():
        class C:
            pass

        obj = C()

        def f(x):
            if obj:
                C.__bool__ = lambda self: False
            return x + 1 if obj else x - 1

        return f

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_metaclass_setattr():
    def make():
        log = []

        class Meta(type):
            def __setattr__(cls, name, value):
                log.append(name)
                super().__setattr__(name, value)

        class C(metaclass=Meta):
            n = 0

        def f(x):
            C.n += 1
            C.m = x
            return x * C.n

        return f, View(lambda: (C.n, getattr(C, "m", None), log))

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_metaclass_property():
    def make():
        class Meta(type):
            @property
            def level(cls):
                return cls._level

            @level.setter
            def level(cls, value):
                cls._level = value * 2

        class C(metaclass=Meta):
            _level = 1

        def f(x):
            C.level = C.level + 1
            return x * C.level

        return f, View(lambda: C._level)

    compare_with_eager(make, (X,), (X,), breaks=0)


# -- functions, modules, globals --


def test_function_counts_its_calls():
    def make():
        def g(x):
            g.calls += 1
            return x * g.calls

        g.calls = 0
        return g, View(lambda: vars(g).copy())

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_function_renamed():
    def make():
        def g(x):
            return x

        def f(x):
            g.seen = x + 1
            g.__name__ = g.__name__ + "_"
            return g(x), len(g.__name__)

        return f, View(lambda: (vars(g).copy(), g.__name__))

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_module_attributes():
    def make():
        m = module("k = 1\nt = None\n")

        def f(x):
            m.k += 1
            m.t = x * m.k
            if hasattr(m, "new"):
                del m.new
            else:
                m.new = 3
            return m.t

        return f, m

    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_module_attribute_missing_is_deleted():
    def make():
        m = module("")

        def f(x):
            try:
                del m.nothing
            except AttributeError as error:
                return x, str(error).replace(m.__name__, "m")

        return f, m

    compare_with_eager(make, (X,), (X,), breaks=0)


def test_globals():
    source = """
n = 0
last = None
hist = []
def f(x):
    global n, last, fresh
    n += 1
    last = x * n
    hist.append(last)
    fresh = n
    return last
"""
    make = lambda: (lambda m: (m.f, m))(module(source))
    compare_with_eager(make, (X,), (X,), (Y,), breaks=0)


def test_global_made_and_deleted():
    source = """
def f(x):
    global tmp
    tmp = x + 1
    y = tmp * 2
    del tmp
    try:
        tmp
    except NameError as error:
        return y, str(error)
"""
    make = lambda: (lambda m: (m.f, m))(module(source))
    compare_with_eager(
        make, (X,), lambda m: setattr(m, "tmp", 3), (X,), graphs=1, breaks=0, recompiles=0
    )


def test_global_deleted_twice():
    source = """
tmp = 1
def f(x):
    global tmp
    try:
        del tmp
    except NameError as error:
        return x, str(error)
    return x + 1
"""
    make = lambda: (lambda m: (m.f, m))(module(source))
    compare_with_eager(make, (X,), (X,), (X,), breaks=0, recompiles=1)

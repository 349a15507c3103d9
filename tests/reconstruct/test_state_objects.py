"""Attributes of objects, classes, functions and modules that a program sets and deletes: each
change happens once, whatever the attribute held before, and is seen by the next call."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, module, same, twin

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, value)


def slots_of(obj):
    return {name: getattr(obj, name) for name in ("a", "b") if hasattr(obj, name)}


def space(**values):
    return types.SimpleNamespace(**values)


# -- what is written is written whatever was there before --


def written_again(fn_of, start, other):
    """Two calls write the same; between them somebody else writes."""

    def make():
        obj = start()
        return fn_of(obj), View(lambda: vars(obj).copy(), obj)

    return twin(make, (X,), other, (X,), (Y,), graphs=1, breaks=0, recompiles=0)


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

    twin(make, (X,), lambda o: setattr(o, "b", 55), (X,), graphs=1, breaks=0, recompiles=0)


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

    twin(make, (X,), (X,), (X,), graphs=2, breaks=0, recompiles=1)


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

    twin(make, (X,), lambda other: other(2), (X,), graphs=1, breaks=0, recompiles=0)


def test_global_set_to_what_it_was():
    def make():
        m = module("n = 1\ndef f(x):\n    global n\n    n = 1\n    return x + 1\n")
        return m.f, m

    twin(make, (X,), lambda m: setattr(m, "n", 2), (X,), graphs=1, breaks=0, recompiles=0)


def test_slot_set_to_what_it_was():
    def make():
        obj = Slots(a=1)

        def f(x):
            obj.a = 1
            return x + 1

        return f, View(lambda: slots_of(obj), obj)

    twin(make, (X,), lambda o: setattr(o, "a", 2), (X,), lambda o: delattr(o, "a"), (X,), graphs=1,
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

    twin(make, (X,), lambda c: setattr(c, "n", 2), (X,), graphs=1, breaks=0, recompiles=0)


def test_dict_entry_set_to_what_it_was():
    def make():
        d = {"n": 1, "m": 2}

        def f(x):
            d["n"] = 1
            return x + 1

        return f, d

    twin(make, (X,), lambda d: d.update(n=2, m=3), (X,), graphs=1, breaks=0, recompiles=0)


# -- slots --


def test_slots_counted():
    def make():
        p = Slots(a=1, b=[2])

        def f(x):
            p.a += 1
            p.b = [p.a, x * p.a]
            return x * p.a

        return f, View(lambda: slots_of(p))

    twin(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


def test_slot_tensor_replaced():
    def make():
        p = Slots(a=torch.zeros(3, 4), b=None)

        def f(x):
            p.a, p.b = p.a + x, p.a
            return p.a * 2

        return f, View(lambda: slots_of(p))

    twin(make, (X,), (X,), (Y,), breaks=0)


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

    twin(make, (X,), (X,), (Y,), (Y,), breaks=0, recompiles=2)


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

    twin(make, (X,), (X,), breaks=0)


def test_slot_set_and_deleted():
    def make():
        p = Slots()

        def f(x):
            p.a = x + 1
            y = p.a * 2
            del p.a
            return y, hasattr(p, "a")

        return f, View(lambda: slots_of(p), p)

    twin(make, (X,), lambda p: setattr(p, "a", 5), (X,), graphs=1, breaks=0, recompiles=0)


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

    twin(make, (X,), (X,), breaks=0)


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

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_slot_that_does_not_exist():
    def make():
        p = Slots(a=1)

        def f(x):
            try:
                p.zzz = 3
            except AttributeError as error:
                return x, str(error)

        return f, View(lambda: slots_of(p))

    twin(make, (X,), (X,), breaks=0)


# -- classes --


def test_class_counter():
    def make():
        class C:
            n = 0

        def f(x):
            C.n += 1
            return x * C.n

        return f, C

    twin(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


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

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_class_attributes_by_type_setattr():
    def make():
        class C:
            n = 0

        def f(x):
            type.__setattr__(C, "n", C.n + 1)
            setattr(C, "m", x + 1)
            return x * C.n + C.m

        return f, C

    twin(make, (X,), (X,), (Y,), breaks=0)


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

    twin(make, (X,), (X,), (Y,), breaks=0, recompiles=1)


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

    twin(make, (X,), lambda c: setattr(c, "m", 3), (X,), (X,), breaks=0, recompiles=1)


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

    twin(make, (X,), (X,), (Y,), breaks=0)


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

    twin(make, (X,), (X,), breaks=0)


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

    twin(make, (X,), breaks=0)


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

    twin(make, (X,), (X,), breaks=0)


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

    twin(make, (X,), (X,), breaks=0)


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

    twin(make, (X,), (X,), breaks=0)


# -- functions, modules, globals --


def test_function_counts_its_calls():
    def make():
        def g(x):
            g.calls += 1
            return x * g.calls

        g.calls = 0
        return g, View(lambda: vars(g).copy())

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_function_renamed():
    def make():
        def g(x):
            return x

        def f(x):
            g.seen = x + 1
            g.__name__ = g.__name__ + "_"
            return g(x), len(g.__name__)

        return f, View(lambda: (vars(g).copy(), g.__name__))

    twin(make, (X,), (X,), (Y,), breaks=0)


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

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_module_attribute_missing_is_deleted():
    def make():
        m = module("")

        def f(x):
            try:
                del m.nothing
            except AttributeError as error:
                return x, str(error).replace(m.__name__, "m")

        return f, m

    twin(make, (X,), (X,), breaks=0)


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
    twin(make, (X,), (X,), (Y,), breaks=0)


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
    twin(make, (X,), lambda m: setattr(m, "tmp", 3), (X,), graphs=1, breaks=0, recompiles=0)


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
    twin(make, (X,), (X,), (X,), breaks=0, recompiles=1)


# -- user code around attributes --


def test_user_setattr_with_a_log():
    def make():
        class C:
            def __setattr__(self, name, value):
                self.__dict__.setdefault("log", []).append(name)
                object.__setattr__(self, name, value)

            def __delattr__(self, name):
                self.log.append(f"-{name}")
                object.__delattr__(self, name)

        c = C()

        def f(x):
            c.a = 1
            c.b = x + c.a
            c.c = 2
            del c.c
            return c.b

        return f, View(lambda: vars(c).copy())

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_property_setter_keeps_history():
    def make():
        class C:
            def __init__(self):
                self.history = []

            @property
            def value(self):
                return self.history[-1]

            @value.setter
            def value(self, v):
                self.history.append(v)

            @value.deleter
            def value(self):
                self.history.clear()

        c = C()

        def f(x):
            c.value = x
            c.value = c.value + 1
            y = c.value
            if len(c.history) > 3:
                del c.value
            return y

        return f, View(lambda: list(c.history))

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_descriptor_with_storage():
    def make():
        class Field:
            def __set_name__(self, owner, name):
                self.name = "_" + name

            def __get__(self, obj, owner=None):
                return obj.__dict__[self.name]

            def __set__(self, obj, value):
                obj.__dict__[self.name] = value
                obj.writes += 1

            def __delete__(self, obj):
                del obj.__dict__[self.name]
                obj.writes -= 100

        class C:
            a = Field()

        c = C()
        c.writes = 0
        c.a = 1

        def f(x):
            c.a = c.a + 1
            y = x * c.a
            del c.a
            c.a = 1
            return y

        return f, View(lambda: vars(c).copy())

    twin(make, (X,), (X,), (Y,), breaks=0)


def test_vars_written_after_an_attribute():
    def make():
        o = space(a=1, b=2)

        def f(x):
            o.a = 5
            vars(o).update(c=3)
            vars(o)["d"] = x
            return x * sum(v for v in vars(o).values() if isinstance(v, int))

        return f, View(lambda: vars(o).copy(), o)

    twin(make, (X,), lambda o: setattr(o, "b", 9), (X,), breaks=0)


def test_vars_cleared_after_an_attribute():
    def make():
        o = space(a=1, b=2)

        def f(x):
            o.a = 5
            o.__dict__.clear()
            o.z = x + 1
            return o.z

        return f, View(lambda: vars(o).copy(), o)

    twin(
        make,
        (X,),
        lambda o: setattr(o, "b", 9),
        (X,),
        lambda o: setattr(o, "new", 9),
        (Y,),
        breaks=0,
    )


@pytest.mark.parametrize("holder", ["object", "slots", "class", "function", "module"])
def test_one_object_by_two_names(holder):
    def make():
        target = {
            "object": lambda: space(n=0),
            "slots": lambda: type("S", (), {"__slots__": ("n",)})(),
            "class": lambda: type("C", (), {"n": 0}),
            "function": lambda: types.FunctionType((lambda: None).__code__, {}),
            "module": lambda: module("n = 0\n"),
        }[holder]()
        target.n = 0
        first, second = {"t": target}, space(t=target)

        def f(x):
            first["t"].n += 1
            second.t.n += 1
            return x * first["t"].n

        return f, View(lambda: target.n)

    twin(make, (X,), (X,), (Y,), breaks=0)


@pytest.mark.parametrize("kind", ["object", "slots"])
def test_two_objects_that_become_one(kind):
    def f(x, a, b):
        a.a = 1
        b.a = 2
        return x * a.a

    result = (lambda: space(a=0)) if kind == "object" else (lambda: Slots(a=0))

    def g(x, item):
        first, second = (result(), result())
        pair = (first, first) if item else (first, second)
        return f_of(x, *pair), first.a, second.a

    for_eager = [f(X, *pair) for pair in ((result(), result()), (lambda t: (t, t))(result()))]
    import tracer_core

    f_of = tracer_core.compile(f, backend="eager")
    got = [g(X, False), g(X, True), g(X, False), g(X, True)]
    for i, (value, first, second) in enumerate(got):
        assert torch.equal(value, for_eager[i % 2])
        assert (first, second) == ((1, 2) if i % 2 == 0 else (2, 0))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="such classes came with 3.12")
def test_an_object_whose_class_is_made_in_c():
    testcapi = pytest.importorskip("_testcapi")

    def make():
        def f(x):
            kind = testcapi.make_vectorcall_class()
            item = kind()
            item.set_vectorcall(kind)
            said = [item()]
            kind.__call__ = lambda self: "of the program"
            return x + 1, said, item()

        return f

    twin(make, (X,), (Y,), (X,))


# -- the dictionary of an object that the call makes --


class Plain:
    pass


class Items(list):
    pass


class Alike:
    """All have one dictionary."""

    shared: dict[str, object] = {}

    def __init__(self):
        self.__dict__ = self.shared


def its_dictionary(x, between):
    obj = Plain()
    own = obj.__dict__
    between()
    obj.a = x + 1
    between()
    own["b"] = x.dim()
    return obj.b, own, own is vars(obj)


def its_dictionary_alone(x, between):
    obj = Plain()
    obj.x, obj.itself, own = x, obj.__dict__, vars(obj)
    del obj
    between()
    return own["x"] + 1, own["itself"] is own


def those_of_other_objects(x, between):
    def inner():
        pass

    items, error = Items([1]), ValueError("a")
    actual = [vars(items), error.__dict__, inner.__dict__]
    between()
    items.a, error.b, inner.c = x + 1, 2, 3
    return actual, vars(items) is actual[0]


def one_that_the_program_gives(x, between):
    obj, own = Plain(), {"a": x}
    obj.__dict__ = own
    between()
    obj.b = x + 1
    return own, obj.a, vars(obj) is own


def one_for_two(x, between):
    Alike.shared.clear()
    first, second = Alike(), Alike()
    first.a = x + 1
    between()
    second.b = 2
    return first.b, second.a, vars(first) is vars(second) is Alike.shared


def one_that_is_taken_away(x, between):
    obj = Plain()
    obj.a, own = x, obj.__dict__
    obj.__dict__ = {"b": 1}
    between()
    obj.c = 2
    return own, vars(obj), vars(obj) is own


DICTIONARIES = (
    its_dictionary,
    its_dictionary_alone,
    those_of_other_objects,
    one_that_the_program_gives,
    one_for_two,
    one_that_is_taken_away,
)


@pytest.mark.parametrize("between", [tracer_core.graph_break, lambda: None])
@pytest.mark.parametrize("program", DICTIONARIES)
def test_the_dictionary_of_an_object(program, between):
    same(program, (X, between), (Y, between), breaks=None)


def test_the_dictionary_of_an_object_that_is_returned():
    def fn(x):
        obj = Plain()
        return x + 1, obj, obj.__dict__

    _, obj, own = tracer_core.compile(fn, backend="eager")(X)
    obj.a = 1
    assert own == {"a": 1} and own is vars(obj)

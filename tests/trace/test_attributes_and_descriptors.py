"""Attribute hooks, descriptors, slots and super() of user classes, against CPython."""

from __future__ import annotations

from tests.support.named_programs import Programs, texts_of

program = Programs()


@program
def special_methods_are_looked_up_on_the_class(x):
    class A:
        def __len__(self):
            return 1

    a = A()
    a.__len__ = lambda: 9
    a.__call__ = lambda: 3
    try:
        a()
    except TypeError as error:
        return x + len(a), str(error)


@program
def format_repr_str_ascii(x):
    class A:
        def __repr__(self):
            return "<é>"

        def __str__(self):
            return "text"

        def __format__(self, spec):
            return f"({spec})"

    a = A()
    return (x + 1, f"{a}", f"{a!r}", f"{a!s}", f"{a!a}", f"{a:>{5}}", format(a, "z"), str(a),
    repr(a), ascii(a),
            "%s %r" % (a, a), "{0!r} {0:q}".format(a), [a].__repr__(), str([a]),
            repr({"k": (a,)}))  # fmt: skip


@program
def str_must_return_text(x):
    class Bad:
        def __str__(self):
            return 3

    try:
        str(Bad())
    except TypeError as error:
        return x + 1, str(error)


@program
def missing_in_a_dict_subclass(x):
    class Table(dict):
        def __missing__(self, key):
            self[key] = value = [key]
            return value

    table = Table(a=1)
    return x * table["a"], table["b"], table.get("c"), "b" in table, len(table)


@program
def getattr_getattribute_setattr_delattr(x):
    log = []

    class A:
        known = 1

        def __getattribute__(self, name):
            if name != "__class__":
                log.append(("get", name))
            return super().__getattribute__(name)

        def __getattr__(self, name):
            log.append(("missing", name))
            if name == "no":
                raise AttributeError("no such thing")
            return 5

        def __setattr__(self, name, value):
            log.append(("set", name))
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(("del", name))
            super().__delattr__(name)

    a = A()
    a.v = 3
    total = a.v + a.known + a.other
    del a.v
    return x * total, hasattr(a, "no"), getattr(a, "no", 7), log


@program
def delete_a_missing_attribute(x):
    class A:
        pass

    try:
        del A().gone
    except AttributeError as error:
        return x + 1, str(error)


@program
def attribute_error_names_the_attribute(x):
    class A:
        pass

    try:
        A().gone
    except AttributeError as error:
        return x + 1, str(error), error.name, type(error.obj).__name__


class Logged:
    """A data descriptor that logs."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        return ("class", self.name) if obj is None else obj.__dict__.get(self.name, "unset")

    def __set__(self, obj, value):
        obj.__dict__[self.name] = ("set", value)

    def __delete__(self, obj):
        obj.__dict__[self.name] = "deleted"


class WithLogged:
    field = Logged()


@program
def data_descriptor_set_get_delete(x):
    a = WithLogged()
    first = a.field
    a.field = x
    a.__dict__["other"] = 1
    second = a.field
    del a.field
    return second[1] + 1, first, a.field, WithLogged.field, a.other


@program
def data_descriptor_beats_the_instance_dictionary(x):
    a = WithLogged()
    a.__dict__["field"] = 5
    vars(a)["x"] = 2
    return x * a.field, a.x


@program
def non_data_descriptor_loses_to_the_instance_dictionary(x):
    class NonData:
        def __get__(self, obj, owner=None):
            return 10

    class A:
        v = NonData()

    a = A()
    before = a.v
    a.v = 3
    after = a.v
    del a.v
    return x * before + after, a.v, A.v


@program
def set_only_descriptor(x):
    class SetOnly:
        def __set__(self, obj, value):
            obj.__dict__["v"] = value * 2

    class A:
        v = SetOnly()

    a = A()
    kind = type(a.v).__name__
    a.v = 4
    return x * a.v, kind


@program
def descriptor_without_set_or_delete_raises(x):
    class GetAndSet:
        def __get__(self, obj, owner=None):
            return 1

        def __set__(self, obj, value):
            raise AttributeError("read only")

    class A:
        v = GetAndSet()

    return x + 1, texts_of(
        lambda a: setattr(a, "v", 1), lambda a: delattr(a, "v"),
        errors=AttributeError, argument=A,
    )  # fmt: skip


@program
def property_without_setter_getter_deleter(x):
    class A:
        @property
        def v(self):
            return 1

        w = property(None, lambda self, value: None)

    return x + 1, texts_of(
        lambda a: setattr(a, "v", 1), lambda a: delattr(a, "v"), lambda a: a.w,
        errors=AttributeError, argument=A,
    )  # fmt: skip


@program
def property_that_raises_attribute_error_falls_back(x):
    class A:
        @property
        def v(self):
            return self.inner

        def __getattr__(self, name):
            return f"fallback {name}"

    return x + 1, A().v


@program
def slots_and_their_descriptors(x):
    class A:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1

    a = A()
    texts = []
    for step in (lambda: a.b, lambda: setattr(a, "c", 1), lambda: a.__dict__):
        try:
            step()
        except AttributeError as error:
            texts.append(str(error))
    a.b = 5
    total = a.a + a.b
    del a.b
    return x * total, texts, hasattr(a, "b"), type(A.a).__name__


@program
def slots_in_a_subclass_with_dictionary(x):
    class Base:
        __slots__ = ("a",)

    class Sub(Base):
        pass

    s = Sub()
    s.a, s.b = 2, 3
    return x * s.a + s.b, sorted(s.__dict__)


@program
def super_through_a_diamond(x):
    class Root:
        def go(self):
            return ["root"]

    class Left(Root):
        def go(self):
            return ["left", *super().go()]

    class Right(Root):
        def go(self):
            return ["right", *super().go()]

    class Both(Left, Right):
        def go(self):
            return ["both", *super().go()]

    return x + 1, Both().go(), [c.__name__ for c in Both.__mro__]


@program
def super_with_properties_and_class_methods(x):
    class Base:
        k = 2

        @property
        def p(self):
            return self.k

        @classmethod
        def c(cls):
            return cls.k * 10

        @staticmethod
        def s(v):
            return v + 1

    class Sub(Base):
        k = 3

        @property
        def p(self):
            return super().p * 100

        @classmethod
        def c(cls):
            return super().c() + 1

        @staticmethod
        def s(v):
            return super(Sub, Sub).s(v) * 2

    s = Sub()
    return x * s.p + Sub.c() + s.s(1), super(Sub, s).k, super(Sub, s).c()


@program
def super_missing_attribute(x):
    class A:
        def go(self):
            return super().gone

    try:
        A().go()
    except AttributeError as error:
        return x + 1, str(error)


@program
def super_setattr_and_getattribute(x):
    class A:
        def __setattr__(self, name, value):
            super().__setattr__(name, value * 2)

        def __getattribute__(self, name):
            return super().__getattribute__(name)

    a = A()
    a.v = 3
    return x * a.v


@program
def dunder_class_cell(x):
    class A:
        def kind(self):
            return __class__.__name__

    class B(A):
        pass

    return x + 1, B().kind()


@program
def class_methods_of_instances_and_classes(x):
    class A:
        def __init__(self, v):
            self.v = v

        @classmethod
        def make(cls, v):
            return cls(v + 1)

        @staticmethod
        def twice(v):
            return v * 2

    class B(A):
        pass

    return x * B.make(A.twice(2)).v, type(B(0).make(1)).__name__


@program
def new_returns_something_else(x):
    class A:
        def __new__(cls, v):
            return v if v > 1 else super().__new__(cls)

        def __init__(self, v):
            self.v = v

    return x * A(3), A(0).v


@program
def init_must_return_none(x):
    class A:
        def __init__(self):
            return 3

    try:
        A()
    except TypeError as error:
        return x + 1, str(error)


@program
def wrong_arguments_of_constructors(x):
    class Bare:
        pass

    class One:
        def __init__(self, a):
            self.a = a

    texts = []
    for step in (lambda: Bare(1), lambda: One(), lambda: One(1, 2), lambda: One(b=1)):
        try:
            step()
        except TypeError as error:
            texts.append(str(error).replace("wrong_arguments_of_constructors.<locals>.", ""))
    return x + 1, texts


@program
def attribute_hooks_that_are_no_python_functions(x):
    class A(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    class Hook:
        def __get__(self, obj, owner=None):
            return lambda *names: ("asked", names)

    class B:
        __getattr__ = Hook()
        __setattr__ = Hook()

    a, b = A(k=2), B()
    a.y = 42
    del a.k
    b.z = 1
    return x * a.y, dict(a), b.anything, b.z


@program.cases()
def test_protocol(name):
    program.run(name)

"""Context managers, instance checks, metaclasses and generic classes, against CPython."""

from __future__ import annotations

import abc

import pytest

from tests.support.named_programs import Programs

program = Programs()


@program
def context_manager_order_and_arguments(x):
    log = []

    class Manager:
        def __init__(self, name, swallow=False):
            self.name, self.swallow = name, swallow

        def __enter__(self):
            log.append(f"enter {self.name}")
            return self.name

        def __exit__(self, kind, error, trace):
            log.append((self.name, kind and kind.__name__, str(error), trace is None))
            return self.swallow

    with Manager("a", True) as a, Manager("b") as b:
        x = x + 1
        raise ValueError(a + b)
    with Manager("c"):
        x = x * 2
    return x, log


@program
def context_manager_without_exit(x):
    class Bad:
        def __enter__(self):
            return self

    try:
        with Bad():
            pass
    except TypeError as error:
        return x + 1, str(error)


class MetaInstance(type):
    def __instancecheck__(cls, obj):
        return hasattr(obj, "quack")

    def __subclasscheck__(cls, sub):
        return sub is int

    def __len__(cls):
        return 5

    def __iter__(cls):
        return iter("ab")

    def __contains__(cls, item):
        return item == 3

    def __getitem__(cls, key):
        return f"item {key}"

    def __getattr__(cls, name):
        return f"meta {name}"

    def __bool__(cls):
        return False

    def __add__(cls, other):
        return "added"

    def __repr__(cls):
        return "<a duck>"


class Duck(metaclass=MetaInstance):
    pass


class Quacker:
    quack = 1


@program
def instancecheck_and_subclasscheck(x):
    return (x + 1, isinstance(Quacker(), Duck), isinstance(3, Duck), issubclass(int, Duck),
    issubclass(str, Duck),
            isinstance(3, (str, Duck)), isinstance(Duck(), Duck))  # fmt: skip


@program
def metaclass_protocols(x):
    return (
        x * len(Duck),
        list(Duck),
        3 in Duck,
        Duck["k"],
        Duck.gone,
        bool(Duck),
        Duck + 1,
        repr(Duck),
        str(Duck),
    )


@program
def exception_matching_ignores_instancecheck(x):
    try:
        raise KeyError("k")
    except (ValueError, LookupError) as error:
        return x + 1, error.args


class Generic:
    def __class_getitem__(cls, key):
        return (cls.__name__, key)


@program
def class_getitem(x):
    return x + 1, Generic[int], Generic["a", 2], list[int] == list[int]


@program
def generic_classes_of_typing(x):
    from typing import Generic as G
    from typing import TypeVar

    T = TypeVar("T")

    class Box(G[T]):
        def __init__(self, v):
            self.v = v

    return x * Box[int](3).v


class Meta(type):
    def __call__(cls, *args, **kwargs):
        result = super().__call__(*args, **kwargs)
        result.tag = cls.__name__
        return result

    @property
    def size(cls):
        return 7

    def helper(cls):
        return f"helper of {cls.__name__}"


class Made(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@program
def metaclass_call_property_and_method(x):
    return x * Made(3).v + Made.size, Made(1).tag, Made.helper(), hasattr(Made(1), "helper")


class Answering(type):
    """A metaclass of a registry: it has an answer for every attribute."""

    calls = 0

    def __call__(cls, *args):
        Answering.calls += 1
        return super().__call__(*args)

    def __getattr__(cls, name):
        return f"{cls.__name__} has no {name}"


class Registered(metaclass=Answering):
    def __init__(self, value):
        self.value = value


@program(graphs=2)
def metaclass_that_answers_for_every_attribute(x):
    before = Answering.calls
    item = Registered(x)
    return item.value + 1, Registered.anything, hasattr(item, "anything"), Answering.calls - before


class Counting(abc.ABCMeta):
    asked = 0

    def __call__(cls, *args):
        Counting.asked += 1
        return super().__call__(*args)


class Unfinished(metaclass=Counting):
    @abc.abstractmethod
    def finish(self): ...


@program(graphs=2, kinds=("native_python",))
def abstract_class_whose_metaclass_counts(x):
    before = Counting.asked
    try:
        Unfinished()
    except TypeError as error:
        return x + 1, str(error), Counting.asked - before


class Singleton(type):
    _made = {}

    def __call__(cls, *args):
        if cls not in cls._made:
            cls._made[cls] = super().__call__(*args)
        return cls._made[cls]


@pytest.mark.parametrize("uses", [1, 2])
def test_singleton_metaclass_fills_its_table_once(uses):
    from tests.support.eager_reference import compare_with_eager
    from tests.support.named_programs import X, Y

    def make():
        class One(metaclass=Singleton):
            def __init__(self):
                self.n = 2

        return lambda x: [x * One().n for _ in range(uses)]

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0)


@program.cases()
def test_protocol(name):
    program.run(name)

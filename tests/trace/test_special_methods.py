"""Special methods of user classes: each one against CPython, inside one graph."""

from __future__ import annotations

import abc
import cmath
import functools
import math
import operator
import types
from decimal import Decimal
from fractions import Fraction

import pytest

from tests.support.eager_reference import same
from tests.support.named_programs import Programs, X, Y, texts_of

program = Programs()


class Num:
    """A number that says which of its methods ran."""

    def __init__(self, n):
        self.n = n

    def __abs__(self):
        return Num(abs(self.n) + 100)

    def __round__(self, digits=None):
        return ("round", self.n, digits)

    def __divmod__(self, other):
        return ("divmod", self.n, other)

    def __rdivmod__(self, other):
        return ("rdivmod", self.n, other)

    def __pow__(self, other, mod=None):
        return ("pow", self.n, other, mod)

    def __rpow__(self, other):
        return ("rpow", self.n, other)

    def __ipow__(self, other):
        self.n = self.n**other
        return self

    def __matmul__(self, other):
        return ("matmul", other)

    def __rmatmul__(self, other):
        return ("rmatmul", other)

    def __imatmul__(self, other):
        return ("imatmul", other)

    def __lshift__(self, other):
        return ("lshift", other)

    def __rrshift__(self, other):
        return ("rrshift", other)

    def __and__(self, other):
        return ("and", other)

    def __ror__(self, other):
        return ("ror", other)

    def __xor__(self, other):
        return ("xor", other)

    def __invert__(self):
        return ("invert", self.n)

    def __pos__(self):
        return ("pos", self.n)

    def __neg__(self):
        return ("neg", self.n)

    def __floordiv__(self, other):
        return ("floordiv", other)

    def __mod__(self, other):
        return ("mod", other)

    def __int__(self):
        return self.n + 1

    def __float__(self):
        return self.n + 0.5

    def __complex__(self):
        return complex(self.n, 1)

    def __index__(self):
        return self.n

    def __trunc__(self):
        return ("trunc", self.n)

    def __floor__(self):
        return ("floor", self.n)

    def __ceil__(self):
        return ("ceil", self.n)

    def __bytes__(self):
        return b"num"

    def __sizeof__(self):
        return 7

    def __dir__(self):
        return ["b", "a"]


@program
def abs_calls_the_class(x):
    return x * abs(Num(-2)).n


@program
def round_with_and_without_digits(x):
    return x + 1, round(Num(2)), round(Num(2), 1)


@program
def divmod_and_reflected(x):
    return x + 1, divmod(Num(7), 2), divmod(7, Num(2))


@program
def pow_with_modulus_and_reflected(x):
    return x + 1, pow(Num(2), 3), pow(Num(2), 3, 5), Num(2) ** 4, 2 ** Num(3)


@program
def inplace_power(x):
    n = Num(3)
    m = n
    n **= 2
    return x * m.n


@program
def rare_operators(x):
    n = Num(1)
    return (x + 1, n @ 2, 2 @ n, n << 1, 1 >> n, n & 3, 3 | n, n ^ 1, ~n, +n, -n, n // 2, n % 3)


@program
def inplace_matmul(x):
    n = Num(1)
    n @= 4
    return x + 1, n


@program
def number_conversions(x):
    n = Num(2)
    return x * int(n), float(n), complex(n), bytes(n), operator.index(n)


@program
def index_in_subscripts_ranges_and_text(x):
    n = Num(2)
    return (
        x[n],
        [10, 20, 30][n],
        (1, 2, 3, 4)[: Num(3)],
        list(range(n)),
        "ab" * n,
        hex(n),
        bin(n),
        [0] * n,
    )


@program
def index_of_tensors_by_slices_of_objects(x):
    return x[:, Num(1) : Num(3)] * 2


@program
def math_functions_ask_the_class(x):
    return x + 1, math.trunc(Num(1)), math.floor(Num(1)), math.ceil(Num(1)), math.sqrt(Num(3))


@program
def int_without_int_takes_index_or_trunc(x):
    class OnlyIndex:
        def __index__(self):
            return 4

    return x * int(OnlyIndex()), float(OnlyIndex())


@program
def dir_asks_the_class(x):
    return x + 1, dir(Num(1))


class Ordered:
    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n


@program
def sorted_uses_lt(x):
    items = [Ordered(3), Ordered(1), Ordered(2), Ordered(1)]
    return [x * o.n for o in sorted(items)], [o.n for o in sorted(items, reverse=True)]


@program
def sort_method_uses_lt(x):
    items = [Ordered(3), Ordered(1), Ordered(2)]
    items.sort()
    return [x * o.n for o in items]


@program
def sorted_with_key_objects(x):
    order = sorted([3, 1, 2], key=lambda v: Ordered(-v))
    return [x * v for v in order]


@program
def cmp_to_key(x):
    return [x * v for v in sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))]


@program
def min_max_use_lt_and_reflected_gt(x):
    items = [Ordered(3), Ordered(1), Ordered(2)]
    return x * min(items).n + max(items).n, max(items, key=lambda o: -o.n).n


@program
def comparisons_chain_on_objects(x):
    return x + 1, Ordered(1) < Ordered(2) < Ordered(3), Ordered(3) > Ordered(1)


@program
def comparison_without_method_is_a_type_error(x):
    try:
        return Ordered(1) <= Ordered(2)
    except TypeError as error:
        return x + 1, str(error)


class EqOnly:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, EqOnly) and self.n == other.n


@program
def ne_is_the_opposite_of_eq(x):
    return x + 1, EqOnly(1) != EqOnly(1), EqOnly(1) != EqOnly(2), EqOnly(1) == 1, 1 != EqOnly(1)


@program
def eq_without_hash_is_unhashable(x):
    try:
        {EqOnly(1): 2}
    except TypeError as error:
        return x + 1, str(error)


@program
def list_methods_call_eq(x):
    items = [EqOnly(1), EqOnly(2), EqOnly(1)]
    actual = items.index(EqOnly(2)), items.count(EqOnly(1)), EqOnly(2) in items
    items.remove(EqOnly(1))
    return x * len(items), actual, [e.n for e in items]


class EqShown(EqOnly):
    def __repr__(self):
        return f"<{self.n}>"


@program
def list_index_misses(x):
    try:
        [EqOnly(1)].index(EqShown(5))
    except ValueError as error:
        return x + 1, str(error)


@program
def containers_of_objects_compare(x):
    a, b = [EqOnly(1), EqOnly(2)], [EqOnly(1), EqOnly(2)]
    return x + 1, a == b, a != b, (EqOnly(1),) == (EqOnly(2),), {"k": EqOnly(1)} == {"k": EqOnly(1)}


@program
def nested_containers_of_objects_compare(x):
    return (
        x + 1,
        [(EqOnly(1), [EqOnly(2)])] == [(EqOnly(1), [EqOnly(2)])],
        {1: [EqOnly(1)]} != {1: [EqOnly(2)]},
    )


@program
def tuples_of_objects_are_ordered(x):
    class V(EqOnly):
        def __lt__(self, other):
            return self.n < other.n

    return x + 1, (V(1), V(2)) < (V(1), V(3)), [V(2)] < [V(1)], (V(1),) < (V(1), V(0))


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return any(item is other for other in self.items)

    def __reversed__(self):
        return iter(["r", *self.items[::-1]])

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, key):
        return ("item", key)

    def __setitem__(self, key, value):
        self.items.append((key, value))

    def __delitem__(self, key):
        self.items.clear()

    def __length_hint__(self):
        return 3


@program
def container_protocol(x):
    bag = Bag(1, 2)
    bag["a"] = x
    bag[1:2] = 3
    before = len(bag), list(reversed(bag))[0], bag[..., 1], bag["k"], 2 in bag
    del bag["z"]
    return x + 1, before, len(bag), bool(bag), not bag


@program
def star_and_unpack_ask_iter(x):
    a, *b = Bag(x, 2, 3)
    return (
        a + 1,
        b,
        [*Bag(1, 2)],
        {*Bag(1, 2)},
        max(*Bag(4, 9)),
        tuple(Bag(1)),
        list(Bag(5)),
        sum(Bag(1, 2)),
    )


@program
def zip_enumerate_map_over_objects(x):
    return (
        x + 1,
        list(zip(Bag(1, 2), Bag(3, 4), strict=True)),
        list(enumerate(Bag("a"))),
        list(map(str, Bag(1))),
    )


@program
def len_must_be_an_integer(x):
    class Bad:
        def __len__(self):
            return -1

    try:
        len(Bad())
    except ValueError as error:
        return x + 1, str(error)


@program
def bool_must_be_a_bool(x):
    class Bad:
        def __bool__(self):
            return 1

    try:
        if Bad():
            return x
    except TypeError as error:
        return x + 1, str(error)


@program
def iter_must_be_an_iterator(x):
    class Bad:
        def __iter__(self):
            return 5

    try:
        list(Bad())
    except TypeError as error:
        return x + 1, str(error)


@program
def not_iterable_not_callable_not_subscriptable(x):
    class Bare:
        pass

    return x + 1, texts_of(
        lambda o: list(o), lambda o: o(), lambda o: o[0], lambda o: len(o), lambda o: o + 1,
        lambda o: -o,
        lambda o: o < o, lambda o: 1 in o, lambda o: iter(o), lambda o: next(o),
        argument=Bare,
    )  # fmt: skip


@program
def item_assignment_without_methods(x):
    class Bare:
        pass

    texts = []
    try:
        Bare()[0] = 1
    except TypeError as error:
        texts.append(str(error))
    try:
        del Bare()[0]
    except TypeError as error:
        texts.append(str(error))
    return x + 1, texts


@program
def iter_with_a_sentinel(x):
    values = [3, 2, 1, 0, 5]
    return x + 1, list(iter(lambda: values.pop(0), 0)), values


@program
def callable_objects(x):
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, x, *, k=1):
            return x + self.n * k

    add = Adder(2)
    return add(x), add(x, k=3), callable(add), callable(3), list(map(add, [1]))


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


class Singleton(type):
    _made = {}

    def __call__(cls, *args):
        if cls not in cls._made:
            cls._made[cls] = super().__call__(*args)
        return cls._made[cls]


@pytest.mark.parametrize("uses", [1, 2])
def test_singleton_metaclass_fills_its_table_once(uses):
    from tests.support.eager_reference import twin
    from tests.support.named_programs import X, Y

    def make():
        class One(metaclass=Singleton):
            def __init__(self):
                self.n = 2

        return lambda x: [x * One().n for _ in range(uses)]

    twin(make, (X,), (Y,), (X,), breaks=0)


@program
def reflected_operators_and_subclass_priority(x):
    class A:
        def __add__(self, other):
            return "A+"

        def __radd__(self, other):
            return "A r+"

        def __sub__(self, other):
            return NotImplemented

    class B(A):
        def __radd__(self, other):
            return "B r+"

        def __rsub__(self, other):
            return "B r-"

    return x + 1, A() + B(), B() + A(), 1 + A(), A() - B(), A() + A()


@program
def subclass_that_inherits_the_reflected_operator_has_no_priority(x):
    class A:
        def __add__(self, other):
            return "A+"

        def __radd__(self, other):
            return "A r+"

    class B(A):
        pass

    return x + 1, A() + B(), B() + A()


@program
def unsupported_operands(x):
    class A:
        def __add__(self, other):
            return NotImplemented

    class B:
        def __radd__(self, other):
            return NotImplemented

    return x + 1, texts_of(
        lambda: A() + B(), lambda: A() + 1, lambda: 1 + B(), lambda: A() - 1, lambda: A() @ B(),
        lambda: 2 ** A(), lambda: A() < B(), lambda: divmod(A(), 1), lambda: ~A(), lambda: abs(A()),
        lambda: round(A()),
    )  # fmt: skip


@program
def inplace_unsupported(x):
    class A:
        pass

    a = A()
    try:
        a += 1
    except TypeError as error:
        return x + 1, str(error)


@program
def hash_of_objects(x):
    class A:
        def __hash__(self):
            return 17

    return x + hash(A()), hash((A(), 1)) == hash((17, 1)), hash(frozenset([3]))


@program
def named_tuple_with_methods_and_defaults(x):
    from typing import NamedTuple

    class P(NamedTuple):
        a: int
        b: int = 4

        def total(self):
            return self.a + self.b

    p = P(1)
    return x * p.total(), tuple(p._replace(a=2)), P._fields, p._asdict(), p == (1, 4)


def _converting(log, base, answers):
    """A class whose conversions note that they are asked for."""

    def method(name, answer):
        def convert(self):
            log.append(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return convert

    return type("C", (base,), {f"__{name}__": method(name, answers[name]) for name in answers})


_CONVERTED = (
    (object, (), {}),
    (object, (), {"index": 3}),
    (object, (), {"float": 2.5, "complex": 1 + 2j}),
    (object, (), {"int": 4, "bytes": b"ab"}),
    (object, (), {"float": "x", "index": 2.5, "bytes": 3}),
    (object, (), {"float": ZeroDivisionError("z"), "index": TypeError("t")}),
    (float, (1.5,), {"float": 7.5, "index": 9}),
    (int, (4,), {"float": 7.5, "index": 9, "int": 10}),
    (str, ("12",), {"float": 1.25, "int": 3, "bytes": b"abc"}),
    (bytes, (b"12",), {"bytes": b"abc", "index": TypeError("t")}),
)


@pytest.mark.parametrize("number", range(len(_CONVERTED)))
def test_conversions_by_c_code(number):
    base, arguments, answers = _CONVERTED[number]

    def f(x):
        log = []
        cls = _converting(log, base, answers)

        def asked(*functions):
            for function in functions:
                value = cls(*arguments)
                try:
                    result = function(value)
                    log.append((type(result).__name__, result))
                except (TypeError, ValueError, ArithmeticError) as error:
                    log.append(str(error))

        asked(int, float, complex, bytes, bytearray, hex, chr, abs, round)
        asked(math.sqrt, math.floor, math.gcd, math.isqrt, cmath.sqrt)
        asked(
            lambda c: math.atan2("text", c), lambda c: math.copysign(c, "text"),
            lambda c: math.hypot(c, 1), lambda c: math.fsum([c, 1]), lambda c: math.dist([c], [1]),
            lambda c: complex(1, c), lambda c: int("12", c), lambda c: int(c, 16),
            lambda c: bytes([c]), lambda c: divmod(7, c), lambda c: pow(2, c, 3),
            lambda c: bytes(c, "ascii"), lambda c: round(2.567, c),
        )  # fmt: skip
        return x + 1, log

    same(f, (X,), (Y,), breaks=None)


def test_numbers_of_c_types_are_read_again():
    def f(x, d):
        return x + 1, float(d), int(d), abs(d), round(d), math.sqrt(d), math.fsum([d]), divmod(d, 2)

    same(f, (X, Decimal(1)), (X, Decimal(2)), (X, Decimal(9)), breaks=None)


def test_a_registered_class_is_no_subclass_to_operators():
    log = []

    def method(name, answer):
        return lambda self, other: log.append(f"{type(self).__name__}{name}") or answer

    def methods(answer):
        names = "__eq__ __lt__ __gt__ __add__ __radd__ __divmod__ __rdivmod__".split()
        return {name: method(name, answer) for name in names}

    abstract = abc.ABCMeta("Abstract", (), methods(NotImplemented))
    eager = abstract.register(type("Plain", (), methods(4)))

    def f(x):
        log.clear()
        a, b = abstract(), eager()
        return x + 1, a == b, a < b, a + b, divmod(a, b), list(log)

    same(f, (X,), (Y,), breaks=None)


@program(graphs=None, breaks=None)
def percent_of_what_is_no_mapping(x):
    class Letters(str): ...

    texts = []
    for template, value in [
        (b"no format", bytearray(b"1")), (b"no format", b"1"), ("no format", Letters("a")),
        ("no format", bytearray(b"1")), (bytearray(b"no format"), 7),
    ]:  # fmt: skip
        try:
            texts.append(template % value)
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


@program
def percent_of_a_text_formats_whatever_the_right_operand_is(x):
    class Reflected:
        def __rmod__(self, other):
            return "reflected"

        def __repr__(self):
            return "R"

    class Count(int):
        def __rmod__(self, other):
            return "reflected"

    class Text(str):
        def __rmod__(self, other):
            return "reflected"

    class Plain(str):
        pass

    augmented = "augmented %s"
    augmented %= Reflected()
    return x + 1, "%s" % Fraction(1, 2), "%r" % Reflected(), "%d" % Count(3), "%s" % Text(
        "a"), Plain("%s") % Reflected(), augmented  # fmt: skip


@program
def text_of_a_subclass_stays_one(x):
    class Text(str):
        def __str__(self, spec=""):
            return "asked"

        __repr__ = __format__ = __str__

    class A:
        def __str__(self):
            return Text("a")

        def __repr__(self):
            return Text("r")

    texts = (
        str(A()),
        repr(A()),
        ascii(A()),
        format(A()),
        f"{A()}",
        "%s" % A(),
        f"{A()!r}",
        str([A()]),
    )
    return x + 1, [(type(text).__name__, str.__str__(text)) for text in texts], str(errors="strict")


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


@program(graphs=None, kinds=("unknown_native",))
def special_methods_found_by_descriptors_are_asked_once(x):
    asked = []

    class Found:
        def __init__(self, method):
            self.method = method

        def __get__(self, obj, owner=None):
            asked.append(owner.__name__)
            return self.method.__get__(obj, owner)

    class A:
        __len__ = Found(lambda self: 3)
        __add__ = Found(lambda self, other: ("add", other))
        __getitem__ = Found(lambda self, key: key)
        __contains__ = Found(lambda self, key: True)
        __str__ = Found(lambda self: "text")
        __enter__ = Found(lambda self: 5)
        __exit__ = Found(lambda self, *error: True)

    a = A()
    actual = [len(a), a + 1, a[2], 3 in a, str(a)]
    with a as entered:
        actual.append(entered)
        raise ValueError
    return x + 1, actual, asked


@program
def with_asks_the_class_alone(x):
    class A:
        def __enter__(self):
            return "of the class"

        def __exit__(self, *error):
            return True

    a = A()
    a.__enter__ = a.__exit__ = None
    with a as entered:
        raise ValueError
    return x + 1, entered


class Left(metaclass=abc.ABCMeta):
    def __add__(self, other):
        return "left"

    def __lt__(self, other):
        return "left"


@Left.register
class Right:
    def __radd__(self, other):
        return "right"

    def __gt__(self, other):
        return "right"


@program
def the_right_operand_of_a_virtual_subclass_does_not_come_first(x):
    return x + 1, Left() + Right(), Left() < Right()


class Kept(property):
    def __set__(self, obj, value):
        obj.__dict__["kept"] = value


class Keeps:
    b = Kept(lambda self: self.kept * 2)


@program
def properties_say_their_names(x):
    class A:
        named = property()

    A.unnamed = property()
    a, c = A(), Keeps()
    c.b = 4
    return x * c.b, texts_of(
        lambda: a.named, lambda: setattr(a, "named", 1), lambda: a.unnamed,
        lambda: delattr(a, "unnamed"), errors=AttributeError,
    )  # fmt: skip


@program
def a_namespace_prints_itself(x):
    a, b = types.SimpleNamespace(v=1), types.SimpleNamespace()
    a.own, b.other = a, types.SimpleNamespace(b=b)
    return x + 1, repr(a), repr(b)


@program(graphs=None, breaks=None)
def objects_that_notice_every_question(x):
    asked = []

    class Logs:
        def __getattribute__(self, name):
            asked.append(name)
            return super().__getattribute__(name)

        def __len__(self):
            return 3

    class Raises:
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __len__(self):
            return 4

    class Says:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    logs = Logs()
    logs.v = 2
    texts = texts_of(lambda: isinstance(Says(), bool), errors=RuntimeError)
    return x * logs.v, len(logs), len(Raises()), isinstance(Raises(), Raises), asked, texts


@program.cases()
def test_protocol(name):
    program.run(name)

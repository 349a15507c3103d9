"""Objects that are called, made, compared, formatted and put into containers; subclasses of builtins."""

from __future__ import annotations

import collections
import functools

import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_call_object_and_bound_method_value():
    class Fn:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x * self.k

        def other(self, x):
            return x + self.k

    def f(x, fn):
        m = fn.other
        return fn(x), m(x), Fn.other(fn, x)

    same(f, (X, Fn(2)), (X, Fn(3)), (X, Fn(2)), aliasing=False)


def test_new_and_init():
    class Single:
        def __new__(cls, v):
            self = super().__new__(cls)
            self.tag = "new"
            return self

        def __init__(self, v):
            self.v = v

    same(lambda x: (Single(x).v + 1, Single(x).tag), (X,), (Y,), graphs=1)


def test_subclass_of_list_and_dict():
    class L(list):
        def total(self):
            return sum(self)

    class D(dict):
        def __getattr__(self, name):
            return self[name]

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            super().__setitem__(key + "_seen", True)

    def f(x):
        items = L([x, x])
        items.append(x)
        d = D(a=x)
        d["b"] = x * 2
        return items.total(), d.a, d["b"], sorted(d), len(items), items

    same(f, (X,), (Y,), graphs=1)


def test_subclass_of_int_and_str():
    class Size(int):
        def double(self):
            return self * 2

    class Name(str):
        pass

    def f(x, n, s):
        return x * n.double(), s + "!", isinstance(s, str)

    same(f, (X, Size(2), Name("a")), (X, Size(3), Name("a")), (X, Size(2), Name("b")), breaks=None)


def test_missing_and_defaultdict():
    class D(dict):
        def __missing__(self, key):
            self[key] = key * 2
            return self[key]

    def f(x):
        d, e = D(), collections.defaultdict(list)
        e["a"].append(x)
        return d[4] * x, d, e["a"], len(e)

    same(f, (X,), (Y,), graphs=1)


def test_defaultdict_argument():
    def make():
        d = collections.defaultdict(int)

        def f(x):
            d["n"] += 1
            return x + d["n"]

        return f, d

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_cached_property():
    class A:
        def __init__(self):
            self.calls = 0

        @functools.cached_property
        def k(self):
            self.calls += 1
            return 3

    def make():
        a = A()
        return (lambda x: x * a.k + a.k), a

    compare_with_eager(make, (X,), (X,), lambda a: a.__dict__.update(k=8), (X,), breaks=None)


def test_abstract_and_protocol():
    import abc

    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self, x): ...

    class Impl(Base):
        def go(self, x):
            return x + 1

    def f(x):
        try:
            Base()
        except TypeError:
            return Impl().go(x), isinstance(Impl(), Base), issubclass(int, Base)

    same(f, (X,), (Y,))


def test_class_made_inside():
    def f(x):
        class A:
            k = 3

        return x * A.k

    same(f, (X,), (Y,), graphs=1)


def test_metaclass_call():
    class Meta(type):
        def __call__(cls, *args):
            obj = super().__call__(*args)
            obj.tag = 5
            return obj

        @property
        def size(cls):
            return 7

    class A(metaclass=Meta):
        def __init__(self, v):
            self.v = v

    same(lambda x: A(x).v * A(x).tag * A.size, (X,), (Y,), breaks=None)


def test_repr_str_format_of_user_object():
    class A:
        def __repr__(self):
            return "A!"

        def __format__(self, spec):
            return f"<{spec}>"

    same(
        lambda x: (x + 1, repr(A()), str(A()), f"{A():z}", "{}".format(A()), f"{A()!r}"), (X,), (Y,)
    )


def test_eq_and_hash_in_containers():
    class Key:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __hash__(self):
            return hash(self.n)

    def f(x):
        d = {Key(1): x}
        return d[Key(1)] + 1, Key(1) in [Key(2), Key(1)], Key(3) in d

    same(f, (X,), (Y,), breaks=None)


def test_total_ordering_sorted():
    @functools.total_ordering
    class V:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            return self.n < other.n

        def __eq__(self, other):
            return self.n == other.n

    def f(x):
        vs = sorted([V(3), V(1), V(2)])
        return [x * v.n for v in vs], max(vs).n, V(1) >= V(0)

    same(f, (X,), (Y,), breaks=None)


def test_weakref():
    import weakref

    class A:
        k = 2

    def make():
        a, b = A(), A()
        b.k = 7
        box = {"ref": weakref.ref(a)}
        keep = [a, b]
        return (lambda x: (x * box["ref"]().k, len(keep))), (box, b)

    fn, (box, b) = make()
    compiled = tracer_core.compile(fn, backend="eager")
    assert torch.equal(compiled(X)[0], X * 2)
    box["ref"] = weakref.ref(b)
    assert torch.equal(compiled(X)[0], X * 7)

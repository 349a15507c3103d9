"""One thing changes between two calls; the second call must see it."""

from __future__ import annotations

import functools
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, module

X = torch.randn(3, 4)
CHANGES = {}


def change(name, recompiles=None):
    def register(make):
        CHANGES[name] = make
        return make

    return register


class Box:
    pass


def box(**values):
    result = Box()
    result.__dict__.update(values)
    return result


@change("dict value through .items()")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: [x * v for _, v in d.items()]), lambda: d.update(b=5)


@change("dict key added, through len")
def _():
    d = {"a": 1}
    return (lambda x: x * len(d)), lambda: d.update(b=5)


@change("dict key added, through truth")
def _():
    d = {}
    return (lambda x: x * 2 if d else x), lambda: d.update(b=5)


@change("dict key added, through in")
def _():
    d = {}
    return (lambda x: x * 2 if "b" in d else x), lambda: d.update(b=5)


@change("dict order")
def _():
    d = {"a": 1, "b": 2}
    return (lambda x: x * next(iter(d.values()))), lambda: d.update(a=d.pop("a"))


@change("nested list item")
def _():
    d = {"a": [[1], [2]]}
    return (lambda x: x * d["a"][1][0]), lambda: d["a"][1].__setitem__(0, 9)


@change("list through sum")
def _():
    items = [1, 2]
    return (lambda x: x * sum(items)), lambda: items.append(4)


@change("list through sorted")
def _():
    items = [3, 1]
    return (lambda x: [x * i for i in sorted(items)]), lambda: items.append(2)


@change("list through max with key")
def _():
    items = [3, 1]
    return (lambda x: x * max(items, key=lambda i: -i)), lambda: items.append(0)


@change("list passed to a C function")
def _():
    items = ["a", "b"]
    return (lambda x: x * len("".join(items))), lambda: items.append("ccc")


@change("list equality")
def _():
    items = [1, 2]
    return (lambda x: x if items == [1, 2] else -x), lambda: items.__setitem__(1, 5)


@change("tuple of list")
def _():
    t = ([1], 2)
    return (lambda x: x * t[0][0]), lambda: t[0].__setitem__(0, 7)


@change("set membership")
def _():
    s = {1}
    return (lambda x: x if 2 in s else -x), lambda: s.add(2)


@change("set iteration")
def _():
    s = {1}
    return (lambda x: [x * i for i in sorted(s)]), lambda: s.add(2)


@change("frozenset replaced")
def _():
    b = box(s=frozenset({1}))
    return (lambda x: x if 2 in b.s else -x), lambda: setattr(b, "s", frozenset({2}))


@change("attribute")
def _():
    b = box(k=2)
    return (lambda x: x * b.k), lambda: setattr(b, "k", 3)


@change("attribute of another type, equal value")
def _():
    b = box(k=1)
    return (lambda x: torch.full((2,), b.k)), lambda: setattr(b, "k", True)


@change("int to float of equal value")
def _():
    b = box(k=2)
    return (lambda x: torch.full((2,), b.k)), lambda: setattr(b, "k", 2.0)


@change("minus zero")
def _():
    b = box(k=0.0)
    return (lambda x: torch.full((2,), 1.0) / torch.full((2,), b.k)), lambda: setattr(b, "k", -0.0)


@change("minus zero inside a tuple")
def _():
    b = box(k=(0.0, 1))
    return (lambda x: torch.full((2,), 1.0) / torch.full((2,), b.k[0])), lambda: setattr(
        b, "k", (-0.0, 1)
    )


@change("one to True inside a tuple")
def _():
    b = box(k=(1, 2))
    return (lambda x: torch.full((2,), b.k[0])), lambda: setattr(b, "k", (True, 2))


@change("attribute added, through hasattr")
def _():
    b = box()
    return (lambda x: x if hasattr(b, "k") else -x), lambda: setattr(b, "k", 3)


@change("attribute added, through getattr with default")
def _():
    b = box()
    return (lambda x: x * getattr(b, "k", 2)), lambda: setattr(b, "k", 3)


@change("attribute shadows the class's")
def _():
    cls = type("C", (), {"k": 2})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(b, "k", 3)


@change("class gains an attribute that an instance lacked")
def _():
    cls = type("C", (), {})
    b = cls()
    return (lambda x: x * getattr(b, "k", 2)), lambda: setattr(cls, "k", 3)


@change("class gains __getattr__")
def _():
    cls = type("C", (), {})
    b = cls()
    return (lambda x: x * getattr(b, "k", 2)), lambda: setattr(
        cls, "__getattr__", lambda self, name: 7
    )


@change("class gains __getattribute__")
def _():
    cls = type("C", (), {})
    b = cls()
    b.k = 2

    def gain():
        cls.__getattribute__ = lambda self, name: (
            7 if name == "k" else object.__getattribute__(self, name)
        )

    return (lambda x: x * b.k), gain


@change("class gains __len__")
def _():
    cls = type("C", (), {})
    b = cls()
    return (lambda x: x * 2 if b else x), lambda: setattr(cls, "__len__", lambda self: 0)


@change("class gains __eq__")
def _():
    cls = type("C", (), {})
    a, b = cls(), cls()
    return (lambda x: x * 2 if a == b else x), lambda: setattr(
        cls, "__eq__", lambda self, other: True
    )


@change("class gains __radd__")
def _():
    cls = type("C", (), {"__add__": lambda self, other: 5})
    b = cls()
    return (lambda x: x * (b + 1)), lambda: setattr(cls, "__add__", lambda self, other: 6)


@change("class gains __setattr__")
def _():
    cls = type("C", (), {})
    b = cls()

    def f(x):
        b.k = 2
        return x * b.k

    def gain():
        cls.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value * 10)

    return f, gain


@change("class gains __init__")
def _():
    cls = type("C", (), {"k": 1})
    return (lambda x: x * cls().k), lambda: setattr(
        cls, "__init__", lambda self: setattr(self, "k", 4)
    )


@change("class's __call__ replaced")
def _():
    cls = type("C", (), {"__call__": lambda self, x: x + 1})
    b = cls()
    return (lambda x: b(x)), lambda: setattr(cls, "__call__", lambda self, x: x - 1)


@change("class's __iter__ replaced")
def _():
    cls = type("C", (), {"__iter__": lambda self: iter([1, 2])})
    b = cls()
    return (lambda x: [x * i for i in b]), lambda: setattr(cls, "__iter__", lambda self: iter([3]))


@change("class's __getitem__ replaced")
def _():
    cls = type("C", (), {"__getitem__": lambda self, key: key})
    b = cls()
    return (lambda x: x * b[2]), lambda: setattr(cls, "__getitem__", lambda self, key: key * 5)


@change("class's __enter__ replaced")
def _():
    cls = type("C", (), {"__enter__": lambda self: 1, "__exit__": lambda self, *a: None})
    b = cls()

    def f(x):
        with b as k:
            return x * k

    return f, lambda: setattr(cls, "__enter__", lambda self: 5)


@change("function attribute")
def _():
    def g(x):
        return x

    g.k = 2
    return (lambda x: x * g.k), lambda: setattr(g, "k", 4)


@change("function name")
def _():
    def g(x):
        return x

    return (lambda x: x * len(g.__name__)), lambda: setattr(g, "__name__", "longer")


@change("partial's arguments")
def _():
    b = box(p=functools.partial(torch.mul, other=2))
    b.p.keywords["other"] = 3
    return (lambda x: b.p(x)), lambda: b.p.keywords.update(other=5)


@change("partial replaced")
def _():
    b = box(p=functools.partial(lambda k, x: x * k, 2))
    return (lambda x: b.p(x)), lambda: setattr(b, "p", functools.partial(lambda k, x: x * k, 3))


@change("bound method replaced")
def _():
    class C:
        def __init__(self, k):
            self.k = k

        def go(self, x):
            return x * self.k

    b = box(m=C(2).go)
    return (lambda x: b.m(x)), lambda: setattr(b, "m", C(5).go)


@change("closure cell")
def _():
    k = 2

    def g(x):
        return x * k

    def gain():
        g.__closure__[0].cell_contents = 9

    return (lambda x: g(x)), gain


@change("module attribute")
def _():
    m = module("k = 2\n")
    return (lambda x: x * m.k), lambda: setattr(m, "k", 3)


@change("module attribute appears")
def _():
    m = module("")
    return (lambda x: x * getattr(m, "k", 2)), lambda: setattr(m, "k", 3)


@change("module's function replaced")
def _():
    m = module("def g(x):\n    return x + 1\n")
    return (lambda x: m.g(x)), lambda: setattr(m, "g", lambda x: x - 1)


@change("simple namespace")
def _():
    b = types.SimpleNamespace(k=2)
    return (lambda x: x * b.k), lambda: setattr(b, "k", 3)


@change("mapping proxy")
def _():
    d = {"k": 2}
    p = types.MappingProxyType(d)
    return (lambda x: x * p["k"]), lambda: d.update(k=3)


@change("keys view made before")
def _():
    d = {"k": 2}
    view = d.values()
    return (lambda x: [x * v for v in view]), lambda: d.update(j=3)


@change("bytearray")
def _():
    b = bytearray(b"ab")
    return (lambda x: x * b[0]), lambda: b.__setitem__(0, 3)


@change("object in str()")
def _():
    class C:
        k = 1

        def __str__(self):
            return "s" * self.k

    c = C()
    return (lambda x: x * len(str(c))), lambda: setattr(c, "k", 4)


@change("list of objects in repr")
def _():
    items = [[1], [2]]
    return (lambda x: x * len(repr(items))), lambda: items[0].append(333)


@change("enum attribute")
def _():
    import enum

    class E(enum.Enum):
        A = 1

    E.A.extra = 2
    return (lambda x: x * E.A.extra), lambda: setattr(E.A, "extra", 7)


@change("dataclass default")
def _():
    import dataclasses

    @dataclasses.dataclass
    class D:
        k: int = 2

    return (lambda x: x * D().k), lambda: setattr(D.__init__, "__defaults__", (6,))


@change("str subclass")
def _():
    class S(str):
        pass

    b = box(s=S("ab"))
    return (lambda x: x * len(b.s) if b.s == "ab" else -x), lambda: setattr(b, "s", S("cd"))


@change("int subclass")
def _():
    class I(int):  # noqa: E742
        pass

    b = box(n=I(2))
    return (lambda x: x * b.n + torch.full((4,), b.n)), lambda: setattr(b, "n", I(5))


@change("float subclass in comparison")
def _():
    class F(float):
        pass

    b = box(n=F(2))
    return (lambda x: x if b.n > 1 else -x), lambda: setattr(b, "n", F(0.5))


@change("truth of an int subclass")
def _():
    class I(int):  # noqa: E742
        pass

    b = box(n=I(2))
    return (lambda x: x if b.n else -x), lambda: setattr(b, "n", I(0))


@change("f-string of a str subclass")
def _():
    class S(str):
        pass

    b = box(s=S("ab"))
    return (lambda x: x * len(f"{b.s}!")), lambda: setattr(b, "s", S("cdef"))


@change("environment variable")
def _():
    import os

    os.environ.pop("ONE_CHANGE_TEST_VALUE", None)
    return (lambda x: x * int(os.environ.get("ONE_CHANGE_TEST_VALUE", "2"))), lambda: os.environ.update(
        ONE_CHANGE_TEST_VALUE="3"
    )


@change("default dtype")
def _():
    before = torch.get_default_dtype()
    del before
    return (lambda x: torch.ones(2) * 2), lambda: torch.set_default_dtype(torch.float64)


@change("torch flag")
def _():
    return (lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3)), (
        lambda: torch.use_deterministic_algorithms(True)
    )


@change("number of threads")
def _():
    torch.set_num_threads(2)
    return (lambda x: x * torch.get_num_threads()), lambda: torch.set_num_threads(1)


@change("warning flag")
def _():
    torch.set_warn_always(False)
    return (
        lambda x: x * (2 if torch.is_warn_always_enabled() else 3)
    ), lambda: torch.set_warn_always(True)


@change("flash attention flag")
def _():
    torch.backends.cuda.enable_flash_sdp(True)
    return (lambda x: x * (2 if torch.backends.cuda.flash_sdp_enabled() else 3)), (
        lambda: torch.backends.cuda.enable_flash_sdp(False)
    )


@change("functions replaced in torch.nn.functional")
def _():
    torch.nn.functional.tracer_test_function = lambda x: x + 1
    return (lambda x: torch.nn.functional.tracer_test_function(x)), (
        lambda: setattr(torch.nn.functional, "tracer_test_function", lambda x: x - 1)
    )


@pytest.fixture(autouse=True)
def _settings():
    threads = torch.get_num_threads()
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_warn_always(False)
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen(name):
    fn, modify = CHANGES[name]()
    compiled = tracer_core.compile(fn, backend="eager")
    first = fn(X)
    _equal(compiled(X), first)
    _equal(compiled(X), first)
    modify()
    second = fn(X)
    _equal(compiled(X), second)
    _equal(compiled(X), second)
    assert not _is_equal(first, second), "the change changed nothing"


def _is_equal(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def _equal(a, b):
    assert _is_equal(a, b), f"{a}, expected {b}"


def test_guard_names_what_changed():
    def make():
        b = box(k=2)
        return (lambda x: x * b.k), b

    seen = compare_with_eager(make, (X,), lambda b: setattr(b, "k", 3), (X,), recompiles=1)
    assert "k" in seen.reasons[0] and "2" in seen.reasons[0] and "3" in seen.reasons[0]

"""One case a fact about objects and classes that a trace relies on."""

from __future__ import annotations

import enum
import inspect

import pytest
import torch

import tracer_core
from tests.support.guard_facts import Box, Facts, check

fact = Facts()


# -- objects and classes --


@fact("object: __class__ replaced", reason="b")
def _():
    class A:
        k = 2

    class B:
        k = 3

    b = A()
    return (lambda x: x * b.k), lambda: setattr(b, "__class__", B)


@fact("object: __class__ replaced, seen by isinstance", reason="b")
def _():
    class A:
        pass

    class B(A):
        pass

    b = A()
    return (lambda x: x * (2 if isinstance(b, B) else 3)), lambda: setattr(b, "__class__", B)


@fact("object: attribute deleted", reason="b")
def _():
    b = Box(k=2)
    return (lambda x: x * getattr(b, "k", 7)), lambda: delattr(b, "k")


@fact("object: __dict__ replaced", reason="k")
def _():
    b = Box(k=2)
    return (lambda x: x * b.k), lambda: setattr(b, "__dict__", {"k": 5})


@fact("object: same attribute on two objects becomes one object", reason="q")
def _():
    box, two = Box(k=1), Box(k=1)
    p, q = Box(o=box), Box(o=two)
    return (lambda x: x * (2 if p.o is q.o else 3)), lambda: setattr(q, "o", box)


@fact("class: attribute", reason="k")
def _():
    cls = type("C", (), {"k": 2})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", 3)


@fact("class: attribute of a base", reason="k")
def _():
    base = type("B", (), {"k": 2})
    b = type("C", (base,), {})()
    return (lambda x: x * b.k), lambda: setattr(base, "k", 3)


@fact("class: subclass shadows a base", reason="k")
def _():
    base = type("B", (), {"k": 2})
    cls = type("C", (base,), {})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", 3)


@fact("class: method replaced", reason="go")
def _():
    cls = type("C", (), {"go": lambda self, x: x + 1})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(cls, "go", lambda self, x: x - 1)


@fact("class: method overridden on the instance", reason="go")
def _():
    cls = type("C", (), {"go": lambda self, x: x + 1})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(b, "go", lambda x: x - 1)


@fact("class: property replaced", reason="k")
def _():
    cls = type("C", (), {"k": property(lambda self: 2)})
    b = cls()
    return (lambda x: x * b.k), lambda: setattr(cls, "k", property(lambda self: 3))


@fact("class: static method replaced", reason="go")
def _():
    cls = type("C", (), {"go": staticmethod(lambda x: x + 1)})
    b = cls()
    return (lambda x: b.go(x)), lambda: setattr(cls, "go", staticmethod(lambda x: x - 1))


@fact("class: class method replaced", reason="go")
def _():
    cls = type("C", (), {"go": classmethod(lambda c, x: x + 1)})
    return (lambda x: cls.go(x)), lambda: setattr(cls, "go", classmethod(lambda c, x: x - 1))


@fact("class: __bases__ replaced", reason="__mro__")
def _():
    class A:
        k = 2

    class B:
        k = 3

    class C(A):
        pass

    b = C()
    return (lambda x: x * b.k), lambda: setattr(C, "__bases__", (B,))


@fact("class: __bases__ replaced, seen by isinstance", reason="__mro__")
def _():
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    b = C()
    return (lambda x: x * (2 if isinstance(b, A) else 3)), lambda: setattr(C, "__bases__", (B,))


@fact("class: a list on it", reason="items")
def _():
    cls = type("C", (), {"items": [1, 2]})
    b = cls()
    return (lambda x: x * sum(b.items)), lambda: cls.items.append(4)


@fact("class: a tensor on it", reason="t")
def _():
    cls = type("C", (), {"t": torch.ones(4)})
    b = cls()
    return (lambda x: x * b.t), lambda: setattr(cls, "t", torch.ones(3, 1) * 2)


@fact("metaclass: attribute", reason="k")
def _():
    meta = type("M", (type,), {"k": 2})
    cls = meta("C", (), {})
    return (lambda x: x * cls.k), lambda: setattr(meta, "k", 3)


@fact("metaclass: __call__ appears")
def _():
    meta = type("M", (type,), {})
    cls = meta("C", (), {"k": 2})

    def gain():
        meta.__call__ = lambda c, *a: Box(k=7)

    return (lambda x: x * cls().k), gain


@fact("class: __instancecheck__ appears")
def _():
    meta = type("M", (type,), {})
    cls = meta("C", (), {})
    b = Box()

    def gain():
        meta.__instancecheck__ = lambda c, o: True

    return (lambda x: x * (2 if isinstance(b, cls) else 3)), gain


@fact("class: __new__ appears")
def _():
    cls = type("C", (), {"k": 2})

    def gain():
        cls.__new__ = lambda c: Box(k=9)

    return (lambda x: x * cls().k), gain


@fact("class: __bool__ appears")
def _():
    cls = type("C", (), {})
    b = cls()
    return (lambda x: x * (2 if b else 3)), lambda: setattr(cls, "__bool__", lambda self: False)


@fact("class: __hash__ and __eq__ of a key", breaks=None)
def _():
    class K:
        n = 1

        def __hash__(self):
            return self.n

        def __eq__(self, other):
            return self.n == other.n

    a, b = K(), K()
    d = {a: 2}
    return (lambda x: x * d.get(b, 3)), (lambda: setattr(b, "n", 5))


@fact("descriptor: its own state", reason="k")
def _():
    class D:
        k = 2

        def __get__(self, obj, cls):
            return self.k

    d = D()
    cls = type("C", (), {"v": d})
    b = cls()
    return (lambda x: x * b.v), lambda: setattr(d, "k", 5)


@fact("descriptor becomes a data descriptor")
def _():
    class D:
        def __get__(self, obj, cls):
            return 5

    cls = type("C", (), {"v": D()})
    b = cls()
    b.__dict__["v"] = 2
    return (lambda x: x * b.v), lambda: setattr(D, "__set__", lambda *a: None)


@fact("class gains a data descriptor over an instance attribute", reason="k")
def _():
    cls = type("C", (), {})
    b = cls()
    b.k = 2
    return (lambda x: x * b.k), lambda: setattr(cls, "k", property(lambda self: 9))


@fact("super(): method of a base replaced", reason="go")
def _():
    class A:
        def go(self, x):
            return x + 1

    class B(A):
        def go(self, x):
            return super().go(x) * 2

    b = B()
    return (lambda x: b.go(x)), lambda: setattr(A, "go", lambda self, x: x - 1)


@fact("enum member's value read through the class")
def _():
    class E(enum.Enum):
        A = 1

    return (lambda x: x * E.A.value), lambda: setattr(E.A, "_value_", 5)


@fact("class: its members are listed", breaks=None)
def _():
    class C:
        k = 2

    return (lambda x: x * dict(inspect.getmembers(C))["k"]), lambda: setattr(C, "k", 3)


@fact("class: an attribute is looked up statically", breaks=None)
def _():
    class C:
        k = 2

    return (lambda x: x * inspect.getattr_static(C, "k")), lambda: setattr(C, "k", 3)


@fact("class: method of Tensor replaced")
def _():
    torch.Tensor.tracer_method = lambda self: self + 1
    return (
        (lambda x: x.tracer_method()),
        (lambda: setattr(torch.Tensor, "tracer_method", lambda self: self - 1)),
        (lambda: delattr(torch.Tensor, "tracer_method")),
    )


@fact("class: torch's own method of Tensor replaced")
def _():
    original = torch.Tensor.relu
    return (
        (lambda x: x.relu()),
        (lambda: setattr(torch.Tensor, "relu", lambda self: self * 5)),
        (lambda: setattr(torch.Tensor, "relu", original)),
    )


@fact("class: operator of Tensor replaced")
def _():
    original = torch.Tensor.__add__
    return (
        (lambda x: x + 1),
        (lambda: setattr(torch.Tensor, "__add__", lambda self, other: self * 5)),
        (lambda: setattr(torch.Tensor, "__add__", original)),
    )


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))

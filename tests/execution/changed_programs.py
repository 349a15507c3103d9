"""Changes of programs between two processes, and the reason that the later process gives."""

from __future__ import annotations

from tests.support.persistent_programs import PLAIN

#: What differs: the program as it was, the program as it is then, and words of the reason; "" where
#: the guards see it.
CHANGED = {
    "the function itself": (
        PLAIN,
        PLAIN.replace("* 2", "* 3"),
        "the code of the function has changed",
    ),
    "a callee": (
        """
        def inner(x):
            return x * 2

        def run(x):
            return inner(x) + 1
        """,
        """
        def inner(x):
            return x * 3

        def run(x):
            return inner(x) + 1
        """,
        "inner has changed",
    ),
    "a callee's callee behind a decorator": (
        """
        import functools

        def twice(function):
            @functools.wraps(function)
            def call(*args):
                return function(*args) * 2
            return call

        @twice
        def inner(x):
            return x + 1

        def run(x):
            return inner(x)
        """,
        """
        import functools

        def twice(function):
            @functools.wraps(function)
            def call(*args):
                return function(*args) * 3
            return call

        @twice
        def inner(x):
            return x + 1

        def run(x):
            return inner(x)
        """,
        "has changed",
    ),
    "a global number": (
        "K = 2\ndef run(x):\n    return x * K",
        "K = 5\ndef run(x):\n    return x * K",
        "",
    ),
    "a global tuple": (
        "K = (1, 2)\ndef run(x):\n    return x * K[0] + K[1]",
        "K = (1, 3)\ndef run(x):\n    return x * K[0] + K[1]",
        "",
    ),
    "a global list": (
        "K = [1, 2]\ndef run(x):\n    return x * K[0] + K[1]",
        "K = [1, 3]\ndef run(x):\n    return x * K[0] + K[1]",
        "",
    ),
    "a global text": (
        "K = 'sin'\ndef run(x):\n    return getattr(x, K)()",
        "K = 'cos'\ndef run(x):\n    return getattr(x, K)()",
        "",
    ),
    "a default argument": (
        "def inner(x, k=2):\n    return x * k\ndef run(x):\n    return inner(x)",
        "def inner(x, k=3):\n    return x * k\ndef run(x):\n    return inner(x)",
        "",
    ),
    "a keyword's default": (
        "def inner(x, *, k=2):\n    return x * k\ndef run(x):\n    return inner(x)",
        "def inner(x, *, k=3):\n    return x * k\ndef run(x):\n    return inner(x)",
        "",
    ),
    "a default of the function itself": (
        "def run(x, k=2):\n    return x * k",
        "def run(x, k=3):\n    return x * k",
        "",
    ),
    "a closure": (
        """
        def made(k):
            def inner(x):
                return x * k
            return inner
        inner = made(2)
        def run(x):
            return inner(x)
        """,
        """
        def made(k):
            def inner(x):
                return x * k
            return inner
        inner = made(3)
        def run(x):
            return inner(x)
        """,
        "",
    ),
    "a class attribute": (
        "class C:\n    k = 2\ndef run(x):\n    return x * C.k",
        "class C:\n    k = 3\ndef run(x):\n    return x * C.k",
        "",
    ),
    "a method": (
        "class C:\n    def f(self, x):\n        return x * 2\nc = C()\ndef run(x):\n    return c.f(x)",
        "class C:\n    def f(self, x):\n        return x * 3\nc = C()\ndef run(x):\n    return c.f(x)",
        "has changed",
    ),
    "an inherited method that a class then has itself": (
        """
        class A:
            def f(self, x):
                return x * 2
        class B(A):
            pass
        b = B()
        def run(x):
            return b.f(x)
        """,
        """
        class A:
            def f(self, x):
                return x * 2
        class B(A):
            def f(self, x):
                return x * 3
        b = B()
        def run(x):
            return b.f(x)
        """,
        "",
    ),
    "a property": (
        """
        class C:
            @property
            def k(self):
                return 2
        c = C()
        def run(x):
            return x * c.k
        """,
        """
        class C:
            @property
            def k(self):
                return 3
        c = C()
        def run(x):
            return x * c.k
        """,
        "has changed",
    ),
    "a base class": (
        """
        class A:
            k = 2
        class B:
            k = 3
        class C(A):
            pass
        def run(x):
            return x * C.k
        """,
        """
        class A:
            k = 2
        class B:
            k = 3
        class C(B):
            pass
        def run(x):
            return x * C.k
        """,
        "",
    ),
    "a member of an enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = 2\ndef run(x):\n    return x * E.A.value",
        "import enum\nclass E(enum.Enum):\n    A = 3\ndef run(x):\n    return x * E.A.value",
        "",
    ),
    "a member of an enumeration of numbers": (
        "import enum\nclass E(enum.IntEnum):\n    A = 2\ndef run(x):\n    return x * E.A",
        "import enum\nclass E(enum.IntEnum):\n    A = 3\ndef run(x):\n    return x * E.A",
        "",
    ),
    "a partial": (
        """
        import functools
        def inner(k, x):
            return x * k
        p = functools.partial(inner, 2)
        def run(x):
            return p(x)
        """,
        """
        import functools
        def inner(k, x):
            return x * k
        p = functools.partial(inner, 3)
        def run(x):
            return p(x)
        """,
        "",
    ),
    "a getter": (
        """
        import operator
        first = operator.itemgetter(0)
        def run(x):
            return first((x, x * 2))
        """,
        """
        import operator
        first = operator.itemgetter(1)
        def run(x):
            return first((x, x * 2))
        """,
        "",
    ),
    "a pattern": (
        """
        import re
        pattern = re.compile("a")
        def run(x):
            return x * 2 if pattern.match("abc") else x
        """,
        """
        import re
        pattern = re.compile("b")
        def run(x):
            return x * 2 if pattern.match("abc") else x
        """,
        "",
    ),
    "a cached function": (
        """
        import functools
        @functools.lru_cache
        def k():
            return 2
        def run(x):
            return x * k()
        """,
        """
        import functools
        @functools.lru_cache
        def k():
            return 3
        def run(x):
            return x * k()
        """,
        "",
    ),
    "a named tuple's fields": (
        """
        import collections
        P = collections.namedtuple("P", "a b")
        def run(x):
            return P(x, x + 1).a
        """,
        """
        import collections
        P = collections.namedtuple("P", "b a")
        def run(x):
            return P(x, x + 1).a
        """,
        "",
    ),
    "a dataclass's default": (
        """
        import dataclasses
        @dataclasses.dataclass
        class D:
            k: int = 2
        def run(x):
            return x * D().k
        """,
        """
        import dataclasses
        @dataclasses.dataclass
        class D:
            k: int = 3
        def run(x):
            return x * D().k
        """,
        "",
    ),
    "a global that is another function": (
        "import torch\nf = torch.sin\ndef run(x):\n    return f(x)",
        "import torch\nf = torch.cos\ndef run(x):\n    return f(x)",
        "",
    ),
    "a lambda": (
        "f = lambda x: x * 2\ndef run(x):\n    return f(x)",
        "f = lambda x: x * 3\ndef run(x):\n    return f(x)",
        "",
    ),
    "lambdas in a table": (
        "T = {'a': lambda x: x * 2}\ndef run(x):\n    return T['a'](x)",
        "T = {'a': lambda x: x * 3}\ndef run(x):\n    return T['a'](x)",
        "",
    ),
    "the order of a dictionary": (
        "T = {'a': 2, 'b': 3}\ndef run(x):\n    for k in T.values():\n        x = (x + 1) * k\n    return x",
        "T = {'b': 3, 'a': 2}\ndef run(x):\n    for k in T.values():\n        x = (x + 1) * k\n    return x",
        "",
    ),
    "a global tensor's values": (
        "import torch\nT = torch.ones(6)\ndef run(x):\n    return x * T",
        "import torch\nT = torch.full((6,), 3.0)\ndef run(x):\n    return x * T",
        "",
    ),
    "a branch on a tensor of the program": (
        "import torch\nT = torch.ones(())\ndef run(x):\n    return x * 2 if T > 0 else x * 3",
        "import torch\nT = -torch.ones(())\ndef run(x):\n    return x * 2 if T > 0 else x * 3",
        "",
    ),
    "an exception's handler": (
        """
        def run(x):
            try:
                raise KeyError
            except KeyError:
                return x * 2
            except Exception:
                return x * 3
        """,
        """
        def run(x):
            try:
                raise ValueError
            except KeyError:
                return x * 2
            except Exception:
                return x * 3
        """,
        "the code of the function has changed",
    ),
    "a function that is allowed in graphs": (
        """
        import tracer_core
        @tracer_core.allow_in_graph
        def inner(x):
            return x * 2
        def run(x):
            return inner(x) + 1
        """,
        """
        import tracer_core
        @tracer_core.allow_in_graph
        def inner(x):
            return x * 3
        def run(x):
            return inner(x) + 1
        """,
        "",
    ),
    "a function whose result is assumed constant": (
        """
        import tracer_core
        K = [2]
        @tracer_core.assume_constant_result
        def k():
            return K[0]
        def run(x):
            return x * k()
        """,
        """
        import tracer_core
        K = [3]
        @tracer_core.assume_constant_result
        def k():
            return K[0]
        def run(x):
            return x * k()
        """,
        "",
    ),
    "an autograd.Function": (
        """
        import torch
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 2
        def run(x):
            return F.apply(x) + 1
        """,
        """
        import torch
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 3
            @staticmethod
            def backward(ctx, g):
                return g * 2
        def run(x):
            return F.apply(x) + 1
        """,
        "",
    ),
    "a function that torch.cond calls": (
        """
        import torch
        def yes(x):
            return x * 2
        def no(x):
            return x - 1
        def run(x):
            return torch.cond(x.sum() > -1, yes, no, (x,))
        """,
        """
        import torch
        def yes(x):
            return x * 3
        def no(x):
            return x - 1
        def run(x):
            return torch.cond(x.sum() > -1, yes, no, (x,))
        """,
        "",
    ),
    "a function that torch.vmap calls": (
        "import torch\ndef f(x):\n    return x * 2\ndef run(x):\n    return torch.func.vmap(f)(x)",
        "import torch\ndef f(x):\n    return x * 3\ndef run(x):\n    return torch.func.vmap(f)(x)",
        "",
    ),
    "a tensor subclass's handler": (
        """
        import torch
        class T(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {})) * 2
        def run(x):
            return torch.sin(x.as_subclass(T)).as_subclass(torch.Tensor)
        """,
        """
        import torch
        class T(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {})) * 3
        def run(x):
            return torch.sin(x.as_subclass(T)).as_subclass(torch.Tensor)
        """,
        "",
    ),
    "what is behind a graph break": (
        """
        import tracer_core
        def inner(x):
            return x * 2
        def run(x):
            x = x + 1
            tracer_core.graph_break()
            return inner(x)
        """,
        """
        import tracer_core
        def inner(x):
            return x * 3
        def run(x):
            x = x + 1
            tracer_core.graph_break()
            return inner(x)
        """,
        "inner has changed",
    ),
    "a disabled function": (
        """
        import tracer_core
        @tracer_core.disable
        def inner(x):
            return x * 2
        def run(x):
            return inner(x + 1) + 1
        """,
        """
        import tracer_core
        @tracer_core.disable
        def inner(x):
            return x * 3
        def run(x):
            return inner(x + 1) + 1
        """,
        "",
    ),
    "a metaclass's method": (
        """
        class M(type):
            def k(cls):
                return 2
        class C(metaclass=M):
            pass
        def run(x):
            return x * C.k()
        """,
        """
        class M(type):
            def k(cls):
                return 3
        class C(metaclass=M):
            pass
        def run(x):
            return x * C.k()
        """,
        "has changed",
    ),
    "a slot that is now a property": (
        """
        class C:
            __slots__ = ("k",)
        c = C()
        c.k = 2
        def run(x):
            return x * c.k
        """,
        """
        class C:
            k = property(lambda self: 3)
        c = C()
        def run(x):
            return x * c.k
        """,
        "",
    ),
    "a key function": (
        "K = {'a': 2, 'b': 1}\ndef key(n):\n    return K[n]\ndef run(x):\n    return x * K[min(K, key=key)]",
        "K = {'a': 2, 'b': 1}\ndef key(n):\n    return -K[n]\ndef run(x):\n    return x * K[min(K, key=key)]",
        "",
    ),
}

"""What one process captured another one runs, if nothing has changed that it depends on.

A later process is played by this one: the program's module is imported anew from its file. Hash
seeds, addresses and the interpreter's own state are the same here;
tests/test_persistent_cache_processes.py starts real ones.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import tracer_core
from tracer_core import markers
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.store import persistent_cache
from tracer_core.execution.tiers.eager_or_compiled import EagerRegion, TimedRegion
from tracer_core.execution.tiers.verdicts import StoredVerdict
from tracer_core.limits import MAX_VERDICT_USES

_names = (f"kept_program_{number}" for number in itertools.count())


class Program:
    """A program in a file, which `started` imports as a new process would."""

    def __init__(self, folder):
        self.folder, self.name = folder, next(_names)
        self.fast = None

    def started(self, text, **settings):
        """Runs the program's text anew; returns its module, whose `run` is compiled as `fast`."""
        persistent_cache.flush()
        persistent_cache._WRITER.written.clear()
        tracer_core.reset()
        (self.folder / f"{self.name}.py").write_text(textwrap.dedent(text))
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(self.name)
        finally:
            sys.dont_write_bytecode = before
        self.fast = tracer_core.compile(module.run, **settings)
        return module

    def check(self, *args):
        """Calls the compiled function and the original; returns what was said about stored entries."""
        module = sys.modules[self.name]
        with torch.no_grad():
            got, want = self.fast(*args), module.run(*args)
        torch.testing.assert_close(got, want)
        return told(self.fast)


def told(fast):
    rows = tracer_core.last_compile(fast)
    assert rows, "nothing was looked up"
    return rows[0].text if rows[0].name == "persistent_cache" else ""


def captures(fast):
    return sum(row.name == "trace" for row in tracer_core.last_compile(fast))


@pytest.fixture
def program(tmp_path, monkeypatch, fresh_cache):
    monkeypatch.setenv("TRACER_KEEP", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = Program(tmp_path)
    yield result
    persistent_cache.flush()
    tracer_core.reset()
    sys.modules.pop(result.name, None)


PLAIN = """
    import torch

    def run(x):
        return torch.relu(x) * 2 + 1
"""
X = torch.linspace(-2, 2, 6)


def test_a_later_process_captures_nothing(program):
    program.started(PLAIN)
    assert program.check(X) == "miss: nothing was stored of this function"
    assert captures(program.fast) == 1
    program.started(PLAIN)
    assert program.check(X) == "hit: 1 entries of an earlier process"
    assert captures(program.fast) == 0
    assert program.check(torch.ones(3, 2)) and captures(program.fast) == 1  # guards decide


def test_each_process_adds_its_entries(program):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN)
    program.check(torch.ones(4, 3))
    program.started(PLAIN)
    assert program.check(X) == "hit: 2 entries of an earlier process"
    program.check(torch.ones(4, 3))
    assert captures(program.fast) == 0


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


@pytest.mark.sweep(keep=16)
@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_seen(program, what):
    before, after, reason = CHANGED[what]
    for _ in range(2):
        program.started(before)
        first = program.check(X)
    program.started(after)
    said = program.check(X)
    assert reason in said
    if reason:
        assert captures(program.fast) == 1
    program.check(X)
    program.started(before)  # what the changed program left is not taken for its own
    program.check(X)
    assert first


#: Programs whose entries are stored, and are found again.
FOUND = [
    "the function itself", "a callee", "a callee's callee behind a decorator", "a global number",
    "a global tuple", "a global list", "a global text", "a default argument", "a closure",
    "a class attribute", "a method", "a property", "a member of an enumeration",
    "a member of an enumeration of numbers", "a partial", "a cached function", "a dataclass's default", "a lambda",
    "the order of a dictionary", "a global tensor's values", "a branch on a tensor of the program",
    "what is behind a graph break", "a disabled function",
]  # fmt: skip


@pytest.mark.sweep(keep=9)
@pytest.mark.parametrize("what", FOUND)
def test_the_same_program_is_found(program, what):
    program.started(CHANGED[what][0])
    program.check(X)
    program.started(CHANGED[what][0])
    assert program.check(X).startswith("hit")
    assert captures(program.fast) == 0


def test_what_raised_in_one_process_need_not_raise_in_the_next(program):
    """The cause of an exception is not guarded: the instruction that raised runs anew."""
    text = """
        def made():
            def inner(x, k=2):
                return x * k
            return inner
        inner = made()
        def run(x):
            return inner(x)
    """
    module = program.started(text)
    module.inner.__defaults__ = None
    for function in (module.run, program.fast):
        with pytest.raises(TypeError, match="missing 1 required"):
            function(X)
    program.started(text)
    assert program.check(X).startswith("hit")
    program.check(X)


def test_a_graph_of_views_alone_is_found(program):
    text = "def run(x):\n    return x[1:4], x.view(2, 3).t()"
    program.started(text)
    program.check(X)
    program.started(text)
    assert program.check(X).startswith("hit")
    assert captures(program.fast) == 0
    with torch.no_grad():
        assert program.fast(X)[0].data_ptr() == X[1:4].data_ptr()


@pytest.mark.parametrize(
    "change, reason",
    [
        ("K = 2", "K == 2"),
        ("class C:\n    k = 2", "C.k == 2"),
        ("def inner(x, k=2):\n    return x * k", "inner.__defaults__[0] == 2"),
        ("T = torch.ones(2)", "T.shape == (2,)"),
    ],
)
def test_a_guard_of_an_earlier_process_that_fails_is_named(program, change, reason):
    text = """
import torch
def inner(x, k=1):
    return x * k
class C:
    k = 1
K = 1
T = torch.ones(1)
{}
def run(x):
    return inner(x) * K * C.k * T.sum()
"""
    program.started(text.format(change))
    program.check(X)
    program.started(text.format(""))
    said = program.check(X)
    assert said.startswith("hit: 1 entries") and "as no entry fits: not" in said, said
    assert reason in said.replace("__main__.", ""), said


def test_what_is_not_kept_is_said(program):
    text = """
        import tracer_core
        @tracer_core.allow_in_graph
        def inner(x):
            return x * 2
        def run(x):
            return inner(x) + 1
    """
    program.started(text)
    assert program.check(X) == "miss: nothing was stored of this function"
    program.started(text)
    assert "inner() is marked with allow_in_graph: it is not followed" in program.check(X)
    program.started(text.replace("* 2", "* 3").replace("+ 1", "+ 2"))
    assert program.check(X) == "miss: the code of the function has changed"


def test_other_sizes_and_settings_are_named(program):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN)
    assert "x.shape == (6,)" in program.check(torch.ones(3, 2))
    program.started(PLAIN)
    program.fast(X)
    assert "is_grad_enabled() is False" in told(program.fast)


@pytest.fixture
def judged(program, monkeypatch):
    """Starts PLAIN in a process that compares the two ways; returns the compiled function."""
    monkeypatch.setenv("TRACER_STRICT", "0")

    def start():
        program.started(PLAIN)
        program.check(X)
        return markers.compiled(program.fast).function

    return start


def decide(function, native):
    threads = torch.get_num_threads()
    verdict = StoredVerdict(3e-5, 2e-5, native, False, 2e-5, False, threads)
    function.runtime.tiering.record_verdict((1,), verdict.verdict(), verdict)


def test_what_runs_natively_does_so_at_once_in_a_later_process(program, judged):
    decide(judged(), native=True)
    for _ in range(MAX_VERDICT_USES):
        function = judged()
        assert isinstance(function.runtime.regions.positional[1], EagerRegion)
        assert "an earlier process found this" in told(program.fast)
        assert captures(program.fast) == 0 and not function.loaded
    x = X.clone().requires_grad_()  # the other grad mode has its own graphs
    torch.testing.assert_close(program.fast(x), torch.relu(x) * 2 + 1)
    assert captures(program.fast) == 1
    assert isinstance(judged().runtime.regions.positional[1], TimedRegion)  # it is measured again


def test_what_stays_compiled_is_not_compared_in_a_later_process(program, judged):
    decide(judged(), native=False)
    function = judged()
    assert (
        type(function.runtime.regions.positional[1]) is GuardedCache and len(function.loaded) == 1
    )
    decide(function, native=True)  # a later comparison of any process counts
    assert isinstance(judged().runtime.regions.positional[1], EagerRegion)


def test_a_verdict_belongs_to_its_code(program, judged):
    decide(judged(), native=True)
    program.started(PLAIN.replace("* 2", "* 3"))
    program.check(X)
    function = markers.compiled(program.fast).function
    assert (
        isinstance(function.runtime.regions.positional[1], TimedRegion)
        and captures(program.fast) == 1
    )


def test_other_numbers_of_threads_have_the_same_graphs_and_other_verdicts(program, judged):
    decide(judged(), native=True)
    assert isinstance(judged().runtime.regions.positional[1], EagerRegion)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        function = judged()
        assert isinstance(function.runtime.regions.positional[1], TimedRegion)
        assert captures(program.fast) == 0 and len(function.loaded) == 1
    finally:
        torch.set_num_threads(before)


# -- what is no code


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    "name, change",
    {
        "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
        "deterministic": lambda: _deterministic(),
        "default dtype": lambda: _default_dtype(),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "precision": lambda: _precision(),
    }.items(),
)
def test_a_setting_of_torch_is_seen(program, name, change):
    text = "import torch\nW = torch.ones(6, 6)\ndef run(x):\n    return x @ W + torch.ones(6)"
    program.started(text)
    program.check(X)
    program.started(text)
    with change():
        program.check(X)
    assert captures(program.fast) == 1, name
    program.check(X)


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "settings",
    [
        {"dynamic": True},
        {"fullgraph": True},
        {"options": {"fuse": False}},
        {"mode": "max-autotune-no-cudagraphs"},
    ],
)
def test_other_arguments_of_compile_have_other_entries(program, settings):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN, **settings)
    assert program.check(X).startswith("miss")
    program.started(PLAIN, **settings)
    assert program.check(X).startswith("hit")
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


def test_another_version_of_torch_has_other_entries(program, monkeypatch):
    program.started(PLAIN)
    program.check(X)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    program.started(PLAIN)
    assert "torch was 2.1" in program.check(X)


def test_two_functions_of_one_name_have_their_own_entries(program):
    text = """
        def made(k):
            if k == 2:
                def inner(x):
                    return x * 2
            else:
                def inner(x):
                    return x * 3
            return inner
        run = made(2)
        other = made(3)
    """
    for expected in ("miss", "hit"):
        module = program.started(text)
        other = tracer_core.compile(module.other)
        assert program.check(X).startswith(expected)
        with torch.no_grad():
            torch.testing.assert_close(other(X), X * 3)
        assert told(other).startswith(expected)


def test_closures_of_one_code_share_entries_whose_guards_decide(program):
    text = """
        def made(k):
            def inner(x):
                return x * k
            return inner
        run = made(2)
        other = made(3)
    """
    program.started(text)
    program.check(X)
    module = program.started(text)
    other = tracer_core.compile(module.other)
    with torch.no_grad():
        torch.testing.assert_close(other(X), X * 3)
    program.check(X)


def test_another_file_in_the_same_place(program):
    program.started(PLAIN)
    program.check(X)
    os.utime(program.folder / f"{program.name}.py", (0, 0))
    program.started("def run(x):\n    return x - 1")
    program.check(X)
    os.utime(program.folder / f"{program.name}.py", (0, 0))
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:9] + b"X" + data[10:]]
)
def test_a_damaged_entry_is_a_miss(program, fresh_cache, damage):
    program.started(PLAIN)
    program.check(X)
    persistent_cache.flush()
    files = [path for path in (Path(fresh_cache) / "persistent_cache").iterdir() if path.is_file()]
    assert files
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    program.started(PLAIN)
    assert program.check(X).startswith("miss")
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


def test_an_entry_of_another_key_is_a_miss(program, fresh_cache):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN.replace("* 2", "* 3"))
    program.check(X)
    persistent_cache.flush()
    first, second = [
        path for path in (Path(fresh_cache) / "persistent_cache").iterdir() if len(path.name) == 64
    ]
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)
    program.started(PLAIN)
    assert program.check(X).startswith("miss")


def test_nothing_is_kept_where_that_is_switched_off(program, fresh_cache, monkeypatch):
    monkeypatch.setenv("TRACER_KEEP", "0")
    program.started(PLAIN)
    with torch.no_grad():
        program.fast(X)
    assert tracer_core.last_compile(program.fast)[0].name == "trace"
    persistent_cache.flush()
    assert not (Path(fresh_cache) / "persistent_cache").exists()


def test_a_cache_that_cannot_be_written_to_costs_nothing_else(program, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", "/proc/nowhere")
    program.started(PLAIN)
    program.check(X)
    persistent_cache.flush()


# -- what is compiled


def test_modules_methods_and_decorated_functions_are_found(program):
    text = """
        import torch, tracer_core

        class Net(torch.nn.Module):
            def __init__(self, k):
                super().__init__()
                self.inner = torch.nn.Linear(6, 3)
                self.k = k

            def forward(self, x):
                return self.inner(x) * self.k

            def other(self, x):
                return self.inner(x) - self.k

        @tracer_core.compile
        def decorated(x):
            return x + 7

        def run(x):
            return x
    """
    for expected in ("miss", "hit"):
        module = program.started(text)
        torch.manual_seed(1)
        net = module.Net(2)
        called, method = tracer_core.compile(net), tracer_core.compile(net.other)
        with torch.no_grad():
            torch.testing.assert_close(called(X), net(X))
            torch.testing.assert_close(method(X), net.other(X))
            torch.testing.assert_close(module.decorated(X), X + 7)
        for value in (called, method, module.decorated):
            assert told(value).startswith(expected)
        with torch.no_grad():
            called.inner.weight.mul_(2)  # other values of parameters are inputs
            torch.testing.assert_close(called(X), net(X))
    net = module.Net(5)
    with torch.no_grad():
        torch.testing.assert_close(tracer_core.compile(net)(X), net(X))


def test_sizes_that_turned_dynamic_stay_so(program):
    program.started(PLAIN)
    for n in (4, 5):
        program.check(torch.ones(n, 3))
    program.started(PLAIN)
    for n in (6, 7, 8):
        program.check(torch.ones(n, 3))
    assert captures(program.fast) == 0


def test_a_later_process_learns_from_sizes_of_earlier_ones(program):
    program.started(PLAIN)
    program.check(torch.ones(4, 3))
    program.started(PLAIN)
    program.check(torch.ones(5, 3))  # the second size that was ever seen
    before = tracer_core.last_compile(program.fast)
    program.check(torch.ones(6, 3))
    assert tracer_core.last_compile(program.fast) == before


def test_side_effects_are_replayed(program):
    text = """
        log = []
        def run(x):
            log.append(len(log))
            x.mul_(2)
            return x + len(log)
    """
    program.started(text)
    for _ in range(2):
        module = program.started(text)
        with torch.no_grad():
            x = X.clone()
            for n in (1, 2, 3):
                want = x * 2 + n
                torch.testing.assert_close(program.fast(x), want)
                assert module.log == list(range(n))


def test_random_numbers_are_those_of_eager(program):
    text = "import torch\ndef run(x):\n    return torch.nn.functional.dropout(x, 0.5)"
    for _ in range(2):
        module = program.started(text)
        with torch.no_grad():
            torch.manual_seed(3)
            want = [module.run(X) for _ in range(3)]
            torch.manual_seed(3)
            got = [program.fast(X) for _ in range(3)]
        torch.testing.assert_close(got, want)


def test_the_thread_writes_without_being_asked(program, fresh_cache, monkeypatch):
    monkeypatch.setattr(persistent_cache, "QUIET", 0.05)
    program.started(PLAIN)
    program.check(X)
    for _ in range(100):
        if (Path(fresh_cache) / "persistent_cache").exists() and any(
            (Path(fresh_cache) / "persistent_cache").iterdir()
        ):
            break
        time.sleep(0.05)
    assert any((Path(fresh_cache) / "persistent_cache").iterdir())

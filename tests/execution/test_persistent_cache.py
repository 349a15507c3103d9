"""What one process captured another one runs, if nothing has changed that it depends on.

A later process is played by this one: the program's module is imported anew from its file. Hash
seeds, addresses and the interpreter's own state are the same here;
tests/execution/test_persistent_cache_processes.py starts real ones.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.execution.changed_programs import CHANGED
from tests.support.persistent_programs import PLAIN, cache_status, captures
from tracer_core.execution.store import persistent_cache

_names = (f"kept_program_{number}" for number in itertools.count())
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


def test_what_is_not_stored_is_said(program):
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
    assert "is_grad_enabled() is False" in cache_status(program.fast)


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
            assert cache_status(value).startswith(expected)
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

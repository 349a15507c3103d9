"""State that the standard library hides: caches of functions, registries, settings of the process,
loggers."""

from __future__ import annotations

import bisect
import functools
import logging
import os
import sys
import types
import typing

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tests.support.library_programs import LOGGER
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- hidden state is asked again
# --------------------------------------------------------------------------------


def test_lru_cache_keeps_what_it_knows_and_forgets_when_told():
    def make():
        scale = {"n": 2}

        @functools.lru_cache
        def scaled(n):
            return n * scale["n"]

        return (lambda x: x * scaled(3)), types.SimpleNamespace(scale=scale, cached=scaled)

    # The cache remembers 6 although its function would now say 15, until it is cleared.
    compare_with_eager(
        make,
        (X,),
        lambda w: w.scale.update(n=5),
        (X,),
        lambda w: w.cached.cache_clear(),
        (X,),
        (Y,),
        breaks=0,
    )


def test_lru_cache_calls_its_function_as_often_as_eager():
    def make():
        calls = []

        @functools.cache
        def shape(n, name="a"):
            calls.append(n)
            return [n]

        def f(x, n):
            kept = shape(n, name="b")
            kept.append(len(kept))
            return x * kept[0], len(kept), shape(n, name="b") is kept

        return f, calls

    compare_with_eager(make, (X, 1), (X, 2), (X, 1), (Y, 2), breaks=None)


def test_lru_cache_on_a_method():
    class Grid(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 2

        @functools.lru_cache(maxsize=4)
        def ramp(self, n):
            return torch.arange(n) * self.n

        def forward(self, x):
            return x + self.ramp(4)

    compare_with_eager(
        Grid,
        (X,),
        lambda m: setattr(m, "n", 3),
        (X,),
        lambda m: type(m).ramp.cache_clear(),
        (X,),
        (Y,),
        breaks=0,
    )


def test_lru_cache_after_a_change_of_state_runs_for_real():
    def make():
        box = {"n": 1}

        @functools.cache
        def twice(k):
            return box["n"] * k

        def f(x):
            box["n"] += 1
            return x * twice(10)

        return f, box

    compare_with_eager(make, (X,), (X,), (Y,), breaks=None)


class _Parsed:
    """What a pattern says, as einops keeps it."""

    empty = ""

    def __init__(self, pattern):
        left, right = pattern.split("->")
        self.order = [left.split().index(name) for name in right.split() if name != self.empty]

    @staticmethod
    def swapped(order):
        return sorted(order, reverse=True)


_DIRECTIONS = ("forward", "backward")


@functools.lru_cache(64)
def _recipe(pattern, *, direction):
    if direction not in _DIRECTIONS:
        raise ValueError(direction)
    parsed = _Parsed(pattern)
    return tuple(parsed.order if direction == "forward" else _Parsed.swapped(parsed.order))


def test_lru_cache_of_what_only_its_arguments_decide_needs_no_break_after_a_change():
    def make():
        box = {"n": 1}

        def f(x):
            box["n"] += 1
            return x.permute(_recipe("a b -> b a", direction="forward")) * box["n"]

        return f, box

    _recipe.cache_clear()
    compare_with_eager(make, (X,), (X,), lambda w: _recipe.cache_clear(), (X,), (Y,), breaks=0)


def test_lru_cache_reads_a_changed_class_attribute_or_cell_for_real():
    """A cache that is asked before the change is made would keep the answer of before."""

    def make():
        mode = "one"

        class Held:
            mode = "one"

            def times(self, k):
                return k if self.mode == "one" else 2 * k

        @functools.cache
        def by_class(k):
            return Held().times(k)

        @functools.cache
        def by_cell(k):
            return k if mode == "one" else 2 * k

        def f(x):
            nonlocal mode
            mode = "two" if mode == "one" else "one"
            Held.mode = mode
            return x * by_class(10) + by_cell(10)

        return f, types.SimpleNamespace(by_class=by_class, by_cell=by_cell)

    def forget(w):
        w.by_class.cache_clear()
        w.by_cell.cache_clear()

    compare_with_eager(make, (X,), forget, (X,), forget, (Y,), forget, (X,), (Y,), breaks=None)


_MODE = "one"


@functools.cache
def _by_a_global(k):
    return k if _MODE == "one" else 2 * k


def test_lru_cache_reads_a_changed_global_for_real():
    def f(x):
        global _MODE
        _MODE = "two" if _MODE == "one" else "one"
        return x * _by_a_global(10)

    wanted, got = [], []
    for results, function in ((wanted, f), (got, tracer_core.compile(f, backend="eager"))):
        globals()["_MODE"] = "one"
        for x in (X, X, Y, X):
            _by_a_global.cache_clear()
            results.append(function(x))
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(a, b)


def test_bisect_reads_what_it_compares():
    """Guards name the items that a search of a long list compared, which decide about its result."""
    places = list(range(0, 2000, 2))
    moved, beside = places.copy(), places.copy()
    moved[700:] = [place + 1 for place in moved[700:]]
    beside[3] = 7

    def f(x, items):
        kept = [items[0], items[1]]
        bisect.insort(kept, 3, key=lambda item: -item)
        return x + bisect.bisect(items, 1401), bisect.bisect_left(items, 5), kept

    compare_with_eager(
        lambda: f, (X, places), (X, moved), (X, beside), (X, places), graphs=None, breaks=0
    )
    assert len(tracer_core.explain(f)(X, places).guards) < 60


def test_a_type_written_after_a_change_of_state():
    """`Optional[...]` is not in typing's cache yet (ours runs before eager's): torch's profiler
    writes one a process.
    """

    def make():
        box = {"n": 1}

        def f(x, name):
            box["n"] += 1
            return x * box["n"], typing.Optional[name]  # noqa: UP045 (the call is what is tested)

        return f, box

    (eager, wanted), (fn, box) = make(), make()
    compiled = tracer_core.compile(fn, backend="eager")
    with CaptureCounter() as counter:
        for x, name in ((X, "NotWrittenYet"), (X, "NotWrittenYet"), (Y, "NorThis")):
            got = compiled(x, name)
            compare(eager(x, name), got)
            assert box == wanted
    assert not counter.breaks


def test_singledispatch_sees_new_implementations():
    def make():
        @functools.singledispatch
        def weight(value):
            return 1

        return (lambda x, v: x * weight(v)), weight

    def register(weight):
        weight.register(int, lambda value: 7)

    compare_with_eager(make, (X, 2), (X, "a"), register, (X, 2), (X, "a"), breaks=0)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("environ", lambda: os.environ.get("TRACER_TEST_VALUE", "none")),
        (
            "environ-item",
            lambda: (
                os.environ["TRACER_TEST_VALUE"] if "TRACER_TEST_VALUE" in os.environ else "none"
            ),
        ),
        ("getenv", lambda: os.getenv("TRACER_TEST_VALUE", "none")),
        ("recursion", lambda: str(sys.getrecursionlimit())),
        ("threads", lambda: str(torch.get_num_threads())),
        ("log-level", lambda: str(logging.getLogger("tracer.tests").isEnabledFor(logging.INFO))),
        ("effective-level", lambda: str(logging.getLogger("tracer.tests").getEffectiveLevel())),
    ],
)
def test_settings_of_the_process_are_guarded(name, read, monkeypatch):
    compiled = tracer_core.compile(lambda x: (x * 2, read()), backend="eager")
    with CaptureCounter() as counter:
        assert compiled(X)[1] == read()
        monkeypatch.setenv("TRACER_TEST_VALUE", "set")
        limit = sys.getrecursionlimit()
        threads = torch.get_num_threads()
        logger = logging.getLogger("tracer.tests")
        try:
            sys.setrecursionlimit(limit + 7)
            torch.set_num_threads(3 if threads != 3 else 2)
            logger.setLevel(logging.DEBUG)
            assert compiled(X)[1] == read()
        finally:
            sys.setrecursionlimit(limit)
            torch.set_num_threads(threads)
            logger.setLevel(logging.NOTSET)
    assert not counter.breaks


def test_messages_nobody_wants_are_no_break():
    def f(x):
        LOGGER.debug("shape %s", tuple(x.shape))
        LOGGER.log(5, "x")
        if LOGGER.isEnabledFor(logging.DEBUG):
            x = x + 100
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        assert torch.equal(compiled(X), X * 2)
    assert len(counter.graphs) == 1 and not counter.breaks


def test_a_level_switched_on_is_seen(caplog):
    def f(x):
        LOGGER.info("size %d", x.shape[0])
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    compiled(X)
    assert not caplog.records
    with caplog.at_level(logging.INFO, LOGGER.name), CaptureCounter() as counter:
        for _ in range(2):
            assert torch.equal(compiled(X), X * 2)
    assert [record.getMessage() for record in caplog.records] == ["size 3", "size 3"]
    assert {kind for kind, _, _ in counter.breaks} == {"side_effect_native"}
    compiled(X)
    assert len(caplog.records) == 2


def test_warning_once_is_said_once(caplog):
    @functools.lru_cache(None)
    def warning_once(self, *args, **kwargs):
        self.warning(*args, **kwargs)

    def f(x):
        warning_once(LOGGER, "slow path")
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        for x in (X, Y, X):
            assert torch.equal(compiled(x), x * 2)
    assert len(caplog.records) == 1 and not counter.breaks and len(counter.graphs) == 1

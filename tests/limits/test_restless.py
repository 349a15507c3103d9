"""Programs in which something changes with every call are not captured at every call: after a few
captures the rest runs in what was captured, or in eager mode, and one line says so."""

from __future__ import annotations

import gc

import pytest
import torch

import tracer_core
from tests.limits import restless
from tests.limits.case import listening
from tests.limits.restless import PROGRAMS, Restless
from tracer_core.execution.capture_lock import captures_so_far
from tracer_core.limits import MAX_RECOMPILES, MAX_SINGLE_USES
from tracer_core.testing import compare

CALLS = 200
#: One in so many calls is captured to see whether a program settles.
SAMPLED = 64


@pytest.fixture(autouse=True)
def _small_and_may_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_ALWAYS_COMPILED", "1")
    monkeypatch.setattr(restless, "SIZE", 64)
    yield
    tracer_core.reset()


def run(name: str, calls: int = CALLS, **options) -> tuple[list[int], list[str], Restless]:
    """Returns the captures after each call, and what was said."""
    eager, program = PROGRAMS[name](), PROGRAMS[name]()
    program.function = tracer_core.compile(program.function, backend="eager", **options)
    start, captures = captures_so_far(), []
    with listening() as said:
        for n in range(calls):
            want, got = eager(n), program(n)
            compare(want, got)
            captures.append((captures_so_far() - start) // 2)
    return captures, [text for text in said if "graph break" not in text], program


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_captures_end(name):
    captures, said, program = run(name)
    assert captures[-1] <= 2 * MAX_SINGLE_USES
    late = captures[-1] - captures[CALLS // 2]
    assert late <= CALLS // 2 // SAMPLED + 1 or name == "enum_members", captures
    if captures[-1] > MAX_RECOMPILES:
        assert said, captures


def test_explain_names_the_limit():
    *_, program = run("objects_that_stay", 50)
    rows = [
        record.text
        for record in tracer_core.last_compile(program.function)
        if record.name == "limit"
    ]
    assert any(text.startswith("MAX_SINGLE_USES") for text in rows)


def test_one_warning():
    _, said, _ = run("keyword_names")
    assert [text for text in said if "were each for one call" in text] == said
    assert len(said) == 1


class Session:
    def __init__(self, name):
        self.name = name


def greet(session, x):
    return x * len(session.name)


def test_a_program_that_settles_later_is_compiled():
    """First each request has a session of its own; later the same few come again."""
    fast, x = tracer_core.compile(greet, backend="eager"), torch.ones(3)
    kept = [Session(f"user-{n}") for n in range(60)]
    for session in kept:
        compare(greet(session, x), fast(session, x))
    few = [Session(f"regular-{n}") for n in range(3)]
    for _ in range(2 * SAMPLED):
        for session in few:
            compare(greet(session, x), fast(session, x))
    start = captures_so_far()
    for session in few:
        compare(greet(session, x), fast(session, x))
    assert captures_so_far() == start
    (region,) = tracer_core.api.compiled(fast).function.runtime.regions.starts.values()
    assert all(region.holder((session, x)).hot is not None for session in few)


def test_many_layers_of_one_class_are_all_compiled():
    """Each pass captures some of them, as the entries of the pass before are used again."""
    fast, x = tracer_core.compile(greet, backend="eager"), torch.ones(3)
    layers = [Session("s" * n) for n in range(1, 81)]
    for _ in range(4):
        for layer in layers:
            compare(greet(layer, x), fast(layer, x))
    start = captures_so_far()
    for layer in layers:
        compare(greet(layer, x), fast(layer, x))
    assert captures_so_far() == start
    (region,) = tracer_core.api.compiled(fast).function.runtime.regions.starts.values()
    assert len(region.entries) == len(layers)


def test_names_that_are_new_in_each_call_do_not_pile_up():
    *_, program = run("keyword_names")
    owner = tracer_core.api.compiled(program.function).function
    gc.collect()
    assert len(owner.runtime.regions.starts) <= MAX_SINGLE_USES + CALLS // SAMPLED
    assert len(owner.runtime.regions.named) <= len(owner.runtime.regions.starts)


def test_fullgraph_captures_all():
    captures, *_ = run("keyword_names", 50, fullgraph=True)
    assert captures[-1] == 50

"""A sample of the random programs; many more: ``nox -s random_programs -- --count 20000``."""

from __future__ import annotations

import itertools

import pytest

import tracer_core
from tests.random_programs.observable_state import describe, first_difference
from tests.random_programs.program import Program
from tests.random_programs.run import run
from tests.random_programs.seeds import generate

_STARTS = range(0, 200, 20)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("start", _STARTS)
def test_programs_give_eagers_answer(start, monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "1")
    results = [run(generate(seed)) for seed in range(start, start + 20)]
    assert [r for r in results if r.status not in ("same", "invalid")] == []
    assert sum(r.status == "same" for r in results) >= 15


def test_a_seed_stands_for_one_program():
    assert [str(generate(seed)) for seed in range(5)] == [str(generate(seed)) for seed in range(5)]


def test_programs_capture_graphs(monkeypatch):
    """The sample would pass if nothing were captured: it does not."""
    from tracer_core.testing import CaptureCounter

    monkeypatch.setenv("TRACER_STRICT", "1")
    monkeypatch.setattr(tracer_core, "reset", lambda: None)  # it would forget the counter
    with CaptureCounter() as counter:
        for seed in range(20):
            run(generate(seed))
    assert len(counter.graphs) > 40


def _program(body: str) -> Program:
    return Program(
        0, f"def f(p1, p2):\n{body}", "f", ((True, "((torch.ones(2), [1, 2]), {})"),) * 2
    )


def test_a_wrong_answer_is_a_mismatch(monkeypatch):
    """A call of the compiled function that does not do what the function does."""
    monkeypatch.setenv("TRACER_STRICT", "1")
    program = _program("    p2.append(3)\n    return p1 + 1, p2\n")
    assert run(program).status == "same"
    monkeypatch.setattr(tracer_core, "compile", lambda fn, **_: lambda *args: (fn(*args)[0], []))
    assert run(program).status == "mismatch"


def test_which_objects_are_one_is_compared():
    shared, apart = [1], ([1], [1])
    item, two = describe([("x", [shared, shared])]), describe([("x", list(apart))])
    assert first_difference(item, two) is not None
    assert list(itertools.chain(item)) == describe([("x", [shared, shared])])

"""A realistic program just under and just beyond each limit: the results are eager's, nothing is
captured after the first calls, and beyond the limit something says so."""

from __future__ import annotations

from typing import Any

import pytest

import tracer_core
from tests.limits import programs, state_programs  # noqa: F401  (they register)
from tests.limits.case import Case, Run, Watched, change, run
from tests.limits.kernel_programs import CASES as KERNELS
from tests.limits.registered import CASES as PROGRAMS
from tracer_core.limit_table import SHOWN
from tracer_core.registry import limits
from tracer_core.torch_private.releases import is_before

CASES = PROGRAMS | KERNELS
ROWS = {name: row for table in limits.tables() for name, row in table.items()}


@pytest.fixture(autouse=True)
def _may_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch):
    """Falling back to eager mode is what a limit is for; compiled calls stay compiled."""
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_ALWAYS_COMPILED", "1")
    yield
    tracer_core.reset()


@pytest.mark.parametrize("name", CASES)
def test_under_the_limit(name, monkeypatch):
    case = CASES[name]
    seen = checked(name, monkeypatch, 0)
    assert not case.says or case.says not in seen.said, seen.said
    assert name not in seen.reached


@pytest.mark.parametrize("name", CASES)
def test_beyond_the_limit(name, monkeypatch):
    case = CASES[name]
    seen = checked(name, monkeypatch, 1)
    assert case.says in seen.said, seen.said
    assert (name in seen.reached) == (SHOWN in ROWS[name].seen), seen


def checked(name: str, monkeypatch: pytest.MonkeyPatch, side: int) -> Run:
    """Runs a case on one side of its limit; checks that the program meets the limit, and that it
    settles."""
    case = CASES[name]
    if case.release and is_before(case.release):
        pytest.skip(f"torch before {case.release}")
    limit = Watched(value_of(name, case, side))
    change(monkeypatch, name, limit)
    seen = run(case, (case.under, case.over)[side])
    assert limit.asked or not case.is_compared
    assert seen.captures[-1] == seen.captures[case.settles - 1], seen
    return seen


def value_of(name: str, case: Case, side: int) -> Any:
    if case.limits is not None:
        return case.limits[side]
    return ROWS[name].value if case.limit is None else case.limit

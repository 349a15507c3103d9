"""The benchmark of the ecosystem: what its rows say is what happened, and a fault of a compiler shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tracer_core
from benchmarks import ecosystem, harness
from benchmarks.ecosystem_programs import ECOSYSTEM
from benchmarks.ecosystem_programs.program import Family, Program


def test_there_are_many_programs_of_many_libraries() -> None:
    assert len(ECOSYSTEM) >= 150
    assert len({program.library for program in ECOSYSTEM.values()}) >= 25
    assert all(name.startswith(f"{program.library}: ") for name, program in ECOSYSTEM.items())


OF_TORCH_ALONE = [
    name
    for name, program in ECOSYSTEM.items()
    if program.library in ("plain Python", "torch", "torch.func", "torch.optim")
]


@pytest.mark.sweep(keep=22)
@pytest.mark.parametrize("name", OF_TORCH_ALONE)
def test_a_program_made_twice_does_the_same_in_every_call(name: str) -> None:
    program = ECOSYSTEM[name]
    item, other = program.make(), program.make()
    for number in range(2):
        calls = [ecosystem._call(program, value, value.function, number) for value in (item, other)]
        ecosystem._compare(program, number, *calls, rng=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds: the tests do not look at milliseconds."""
    monkeypatch.setattr(ecosystem, "_PLAN", ecosystem.Plan(rounds=1, seconds=0.0, least=1))


def planted(monkeypatch: pytest.MonkeyPatch, compile_: Any) -> None:
    """Makes `compile_` what the benchmark takes for tracer_core's compile."""
    monkeypatch.setattr(tracer_core, "compile", compile_)


FAMILY = Family()


@FAMILY.training("torch")
def trained() -> Any:
    net = torch.nn.Linear(4, 2)
    return net, lambda: (torch.randn(3, 4),)


@FAMILY.inference("torch")
def drawn() -> Any:
    return lambda x: x + torch.rand_like(x), lambda: (torch.zeros(3),)


@FAMILY.inference("torch")
def broken() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        tracer_core.graph_break()
        return x.cos()

    return run, lambda: (torch.randn(3),)


@FAMILY.inference("torch")
def missing() -> Any:
    import no_such_library  # type: ignore[import-not-found]

    return no_such_library.run, lambda: ()


TRAINED, RNG_SAVED, BROKEN, MISSING = FAMILY.programs


def row(program: Program, monkeypatch: pytest.MonkeyPatch, compiler: str = "ours") -> Any:
    monkeypatch.setitem(ECOSYSTEM, program.name, program)
    actual = ecosystem.measure(program.name, compiler)
    assert json.loads(json.dumps(actual)) == actual
    return actual


def test_a_row_counts_graphs_and_breaks_of_the_first_call(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = row(BROKEN, monkeypatch)
    assert actual["equal"] and actual["graphs"] == 2 and len(actual["breaks"]) == 1
    assert actual["ms"] > 0 and actual["eager_ms"] > 0
    actual = row(TRAINED, monkeypatch)
    assert actual["equal"] and actual["graphs"] == 1 and not actual["breaks"]


def test_a_wrong_result_is_not_equal(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda function: lambda *args: function(*args) * 1.01)
    actual = row(TRAINED, monkeypatch)
    assert not actual["equal"] and "result" in actual["error"] and "ms" in actual


def test_a_wrong_gradient_is_not_equal(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(function: Any) -> Any:
        def run(*args: Any) -> Any:
            result = function(*args)
            result.register_hook(lambda grad: grad * 2)
            return result

        return run

    planted(monkeypatch, compile_)
    actual = row(TRAINED, monkeypatch)
    assert not actual["equal"] and "state" in actual["error"]


def test_other_random_numbers_are_not_equal(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row(RNG_SAVED, monkeypatch)["equal"]

    def compile_(function: Any) -> Any:
        return lambda x: (torch.rand(1), function(x))[1]

    planted(monkeypatch, compile_)
    actual = row(RNG_SAVED, monkeypatch)
    assert not actual["equal"] and actual["random"]
    assert ecosystem._judged(actual, "ours") == "NO"
    assert ecosystem._judged(actual, "torch") == "random"


def test_a_call_that_raises_has_no_milliseconds(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_(function: Any) -> Any:
        def run(*args: Any) -> Any:
            raise RuntimeError("planted")

        return run

    planted(monkeypatch, compile_)
    actual = row(RNG_SAVED, monkeypatch)
    assert not actual["equal"] and "planted" in actual["error"] and "ms" not in actual
    assert ecosystem._judged(actual, "ours") == "RAISES"


def test_a_missing_library_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row(MISSING, monkeypatch) == {"missing": "no_such_library"}


def test_the_page_says_what_is_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    programs = {program.name: program for program in FAMILY.programs}
    monkeypatch.setattr(ecosystem, "ECOSYSTEM", programs)
    store = harness.Store("ecosystem", path=tmp_path / "rows.json")
    good = {"equal": True, "random": False, "graphs": 1, "breaks": [], "ms": 2.0, "speed_up": 0.5}
    good |= {"eager_ms": 1.0, "first_s": 1.5}
    store.put(ecosystem._key(TRAINED.name, "ours"), dict(good))
    store.put(ecosystem._key(TRAINED.name, "torch"), dict(good, speed_up=0.25, first_s=3.0))
    wrong = {"equal": False, "random": False, "graphs": 2, "breaks": ["a: why"], "error": "other"}
    store.put(ecosystem._key(BROKEN.name, "ours"), wrong)
    store.put(ecosystem._key(MISSING.name, "ours"), {"missing": "no_such_library"})
    text = ecosystem.page(store)
    assert f"- {TRAINED.name}: takes 2.00 times eager's time" in text
    assert f"- {BROKEN.name}: other" in text and f"- {BROKEN.name}: break, 1 times: a: why" in text
    assert f"| {MISSING.name} | not installed |" in text
    assert "is 2.00 times as fast as torch.compile's and its first call 2.0 times" in text

"""`warmup` and `compile_many`: afterwards calls compile nothing."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

import tracer_core
from tests.background.test_background import Gate
from tracer_core.errors import BackendError, OptionError
from tracer_core.execution import capture_lock


@pytest.fixture
def gate():
    result = Gate()
    result.open.set()
    return result


def nothing_is_compiled(call):
    before = capture_lock.captures_so_far()
    result = call()
    assert capture_lock.captures_so_far() == before
    return result


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(self.norm(self.inner(x))) * scale


def test_calls_of_all_sizes_compile_nothing_and_leave_no_trace(gate):
    model = Net()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    fast = tracer_core.compile(model, backend=gate.backend)
    drawn = torch.get_rng_state()
    tracer_core.warmup(fast, torch.randn(3, 4), (torch.randn(5, 4),), {"x": torch.randn(7, 4)},
                       tracer_core.Inputs(torch.randn(9, 4), scale=2.0))  # fmt: skip
    assert not torch.equal(torch.get_rng_state(), drawn)  # by the arguments, not by the calls
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    compiled = list(gate.graphs)
    for n in (3, 5, 7, 9):
        nothing_is_compiled(lambda n=n: fast(torch.randn(n, 4)).sum().backward())
    nothing_is_compiled(lambda: fast(torch.randn(9, 4), scale=2.0))
    assert gate.graphs == compiled and "backward" in compiled


def test_calls_beside_the_compilers_leave_them_processors():
    """The calls of `warmup` alone: neither other threads nor later calls run on fewer threads."""
    seen, elsewhere = [], []

    @torch.library.custom_op("warmup_test::threads", mutates_args=())
    def threads(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        beside = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
        beside.start()
        beside.join()
        return x.clone()

    threads.register_fake(torch.empty_like)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        fast = tracer_core.compile(lambda x: threads(x * 2) + 1)
        x = torch.randn(8)
        tracer_core.warmup(fast, x)
        assert seen[0] == 2 and seen[-1] == 4, seen
        seen.clear()
        torch.testing.assert_close(nothing_is_compiled(lambda: fast(x)), x * 2 + 1)
        assert seen == [4] and set(elsewhere) == {4} and torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_random_generators_are_set_back(gate):
    fast = tracer_core.compile(lambda x: torch.nn.functional.dropout(x), backend=gate.backend)
    x, drawn = torch.ones(8), torch.get_rng_state()
    tracer_core.warmup(fast, x)
    assert torch.equal(torch.get_rng_state(), drawn) and "inference" in gate.runs


def test_a_function_that_calls_compiled_ones(gate):
    inner = tracer_core.compile(torch.sin, backend=gate.backend)
    outer_calls = []

    def generate(x):
        outer_calls.append(1)
        for _ in range(3):
            x = inner(x)
        return x

    tracer_core.warmup(generate, torch.ones(3))
    assert nothing_is_compiled(lambda: generate(torch.ones(3))).shape == (3,) and gate.runs


def test_errors_are_raised(gate, monkeypatch):
    monkeypatch.delenv("TRACER_STRICT")

    def refuse(graph):
        raise RuntimeError("no such instruction")

    gate.change = refuse
    fast = tracer_core.compile(lambda x: x + 1, backend=gate.backend, dynamic=False)
    with pytest.raises(BackendError, match="no such instruction"):
        tracer_core.warmup(fast, torch.ones(3))
    with pytest.raises(TypeError):
        tracer_core.warmup(tracer_core.compile(lambda x: x, backend=gate.backend), 1, (1, 2, 3))
    with pytest.raises(OptionError, match="workers"):
        tracer_core.warmup(fast, torch.ones(3), workers=0)


def test_arguments_that_never_settle_are_an_error(gate):
    calls = iter(range(1000))
    fast = tracer_core.compile(lambda x: x + 1, backend=gate.backend, dynamic=False)

    def other_sizes():
        return fast(torch.ones(next(calls) + 2))

    with pytest.raises(tracer_core.errors.TracerError, match="still compile"):
        tracer_core.warmup(other_sizes)


def test_afterwards_the_function_is_as_it_was_made(gate):
    fast = tracer_core.compile(lambda x: x + 1, backend=gate.backend)
    tracer_core.warmup(fast, torch.ones(3))
    n = len(tracer_core.progress(fast))
    fast(torch.ones(2, 2))  # waits
    assert len(tracer_core.progress(fast)) == n and gate.runs


def test_many_models_with_progress(gate):
    models = [torch.nn.Linear(n, 2) for n in (2, 3, 4)]
    ready, shown = tracer_core.compile(lambda x: x * 3, backend=gate.backend), []
    result = tracer_core.compile_many(
        [*((model, torch.randn(2, model.in_features)) for model in models), (ready, torch.ones(2))],
        backend=gate.backend, workers=3, progress=shown.append,
    )  # fmt: skip
    assert result[3] is ready
    for model, fast in zip(models, result[:3], strict=True):
        assert isinstance(fast, torch.nn.Linear)
        x = torch.randn(2, model.in_features)
        assert torch.equal(nothing_is_compiled(lambda x=x, fast=fast: fast(x)), model(x))
    assert max(map(len, shown)) == 4 and all(item.is_done for item in shown[-1:])
    assert len({thread.name for thread in gate.threads}) == 1  # none in this one


def test_progress_without_a_terminal_is_logged(gate, caplog):
    with caplog.at_level(logging.INFO, "tracer_core"):
        tracer_core.compile_many([(torch.nn.Linear(2, 2), torch.ones(1, 2))], backend=gate.backend)
    assert "compiled in" in caplog.text

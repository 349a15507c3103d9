"""A program that eager runs never ends in an error of a backend: where one fails, the graph runs in
eager mode, with a line in the log and a file for a bug report."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.errors import BackendError, OptionError, RequirementError
from tracer_core.plugin_api import Backend, Training


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch):
    monkeypatch.delenv("TRACER_STRICT")


def fallbacks_of(compiled):
    """The texts of the fallbacks of the last compilation and of the calls after it."""
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def backend_of(compile, **settings):
    return Backend(name="careless", compile=compile, shapes="symbolic", **settings)


def cannot_compile(graph, spec):
    raise KeyError("no kernel for this")


def wrong_strides(graph, spec):
    """The results of the first call are laid out otherwise."""
    return lambda inputs: [
        item.t().contiguous().t() if item.dim() == 2 else item for item in graph(*inputs)
    ]


def wrong_dtype(graph, spec):
    return lambda inputs: [item.double() for item in graph(*inputs)]


def raises_at_once(graph, spec):
    def run(inputs):
        inputs.clear()
        raise BackendError("careless", "launch", "no such device")

    return run


FAILURES = [cannot_compile, wrong_strides, wrong_dtype, raises_at_once]


def step(x, w):
    return torch.relu(x @ w) + 1


@pytest.mark.parametrize("failure", FAILURES)
def test_the_graph_runs_in_eager_mode(failure):
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    fast = tracer_core.compile(step, backend=backend_of(failure))
    for _ in range(3):
        actual = fast(x, w)
        assert torch.equal(actual, step(x, w)) and actual.stride() == step(x, w).stride()
    (messages,) = fallbacks_of(fast)
    assert messages.startswith("backend_failed") and "careless" in messages


def test_the_log_names_backend_stage_and_a_script_that_shows_the_failure(caplog, tmp_path):
    def compile_here(graph, spec):
        raise KeyError(f"no kernel for {spec.name} of test 1")

    x = torch.randn(6, 5).t()
    with caplog.at_level(logging.WARNING, "tracer_core"):
        fast = tracer_core.compile(
            lambda x: torch.addmm(x, x, x.new_ones(6, 6)).sin(), backend=backend_of(compile_here)
        )
        fast(x)
    (line,) = [message for message in caplog.messages if "careless" in message]
    assert "'compile'" in line and "no kernel for" in line
    path = Path(re.search(r"bug report: (\S+\.py)", line)[1])
    text = path.read_text()
    assert "tensor((5, 6), (1, 5), torch.float32, 'cpu')" in text
    assert "KeyError: 'no kernel for" in text and torch.__version__ in text
    script = text.replace("backend='careless'", "backend='aten_eager'")
    (tmp_path / "report.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "report.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor(") == 2


@pytest.mark.parametrize("failure", FAILURES)
def test_training_is_eager_s(failure):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 4)
    fast = tracer_core.compile(net, backend=backend_of(failure, training=Training.FORWARD_BACKWARD))
    for _ in range(2):
        fast(x).square().sum().backward()
        grads = [parameter.grad for parameter in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        torch.testing.assert_close(grads, [parameter.grad for parameter in net.parameters()])
        net.zero_grad()


@pytest.mark.parametrize("failure", FAILURES)
def test_a_backward_alone_that_fails(failure):
    def only_backward(graph, spec):
        if "backward" in spec.phase.value:
            return failure(graph, spec)
        return lambda inputs: graph(*inputs)

    net, x = nn.Linear(4, 8), torch.randn(5, 4)
    fast = tracer_core.compile(
        net, backend=backend_of(only_backward, training=Training.FORWARD_BACKWARD)
    )
    for _ in range(2):
        fast(x).square().sum().backward()
        grads = [parameter.grad for parameter in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        torch.testing.assert_close(grads, [parameter.grad for parameter in net.parameters()])
        net.zero_grad()
    assert any(fallback.startswith("backend_failed") for fallback in fallbacks_of(fast))


@pytest.mark.parametrize("failure", FAILURES)
def test_inputs_are_written_once(failure):
    """A running mean and a counter: a call that ran twice would count twice."""

    def count(x, state, counter):
        counter.add_(1)
        state.mul_(0.5).add_(x.mean(0))
        return x - state

    x = torch.randn(6, 4)
    mine, theirs = [torch.zeros(4), torch.zeros(1)], [torch.zeros(4), torch.zeros(1)]
    fast = tracer_core.compile(count, backend=backend_of(failure))
    for _ in range(3):
        assert torch.equal(fast(x, *mine), count(x, *theirs))
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("failure", FAILURES)
def test_random_numbers_are_drawn_once(failure):
    def noisy(x):
        return x + torch.rand_like(x), torch.dropout(x, 0.5, True)

    x, fast = torch.randn(3, 4), tracer_core.compile(noisy, backend=backend_of(failure))
    torch.manual_seed(3)
    expected = [noisy(x) for _ in range(3)]
    torch.manual_seed(3)
    for pair in expected:
        assert all(map(torch.equal, fast(x), pair))


def test_a_number_becomes_a_constant_before_the_backend_is_given_up():
    def no_symbols(graph, spec):
        if spec.sizes:
            raise NotImplementedError("symbolic sizes")
        return lambda inputs: graph(*inputs)

    fast = tracer_core.compile(lambda x: x * 2 + 1, backend=backend_of(no_symbols), dynamic=True)
    for size in (3, 5):
        assert torch.equal(fast(torch.ones(size)), torch.full((size,), 3.0))
    assert not fallbacks_of(fast)


def test_fullgraph_demands_one_graph_and_no_backend():
    fast = tracer_core.compile(step, backend=backend_of(cannot_compile), fullgraph=True)
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    assert torch.equal(fast(x, w), step(x, w))


def test_explain_says_so():
    fast = tracer_core.compile(step, backend=backend_of(cannot_compile))
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    fast(x, w)
    report = tracer_core.explain(fast)(x, w)
    (reason,) = report.skipped
    assert reason.startswith("graph_") and ": backend_failed: " in reason
    assert f"ran eagerly: {reason}" in str(report)


class TestWhatStaysAnError:
    def test_a_function_of_the_user(self):
        def mine(gm, inputs):
            raise KeyError("mine")

        with pytest.raises(BackendError, match="mine"):
            tracer_core.compile(step, backend=mine)(torch.ones(2, 2), torch.ones(2, 2))

    def test_strict_mode(self, monkeypatch):
        monkeypatch.setenv("TRACER_STRICT", "1")
        with pytest.raises(BackendError, match="no kernel"):
            fast = tracer_core.compile(step, backend=backend_of(cannot_compile))
            fast(torch.ones(2, 2), torch.ones(2, 2))

    def test_an_option_that_is_none(self):
        with pytest.raises(OptionError):
            tracer_core.compile(step, options={"nonsense": 1})

    def test_something_that_the_user_has_to_supply(self):
        def lacks(graph, spec):
            raise RequirementError("careless", "toolchain", "install libcareless")

        with pytest.raises(BackendError, match="install libcareless"):
            fast = tracer_core.compile(step, backend=backend_of(lacks))
            fast(torch.ones(2, 2), torch.ones(2, 2))

    def test_inputs_too_large_to_be_copied(self, monkeypatch):
        def count(x, counter):
            counter.add_(1)
            return x.t() * 2

        x, counter = torch.randn(3, 4), torch.zeros(8)
        monkeypatch.setattr(tracer_core.limits, "MAX_FIRST_CALL_COPIES", 16)
        fast = tracer_core.compile(count, backend=backend_of(wrong_dtype))
        with pytest.raises(BackendError, match="careless"):
            fast(x, counter)

    def test_the_conformance_kit(self):
        from tracer_core.testing.conformance.run import conformance

        rows = conformance(backend_of(cannot_compile), sample=3)
        assert {row.status for row in rows} == {"error"}

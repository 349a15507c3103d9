"""The recompile limit: what happens at it and after it; the line after the first call."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

import tracer_core
from tests.tracer.twin import same
from tracer_core.errors import RecompileLimitWarning
from tracer_core.testing import CaptureCounter

X = torch.randn(3, 4)
WORDS = [f"word{i}" for i in range(14)]


def noisy(x, word):
    y = x + 1
    print(end="")
    return y * (2 if word == "word3" else 3), word


BOX = {"word": ""}


def says(x):
    y = x + 1
    print(end="")
    return y * (2 if BOX["word"] == "word3" else 3)


def calls_says(x):
    return says(x - 1) + 1


def test_the_limit_warns_once_and_names_the_guard():
    compiled = tracer_core.compile(lambda x, word: x + len(word), backend="eager")
    with pytest.warns(RecompileLimitWarning, match="word == 'word7'.*'word8'") as caught:
        for word in WORDS:
            assert torch.equal(compiled(X, word), X + len(word))
    assert len([one for one in caught if one.category is RecompileLimitWarning]) == 1


def test_a_function_at_its_limit_still_uses_what_was_captured():
    compiled = tracer_core.compile(lambda x, word: x + len(word), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for word in WORDS:
            compiled(X, word)
    with CaptureCounter() as counter:
        for word in WORDS:
            assert torch.equal(compiled(X, word), X + len(word))
    assert counter.graphs == []


@pytest.mark.filterwarnings("ignore")
def test_limit_after_a_break_in_the_function_itself():
    same(noisy, *[(X, word) for word in WORDS], *[(X, word) for word in WORDS], breaks=None)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_function_at_its_limit_is_called_as_plain_python():
    compiled = tracer_core.compile(calls_says, backend="eager")
    with CaptureCounter() as counter:
        for word in WORDS:
            BOX["word"] = word
            assert torch.equal(compiled(X), calls_says(X))
    assert "recompile_limit" in {kind for kind, _, _ in counter.breaks}
    with CaptureCounter() as later:
        for word in reversed(WORDS):
            BOX["word"] = word
            assert torch.equal(compiled(X), calls_says(X))
    assert later.graphs == later.recompiles == []


def test_the_limit_of_the_config_is_used():
    seen = same(lambda x, word: x + len(word), *[(X, word) for word in WORDS[:6]], graphs=6)
    assert len(seen.counter.recompiles) == 5


def line_of(caplog, fn, *args):
    with caplog.at_level(logging.INFO, logger="tracer_core"):
        tracer_core.compile(fn, backend="eager")(*args)
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "tracer_core"]


def test_first_call_without_breaks_is_an_info(caplog):
    assert line_of(caplog, lambda x: x + 1, X) == [
        ("INFO", "test_first_call_without_breaks_is_an_info.<locals>.<lambda>: 1 graph, 0 graph breaks")
    ]


def test_first_call_with_breaks_is_a_warning_that_names_the_worst(caplog):
    def f(x):
        print(end="")
        for _ in range(3):
            x = x + 1
            x.sum().item()
        return x

    ((level, text),) = line_of(caplog, f, X)
    assert level == "WARNING"
    assert "graph breaks; the worst at " in text and "test_limits.py:" in text and "item()" in text


def test_the_line_comes_once_and_names_the_module(caplog):
    module = torch.nn.Linear(4, 4)
    with caplog.at_level(logging.INFO, logger="tracer_core"):
        compiled = tracer_core.compile(module, backend="eager")
        for x in (X, torch.randn(5, 4), X.double().float()):
            compiled(x)
    lines = [one.getMessage() for one in caplog.records if one.name == "tracer_core"]
    assert len(lines) == 1 and "Linear" in lines[0]

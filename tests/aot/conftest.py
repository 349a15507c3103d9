"""What the tests of lowered graphs share."""

from __future__ import annotations

import pytest

import tracer_core
from tracer_core.dispatch import compile_graph


@pytest.fixture
def strict(monkeypatch):
    """Nothing falls back inside the tracer without an error."""
    monkeypatch.setenv("TRACER_STRICT", "1")
    yield
    tracer_core.reset()


@pytest.fixture
def fallbacks(monkeypatch):
    """What ran without its backend, as it happens."""
    actual: list[compile_graph.Fallback] = []
    monkeypatch.setattr(compile_graph, "report", actual.append)
    return actual

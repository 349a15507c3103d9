"""Objects whose end is noted, and a garbage collector that does not run meanwhile."""

from __future__ import annotations

import gc

import pytest


class Thing:
    def __init__(self, n=1):
        self.n = n


# -- what the tracer must not keep alive --


@pytest.fixture
def uncollected():
    """Cycles are collected only where a test asks for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()

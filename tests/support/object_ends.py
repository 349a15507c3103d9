"""For tests of when objects die: an object, and a garbage collector that waits."""

from __future__ import annotations

import gc

import pytest


class Thing:
    def __init__(self, n=1):
        self.n = n


@pytest.fixture
def uncollected():
    """Cycles are collected only where a test asks for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()

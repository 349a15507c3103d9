"""Compares what a program says of its results, for objects that have no equality."""

from __future__ import annotations

import torch

import tracer_core
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def described(fn, describe, breaks=0):
    """describe(result) must be the same for eager and compiled, in three calls."""
    compiled = tracer_core.compile(fn, backend="eager")
    with CaptureCounter() as counter:
        for x in (X, Y, X):
            compare(describe(fn(x.clone())), describe(compiled(x.clone())))
    assert len(counter.breaks) == breaks, counter.breaks
    assert not counter.recompiles

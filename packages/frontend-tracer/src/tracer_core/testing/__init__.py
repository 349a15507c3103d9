"""What tests of tracer_core and of backends use: differential checks, counters, conformance,
graphs.

`check` runs a program eagerly and compiled and compares everything a program can see. `conformance`
does that for a backend over a table of small graphs, without the tracer. Importing this package
imports no test framework.
"""

from __future__ import annotations

from tracer_core.testing.compare import (
    Mismatch,
    Tolerance,
    compare,
    compare_aliasing,
    error_ratio,
    relative_error,
    tensors_in,
)
from tracer_core.testing.conformance import CASES, Case, Row, conformance, table
from tracer_core.testing.counting import CaptureCounter, CountingBackend
from tracer_core.testing.differential import Outcome, Report, check
from tracer_core.testing.torch_graph import torch_graph

__all__ = [
    "CASES",
    "CaptureCounter",
    "Case",
    "CountingBackend",
    "Mismatch",
    "Outcome",
    "Report",
    "Row",
    "Tolerance",
    "check",
    "compare",
    "compare_aliasing",
    "conformance",
    "error_ratio",
    "relative_error",
    "table",
    "tensors_in",
    "torch_graph",
]

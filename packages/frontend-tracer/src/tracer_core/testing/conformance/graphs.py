"""Runs the small graphs of `cases` through lowering and a backend, without the tracer.

In: a case, a dtype, a shape, a validated config. Out: a `Row`. What always holds: a case is run
twice, because the core checks the first result only; the program's own writes are compared as its
results are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.aot.backend_failure import raising_failures
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.options import CompileConfig
from tracer_core.testing.compare import Mismatch, Tolerance, compare, compare_aliasing
from tracer_core.testing.conformance.cases import Case
from tracer_core.testing.conformance.row import Row, error_text
from tracer_core.testing.torch_graph import torch_graph

TOLERANCES = {
    torch.bfloat16: Tolerance(2e-2, 2e-2),
    torch.float16: Tolerance(5e-3, 5e-3),
    torch.float32: Tolerance(1e-4, 1e-5),
}


def graph_row(case: Case, dtype: torch.dtype, shape: tuple[int, ...], config: CompileConfig) -> Row:
    """The row of one case."""

    def row(status: str, detail: str = "", refused: tuple[tuple[str, str], ...] = ()) -> Row:
        return Row(case.name, dtype, shape, status, detail, case.area, refused)

    inputs = case.inputs(dtype, shape)
    with torch.no_grad():
        mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        expected = case.fn(*theirs)
        captured = torch_graph(case.fn, copy.deepcopy(inputs))
        extra = captured.real_inputs[len(inputs) :]
        try:
            with raising_failures():
                runner = compile_graph(captured, config)
            # the first call is checked, the second is the usual
            for value in (copy.deepcopy(inputs), mine):
                result = runner([*value, *extra])
        except Exception as error:  # a row says what went wrong; the table goes on
            return row("error", error_text(error))
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    tolerance = TOLERANCES.get(dtype, Tolerance())
    difference = _difference(expected, theirs, tuple(result), mine, tolerance)
    if difference:
        return row("wrong", difference)
    fallback = runner.fallback
    if fallback is None:
        return row("ok")
    status = "partly" if fallback.kind == "unsupported" else "eager"
    return row(status, fallback.reason, fallback.refused)


def _difference(
    expected: Sequence[Any], theirs: Any, result: Sequence[Any], mine: Any, tolerance: Tolerance
) -> str:
    try:
        compare(expected, result, tolerance)
        compare(theirs, mine, tolerance, "inputs")
        compare_aliasing([theirs, expected], [mine, result])
    except Mismatch as mismatch:
        return str(mismatch)
    return ""

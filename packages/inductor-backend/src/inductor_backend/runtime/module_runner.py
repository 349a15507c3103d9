"""`ModuleRunner`: the runner of a generated module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracer_core.plugin_api import RunFunction, Runner

#: Names that a generated module may define beside ``call``: `Runner.mutated_on_error` and
#: `ModuleRunner.scalars`.
MUTATED_ON_ERROR, SCALARS = "MUTATED_ON_ERROR", "SCALARS"


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRunner(Runner):
    """A runner with what CUDA graphs ask of it.

    launches: kernels and operators of one call. scalars: (the numbers among the inputs of a call,
    what runs the module with these in a tensor as one more input), so that a recording can read
    other numbers in each replay; None where there are none, or an operator takes one as it is.
    """

    launches: int = 0
    scalars: tuple[Callable[[list[Any]], list[float]], RunFunction] | None = None

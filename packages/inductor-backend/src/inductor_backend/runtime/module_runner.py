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
    """A runner with what CUDA graph capture needs."""

    #: Kernels and operators of one call.
    launches: int = 0
    #: (the symbolic scalars among the inputs of a call, a function that runs the module with these
    #: in a tensor as one more input), so that each replay can read other values; None where there
    #: are none, or an operator takes one directly.
    scalars: tuple[Callable[[list[Any]], list[float]], RunFunction] | None = None

"""Executes the text of an `OutputPlan` around a runner."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracer_core import torch_private
from tracer_core.contract.runner import RunFunction


def bound(
    text: str, file: str, runner: RunFunction, constants: Sequence[torch.Tensor]
) -> RunFunction:
    """Returns the function of an `OutputPlan`'s text around a runner for the ATen graph."""
    space = {"runner": runner, "constants": constants, "created": torch_private.created}
    exec(compile(text, file, "exec"), space)
    call: RunFunction = space["call"]  # type: ignore[assignment]
    return call

"""Runs stored graphs with atomic additions as torch runs operators without a deterministic form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from inductor_backend.runtime.module_runner import ModuleRunner
from tracer_core.plugin_api import RunFunction


def without_deterministic_form(runner: ModuleRunner, name: str) -> ModuleRunner:
    """Returns a runner that raises RuntimeError (with ``warn_only``: warns) where
    ``torch.use_deterministic_algorithms(True)`` holds. A stored graph cannot be compiled again for
    that setting. name: of the graph, for the message."""

    def checked(run: RunFunction) -> RunFunction:
        def run_checked(inputs: list[Any]) -> Sequence[Any]:
            if torch.are_deterministic_algorithms_enabled():
                _alert(name)
            return run(inputs)

        return run_checked

    scalars = None if runner.scalars is None else (runner.scalars[0], checked(runner.scalars[1]))
    return replace(runner, run=checked(runner.run), scalars=scalars)


def _alert(name: str) -> None:
    text = (
        f"{name} was stored with atomic additions, which are not deterministic, and"
        " torch.use_deterministic_algorithms(True) was called after its forward. Call it before, or"
        " not at all."
    )
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(text)
    warnings.warn(text, UserWarning, stacklevel=2)

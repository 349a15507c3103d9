"""Runners around which modes of the caller are off."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.branch_prediction import committing
from tracer_core.contract.runner import RunFunction


def without_modes(modes: Sequence[str], run: RunFunction) -> RunFunction:
    """`run` with these modes off around it: ``"grad"``, or the device type of an autocast."""
    for mode in modes:
        autocast_off = functools.partial(torch.autocast, mode, enabled=False)
        run = inside(torch.no_grad if mode == "grad" else autocast_off, run)
    return run


def inside(context: Callable[[], Any], run: RunFunction) -> RunFunction:
    def run_inside(inputs: list[Any]) -> Sequence[Any]:
        with context():
            return run(inputs)

    return committing(run_inside, run)


def uncast(device: torch.device, run: RunFunction) -> RunFunction:
    """Wraps `run` so that an ambient autocast does not cast again."""
    kind = device.type

    def without_autocast(inputs: list[Any]) -> Sequence[Any]:
        if not torch.is_autocast_enabled(kind):
            return run(inputs)
        with torch_private.autocast_off():
            return run(inputs)

    return without_autocast

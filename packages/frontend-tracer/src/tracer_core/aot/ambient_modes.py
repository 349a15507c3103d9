"""Runners around which modes of the caller are off."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

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

    return run_inside

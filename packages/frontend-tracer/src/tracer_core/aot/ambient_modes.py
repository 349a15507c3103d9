"""Runners around which modes of the caller are off, and inference mode is on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.writes_across_parts import memory_of
from tracer_core.contract.branch_prediction import committing
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction

#: A mode that is on around a runner.
INFERENCE = "inference"


def without_modes(modes: Sequence[str], run: RunFunction) -> RunFunction:
    """`run` with these modes off around it: ``"grad"``, or the device type of an autocast.
    `INFERENCE` is on around it."""
    contexts = {"grad": torch.no_grad, INFERENCE: torch.inference_mode}
    for mode in modes:
        autocast_off = functools.partial(torch.autocast, mode, enabled=False)
        run = inside(contexts.get(mode, autocast_off), run)
    return run


def returns_inference_tensors(captured: CapturedGraph) -> bool:
    """Returns whether every new tensor that a graph returns is made under its inference mode, which
    its caller has off."""
    if torch.is_inference_mode_enabled():
        return False
    graph = captured.gm.graph
    (output,) = graph.find_nodes(op="output")
    inputs = {memory_of(node.meta.get("val")) for node in graph.find_nodes(op="placeholder")}
    values = [node.meta.get("val") for node in output.all_input_nodes]
    new = [value for value in values if memory_of(value) not in {None, *inputs}]
    return bool(new) and all(value.is_inference() for value in new)


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

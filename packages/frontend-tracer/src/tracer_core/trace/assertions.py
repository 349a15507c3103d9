"""Assertions of a program: branches on a tensor of which one way only raises.

The trace goes the other way, and the graph has one more result: whether all these conditions hold.
The entry reads it before any side effect. Where it is false the program runs eagerly from where the
entry begins, and raises what it raises.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.natives.tracing import Tracing

#: A jump by the truth of a value -> the truth with which it jumps.
_JUMPS_IF = {
    f"POP_JUMP_{way}IF_{truth}".upper(): truth
    for way in ("FORWARD_", "BACKWARD_", "")
    for truth in (True, False)
}


def assumed(tracer: Tracing, value: torch.Tensor) -> bool | None:
    """Returns the truth of a tensor if the instruction is a branch whose other way only raises, and
    makes it a condition of the graph; else None."""
    frame, recorder = tracer.frames[-1], tracer.recorder
    jumps_if = _JUMPS_IF.get(frame.code.names[frame.last])
    if jumps_if is None or not tracer.shapes.takes_assertions or not _is_single(value):
        return None
    raises = frame.code.only_raises
    ways = {jumps_if: frame.code.args[frame.last] in raises, not jumps_if: frame.last + 1 in raises}
    inside = tracer.nesting or recorder.program_modes or torch_private.transforms_active()
    if ways[True] == ways[False] or inside or recorder.fakes.any_was_written():
        return None
    truth = ways[False]
    condition = recorder.call(torch.Tensor.bool, (value,), {})
    if value.dim():
        condition = recorder.call(torch.Tensor.reshape, (condition, ()), {})
    if not truth:
        condition = recorder.call(torch.logical_not, (condition,), {})
    if recorder.asserted is not None:
        condition = recorder.call(torch.logical_and, (recorder.asserted, condition), {})
    recorder.asserted = condition
    return truth


def _is_single(value: Any) -> bool:
    return all(type(size) is int and size == 1 for size in value.shape)

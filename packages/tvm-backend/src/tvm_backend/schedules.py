"""Default schedules for the CPU: tiles convolutions and matmuls for registers, vectorises the
rest.

Uses only TVM's own schedule primitives, which keep what a loop nest computes. A function that is
scheduled already (by a recorded search), or on which a primitive fails, stays as it is."""

from __future__ import annotations

import math
from typing import Any

from tracer_core.plugin_api import note
from tvm_backend.tiles import PARALLEL, REDUCTION, extent, largest, tile

#: Vector widths in elements, the best first.
WIDTHS = (16, 8, 4, 2)

DONE = "tirx.is_scheduled"


def apply_defaults(module: Any) -> Any:
    """Returns the module with default schedules."""
    import tvm

    updated = {}
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and not is_scheduled(function):
            result = scheduled(function)
            if result is not None:
                updated[name] = result
    for name, function in updated.items():
        module[name] = function
    return module


def is_scheduled(function: Any) -> bool:
    """Returns whether a record or a rule scheduled the function."""
    return bool(function.attrs and DONE in function.attrs)


def scheduled(function: Any) -> Any:
    """Returns a scheduled copy of a function, or None."""
    from tvm import s_tir

    try:
        schedule = s_tir.Schedule(function)
        _inline(schedule)
        for block in _blocks(schedule):
            if _is_reduction(schedule, block):
                tile(schedule, block)
            else:
                _vectorise(schedule, block)
    except Exception as error:  # errors of schedule primitives have no common base but Exception
        note("stages", "tvm: no default schedule: %s", str(error).strip().splitlines()[0])
        return None
    return schedule.mod["main"].with_attr(DONE, True)


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _is_reduction(schedule: Any, block: Any) -> bool:
    return any(int(axis.iter_type) == REDUCTION for axis in schedule.get(block).iter_vars)


def _inline(schedule: Any) -> None:
    """Inlines pointwise steps into the pointwise steps that read them. What a reduction reads is
    computed before it. A step with an elementary function is not inlined into another such step:
    TVM's simplifier would visit each path through both."""
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks("root")}
    for block in _blocks(schedule):
        readers = schedule.get_consumers(block)
        if schedule.get(block).name_hint in outputs or _is_reduction(schedule, block):
            continue
        if not readers or any(_is_reduction(schedule, reader) for reader in readers):
            continue
        if not (
            _has_lets(schedule, block) and any(_has_lets(schedule, reader) for reader in readers)
        ):
            schedule.compute_inline(block)


def _has_lets(schedule: Any, block: Any) -> bool:
    """Returns whether a step contains a function of `elementary`; TVM has no visitor for Python."""
    return "T.Let(" in schedule.get(block).script()


def _vectorise(schedule: Any, block: Any) -> None:
    """Parallelises the outer loops of a pointwise step and vectorises its last loop."""
    loops = schedule.get_loops(block)
    extents = [extent(schedule.get(loop)) for loop in loops]
    while extents and extents[-1] == 1:  # images of one pixel
        loops, extents = loops[:-1], extents[:-1]
    if not loops:
        return
    width = largest(extents[-1], WIDTHS)
    *outer, last = loops
    if width > 1:
        split, vector = schedule.split(last, factors=[None, width])
        schedule.vectorize(vector)
        outer = [*outer, split]
    if outer and (None in extents or math.prod(size for size in extents if size) >= PARALLEL):
        schedule.parallel(schedule.fuse(*outer))

"""Default schedules for the CPU: loops of convolutions and products tiled for registers, everything vectorised.

In: a fused Relax module. Out: the module with its loop nests scheduled, where they are of a known form. What always
holds: only TVM's own schedule primitives are used, which keep what a loop nest computes, and the order in which a sum
is added up; what has symbolic sizes, was scheduled already (by recorded searches) or refuses a primitive stays as it is.

A sum of products gets this nest: the outer loops in parallel; a tile of up to 8 rows by 16 columns in registers; the
sum's loops; the tile's rows unrolled, its columns one vector. Rows are a loop that the vector's loads do not depend on
(output channels of a convolution), so each load serves all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracer_core.plugin_api import logger

#: Columns of a tile (a vector), and rows, the best first.
WIDTHS = (16, 8, 4, 2)
ROWS = (8, 4, 2)

#: Below this many elements a loop is not worth other threads.
PARALLEL = 1 << 14

DONE = "tirx.is_scheduled"
REDUCTION = 2  # tirx.IterVar.CommReduce


def apply_defaults(module: Any) -> Any:
    """The module with default schedules."""
    import tvm

    updated = {}
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and not (function.attrs and DONE in function.attrs):
            made = _scheduled(function)
            if made is not None:
                updated[name] = made
    for name, function in updated.items():
        module[name] = function
    return module


def _scheduled(function: Any) -> Any:
    """A scheduled form of a function, or None."""
    from tvm import s_tir

    try:
        schedule = s_tir.Schedule(function)
        _inline(schedule)
        for block in _blocks(schedule):
            if _is_reduction(schedule, block):
                _tile(schedule, block)
            else:
                _vectorise(schedule, block)
    except Exception as error:  # a primitive's refusal; its errors have no common base but Exception
        logger("stages").info("tvm: no default schedule: %s", str(error).strip().splitlines()[0])
        return None
    return schedule.mod["main"].with_attr(DONE, True)


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _is_reduction(schedule: Any, block: Any) -> bool:
    return any(int(axis.iter_type) == REDUCTION for axis in schedule.get(block).iter_vars)


def _inline(schedule: Any) -> None:
    """Pointwise steps become a part of the pointwise step that reads them; what a sum reads is computed before it."""
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks("root")}
    for block in _blocks(schedule):
        readers = schedule.get_consumers(block)
        if schedule.get(block).name_hint in outputs or _is_reduction(schedule, block):
            continue
        if readers and not any(_is_reduction(schedule, reader) for reader in readers):
            schedule.compute_inline(block)


def _extents(schedule: Any, loops: Sequence[Any]) -> list[int]:
    """Raises TypeError for a symbolic one."""
    return [int(schedule.get(loop).extent) for loop in loops]


def _largest(extent: int, factors: Sequence[int]) -> int:
    return next((factor for factor in factors if extent % factor == 0), 1)


def _vectorise(schedule: Any, block: Any) -> None:
    """A pointwise step: outer loops in parallel, the last one in vectors."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    extents = _extents(schedule, loops)
    total = 1
    for extent in extents:
        total *= extent
    width = _largest(extents[-1], WIDTHS)
    *outer, last = loops
    if width > 1:
        split, vector = schedule.split(last, factors=[None, width])
        schedule.vectorize(vector)
        outer = [*outer, split]
    if outer and total >= PARALLEL:
        schedule.parallel(schedule.fuse(*outer))


def _tile(schedule: Any, block: Any) -> None:
    """A sum of products; other reductions stay as they are."""
    axes = schedule.get(block).iter_vars
    loops = schedule.get_loops(block)
    if len(axes) != len(loops):
        return
    kinds = [int(axis.iter_type) == REDUCTION for axis in axes]
    spatial = [i for i, reduced in enumerate(kinds) if not reduced]
    sums = [loops[i] for i, reduced in enumerate(kinds) if reduced]
    extents = _extents(schedule, loops)
    rows = _row_axis(schedule, block, axes, spatial)
    if rows is None:
        return
    column = spatial[-1]
    width, height = _largest(extents[column], WIDTHS), _largest(extents[rows], ROWS)
    if width == 1:
        return
    result = schedule.cache_write(block, 0, "local")
    column_outer, vector = schedule.split(loops[column], factors=[None, width])
    rows_outer, row = schedule.split(loops[rows], factors=[None, height])
    outer = [rows_outer if i == rows else column_outer if i == column else loops[i] for i in spatial]
    schedule.reorder(*outer, *sums, row, vector)
    schedule.reverse_compute_at(result, outer[-1])
    schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.vectorize(vector)
    schedule.unroll(row)
    schedule.parallel(schedule.fuse(*outer[:-1]))
    schedule.decompose_reduction(block, sums[0])  # last: the tile's zeros get loops like the tile's


def _row_axis(schedule: Any, block: Any, axes: Sequence[Any], spatial: Sequence[int]) -> int | None:
    """The axis of the tile's rows: the longest that an operand with the columns does not have. None: not a sum of
    products, or there is no such axis."""
    from tvm.tirx.analysis import undefined_vars

    statement = schedule.get(block)
    if len(statement.reads) < 2 or len(spatial) < 2:
        return None
    column = axes[spatial[-1]].var
    shared: set[int] = set()
    for region in statement.reads:
        used = [variable for part in region.region for variable in undefined_vars(part.min)]
        if any(column.same_as(variable) for variable in used):
            has = {index for index, axis in enumerate(axes) if any(axis.var.same_as(one) for one in used)}
            shared |= {index for index in spatial[:-1] if index not in has}
    extents = {index: int(axes[index].dom.extent) for index in shared}
    return max(extents, key=extents.__getitem__) if extents else None

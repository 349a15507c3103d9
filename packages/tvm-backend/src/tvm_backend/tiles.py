"""Register tiling of sums of products (convolutions and matmuls), with TVM's own schedule
primitives, which keep what a loop nest computes.

Two forms. Where ``b`` lies by columns (``b[k, n]``, images), the nest is: parallel outer loops;
a tile of rows by columns in registers; the K loops; the tile's rows unrolled, its columns one
vector. Rows are a loop that the vector's loads do not depend on (output channels of a
convolution), so that each load serves all rows. Where both operands lie along K (``a[m, k] *
b[n, k]``: weights of torch.nn.Linear), K itself is the vector: each result of a tile is a vector
of partial sums, added up at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Below this many elements, other threads do not pay for a loop.
PARALLEL = 1 << 14

REDUCTION = 2  # tirx.IterVar.CommReduce

#: (float32 lanes of a vector, vectors that a tile may keep in registers) with AVX-512 and without.
WIDE, NARROW = (16, 24), (8, 12)

#: Columns and rows of a tile of images or matrices, the best first; either for partial sums.
WIDTHS, ROWS, SMALL = (32, 16, 8, 4, 2), (12, 8, 7, 6, 5, 4, 3, 2), (8, 6, 5, 4, 3, 2, 1)


#: Annotation of a sum: the position of the axis with a tile's rows.
TILE_ROWS = "tvm_backend.tile_rows"

#: Annotation of a reduction: its last spatial axis is a vector.
TILE_LANES = "tvm_backend.tile_lanes"


def vectors() -> tuple[int, int]:
    """Returns (lanes, registers) of this processor."""
    return WIDE if "AVX512" in torch.backends.cpu.get_cpu_capability() else NARROW


@dataclass(frozen=True, slots=True)
class Form:
    """Positions of a sum's axes among the block's."""

    #: None where there is no such axis.
    rows: int | None
    column: int
    #: K is the vector.
    dot: bool
    #: Every index is a plain loop variable or has the column in it (a matmul).
    matrix: bool
    #: Axes that the vector's loads do not depend on, rows among them.
    free: frozenset[int]


def extent(loop: Any) -> int | None:
    """Returns a loop's extent; None where it is symbolic."""
    value = getattr(loop.extent, "value", loop.extent)
    return value if isinstance(value, int) else None


def largest(size: int | None, factors: Iterable[int]) -> int:
    """Returns the first of the factors that divides a size; 1 if none does, or the size is
    symbolic."""
    return 1 if size is None else next((factor for factor in factors if size % factor == 0), 1)


def tile(schedule: Any, block: Any) -> None:
    """Schedules a reduction: tiles a sum of products, and parallelises any other over its
    results."""
    axes = schedule.get(block).iter_vars
    loops = schedule.get_loops(block)
    if len(axes) != len(loops):
        return
    if TILE_LANES in schedule.get(block).annotations:
        _lanes(schedule, block, loops)
        return
    form = _form(schedule.get(block), axes)
    extents = [extent(schedule.get(loop)) for loop in loops]
    if form is None:
        _shared_out(schedule, block, loops, extents)
    elif form.dot:
        _partial_sums(schedule, block, form, loops, extents)
    else:
        _rows_by_columns(schedule, block, form, loops, extents)


def _shared_out(
    schedule: Any, block: Any, loops: Sequence[Any], extents: Sequence[int | None]
) -> None:
    """Parallelises any other reduction over its results."""
    spatial, _ = _apart(schedule, block, loops)
    total = math.prod(size or PARALLEL for size in extents)
    if spatial and spatial == list(range(len(spatial))) and total >= PARALLEL:
        schedule.parallel(schedule.fuse(*(loops[i] for i in spatial)))


def _lanes(schedule: Any, block: Any, loops: Sequence[Any]) -> None:
    """Keeps partial results of rows in one vector, and parallelises over rows."""
    spatial, sums = _apart(schedule, block, loops)
    *outer, vector = (loops[i] for i in spatial)
    result = schedule.cache_write(block, 0, "local")
    schedule.reorder(*outer, *sums, vector)
    if outer:
        schedule.reverse_compute_at(result, outer[-1])
        schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.vectorize(vector)
    if outer:
        schedule.parallel(schedule.fuse(*outer))
    schedule.decompose_reduction(block, sums[0])


def _rows_by_columns(
    schedule: Any, block: Any, form: Form, loops: Sequence[Any], extents: Sequence[int | None]
) -> None:
    spatial, sums = _apart(schedule, block, loops)
    width = largest(extents[form.column], WIDTHS)
    if width == 1:
        _shared_out(schedule, block, loops, extents)
        return
    height = _height(extents[form.rows] if form.rows is not None else 1, width)
    result = schedule.cache_write(block, 0, "local")
    column_outer, vector = schedule.split(loops[form.column], factors=[None, width])
    inner = [vector]
    places = {form.column: column_outer}
    if form.rows is not None and height > 1:
        places[form.rows], row = schedule.split(loops[form.rows], factors=[None, height])
        inner = [row, vector]
    order = [i for i in spatial if i not in (form.rows, form.column)] if form.matrix else spatial
    # columns before rows: what a tile of columns reads stays in the cache for all rows
    if form.matrix:
        order = [*order, form.column, *(() if form.rows is None else (form.rows,))]
    outer = [places.get(i, loops[i]) for i in order]
    schedule.reorder(*outer, *sums, *inner)
    schedule.reverse_compute_at(result, outer[-1])
    schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.vectorize(vector)
    for loop in inner[:-1]:
        schedule.unroll(loop)
    # A matmul has few rows: threads share all its tiles. For images, the last loop stays in one
    # thread.
    schedule.parallel(schedule.fuse(*(outer if form.matrix or len(outer) == 1 else outer[:-1])))
    schedule.decompose_reduction(block, sums[0])  # last: the tile's zeros get loops like the tile's


def _partial_sums(
    schedule: Any, block: Any, form: Form, loops: Sequence[Any], extents: Sequence[int | None]
) -> None:
    """Tiles a sum whose operands both lie along K."""
    spatial, (total,) = _apart(schedule, block, loops)
    lanes, registers = vectors()
    width = largest(extent(schedule.get(total)), (lanes, 8, 4))
    if width == 1:
        _shared_out(schedule, block, loops, extents)
        return
    height, columns = _square(
        extents[form.rows] if form.rows is not None else 1, extents[form.column], registers * 2 // 3
    )
    _, vector = schedule.split(total, factors=[None, width])
    partial = schedule.rfactor(vector, factor_axis=len(spatial))
    final = schedule.get_loops(block)
    places = dict(zip(spatial, final[:-1], strict=True))
    splits = [(form.column, columns)] + ([] if form.rows is None else [(form.rows, height)])
    inner = []
    for axis, factor in splits:
        places[axis], small = schedule.split(places[axis], factors=[None, factor])
        inner.append(small)
    others = [i for i in spatial if i not in (form.rows, form.column)]
    order = [
        *(i for i in others if i not in form.free),
        form.column,
        *(i for i in others if i in form.free),
    ]
    outer = [places[i] for i in (*order, *(() if form.rows is None else (form.rows,)))]
    schedule.reorder(*outer, *reversed(inner), final[-1])
    schedule.set_scope(partial, 0, "local")
    # Through a copy: a buffer that is read element by element is not kept in registers.
    copy = schedule.cache_read(block, len(schedule.get(block).reads) - 1, "local")
    schedule.compute_at(copy, outer[-1])
    schedule.vectorize(schedule.get_loops(copy)[-1])
    schedule.compute_at(partial, outer[-1])
    lane, *rows, step = schedule.get_loops(partial)[len(outer) :]
    schedule.reorder(step, *rows, lane)
    schedule.vectorize(lane)
    for loop in [*rows, *inner, *schedule.get_loops(copy)[len(outer) : -1]]:
        schedule.unroll(loop)
    schedule.parallel(schedule.fuse(*outer))
    schedule.decompose_reduction(partial, step)  # last: what it leaves is no reduction any more


def _apart(schedule: Any, block: Any, loops: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Returns (positions of the spatial axes, loops of the reduction axes)."""
    kinds = [int(axis.iter_type) == REDUCTION for axis in schedule.get(block).iter_vars]
    return [i for i, reduced in enumerate(kinds) if not reduced], [
        loops[i] for i, reduced in enumerate(kinds) if reduced
    ]


def _height(rows: int | None, width: int) -> int:
    lanes, registers = vectors()
    most = registers * lanes // max(width, lanes)
    return largest(rows, [height for height in ROWS if height <= most])


def _square(rows: int | None, columns: int | None, registers: int) -> tuple[int, int]:
    """Returns rows and columns of a tile of partial sums with the fewest loads per
    multiplication."""
    sizes = [
        (height, width)
        for height in SMALL
        for width in SMALL
        if height * width <= registers
        and largest(rows, [height]) == height
        and largest(columns, [width]) == width
    ]
    return max(sizes, key=lambda size: size[0] * size[1] / (size[0] + size[1]))


def _form(statement: Any, axes: Sequence[Any]) -> Form | None:
    """Returns the form of a sum of products, or None if it is none of the known ones."""
    from tvm.tirx.analysis import undefined_vars

    spatial = [i for i, axis in enumerate(axes) if int(axis.iter_type) != REDUCTION]
    sums = [axis.var for axis in axes if int(axis.iter_type) == REDUCTION]
    regions = [[part.min for part in region.region] for region in statement.reads]
    if len(regions) < 2 or not spatial:
        return None

    def has(variable: Any, expressions: Sequence[Any]) -> bool:
        return any(variable.same_as(var) for part in expressions for var in undefined_vars(part))

    def is_axis(expression: Any) -> bool:
        return any(axis.var.same_as(expression) for axis in axes)

    column = axes[spatial[-1]].var
    with_column = [region for region in regions if has(column, region)]
    if not with_column:
        return None
    free = [i for i in spatial[:-1] if not any(has(axes[i].var, region) for region in with_column)]
    rows = max(free, key=lambda i: _size(axes[i])) if free else None
    if TILE_ROWS in statement.annotations:
        rows = int(statement.annotations[TILE_ROWS])
    matrix = all(is_axis(part) or has(column, [part]) for region in regions for part in region)
    dot = len(sums) == 1 and all(region and sums[0].same_as(region[-1]) for region in regions)
    if not dot and (rows is None or not all(has(column, region[-1:]) for region in with_column)):
        return None
    return Form(rows, spatial[-1], dot, matrix, frozenset(free))


def _size(axis: Any) -> int:
    """Returns an axis's size; a symbolic one counts as short."""
    return extent(axis.dom) or 0

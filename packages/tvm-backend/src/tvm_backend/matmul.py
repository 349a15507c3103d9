"""Matmuls written so that their loops can be tiled for any size.

``a`` lies by rows; ``b`` by columns, or transposed, by rows. Sizes that no tile divides,
symbolic ones among them, are rounded up in a buffer of the matmul's own: extra rows repeat the
last one, extra columns are zeros (`_tiles_by_rows` repeats the last column), and neither reaches
the result.

The steps are one function, which FuseOps can fuse with a pointwise epilogue. With symbolic sizes
each step is a function of its own, because TVM cannot prove that one step writes all that the
next one reads. Tiles of a frozen weight are a function too, which FoldConstant evaluates while
TVM compiles."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

from tvm_backend.tiles import ROWS, SMALL, TILE_ROWS, largest, vectors

#: Attributes of a matmul's function: a pointwise epilogue may be fused with it; or nothing may.
FUSABLE, ALONE = {"op_pattern": 4}, {"op_pattern": 8}

#: Attributes of a pointwise function.
POINTWISE = {"op_pattern": 0}

#: Padding may be at most this part of the rows, where a lower tile has less.
WASTE = 1 / 8

#: Fewer columns are not worth vectors; so many lanes do as well as a whole vector.
FEW = 8

#: Where the K loop is so many times as long as `a` has rows, tiling a transposed matrix costs as
#: much as it gains.
GAIN = 3

#: Longer K loops are split, as in other libraries: one long float32 sum is less exact. And the most
#: split-K chunks.
MAX_PART, PARTS = 512, 16


def transposed(builder: Any, a: Any, b: Any, frozen: bool) -> Any:
    """Emits ``a @ b.t()``. frozen: b is a constant."""
    rows, length = a.ty.shape
    columns = b.ty.shape[0]
    height, (width, _) = _height(rows, ROWS), _width(columns)
    sizes = _size(rows), _size(columns), _size(length)
    many = frozen or (None not in sizes and sizes[0] * GAIN > sizes[2])  # type: ignore[operator]
    if many and (sizes[0] is None or sizes[0] >= min(ROWS)) and width >= FEW:
        return _in_tiles(
            builder, a, b, width, height or largest(sizes[0], ROWS), _tiles_of_rows, alone=frozen
        )
    low = _height(rows, SMALL)
    if low is None:
        if sizes[1] is None or sizes[1] < 2 * FEW or largest(sizes[1], SMALL[:4]) > 1:
            return builder.emit_te(_by_rows, a, b, primfunc_attrs=FUSABLE)
        low = largest(sizes[0], (4, 3, 2))
    if sizes[0] is not None:
        joined = lambda a, b: _joined_rows(_tiles_by_rows(a, b, low), rows, columns)
        return builder.emit_te(joined, a, b, primfunc_attrs=FUSABLE, primfunc_name_hint="by_rows")
    tiles = builder.emit_te(_tiles_by_rows, a, b, low, primfunc_attrs=ALONE)
    return builder.emit_te(_joined_rows, tiles, rows, columns)


def product(builder: Any, a: Any, b: Any, frozen: bool) -> Any:
    """Emits ``a @ b``, of matrices or batches of them. frozen: b is a constant."""
    rows, length = a.ty.shape[-2], a.ty.shape[-1]
    width, full = _width(b.ty.shape[-1])
    height, size = _height(rows, ROWS), _size(rows)
    if (
        full
        and height is None
        and (size is None or size < min(ROWS) or (_parts_of(length) == 1 and not frozen))
    ):
        return builder.emit_te(_by_columns, a, b, primfunc_attrs=FUSABLE)
    result = None if full and not (frozen and width >= FEW) else _tiles_of_columns
    return _in_tiles(builder, a, b, width, height or largest(size, ROWS), result, alone=frozen)


def _in_tiles(
    builder: Any, a: Any, b: Any, width: int, height: int, result: Any, alone: bool
) -> Any:
    """Emits the matmul of a and the tiles that `result` makes of b (None: of b as it lies). alone:
    the tiles are constants."""
    rows = a.ty.shape[-2]
    columns = b.ty.shape[-1 if result is not _tiles_of_rows else -2]
    symbolic = any(_size(size) is None for size in (*a.ty.shape, *b.ty.shape))
    if result is not None and (alone or symbolic):
        b, result = builder.emit_te(result, b, width, primfunc_attrs=ALONE), _as_they_are

    def tiles(a: Any, b: Any) -> Any:
        return _tiles_of_matmul(
            a, b if result is None else result(b, width), columns, height, width, result is not None
        )

    if symbolic:
        return builder.emit_te(
            _joined, builder.emit_te(tiles, a, b, primfunc_attrs=ALONE), rows, columns
        )
    joined = lambda a, b: _joined(tiles(a, b), rows, columns)
    return builder.emit_te(joined, a, b, primfunc_attrs=FUSABLE, primfunc_name_hint="by_columns")


# Steps, in TVM's expression language
# --------------------------------------------------------------------


def _by_rows(a: Any, b: Any) -> Any:
    """Computes ``a @ b.t()`` as sums along the rows of both."""
    from tvm import te

    k = te.reduce_axis((0, a.shape[1]), name="k")
    return te.compute(
        (a.shape[0], b.shape[0]), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="by_rows"
    )


def _by_columns(a: Any, b: Any) -> Any:
    from tvm import te

    k = te.reduce_axis((0, a.shape[-1]), name="k")
    return te.compute(
        (*a.shape[:-1], b.shape[-1]),
        lambda *at: te.sum(a[(*at[:-1], k)] * b[(*at[:-2], k, at[-1])], axis=k),
        name="by_columns",
    )


def _tiles_by_rows(a: Any, b: Any, height: int) -> Any:
    """Computes [tile, row, column]; columns beyond the last one repeat it."""
    from tvm import te

    rows, columns = a.shape[0], b.shape[0]
    padded = _size(columns) is not None and largest(_size(columns), SMALL[:4]) == 1
    wide = _parts(columns, FEW) * FEW if padded else columns
    k = te.reduce_axis((0, a.shape[1]), name="k")
    return te.compute(
        (_parts(rows, height), height, wide),
        lambda tile, i, j: te.sum(
            a[te.min(tile * height + i, rows - 1), k]
            * b[te.min(j, columns - 1) if padded else j, k],
            axis=k,
        ),
        name="by_rows",
        attrs={TILE_ROWS: 1},
    )


def _joined_rows(tiles: Any, rows: Any, columns: Any) -> Any:
    from tvm import te

    height = tiles.shape[1]
    return te.compute((rows, columns), lambda i, j: tiles[i // height, i % height, j], name="rows")


def _tiles_of_columns(b: Any, width: int) -> Any:
    """Computes [..., tile, k, column], zeros beyond the last column."""
    from tvm import te, tirx

    *batch, length, columns = b.shape

    def element(*at: Any) -> Any:
        *where, tile, k, lane = at
        column = tile * width + lane
        if _divides(width, columns):
            return b[(*where, k, column)]
        return te.if_then_else(column < columns, b[(*where, k, column)], tirx.const(0, b.dtype))

    return te.compute((*batch, _parts(columns, width), length, width), element, name="tiles")


def _tiles_of_rows(b: Any, width: int) -> Any:
    """Computes the tiles of `_tiles_of_columns` from a transposed matrix."""
    from tvm import te, tirx

    columns, length = b.shape

    def element(tile: Any, k: Any, lane: Any) -> Any:
        column = tile * width + lane
        if _divides(width, columns):
            return b[column, k]
        return te.if_then_else(column < columns, b[column, k], tirx.const(0, b.dtype))

    return te.compute((_parts(columns, width), length, width), element, name="tiles")


def _as_they_are(tiles: Any, width: int) -> Any:
    return tiles


def _tiles_of_matmul(a: Any, b: Any, columns: Any, height: int, width: int, tiled: bool) -> Any:
    """Computes [..., split-K chunk, tile of columns, tile of rows, row, column]. tiled: b is
    tiles."""
    from tvm import te

    *batch, rows, length = a.shape
    parts = _parts_of(length)
    summed = length // parts
    k = te.reduce_axis((0, summed), name="k")

    def element(*at: Any) -> Any:
        *where, part, strip, tile, row, lane = at
        here = part * summed + k
        right = b[(*where, strip, here, lane)] if tiled else b[(*where, here, strip * width + lane)]
        return te.sum(a[(*where, te.min(tile * height + row, rows - 1), here)] * right, axis=k)

    shape = (*batch, parts, _parts(columns, width), _parts(rows, height), height, width)
    return te.compute(shape, element, name="by_columns", attrs={TILE_ROWS: len(batch) + 3})


def _joined(tiles: Any, rows: Any, columns: Any) -> Any:
    """Returns the matrix, or batch of matrices, that the tiles make up; adds up the split-K
    chunks."""
    from tvm import te

    *batch, parts, _, _, height, width = tiles.shape

    def element(*at: Any) -> Any:
        *where, i, j = at
        place = (j // width, i // height, i % height, j % width)
        return functools.reduce(
            operator.add, [tiles[(*where, part, *place)] for part in range(int(parts))]
        )

    return te.compute((*batch, rows, columns), element, name="columns")


def _parts_of(length: Any) -> int:
    """Returns the number of split-K chunks."""
    size = _size(length)
    if size is None:
        return 1
    return next(
        (parts for parts in range(1, PARTS + 1) if size % parts == 0 and size // parts <= MAX_PART),
        1,
    )


def _divides(width: int, columns: Any) -> bool:
    size = _size(columns)
    return size is not None and size % width == 0


def _width(columns: Any) -> tuple[int, bool]:
    """Returns the columns of a tile, and whether b needs no tiles of its own: the tile divides
    the columns, or there are few."""
    lanes, _ = vectors()
    size = _size(columns)
    width = largest(size, (2 * lanes, lanes))
    if width > 1 or (size is not None and (size < FEW or size % FEW == 0)):
        return max(width, 1), True
    return (lanes if size is not None and size <= lanes else 2 * lanes), False


def _height(rows: Any, heights: Iterable[int]) -> int | None:
    """Returns the rows of a tile to whose multiple the rows are rounded up; None where a tile
    divides them, or there are few."""
    size = _size(rows)
    tall = [height for height in heights if height >= 4]
    if size is None:
        return tall[-1]
    if size < 4 or largest(size, tall) > 1:
        return None
    wasted = {height: -size % height / size for height in tall}
    return next(
        (height for height in tall if wasted[height] <= WASTE),
        min(tall, key=lambda height: wasted[height]),
    )


def _parts(size: Any, part: int) -> Any:
    return (size + part - 1) // part


def _size(value: Any) -> int | None:
    """Returns a size as int, or None if it is symbolic."""
    value = getattr(value, "value", value)
    return value if isinstance(value, int) else None

"""Chooses how a Triton kernel covers its loops: axes, block sizes, warps.

An axis is a run of loops counted by one flat index; every loop of the nest belongs to one axis. Any
tile gives a correct kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from inductor_backend.codegen.common.loop_nest import LoopNest, accesses, walk
from inductor_backend.ir.index_expr import Expr, Index, product
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.split_reductions import MAX_HELD_COLUMN

#: Rows up to this length are held in registers (16 elements a thread with 16 warps).
MAX_PERSISTENT = 8192

#: The same for rows that are strided in memory, of which a block holds many; those that are read
#: more than once may be longer.
MAX_COLUMN = 64

#: Pointwise kernels with values of rows have blocks within rows that are at least so long: the last
#: block of a row is partly empty.
LONG_ROW = 4096

#: Rows of a block whose rows are contiguous but cross some operand: of this one, whose neighbours in
#: memory are in other rows, the block then reads at least 32 bytes at each place.
CROSSED_ROWS = 16

#: Elements of a block that a program of 16 warps holds in registers with several operands.
MAX_HELD = 16384

#: Columns of a program, at least: 32 bytes of float32 at each place.
LEAST_COLUMNS = 8

#: Rows so long that are read at an index from memory (the weights of chosen experts) wait for it
#: several in a program, with 32 elements a thread. Their tiles are not measured; of 8 experts' 2,048
#: rows of 768 one a program took 12.0 us, four 8.3 (H200).
LONG_GATHERED = 512

#: Streaming multiprocessors that a grid should keep busy.
PROCESSORS = 132

#: First number of the pseudo variables for axes' flat indices.
FLAT = 1000


@dataclass(frozen=True, slots=True)
class Axis:
    """letter: x, y or r (reduction). loops: numbers of its loops, outermost first. numel: product
    of their sizes. block: its elements in one program."""

    letter: str
    loops: tuple[int, ...]
    numel: Expr
    block: int

    @property
    def constant(self) -> str:
        return f"{self.letter.upper()}BLOCK"

    @property
    def exact(self) -> bool:
        """Returns whether no program exceeds the end, so that no mask is needed."""
        return isinstance(self.numel, int) and self.numel > 0 and self.numel % self.block == 0


@dataclass(frozen=True, slots=True)
class Tile:
    """axes: in the order of a block's dimensions. looped: a loop covers the last axis (r)."""

    axes: tuple[Axis, ...]
    warps: int
    looped: bool

    @property
    def outer(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.letter != "r")

    @property
    def reduced(self) -> Axis | None:
        return self.axes[-1] if self.axes[-1].letter == "r" else None


@cache
def power_of_two(least: int) -> int:
    """Returns the least power of two that is not below `least`."""
    return 1 << max(least - 1, 0).bit_length()


def _axis(letter: str, nest: LoopNest, loops: tuple[int, ...], block: int) -> Axis:
    return Axis(letter, loops, product(nest.sizes[k] for k in loops), block)


def choose_tile(program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars) -> Tile:
    """Chooses the tile by the access pattern."""
    flats = [walk(flat, nest) for flat in accesses(program, body)]
    outer = tuple(range(len(nest.outer)))
    inner = tuple(range(len(outer), len(nest.sizes)))
    if any(body.domain.reduced):
        again = sum(bool(phase.loop) for phase in body.phases) > 1
        return _reduction(nest, sizes, flats, outer, inner, again)
    crossing = _crossing(program, body, nest, sizes, flats)
    if crossing is not None:
        return _tiled(nest, sizes, crossing, _is_narrow(program, body))
    if _has_row_values(nest, sizes, flats):
        y, x = _axis("y", nest, outer[:-1], 1), _axis("x", nest, outer[-1:], 1024)
        return Tile((y, x), 4, False)
    return _flat(nest, sizes, outer, _is_narrow(program, body))


def _has_row_values(nest: LoopNest, sizes: SizeVars, flats: list[Index]) -> bool:
    """Returns whether a pointwise kernel reads several values once for each of its long rows (the
    statistics of a softmax): a block of one row loads them once, and divides no index."""
    last = len(nest.outer) - 1
    if last < 1 or sizes.hint(nest.outer[last]) < LONG_ROW:
        return False
    once = [flat for flat in flats if flat.variables() and flat.step(last) == 0]
    return len(once) > 1


def _is_narrow(program: LoopProgram, body: KernelBody) -> bool:
    """Returns whether a kernel reads and writes elements of at most 16 bits alone."""
    return all(program.buffers[name].dtype.itemsize <= 2 for name in (*body.writes, *body.reads()))


def _flat(nest: LoopNest, sizes: SizeVars, outer: tuple[int, ...], narrow: bool) -> Tile:
    """A thread of a large grid reads 16 bytes of each operand at once."""
    count = sizes.hint(product(nest.outer), 4096)
    if count <= 128:
        block = max(power_of_two(count), 32)
    elif count <= PROCESSORS * 4 * 128:
        block = 128
    else:
        block = 512 if count <= PROCESSORS * 8 * 512 else 1024
    warps = max(1, min(4, block // 32)) if block < 1024 or narrow else 8
    return Tile((_axis("x", nest, outer, block),), warps, False)


def _crossing(
    program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars, flats: list[Index]
) -> int | None:
    """Returns the loop along which some accesses are contiguous while others are contiguous along
    the last one."""
    last = len(nest.outer) - 1
    if last < 1 or sizes.hint(nest.outer[last]) < 8:
        return None
    if not any(flat.step(last) == 1 for flat in flats):
        return None
    numbers = [
        loop
        for loop in range(last)
        if sizes.hint(nest.outer[loop]) >= 8
        and any(flat.step(loop) == 1 and flat.step(last) not in (0, 1) for flat in flats)
    ]
    return max(numbers, key=lambda loop: sizes.hint(nest.outer[loop])) if numbers else None


def _tiled(nest: LoopNest, sizes: SizeVars, crossing: int, narrow: bool) -> Tile:
    """A block has as many elements where there are fewer rows (the nine places of a filter)."""
    rows, columns, warps = (64, 64, 8) if narrow else (16, 64, 4)
    few = min(rows, power_of_two(sizes.upper(nest.outer[crossing]) or rows))
    y = _axis("y", nest, (crossing,), few)
    others = tuple(k for k in range(len(nest.outer)) if k != crossing)
    return Tile((y, _axis("x", nest, others, columns * rows // few)), warps, False)


def _contiguous_elements(
    nest: LoopNest,
    sizes: SizeVars,
    flats: list[Index],
    outer: tuple[int, ...],
    inner: tuple[int, ...],
) -> tuple[int, int]:
    """Returns how many elements of rows are contiguous along an outer index, and how many along a
    reduction index."""
    reading = [flat for flat in flats if any(flat.step(k) != 0 for k in inner)]
    weights = [sizes.hint(product(nest.sizes[k] for k in flat.variables()), 1) for flat in reading]

    def along(loops: tuple[int, ...]) -> int:
        pairs = list(zip(reading, weights, strict=True))
        return max((sum(w for flat, w in pairs if flat.step(k) == 1) for k in loops), default=0)

    return along(outer), along(inner)


def _reduction(
    nest: LoopNest,
    sizes: SizeVars,
    flats: list[Index],
    outer: tuple[int, ...],
    inner: tuple[int, ...],
    again: bool,
) -> Tile:
    """again: its rows are read more than once."""
    rows, row = product(nest.outer), product(nest.reduced)
    count, length = sizes.hint(rows), max(sizes.hint(row), 1)
    longest = sizes.upper(row)
    across, along = _contiguous_elements(nest, sizes, flats, outer, inner)
    column, crossed = across > along, 0 < along <= 4 * across
    most = MAX_PERSISTENT if not column else MAX_HELD_COLUMN if again else MAX_COLUMN
    fits = longest is not None and longest <= most
    if fits:
        assert longest is not None
        r_block = power_of_two(max(longest, 1))
        gathered = r_block >= LONG_GATHERED and any(any(flat.indirect_values()) for flat in flats)
        x_block = _rows_at_once(count, r_block, column, gathered)
        if crossed and not column:
            least = min(CROSSED_ROWS, MAX_HELD // r_block, power_of_two(max(count, 1)))
            x_block = max(x_block, least)
    elif column:
        x_block = min(32, power_of_two(max(count, 1)))
        while x_block > LEAST_COLUMNS and count < PROCESSORS * x_block:
            x_block //= 2
        r_block = min(2048 // x_block, power_of_two(length))
    else:
        r_block = min(2048, power_of_two(length))
        x_block = max(1, min(512 // r_block, power_of_two(max(count, 1))))
    elements = x_block * r_block
    if not fits:
        warps = max(1, min(8, elements // 128))
    elif column or gathered:  # a thread adds up what it holds: the longer, the fewer exchanges
        warps = max(1, elements // 1024)
    else:
        warps = max(1, min(8 if r_block < MAX_PERSISTENT else 16, elements // 256))
    return Tile(
        (_axis("x", nest, outer, x_block), _axis("r", nest, inner, r_block)), warps, not fits
    )


def _rows_at_once(count: int, r_block: int, column: bool, gathered: bool) -> int:
    if column:
        most = max(8, 2048 // r_block)
    elif gathered:
        most = max(1, 4096 // r_block)
    else:
        most = max(32 if r_block <= 128 else 1, 1024 // r_block)
    block = min(most, power_of_two(max(count, 1)))
    least = min(block, 16) if column else 1
    while block > least and count < 2 * PROCESSORS * block:
        block //= 2
    return block


#: Candidates beside the chosen tile, by what a kernel does. Pointwise: (block, warps). One row or
#: column a block: (factor of its rows, elements a thread). A loop over many columns, over few long
#: rows, two contiguous dimensions, and a part of a row: (blocks, warps). Of 577 kernels of twelve models on an H200
#: the best of these is within 1 to 3 % of the best of 40, the chosen tile within 9 to 44 %.
_POINTS = ((1024, 8), (2048, 4), (512, 8), (1024, 4), (512, 4), (1024, 2))
_HELD = ((1, 32), (0.5, 4), (1, 4), (1, 64), (0.25, 16), (8, 16), (1, 16), (0.25, 2))
_COLUMNS = ((16, 32, 4), (32, 64, 8), (16, 8, 2), (8, 256, 16), (16, 16, 4), (32, 8, 2))
_ROWS = ((2, 2048, 16), (1, 8192, 16), (2, 1024, 16), (1, 2048, 8), (1, 4096, 16))
_PARTS = ((1, 1024, 8), (1, 2048, 8), (1, 2048, 4), (1, 1024, 4), (1, 512, 4), (1, 4096, 8))
_CROSSED = ((16, 64, 4), (32, 64, 4), (16, 32, 4), (16, 128, 8), (64, 64, 8), (32, 32, 4))


def candidates(tile: Tile) -> list[Tile]:
    """Returns tiles to benchmark for the same loops; the chosen one is the first."""
    first = tile.axes[0]
    if tile.reduced is None:
        shapes: Iterable[tuple[int, ...]] = _POINTS
        if len(tile.axes) > 1:
            shapes = _PARTS if first.block == 1 else _CROSSED
    elif not tile.looped:
        elements = first.block * tile.reduced.block
        shapes = (
            (int(first.block * rows), tile.reduced.block, int(elements * rows / (32 * held)))
            for rows, held in _HELD
        )
    else:
        shapes = _COLUMNS if first.block > 2 else _ROWS
    tiles = [_shaped(tile, blocks, warps) for *blocks, warps in shapes]
    return list(dict.fromkeys([tile, *(item for item in tiles if item is not None)]))


def _shaped(tile: Tile, blocks: Sequence[int], warps: int) -> Tile | None:
    """Returns the tile with other blocks, None where one is empty or larger than its axis, or a
    thread would hold too much or nothing."""
    axes = tuple(replace(axis, block=block) for axis, block in zip(tile.axes, blocks, strict=True))
    for axis, old in zip(axes, tile.axes, strict=True):
        most = power_of_two(axis.numel) if isinstance(axis.numel, int) else MAX_PERSISTENT
        if not 1 <= axis.block <= max(most, old.block):
            return None
    held = math.prod(blocks) / (32 * warps) if warps else 0
    return Tile(axes, warps, tile.looped) if 1 <= held <= 64 and warps <= 16 else None

"""Tiles pointwise C++ kernels that read operands across the innermost loop (transposes).

Only the order of elements changes; each is computed once. Row by row, a transposed operand touches
one cache line per element; in a tile it is read contiguously, transposed in the L1 cache, and read
from there.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from inductor_backend.codegen.common.loop_nest import LoopNest, walk
from inductor_backend.ir.index_expr import Index, Var, product
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody

#: Rows of a tile (a cache line of floats), and elements of the innermost loop.
ACROSS = 16
ALONG = 128

#: Cache lines that stay in the L1 cache until the next row needs them: with fewer, row-by-row loops
#: are faster (measured: channels-last copies of 64 and 256 channels by 1.8 and 1.3 times).
LINES_IN_CACHE = 512
#: A set of the L1 cache keeps WAYS lines; addresses that are SET_BYTES apart share a set.
WAYS, SET_BYTES = 8, 4096


@dataclass(frozen=True, slots=True)
class Tiling:
    """across: the outer loop along which the operands are contiguous. staged: their loads, each
    with the name of the array that holds its tile."""

    across: int
    staged: dict[Value, str]


def tiling(
    program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars
) -> Tiling | None:
    """Returns how a kernel is tiled; None where tiling gains nothing, or the kernel is more than
    one loop over elements."""
    if nest.reduced or nest.column is not None or len(nest.outer) < 2 or len(body.phases) != 1:
        return None
    (phase,) = body.phases
    simple = all(store.is_assignment for store in phase.stores) and not (
        phase.row or phase.reductions or phase.scans
    )
    if not simple:
        return None
    inner = len(nest.outer) - 1
    crossing: dict[Value, list[int]] = {}
    for value in topological(body.values()):
        if value.name == "load" and value.buffer in program.buffers:
            flat = walk(program.buffers[value.buffer].layout.flat(value.attr[1]), nest)
            loops = _contiguous_across(flat, inner, sizes)
            if loops and program.buffers[value.buffer].storage not in _written(program, body):
                crossing[value] = loops
    votes = Counter(loop for loops in crossing.values() for loop in loops)
    across = max(votes, key=lambda loop: (votes[loop], loop), default=None)
    if (
        across is None
        or min(sizes.hint(nest.sizes[across]), sizes.hint(nest.sizes[inner])) < ACROSS
    ):
        return None
    chosen = [value for value, loops in crossing.items() if across in loops]
    lines = min(_lines_in_cache(program, value, nest, sizes) for value in chosen)
    if sizes.hint(product(nest.sizes[across + 1 :])) < lines:
        return None
    return Tiling(across, {value: f"tile_{number}" for number, value in enumerate(chosen)})


def _contiguous_across(flat: Index, inner: int, sizes: SizeVars) -> list[int]:
    """Returns the outer loops along which an address that is strided along the innermost loop is
    contiguous."""
    if not all(isinstance(atom, Var) for atom in flat.terms):
        return []
    if abs(sizes.hint(flat.coefficient(inner))) < ACROSS:
        return []
    return [loop for loop in range(inner) if flat.coefficient(loop) == 1]


def _lines_in_cache(program: LoopProgram, load: Value, nest: LoopNest, sizes: SizeVars) -> int:
    """Returns how many lines of an operand stay in the L1 cache from one row to the next: fewer
    where its stride is a multiple of a large power of two."""
    buffer = program.buffers[load.buffer]
    flat = walk(buffer.layout.flat(load.attr[1]), nest)
    stride = sizes.hint(flat.coefficient(len(nest.outer) - 1)) * buffer.dtype.itemsize
    return min(LINES_IN_CACHE, WAYS * SET_BYTES // math.gcd(stride, SET_BYTES))


def _written(program: LoopProgram, body: KernelBody) -> set[str]:
    return {program.buffers[name].storage for name in body.writes}

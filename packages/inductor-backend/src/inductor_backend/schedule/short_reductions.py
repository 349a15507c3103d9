"""Turns reductions over a few strided elements into pointwise loops (for GPUs).

Runs after inlining. In a block of so short rows each thread has one load in flight, and warps combine
their elements through shared memory: a third of a copy's bandwidth on an H200. A pointwise loop loads
16 bytes a thread for each element of a row, all at once, and combines them in registers: sums over
the heads of a group, or over a few partial results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as combinations

import torch

from inductor_backend.ir.index_expr import Index, product, variables
from inductor_backend.ir.nodes import LoopNode, LoopProgram, Node, Store
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.value_cost import UNROLLED
from inductor_backend.ir.values import Rewriter, cast, const, make, topological
from inductor_backend.limits import MAX_BODY_VALUES
from inductor_backend.schedule.split_reductions import readers_of, reads_across

#: Reduction -> the operator that combines two elements.
_COMBINE = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "bit_or",
    "all": "bit_and",
}


def unroll_short_reductions(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Unrolls what it can; returns one line for each."""
    short = {
        node.name: node
        for node in program.nodes
        if isinstance(node, LoopNode) and _is_short(node) and reads_across(program, node, sizes)
    }
    writers, readers = program.writers(), readers_of(program)
    unrolled = {
        name: _unrolled(program, node)
        for name, node in short.items()
        if not any(other.name not in short for other in _over_its_rows(node, writers, readers))
    }
    program.nodes = [unrolled.get(node.name, node) for node in program.nodes]
    return [f"{name}: unrolled" for name in unrolled]


def _is_short(node: LoopNode) -> bool:
    """Returns whether a node reduces a few elements of known number by a simple operator."""
    store = node.stores[0]
    if len(node.stores) != 1 or store.reduce not in _COMBINE:
        return False
    if (store.value.dtype == torch.bool) != (store.reduce in ("any", "all")):
        return False
    row = product(_row(node))
    values = len(topological(store.roots))
    return isinstance(row, int) and 1 < row <= UNROLLED and row * values <= MAX_BODY_VALUES


def _over_its_rows(
    node: LoopNode, writers: Mapping[str, Sequence[Node]], readers: Mapping[str, Sequence[LoopNode]]
) -> list[LoopNode]:
    """Returns the other loops over all elements of the rows that compute what the node reads, read
    the same or read what it computes: all would be one kernel that holds the rows."""
    elements = {(load.buffer, load.attr[1]) for load in node.loads()}
    others = [other for name in node.reads() for other in writers.get(name, ())]
    others += [other for name in node.writes for other in readers.get(name, ())]
    others += [  # of the same buffer, another part may be read, as of a projection to q, k and v
        other
        for name in node.reads()
        for other in readers.get(name, ())
        if not elements.isdisjoint((load.buffer, load.attr[1]) for load in other.loads())
    ]
    full = product(node.sizes)
    return [
        other
        for other in others
        if isinstance(other, LoopNode) and other is not node and product(other.sizes) == full
    ]


def _row(node: LoopNode) -> list[object]:
    return [size for size, reduced in zip(node.sizes, node.reduced, strict=True) if reduced]


def _unrolled(program: LoopProgram, node: LoopNode) -> LoopNode:
    """Returns the pointwise loop: the elements of a row in order, combined one by one."""
    (store,) = node.stores
    sizes = tuple(1 if r else size for size, r in zip(node.sizes, node.reduced, strict=True))
    elements = [Rewriter(at)(store.value) for at in _points(node)]
    result = elements[0]
    for element in elements[1:]:
        result = make(_COMBINE[store.reduce or ""], result, element)
    if store.reduce == "sum" and result.dtype.is_floating_point:
        result = make("add", result, const(0, result.dtype))  # that of negative zeros is 0
    dtype = program.buffers[store.buffers[0]].dtype
    pointwise = Store(store.buffers, store.index, cast(result, dtype))
    return replace(node, sizes=sizes, reduced=(False,) * len(sizes), stores=(pointwise,))


def _points(node: LoopNode) -> Iterator[tuple[Index, ...]]:
    """Yields the index of each element of a row."""
    places = [range(size) if r else (0,) for size, r in zip(node.sizes, node.reduced, strict=True)]
    for point in combinations(*places):
        yield tuple(
            Index(number) if reduced else variable
            for number, reduced, variable in zip(
                point, node.reduced, variables(node.sizes), strict=True
            )
        )

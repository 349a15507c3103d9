"""Chooses the memory layout of intermediate buffers that only loops touch (for GPUs).

Lowering gives each result eager's strides, which elementwise operators take over from their first
operand: behind a convolution whose image becomes a sequence, the residual stream of a whole
transformer is transposed in memory, while every matmul and normalization reads rows. No one sees an
intermediate buffer's strides, so it becomes row-major where more of what its loops touch beside it is
contiguous that way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, product
from inductor_backend.ir.nodes import (
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopNode,
    LoopProgram,
    same_strides,
)
from inductor_backend.ir.symbolic_sizes import SizeVars

#: Loop variable -> elements that are contiguous along it.
Votes = Counter[int]


def choose_layouts(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Changes the layouts of buffers, in the order in which they are written; returns their names."""
    touching = touching_loops(program)
    open_names = [name for name in touching if _may_become_rows(program, name, touching[name])]
    undecided = set(open_names)
    changed: list[str] = []
    for name in open_names:
        buffer = program.buffers[name]
        rows = BufferLayout(buffer.layout.sizes, contiguous_strides(buffer.layout.sizes))
        scores = [0, 0]
        for node in touching[name]:
            votes = _votes(program, node, undecided, sizes)
            for number, layout in enumerate((buffer.layout, rows)):
                flats = [layout.flat(index) for index in _indices(node, name)]
                scores[number] += max((_score(flat, votes) for flat in flats), default=0)
        undecided.discard(name)
        if scores[1] > scores[0]:
            buffer.layout = rows
            changed.append(name)
    return changed


def touching_loops(program: LoopProgram) -> dict[str, list[LoopNode]]:
    """Returns the loops that read or write each buffer that nothing else touches, by the order of
    its writers."""
    externs: set[str] = set()
    result: dict[str, list[LoopNode]] = {}
    for node in program.nodes:
        if isinstance(node, ExternNode):
            externs.update(node.reads(), node.writes)
            continue
        for name in dict.fromkeys((*node.writes, *node.reads())):
            result.setdefault(name, []).append(node)
    return {name: nodes for name, nodes in result.items() if name not in externs}


def is_private(program: LoopProgram, name: str) -> bool:
    """Returns whether the layout of a buffer that only loops touch is nobody else's business."""
    buffer, layout = program.buffers[name], program.buffers[name].layout
    return (
        buffer.kind is BufferKind.TEMP
        and buffer.storage == name
        and name not in program.output_names
        and name not in program.extends
        and name not in program.extends.values()
        and len(layout.sizes) > 1
        and layout.offset == 0
        and layout.extent == layout.numel
    )


def _may_become_rows(program: LoopProgram, name: str, nodes: Sequence[LoopNode]) -> bool:
    layout = program.buffers[name].layout
    return (
        is_private(program, name)
        and not same_strides(layout, contiguous_strides(layout.sizes))
        and all(store.combine is None for node in nodes for store in node.stores)
    )


def _indices(node: LoopNode, name: str) -> list[Sequence[Index]]:
    """Returns the logical indices at which a node reads or writes a buffer."""
    loads = [load.attr[1] for load in node.loads() if load.buffer == name]
    return [*loads, *(store.index for store in node.stores if name in store.buffers)]


def _accesses(node: LoopNode) -> Iterable[tuple[str, Sequence[Index]]]:
    for load in node.loads():
        yield load.buffer, load.attr[1]
    for store in node.stores:
        for name in store.buffers:
            yield name, store.index


def _votes(program: LoopProgram, node: LoopNode, undecided: set[str], sizes: SizeVars) -> Votes:
    """Counts the elements that a node touches contiguously along each loop, but for undecided buffers;
    a loop that it reduces counts for half of what it reads."""
    votes: Votes = Counter()
    for name, index in _accesses(node):
        if name in undecided:
            continue
        flat = program.buffers[name].layout.flat(index)
        elements = _points(node, flat.variables(), sizes)
        for variable in flat.variables():
            if flat.step(variable) == 1:
                votes[variable] += elements
    if node.is_reduction:
        for variable, reduced in enumerate(node.reduced):
            if reduced:
                votes[variable] += _points(node, range(len(node.sizes)), sizes) // 2
    return votes


def _points(node: LoopNode, variables: Iterable[int], sizes: SizeVars) -> int:
    points: Expr = product(node.sizes[variable] for variable in variables)
    return sizes.hint(points)


def _score(flat: Index, votes: Mapping[int, int]) -> int:
    """Returns the votes for the loop along which an access is contiguous."""
    return sum(votes[v] for v in flat.variables() if flat.step(v) == 1)

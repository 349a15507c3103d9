"""Copies operators' results that rows of a reduction would read along another dimension than the rest.

cuDNN leaves the gradient of a filter channels-last; the gradient of a normalized filter multiplies it
by the filter, which is contiguous, and sums both row by row. One of the two would be read element by
element (28 us for 11 MB on an H200); a copy has blocks over both dimensions. GPUs only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from inductor_backend.ir.index_expr import product, variables
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Node, Store
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Rewriter, Value, load

#: Elements from which on a copy costs less.
MIN_CROSSED = 1 << 18


def copy_crossed_rows(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Adds the copies before their first reader, and has it and later loops over the same points read
    them; returns one line for each."""
    buffers = program.buffers
    writers = Counter(buffers[name].storage for node in program.nodes for name in node.writes)
    notes: list[str] = []
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for crossed in _crossed(program, sizes, node):
                result = buffers[crossed.buffer]
                # what is written again must be read as it is then
                once = result.kind is BufferKind.EXTERN and writers[result.storage] == 1
                if once and crossed not in copies:
                    nodes.append(_copy(program, node, crossed))
                    (copy,) = nodes[-1].writes
                    copies[crossed] = load(copy, variables(node.sizes), result.dtype)
                    notes.append(f"{node.name}: {result.name} is copied for its rows")
            node = _reading(program, node, copies)
        nodes.append(node)
    program.nodes = nodes
    return notes


def _crossed(program: LoopProgram, sizes: SizeVars, node: LoopNode) -> list[Value]:
    """Returns the loads of all elements that are contiguous along another reduced dimension than the
    last one, if others are along that."""
    last, numel = len(node.sizes) - 1, product(node.sizes)
    if not node.is_reduction or not node.reduced[last] or sizes.hint(numel) < MIN_CROSSED:
        return []
    along: dict[bool, list[Value]] = {True: [], False: []}
    for value in node.loads():
        layout = program.buffers[value.buffer].layout
        flat = layout.flat(value.attr[1])
        steps = {dim for dim, reduced in enumerate(node.reduced) if reduced and flat.step(dim) == 1}
        indirect = any(True for _ in flat.indirect_values())
        if value.name == "load" and steps and layout.numel == numel and not indirect:
            along[last in steps].append(value)
    return along[False] if along[True] else []


def _copy(program: LoopProgram, node: LoopNode, crossed: Value) -> LoopNode:
    name, dtype = f"{crossed.buffer}_rows_{len(program.buffers)}", crossed.attr[2]
    program.add_temporary(name, node.sizes, dtype)
    return replace(
        node,
        name=f"{node.name}_{name}",
        origin=replace(node.origin, op="copy"),
        reduced=(False,) * len(node.sizes),
        stores=(Store((name,), variables(node.sizes), crossed),),
        inlined=(),
    )


def _reading(program: LoopProgram, node: LoopNode, copies: Mapping[Value, Value]) -> LoopNode:
    """Returns the loop with its loads replaced by those of copies over the same points."""
    known = {
        old: copies[old]
        for old in node.loads()
        if old in copies and program.buffers[copies[old].buffer].layout.sizes == node.sizes
    }
    if not known:
        return node
    rewrite = Rewriter(None, lambda value, index: known.get(value))
    return replace(node, stores=tuple(store.rewritten(rewrite) for store in node.stores))

"""Copies operators' results that rows of a reduction would read along another dimension than the rest.

cuDNN leaves the gradient of a filter channels-last; the gradient of a normalized filter multiplies it
by the filter, which is contiguous, and sums both row by row. One of the two would be read element by
element (28 us for 11 MB on an H200); a copy has blocks over both dimensions. GPUs only.
"""

from __future__ import annotations

from dataclasses import replace

from inductor_backend.ir.index_expr import Index, contiguous_strides, product, variables
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    LoopNode,
    LoopProgram,
    Node,
    Store,
)
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Rewriter, Value, load

#: Elements from which on a copy costs less.
MIN_CROSSED = 1 << 18


def copy_crossed_rows(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Adds the copies before their first reader, and has it and later loops read them; returns one
    line for each."""
    notes: list[str] = []
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    written = {name for node in program.nodes if isinstance(node, LoopNode) for name in node.writes}
    storages = {program.buffers[name].storage for name in written}
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for crossed in _crossed(program, sizes, node):
                buffer = program.buffers[crossed.buffer]
                if crossed in copies or buffer.kind is not BufferKind.EXTERN:
                    continue
                if buffer.storage not in storages:
                    copy = _copy(program, node, crossed)
                    nodes.append(copy)
                    copies[crossed] = load(copy.writes[0], variables(node.sizes), buffer.dtype)
                    notes.append(f"{node.name}: {buffer.name} is copied for its rows")
            node = _reading(node, copies)
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
        if value.name == "load" and steps and layout.numel == numel and _is_affine(flat):
            along[last in steps].append(value)
    return along[False] if along[True] else []


def _is_affine(flat: Index) -> bool:
    return not any(True for _ in flat.indirect_values())


def _copy(program: LoopProgram, node: LoopNode, crossed: Value) -> LoopNode:
    name = f"{crossed.buffer}_rows_{len(program.buffers)}"
    layout = BufferLayout(node.sizes, contiguous_strides(node.sizes))
    dtype = program.buffers[crossed.buffer].dtype
    program.buffers[name] = Buffer(name, dtype, layout, BufferKind.TEMP)
    store = Store((name,), variables(node.sizes), crossed)
    return replace(
        node,
        name=f"{node.name}_{name}",
        origin=replace(node.origin, op="copy"),
        reduced=(False,) * len(node.sizes),
        stores=(store,),
        inlined=(),
    )


def _reading(node: LoopNode, copies: dict[Value, Value]) -> LoopNode:
    """Returns the loop with its loads replaced by those of copies over the same points."""
    known = {old: new for old, new in copies.items() if old in node.loads()}
    fits = [new for new in known.values() if len(node.sizes) == len(new.attr[1])]
    if not fits:
        return node
    rewrite = Rewriter(None, lambda value, index: known.get(value))
    return replace(node, stores=tuple(store.rewritten(rewrite) for store in node.stores))

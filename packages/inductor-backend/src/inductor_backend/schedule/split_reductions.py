"""Long reductions of few rows as two: parts side by side, then the parts.

In: a `Program` after inlining, for a device with many processors. Out: the program with such loop nodes replaced by
one that reduces each part of the rows into a buffer and others that reduce that. What always holds: parts are of equal
length, so that no element needs a mask and means of parts weigh the same; the order of additions is fixed.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor_backend.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    product,
    reshape,
    variable,
    variables,
)
from inductor_backend.loop_ir.nodes import Buffer, BufferKind, Layout, LoopNode, Node, Program, Store
from inductor_backend.loop_ir.values import Rewriter, Value, cast, const, load, make
from inductor_backend.ops import compute_dtype
from inductor_backend.size_vars import SizeVars

#: Programs that a split reduction aims at: four for each processor.
PROGRAMS = 528

#: Rows from which a reduction is left whole.
ENOUGH_ROWS = 128

#: Elements that a part has at least.
SHORTEST_PART = 512

#: Reductions whose parts are reduced in the same way (Welford apart).
_AGAIN = frozenset({"sum", "prod", "max", "min", "any", "all"})


def split_reductions(program: Program, sizes: SizeVars) -> list[str]:
    """Splits what it can; returns one line for each."""
    notes: list[str] = []
    nodes: list[Node] = []
    for node in program.nodes:
        parts = _parts(node, sizes) if isinstance(node, LoopNode) else None
        if parts is None:
            nodes.append(node)
            continue
        assert isinstance(node, LoopNode)
        notes.append(f"{node.name}: {parts} parts")
        nodes += _split(program, node, parts)
    program.nodes = nodes
    return notes


def _parts(node: LoopNode, sizes: SizeVars) -> int | None:
    """Into how many parts its rows are cut (None: not)."""
    if len(node.stores) != 1 or node.stores[0].reduce is None:
        return None
    if node.stores[0].reduce not in (*_AGAIN, "welford"):
        return None
    row = product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r)
    rows = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r))
    if not isinstance(row, int) or rows >= ENOUGH_ROWS or row < 2 * SHORTEST_PART * 4:
        return None
    wanted = min(PROGRAMS // max(rows, 1), row // SHORTEST_PART)
    return _divisor(row, wanted)


def _divisor(row: int, wanted: int) -> int | None:
    """The divisor of `row` that is nearest to `wanted` from below, None where there is none worth it."""
    for parts in range(wanted, 1, -1):
        if row % parts == 0:
            return parts if parts * 4 >= wanted or parts >= 8 else None
    return None


def _split(program: Program, node: LoopNode, parts: int) -> list[LoopNode]:
    (store,) = node.stores
    kept = [p for p, r in enumerate(node.reduced) if not r]
    reduced = [p for p, r in enumerate(node.reduced) if r]
    row = product(node.sizes[p] for p in reduced)
    assert isinstance(row, int)
    length = row // parts
    outer = [node.sizes[p] for p in kept]
    domain: list[Expr] = [*outer, parts, length]
    loops = variables(domain)
    flat = loops[len(kept)] * length + loops[len(kept) + 1]
    inside = reshape([node.sizes[p] for p in reduced], [row], [flat])
    by: list[Index] = [Index()] * len(node.sizes)
    for place, p in enumerate(kept):
        by[p] = loops[place]
    for place, p in enumerate(reduced):
        by[p] = inside[place]
    value = Rewriter(by)(store.value)
    wide = [compute_dtype(program.buffers[name].dtype) for name in store.buffers]
    partial = [
        _buffer(program, f"{name}_parts", [*outer, parts], dtype)
        for name, dtype in zip(store.buffers, wide, strict=True)
    ]
    where = tuple(loops[: len(kept) + 1])
    first = replace(
        node,
        name=f"{node.name}_parts",
        sizes=tuple(domain),
        reduced=(*[False] * (len(kept) + 1), True),
        stores=(Store(tuple(b.name for b in partial), where, value, store.reduce),),
    )
    target = _rows_only(node, store, kept, outer)
    if store.reduce == "welford":
        return [first, *_combine_welford(program, node, store, partial, outer, parts, length, target)]
    second = _over_parts(
        node, f"{node.name}", outer, parts, partial[0], store.buffers, target, store.reduce or ""
    )
    return [first, second]


def _buffer(program: Program, name: str, sizes: list[Expr], dtype: torch.dtype) -> Buffer:
    made = Buffer(name, dtype, Layout(tuple(sizes), contiguous_strides(sizes)), BufferKind.TEMP)
    program.buffers[name] = made
    return made


def _rows_only(node: LoopNode, store: Store, kept: list[int], outer: list[Expr]) -> tuple[Index, ...]:
    """Where a row's result is stored, over loops of the rows alone."""
    by: list[Index] = [Index()] * len(node.sizes)
    for place, p in enumerate(kept):
        by[p] = variable(place, outer[place])
    rewrite = Rewriter(by)
    return tuple(rewrite.index(index) for index in store.index)


def _over_parts(
    node: LoopNode,
    name: str,
    outer: list[Expr],
    parts: int,
    source: Buffer,
    targets: tuple[str, ...],
    place: tuple[Index, ...],
    kind: str,
) -> LoopNode:
    domain = [*outer, parts]
    value = load(source.name, variables(domain), source.dtype)
    return replace(
        node,
        name=name,
        sizes=tuple(domain),
        reduced=(*[False] * len(outer), True),
        stores=(Store(targets, place, value, kind),),
    )


def _combine_welford(
    program: Program,
    node: LoopNode,
    store: Store,
    partial: list[Buffer],
    outer: list[Expr],
    parts: int,
    length: int,
    place: tuple[Index, ...],
) -> list[LoopNode]:
    """Means of equal parts: their mean is the mean; the squares are the parts' own and those of their means."""
    mean, squares = store.buffers
    dtype = partial[0].dtype
    between = _buffer(program, f"{squares}_between", outer, dtype)
    within = _buffer(program, f"{squares}_within", outer, dtype)
    rows = variables(outer)
    average = _buffer(program, f"{mean}_all", outer, dtype)
    of_means = _over_parts(
        node, f"{node.name}_means", outer, parts, partial[0], (average.name, between.name), rows, "welford"
    )
    of_squares = _over_parts(
        node, f"{node.name}_squares", outer, parts, partial[1], (within.name,), rows, "sum"
    )
    total: Value = make(
        "add",
        load(within.name, rows, dtype),
        make("mul", load(between.name, rows, dtype), const(length, dtype)),
    )
    results = ((mean, load(average.name, rows, dtype)), (squares, total))
    last = [
        replace(
            node,
            name=node.name if target == squares else f"{node.name}_mean",
            sizes=tuple(outer),
            reduced=(False,) * len(outer),
            stores=(Store((target,), place, cast(value, program.buffers[target].dtype)),),
        )
        for target, value in results
    ]
    return [of_means, of_squares, *last]

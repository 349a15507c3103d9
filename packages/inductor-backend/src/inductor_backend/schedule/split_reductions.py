"""Long reductions of few rows as two: parts side by side, then the parts.

In: a `Program` after inlining, for a device with many processors. Out: the program with such loop nodes replaced by
one that reduces each part of the rows into a buffer and others that reduce that. What always holds: parts are of equal
length, so that no element needs a mask and means of parts weigh the same; the order of additions is fixed; dimensions
keep their order (the outermost reduced ones are cut), so that what is computed from the same elements still fits into the
first kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from inductor_backend.index_expr import Expr, Index, contiguous_strides, product, variables
from inductor_backend.loop_ir.nodes import Buffer, BufferKind, Layout, LoopNode, Node, Program, Store
from inductor_backend.loop_ir.values import Rewriter, Value, cast, const, load, make
from inductor_backend.ops import compute_dtype
from inductor_backend.size_vars import SizeVars

#: Programs that a split reduction aims at: four for each processor.
PROGRAMS = 528

#: Rows from which a reduction is left whole.
ENOUGH_ROWS = 128

#: Elements that a part has at least, and a row that is cut.
SHORTEST_PART, SHORTEST_ROW = 512, 4096

#: The same for rows that lie across memory, of which a program takes so many side by side.
SHORTEST_COLUMN_PART, SHORTEST_COLUMN, COLUMNS_OF_A_PROGRAM = 64, 256, 32

#: Reductions whose parts are reduced in the same way (Welford apart).
_AGAIN = frozenset({"sum", "prod", "max", "min", "any", "all"})


def split_reductions(program: Program, sizes: SizeVars) -> list[str]:
    """Splits what it can; returns one line for each."""
    notes: list[str] = []
    nodes: list[Node] = []
    writers = program.writers()
    for node in program.nodes:
        cut = _cut(program, node, sizes, writers) if isinstance(node, LoopNode) else None
        if cut is None:
            nodes.append(node)
            continue
        assert isinstance(node, LoopNode)
        notes.append(f"{node.name}: {' x '.join(str(parts) for parts in cut.values())} parts")
        nodes += _split(program, node, cut, _across(program, node, sizes))
    program.nodes = nodes
    return notes


def _cut(
    program: Program, node: LoopNode, sizes: SizeVars, writers: Mapping[str, Sequence[Node]]
) -> dict[int, Expr] | None:
    """Reduced dimension -> into how many parts it is cut (None: the node stays whole)."""
    if len(node.stores) != 1 or node.stores[0].reduce not in (*_AGAIN, "welford"):
        return None
    rows = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r))
    row = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r))
    if _across(program, node, sizes):
        programs = -(-rows // COLUMNS_OF_A_PROGRAM)
        if row < SHORTEST_COLUMN or programs * 2 > PROGRAMS:
            return None
        wanted = min(PROGRAMS // max(programs, 1), row // SHORTEST_COLUMN_PART)
    elif rows >= ENOUGH_ROWS or row < SHORTEST_ROW:
        return None
    else:
        wanted = min(PROGRAMS // max(rows, 1), row // SHORTEST_PART)
    cut = _outermost(node, wanted, sizes, _usual_parts(node, writers))
    length = product(_lengths(node, cut))
    if not cut or (node.stores[0].reduce == "welford" and not isinstance(length, int)):
        return None
    parts = sizes.hint(product(cut.values()))
    return cut if parts * 4 >= wanted or parts >= 8 else None


def _across(program: Program, node: LoopNode, sizes: SizeVars) -> bool:
    """More of what it reads lies side by side along a kept dimension than along a reduced one."""
    along = {False: dict.fromkeys(range(len(node.sizes)), 0), True: dict.fromkeys(range(len(node.sizes)), 0)}
    for one in node.loads():
        flat = program.buffers[one.buffer].layout.flat(one.attr[1])
        dims = flat.variables()
        if any(node.reduced[p] for p in dims):
            elements = sizes.hint(product(node.sizes[p] for p in dims))
            for p in dims:
                if flat.coefficient(p) == 1:
                    along[node.reduced[p]][p] += elements
    return max(along[False].values(), default=0) > max(along[True].values(), default=0)


def _usual_parts(node: LoopNode, writers: Mapping[str, Sequence[Node]]) -> set[int]:
    """Into how many parts the loops that make its operands are cut by their own outer dimensions."""
    found: set[int] = set()
    total = product(node.sizes)
    for one in node.loads():
        for writer in writers.get(one.buffer, ()):
            if isinstance(writer, LoopNode) and product(writer.sizes) == total:
                parts: Expr = 1
                for size in writer.sizes[:-1]:
                    parts = product((parts, size))
                    if isinstance(parts, int):
                        found.add(parts)
    return found


def _outermost(node: LoopNode, wanted: int, sizes: SizeVars, usual: set[int]) -> dict[int, Expr]:
    """Whole dimensions while there are few parts, then a divisor of the next: one of the usual ones, so that the loops line
    up, or the nearest from below."""
    cut: dict[int, Expr] = {}
    for p, size in enumerate(node.sizes):
        if not node.reduced[p] or wanted < 2:
            continue
        count = sizes.hint(size)
        if count <= wanted:
            if count > 1:
                cut[p] = size
                wanted //= count
            continue
        if isinstance(size, int):
            near = [n for n in usual if not cut and size % n == 0 and wanted <= 4 * n <= 16 * wanted and n > 1]
            parts = min(near, key=lambda n: abs(n - wanted), default=0)
            parts = parts or next(n for n in range(wanted, 0, -1) if size % n == 0)
            if parts > 1:
                cut[p] = parts
        break
    return cut


def _lengths(node: LoopNode, cut: Mapping[int, Expr]) -> list[Expr]:
    """What is left of each reduced dimension in a part."""
    found: list[Expr] = []
    for p, size in enumerate(node.sizes):
        if node.reduced[p]:
            parts = cut.get(p, 1)
            found.append(1 if parts == size else size if parts == 1 else size // parts)  # type: ignore[operator]
    return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is left to reduce: sizes in the node's order, which of them count parts, and sizes of the results."""

    sizes: tuple[Expr, ...]
    part: tuple[bool, ...]
    results: tuple[Expr, ...]

    def kept(self) -> tuple[Index, ...]:
        """The results' place, in loops over all sizes."""
        return tuple(v for v, part in zip(variables(self.sizes), self.part, strict=True) if not part)


def _split(program: Program, node: LoopNode, cut: Mapping[int, Expr], across: bool) -> list[LoopNode]:
    (store,) = node.stores
    domain: list[Expr] = []
    reduced: list[bool] = []
    part: list[bool] = []
    places: list[list[int]] = []
    for p, size in enumerate(node.sizes):
        parts = cut.get(p)
        pieces: list[tuple[Expr, bool, bool]] = [(size, node.reduced[p], False)]
        if parts is not None:
            rest = [] if parts == size else [(size // parts, True, False)]  # type: ignore[operator]
            pieces = [(parts, False, True), *rest]
        places.append(list(range(len(domain), len(domain) + len(pieces))))
        domain += [one[0] for one in pieces]
        reduced += [one[1] for one in pieces]
        part += [one[2] for one in pieces]
    loops = variables(domain)
    by = [loops[at[0]] if len(at) == 1 else loops[at[0]] * domain[at[1]] + loops[at[1]] for at in places]
    left = [k for k, r in enumerate(reduced) if not r]
    parts_of = _Parts(
        tuple(domain[k] for k in left),
        tuple(part[k] for k in left),
        tuple(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r),
    )
    wide = [compute_dtype(program.buffers[name].dtype) for name in store.buffers]
    partial = [
        _buffer(program, f"{name}_parts", parts_of.sizes, dtype, parts_of.part if across else None)
        for name, dtype in zip(store.buffers, wide, strict=True)
    ]
    where = tuple(loops[k] for k in left)
    first = replace(
        node,
        name=f"{node.name}_parts",
        sizes=tuple(domain),
        reduced=tuple(reduced),
        stores=(Store(tuple(b.name for b in partial), where, Rewriter(by)(store.value), store.reduce),),
    )
    if store.reduce == "welford":
        length = product(_lengths(node, cut))
        assert isinstance(length, int)
        return [first, *_combine_welford(program, node, store, partial, parts_of, length)]
    place = _rows_only(node, store, parts_of.kept())
    return [first, _over_parts(node, node.name, parts_of, partial[0], store.buffers, place, store.reduce or "")]


def _buffer(
    program: Program, name: str, sizes: Sequence[Expr], dtype: torch.dtype, outermost: Sequence[bool] | None = None
) -> Buffer:
    """outermost: the dimensions that lie outermost in memory."""
    strides = contiguous_strides(sizes)
    if outermost is not None:
        order = sorted(range(len(sizes)), key=lambda k: not outermost[k])
        steps = dict(zip(order, contiguous_strides([sizes[k] for k in order]), strict=True))
        strides = tuple(steps[k] for k in range(len(sizes)))
    made = Buffer(name, dtype, Layout(tuple(sizes), strides), BufferKind.TEMP)
    program.buffers[name] = made
    return made


def _rows_only(node: LoopNode, store: Store, kept: Sequence[Index]) -> tuple[Index, ...]:
    """Where a row's result is stored; kept: what the rows' loops are now."""
    following = iter(kept)
    rewrite = Rewriter([Index() if r else next(following) for r in node.reduced])
    return tuple(rewrite.index(index) for index in store.index)


def _over_parts(
    node: LoopNode,
    name: str,
    parts: _Parts,
    source: Buffer,
    targets: tuple[str, ...],
    place: tuple[Index, ...],
    kind: str,
) -> LoopNode:
    value = load(source.name, variables(parts.sizes), source.dtype)
    return replace(
        node, name=name, sizes=parts.sizes, reduced=parts.part, stores=(Store(targets, place, value, kind),)
    )


def _combine_welford(
    program: Program, node: LoopNode, store: Store, partial: list[Buffer], parts: _Parts, length: int
) -> list[LoopNode]:
    """Means of equal parts: their mean is the mean; the squares are the parts' own and those of their means."""
    mean, squares = store.buffers
    dtype, outer = partial[0].dtype, parts.results
    between = _buffer(program, f"{squares}_between", outer, dtype)
    within = _buffer(program, f"{squares}_within", outer, dtype)
    average = _buffer(program, f"{mean}_all", outer, dtype)
    kept, rows = parts.kept(), variables(outer)
    of_means = _over_parts(
        node, f"{node.name}_means", parts, partial[0], (average.name, between.name), kept, "welford"
    )
    of_squares = _over_parts(node, f"{node.name}_squares", parts, partial[1], (within.name,), kept, "sum")
    total: Value = make(
        "add",
        load(within.name, rows, dtype),
        make("mul", load(between.name, rows, dtype), const(length, dtype)),
    )
    results = ((mean, load(average.name, rows, dtype)), (squares, total))
    place = _rows_only(node, store, rows)
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

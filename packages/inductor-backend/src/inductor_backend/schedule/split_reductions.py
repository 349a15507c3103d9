"""Long reductions of few rows as two: parts side by side, then the parts.

In: a `Program` after inlining, for a device with many processors. Out: the program with such loop nodes replaced by
one that reduces each part of the rows into a buffer and others that reduce that. What always holds: the order of additions
is fixed; dimensions keep their order (the outermost reduced ones are cut), so that what is computed from the same elements
still fits into the first kernel; parts are of equal length, so that no element needs a mask and means of parts weigh the
same, but where a size has no fitting divisor (it is prime, or symbolic): there the last part's missing elements are
masked, and a variance is two passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from inductor_backend.index_expr import Expr, Index, contiguous_strides, product, variables
from inductor_backend.loop_ir.nodes import Buffer, BufferKind, Layout, LoopNode, Node, Program, Store
from inductor_backend.loop_ir.values import Rewriter, Value, cast, const, load, make
from inductor_backend.ops import REDUCTIONS, compute_dtype
from inductor_backend.size_vars import SizeVars

#: Programs that a split reduction aims at: four for each processor.
PROGRAMS = 528

#: Rows from which a reduction is left whole.
ENOUGH_ROWS = 128

#: Elements that a part has at least, and a row that is cut.
SHORTEST_PART, SHORTEST_ROW = 512, 4096

#: The same for rows that lie across memory, of which a program takes so many side by side.
SHORTEST_COLUMN_PART, SHORTEST_COLUMN, COLUMNS_OF_A_PROGRAM = 64, 256, 32

#: How many times the shortest part a part may be long where a divisor of the size gives few parts.
LONG_PART = 16

#: As few parts that need not be equal are not worth their kernels.
UNEVEN_PARTS = 8

#: Long parts that need not be equal begin at multiples of so many elements, for wide loads.
ALIGNED = 16

#: Columns that a program holds in registers where they are read again, and from how many on: a normalisation of images is
#: one kernel then, in place of parts, what comes of them, and what uses that.
LONGEST_HELD_COLUMN, HELD_COLUMNS = 1024, 64

#: Reductions whose parts are reduced in the same way (Welford apart).
_AGAIN = frozenset({"sum", "prod", "max", "min", "any", "all"})

#: Reductions that give a place, and those that give what is there: three loops more, so only for rows so long.
_PLACES = {"argmax": "max", "argmin": "min"}
LONG_ROW, LONG_COLUMN = 16384, 2048


@dataclass(frozen=True, slots=True)
class Cut:
    """A reduced dimension in `parts` of `length` elements. uneven: the last part may have fewer."""

    parts: Expr
    length: Expr
    uneven: bool = False


#: Reduced dimension -> how it is cut.
Cuts = Mapping[int, Cut]


def split_reductions(program: Program, sizes: SizeVars) -> list[str]:
    """Splits what it can; returns one line for each."""
    notes: list[str] = []
    nodes: list[Node] = []
    writers, readers = program.writers(), _readers(program)
    for node in program.nodes:
        cut = None
        if isinstance(node, LoopNode) and not _is_read_again(program, node, sizes, readers):
            cut = _cuts(program, node, sizes, writers)
        if cut is None:
            nodes.append(node)
            continue
        assert isinstance(node, LoopNode)
        notes.append(f"{node.name}: {' x '.join(str(one.parts) for one in cut.values())} parts")
        across = _across(program, node, sizes)
        known = isinstance(_length(node, cut), int) and not any(one.uneven for one in cut.values())
        make_nodes = _split if node.stores[0].reduce != "welford" or known else _two_passes
        nodes += make_nodes(program, node, cut, across)
    program.nodes = nodes
    return notes


def _cuts(
    program: Program, node: LoopNode, sizes: SizeVars, writers: Mapping[str, Sequence[Node]]
) -> Cuts | None:
    """How the node is cut (None: it stays whole)."""
    if len(node.stores) != 1 or node.stores[0].reduce not in (*_AGAIN, *_PLACES, "welford"):
        return None
    rows = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r))
    row = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r))
    across = _across(program, node, sizes)
    if node.stores[0].reduce in _PLACES:
        short = row < (LONG_COLUMN if across else LONG_ROW)
        if short or node.stores[0].value.dtype == torch.bool:
            return None
    if across:
        programs = -(-rows // COLUMNS_OF_A_PROGRAM)
        if row < SHORTEST_COLUMN or programs * 2 > PROGRAMS:
            return None
        shortest = SHORTEST_COLUMN_PART
        wanted = min(PROGRAMS // max(programs, 1), row // shortest)
    elif rows >= ENOUGH_ROWS or row < SHORTEST_ROW:
        return None
    else:
        shortest = SHORTEST_PART
        wanted = min(PROGRAMS // max(rows, 1), row // shortest)
    if wanted < 2:
        return None
    cut = _outermost(node, wanted, sizes, _usual_parts(node, writers))
    parts = sizes.hint(product(one.parts for one in cut.values()))
    if cut and (parts * 4 >= wanted or (parts >= 8 and row <= parts * LONG_PART * shortest)):
        return cut
    return _uneven(node, wanted, sizes) if wanted >= UNEVEN_PARTS else None


def _readers(program: Program) -> dict[str, list[LoopNode]]:
    found: dict[str, list[LoopNode]] = {}
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for name in node.reads():
                found.setdefault(name, []).append(node)
    return found


def _is_read_again(
    program: Program, node: LoopNode, sizes: SizeVars, readers: Mapping[str, Sequence[LoopNode]]
) -> bool:
    """Columns that fit into registers, and what comes of their reduction goes back into each of their elements."""
    if not node.is_reduction:
        return False
    column = product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r)
    count = product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r)
    if not isinstance(column, int) or column > LONGEST_HELD_COLUMN or sizes.hint(count) < HELD_COLUMNS:
        return False
    if not _across(program, node, sizes):
        return False
    whole, names = product(node.sizes), list(node.writes)
    for name in names:  # grows
        for reader in readers.get(name, ()):
            if product(reader.sizes) == whole and not reader.is_reduction:
                return True
            if product(reader.sizes) == count:
                names += [other for other in reader.writes if other not in names]
    return False


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


def _outermost(node: LoopNode, wanted: int, sizes: SizeVars, usual: set[int]) -> dict[int, Cut]:
    """Whole dimensions while there are few parts, then a divisor of the next: one of the usual ones, so that the loops line
    up, or the nearest from below."""
    cut, next_one, wanted = _whole(node, wanted, sizes)
    size = None if next_one is None else node.sizes[next_one]
    if next_one is not None and isinstance(size, int):
        near = [n for n in usual if not cut and size % n == 0 and wanted <= 4 * n <= 16 * wanted and n > 1]
        parts = min(near, key=lambda n: abs(n - wanted), default=0)
        parts = parts or next(n for n in range(wanted, 0, -1) if size % n == 0)
        if parts > 1:
            cut[next_one] = Cut(parts, size // parts)
    return cut


def _uneven(node: LoopNode, wanted: int, sizes: SizeVars) -> dict[int, Cut] | None:
    """Whole dimensions while there are few parts, then parts of the next that need not be equal."""
    cut, next_one, wanted = _whole(node, wanted, sizes)
    if next_one is None:
        return cut or None
    size = node.sizes[next_one]
    length = -(-sizes.hint(size) // wanted)
    length = -(-length // ALIGNED) * ALIGNED if length > 2 * ALIGNED else length
    cut[next_one] = Cut(_quotient_up(size, length), length, uneven=True)
    return cut


def _whole(node: LoopNode, wanted: int, sizes: SizeVars) -> tuple[dict[int, Cut], int | None, int]:
    """The outermost reduced dimensions that are cut whole, the next, and how many parts that may have."""
    cut: dict[int, Cut] = {}
    for p, size in enumerate(node.sizes):
        if not node.reduced[p]:
            continue
        count = sizes.hint(size)
        if count > wanted:
            return cut, p if wanted > 1 else None, wanted
        if count > 1:
            cut[p] = Cut(size, 1)
            wanted //= count
    return cut, None, wanted


def _quotient_up(size: Expr, length: int) -> Expr:
    """How many parts of that length hold so many elements."""
    if isinstance(size, int):
        return -(-size // length)
    from torch.utils._sympy.functions import FloorDiv  # heavy: sympy

    return FloorDiv(size + (length - 1), length)


def _length(node: LoopNode, cut: Cuts) -> Expr:
    """Elements of a row in a part."""
    reduced = [p for p, r in enumerate(node.reduced) if r]
    return product(cut[p].length if p in cut else node.sizes[p] for p in reduced)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is left to reduce: sizes in the node's order, which of them count parts, and sizes of the results."""

    sizes: tuple[Expr, ...]
    part: tuple[bool, ...]
    results: tuple[Expr, ...]

    def kept(self) -> tuple[Index, ...]:
        """The results' place, in loops over all sizes."""
        return tuple(v for v, part in zip(variables(self.sizes), self.part, strict=True) if not part)


def _split(program: Program, node: LoopNode, cut: Cuts, across: bool) -> list[LoopNode]:
    (store,) = node.stores
    domain: list[Expr] = []
    reduced: list[bool] = []
    part: list[bool] = []
    places: list[list[int]] = []
    for p, size in enumerate(node.sizes):
        one = cut.get(p)
        pieces: list[tuple[Expr, bool, bool]] = [(size, node.reduced[p], False)]
        if one is not None:
            rest = [] if one.length == 1 else [(one.length, True, False)]
            pieces = [(one.parts, False, True), *rest]
        places.append(list(range(len(domain), len(domain) + len(pieces))))
        domain += [piece[0] for piece in pieces]
        reduced += [piece[1] for piece in pieces]
        part += [piece[2] for piece in pieces]
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
        stores=(Store(tuple(b.name for b in partial), where, _inside(node, cut, by), store.reduce),),
    )
    if store.reduce == "welford":
        length = _length(node, cut)
        assert isinstance(length, int)
        return [first, *_combine_welford(program, node, store, partial, parts_of, length)]
    if store.reduce in _PLACES:
        return [first, *_combine_places(program, node, cut, first, partial[0], parts_of, across)]
    place = _rows_only(node, store, parts_of.kept())
    return [
        first,
        _over_parts(node, node.name, parts_of, partial[0], store.buffers, place, store.reduce or ""),
    ]


def _inside(node: LoopNode, cut: Cuts, by: Sequence[Index]) -> Value:
    """What is reduced, over the loops that `by` names; the reduction's neutral element where a part has no more."""
    (store,) = node.stores
    uneven = [p for p, one in cut.items() if one.uneven]
    if not uneven:
        return Rewriter(by)(store.value)
    (p,) = uneven
    test = make("lt", make("index", attr=by[p]), make("index", attr=Index(node.sizes[p])))
    loops = by[p].variables()

    def masked(new: Value, index: tuple[Index, ...]) -> Value | None:
        if not loops & new.variables:
            return None
        there, other = new.args or (test, const(0, new.attr[2]))
        return make("masked_load", make("bit_and", test, there) if new.args else test, other, attr=new.attr)

    value = Rewriter(by, masked)(store.value)
    return make("where", test, value, _neutral(store.reduce, value.dtype))


def _neutral(reduce: str | None, dtype: torch.dtype) -> Value:
    """Of a reduction over values of that type."""
    reduce = _PLACES.get(reduce or "", reduce)
    if reduce in ("max", "min"):
        least = reduce == "max"
        if dtype.is_floating_point:
            return const(float("-inf" if least else "inf"), dtype)
        if dtype == torch.bool:
            return const(not least, dtype)
        bounds = torch.iinfo(dtype)
        return const(bounds.min if least else bounds.max, dtype)
    return const(REDUCTIONS[reduce or "sum"][0], dtype)


def _buffer(
    program: Program,
    name: str,
    sizes: Sequence[Expr],
    dtype: torch.dtype,
    outermost: Sequence[bool] | None = None,
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


def _combine_places(
    program: Program, node: LoopNode, cut: Cuts, first: LoopNode, at: Buffer, parts: _Parts, across: bool
) -> list[LoopNode]:
    """What is greatest (or least) in each part and in all; the first place of those parts that have it. NaN is the greatest
    and the least. at: the places in the parts."""
    (store,), (of_part,) = node.stores, first.stores
    kind, dtype, (target,) = _PLACES[store.reduce or ""], of_part.value.dtype, store.buffers
    extremes = _buffer(program, f"{target}_extremes", parts.sizes, dtype, parts.part if across else None)
    best = _buffer(program, f"{target}_best", parts.results, dtype)
    beside = replace(of_part, buffers=(extremes.name,), reduce=kind)
    of_parts = replace(first, name=f"{node.name}_extremes", stores=(beside,))
    of_all = _over_parts(node, f"{node.name}_best", parts, extremes, (best.name,), parts.kept(), kind)
    loops = variables(parts.sizes)
    here, there = load(extremes.name, loops, dtype), load(best.name, parts.kept(), dtype)
    same = make("eq", here, there)
    if dtype.is_floating_point:
        same = make("bit_or", same, make("ne", here, here))
    place = load(at.name, loops, torch.int64)
    for begin in _beginning(node, cut, [v for v, part in zip(loops, parts.part, strict=True) if part]):
        place = make("add", place, begin)
    found = make("where", same, place, const(2**63 - 1, torch.int64))
    index = _rows_only(node, store, parts.kept())
    last = replace(node, sizes=parts.sizes, reduced=parts.part, stores=(Store((target,), index, found, "min"),))
    return [of_parts, of_all, last]


def _beginning(node: LoopNode, cut: Cuts, loops: Sequence[Index]) -> list[Value]:
    """What adds up to where a part begins in its row, in 64 bits: the kernel's own indices are small. loops: over the parts
    of each cut dimension."""
    reduced = [p for p, r in enumerate(node.reduced) if r]
    steps = dict(zip(reduced, contiguous_strides([node.sizes[p] for p in reduced]), strict=True))
    return [
        make("mul", make("index", attr=loop), const(product((cut[p].length, steps[p])), torch.int64))
        for p, loop in zip(sorted(cut), loops, strict=True)
    ]


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
    return [of_means, of_squares, *_results(program, node, outer, load(average.name, rows, dtype), total)]


def _two_passes(program: Program, node: LoopNode, cut: Cuts, across: bool) -> list[LoopNode]:
    """The mean, then the squares of the distances to it: parts that are not equal do not weigh the same."""
    (store,) = node.stores
    mean, squares = store.buffers
    dtype = compute_dtype(program.buffers[mean].dtype)
    outer = tuple(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r)
    rows = variables(outer)
    total = _buffer(program, f"{mean}_total", outer, dtype)
    average = _buffer(program, f"{mean}_all", outer, dtype)
    distances = _buffer(program, f"{squares}_all", outer, dtype)
    where = tuple(v for v, r in zip(variables(node.sizes), node.reduced, strict=True) if not r)

    def summed(name: str, target: Buffer, value: Value) -> list[LoopNode]:
        whole = replace(
            node, name=f"{node.name}_{name}", stores=(Store((target.name,), where, value, "sum"),)
        )
        return _split(program, whole, cut, across)

    count = const(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r), dtype)
    divided = Store((average.name,), rows, make("div", load(total.name, rows, dtype), count))
    far = make("sub", cast(store.value, dtype), load(average.name, where, dtype))
    return [
        *summed("total", total, cast(store.value, dtype)),
        _over_rows(node, f"{node.name}_average", outer, divided),
        *summed("distances", distances, make("mul", far, far)),
        *_results(program, node, outer, load(average.name, rows, dtype), load(distances.name, rows, dtype)),
    ]


def _over_rows(node: LoopNode, name: str, outer: Sequence[Expr], store: Store) -> LoopNode:
    return replace(node, name=name, sizes=tuple(outer), reduced=(False,) * len(outer), stores=(store,))


def _results(
    program: Program, node: LoopNode, outer: Sequence[Expr], average: Value, total: Value
) -> list[LoopNode]:
    """Mean and squares, where the node would have stored them."""
    (store,) = node.stores
    mean, squares = store.buffers
    place = _rows_only(node, store, variables(outer))
    return [
        _over_rows(
            node,
            node.name if target == squares else f"{node.name}_mean",
            outer,
            Store((target,), place, cast(value, program.buffers[target].dtype)),
        )
        for target, value in ((mean, average), (squares, total))
    ]

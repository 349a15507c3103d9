"""Splits one reduction into a reduction of each chunk, in parallel, and loops over the chunks'
results: one for most reductions, more for argmax, argmin and variances.

The order of additions is fixed. Chunks of equal length need no mask. Where the last chunk may be
shorter, its missing elements are masked. A variance is combined from the chunks' means and squares
where all chunks have one static length, and else computed in two passes over the operand.
`split_reductions` decides where to cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, product, variables
from inductor_backend.ir.nodes import Buffer, LoopNode, LoopProgram, Store
from inductor_backend.ir.ops import REDUCTIONS, compute_dtype
from inductor_backend.ir.values import Rewriter, Value, cast, const, load, make, topological

#: Reductions that give an index, and those that give the element there.
PLACES = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True, slots=True)
class ReductionSplit:
    """A reduction dimension in `parts` chunks of `length` elements."""

    parts: Expr
    length: Expr
    #: The last chunk may be shorter.
    uneven: bool = False


#: Reduced dimension -> how it is cut.
ReductionSplits = Mapping[int, ReductionSplit]


def length_of_part(node: LoopNode, splits: ReductionSplits) -> Expr:
    """Returns the elements of a row in one chunk."""
    reduced = [p for p, r in enumerate(node.reduced) if r]
    return product(splits[p].length if p in splits else node.sizes[p] for p in reduced)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The remaining reduction, over the chunks' results."""

    #: In the node's order.
    sizes: tuple[Expr, ...]
    #: Which of them count chunks.
    part: tuple[bool, ...]
    #: Sizes of the results.
    results: tuple[Expr, ...]
    #: The dimensions from the outermost in memory to the innermost.
    order: tuple[int, ...]

    def outer_index(self) -> tuple[Index, ...]:
        """Returns the results' index, in loops over all sizes."""
        return tuple(
            v for v, part in zip(variables(self.sizes), self.part, strict=True) if not part
        )


def in_parts(
    program: LoopProgram, node: LoopNode, splits: ReductionSplits, across: bool
) -> list[LoopNode]:
    """Returns loops equivalent to the node. across: its rows are strided in memory."""
    (store,) = node.stores
    domain: list[Expr] = []
    reduced: list[bool] = []
    part: list[bool] = []
    places: list[list[int]] = []
    for p, size in enumerate(node.sizes):
        chunks = splits.get(p)
        pieces: list[tuple[Expr, bool, bool]] = [(size, node.reduced[p], False)]
        if chunks is not None:
            rest = [] if chunks.length == 1 else [(chunks.length, True, False)]
            pieces = [(chunks.parts, False, True), *rest]
        places.append(list(range(len(domain), len(domain) + len(pieces))))
        domain += [piece[0] for piece in pieces]
        reduced += [piece[1] for piece in pieces]
        part += [piece[2] for piece in pieces]
    loops = variables(domain)
    by = [
        loops[at[0]] if len(at) == 1 else loops[at[0]] * domain[at[1]] + loops[at[1]]
        for at in places
    ]
    left = [k for k, r in enumerate(reduced) if not r]
    value = _inside(node, splits, by)
    order = list(range(len(left)))
    if across:  # as the operand lies in memory, else the chunks first
        steps = _steps(program, value, left)
        order.sort(key=lambda k: not part[left[k]] if steps is None else -steps[k])
    parts_of = _Parts(
        tuple(domain[k] for k in left),
        tuple(part[k] for k in left),
        tuple(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r),
        tuple(order),
    )
    wide = [compute_dtype(program.buffers[name].dtype) for name in store.buffers]
    partial = [
        program.add_temporary(f"{name}_parts", parts_of.sizes, dtype, parts_of.order)
        for name, dtype in zip(store.buffers, wide, strict=True)
    ]
    where = tuple(loops[k] for k in left)
    first = replace(
        node,
        name=f"{node.name}_parts",
        sizes=tuple(domain),
        reduced=tuple(reduced),
        stores=(Store(tuple(b.name for b in partial), where, value, store.reduce),),
    )
    if store.reduce == "welford":
        length = length_of_part(node, splits)
        assert isinstance(length, int)
        return [first, *_combine_welford(program, node, store, partial, parts_of, length)]
    if store.reduce in PLACES:
        return [first, *_combine_places(program, node, splits, first, partial[0], parts_of)]
    place = _rows_only(node, store, parts_of.outer_index())
    return [
        first,
        _over_parts(
            node, node.name, parts_of, partial[0], store.buffers, place, store.reduce or ""
        ),
    ]


def _inside(node: LoopNode, splits: ReductionSplits, by: Sequence[Index]) -> Value:
    """Returns the reduced value over the loops that `by` names; the reduction's identity past the
    end."""
    (store,) = node.stores
    uneven = [p for p, chunks in splits.items() if chunks.uneven]
    if not uneven:
        return Rewriter(by)(store.value)
    (p,) = uneven
    test = make("lt", make("index", attr=by[p]), make("index", attr=Index(node.sizes[p])))
    loops = by[p].variables()

    def masked(new: Value, index: tuple[Index, ...]) -> Value | None:
        if not loops & new.variables:
            return None
        there, other = new.args or (test, const(0, new.attr[2]))
        return make(
            "masked_load", make("bit_and", test, there) if new.args else test, other, attr=new.attr
        )

    value = Rewriter(by, masked)(store.value)
    return make("where", test, value, _neutral(store.reduce, value.dtype))


def _steps(program: LoopProgram, value: Value, loops: Sequence[int]) -> list[int] | None:
    """Returns the stride of each loop in the load that most of them walk, None where symbols leave it
    open."""
    flats = [
        program.buffers[load.buffer].layout.flat(load.attr[1])
        for load in topological([value])
        if load.name in ("load", "masked_load")
    ]
    walked = max(flats, key=lambda flat: len(flat.variables() & set(loops)), default=Index())
    steps = [walked.step(loop) for loop in loops]
    known = [step for step in steps if isinstance(step, int)]
    return known if len(known) == len(steps) else None


def _neutral(reduce: str | None, dtype: torch.dtype) -> Value:
    """Returns the identity element of a reduction over values of that type."""
    reduce = PLACES.get(reduce or "", reduce)
    if reduce in ("max", "min"):
        least = reduce == "max"
        if dtype.is_floating_point:
            return const(float("-inf" if least else "inf"), dtype)
        if dtype == torch.bool:
            return const(not least, dtype)
        bounds = torch.iinfo(dtype)
        return const(bounds.min if least else bounds.max, dtype)
    return const(REDUCTIONS[reduce or "sum"][0], dtype)


def _rows_only(node: LoopNode, store: Store, outer_index: Sequence[Index]) -> tuple[Index, ...]:
    """Returns the index of a row's result. outer_index: the current outer loops."""
    following = iter(outer_index)
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
        node,
        name=name,
        sizes=parts.sizes,
        reduced=parts.part,
        stores=(Store(targets, place, value, kind),),
    )


def _combine_places(
    program: LoopProgram,
    node: LoopNode,
    splits: ReductionSplits,
    first: LoopNode,
    at: Buffer,
    parts: _Parts,
) -> list[LoopNode]:
    """Returns the loops for argmax and argmin: the extremum of each chunk and of all, then the
    first index among the chunks that have it. NaN counts as both extrema. at: the indices within
    the chunks."""
    (store,), (of_part,) = node.stores, first.stores
    kind, dtype, (target,) = PLACES[store.reduce or ""], of_part.value.dtype, store.buffers
    extremes = program.add_temporary(f"{target}_extremes", parts.sizes, dtype, parts.order)
    best = program.add_temporary(f"{target}_best", parts.results, dtype)
    beside = replace(of_part, buffers=(extremes.name,), reduce=kind)
    of_parts = replace(first, name=f"{node.name}_extremes", stores=(beside,))
    of_all = _over_parts(
        node, f"{node.name}_best", parts, extremes, (best.name,), parts.outer_index(), kind
    )
    loops = variables(parts.sizes)
    here, there = load(extremes.name, loops, dtype), load(best.name, parts.outer_index(), dtype)
    same = make("eq", here, there)
    if dtype.is_floating_point:
        same = make("bit_or", same, make("ne", here, here))
    place = load(at.name, loops, torch.int64)
    for begin in _beginning(
        node, splits, [v for v, part in zip(loops, parts.part, strict=True) if part]
    ):
        place = make("add", place, begin)
    match = make("where", same, place, const(2**63 - 1, torch.int64))
    index = _rows_only(node, store, parts.outer_index())
    last = replace(
        node, sizes=parts.sizes, reduced=parts.part, stores=(Store((target,), index, match, "min"),)
    )
    return [of_parts, of_all, last]


def _beginning(node: LoopNode, splits: ReductionSplits, loops: Sequence[Index]) -> list[Value]:
    """Returns the terms of a chunk's offset in its row, in 64 bits: the kernel's own indices are
    small. loops: over the chunks of each cut dimension."""
    reduced = [p for p, r in enumerate(node.reduced) if r]
    steps = dict(zip(reduced, contiguous_strides([node.sizes[p] for p in reduced]), strict=True))
    return [
        make(
            "mul",
            make("index", attr=loop),
            const(product((splits[p].length, steps[p])), torch.int64),
        )
        for p, loop in zip(sorted(splits), loops, strict=True)
    ]


def _combine_welford(
    program: LoopProgram,
    node: LoopNode,
    store: Store,
    partial: list[Buffer],
    parts: _Parts,
    length: int,
) -> list[LoopNode]:
    """Combines the means and squares of equal chunks: the mean is the mean of means; the squares
    are the chunks' own plus those of their means."""
    mean, squares = store.buffers
    dtype, outer = partial[0].dtype, parts.results
    between = program.add_temporary(f"{squares}_between", outer, dtype)
    within = program.add_temporary(f"{squares}_within", outer, dtype)
    average = program.add_temporary(f"{mean}_all", outer, dtype)
    outer_index, rows = parts.outer_index(), variables(outer)
    of_means = _over_parts(
        node,
        f"{node.name}_means",
        parts,
        partial[0],
        (average.name, between.name),
        outer_index,
        "welford",
    )
    of_squares = _over_parts(
        node, f"{node.name}_squares", parts, partial[1], (within.name,), outer_index, "sum"
    )
    total: Value = make(
        "add",
        load(within.name, rows, dtype),
        make("mul", load(between.name, rows, dtype), const(length, dtype)),
    )
    return [
        of_means,
        of_squares,
        *_results(program, node, outer, load(average.name, rows, dtype), total),
    ]


def in_two_passes(
    program: LoopProgram, node: LoopNode, splits: ReductionSplits, across: bool
) -> list[LoopNode]:
    """Returns loops that compute the mean, then the squared distances to it: means of unequal
    chunks have unequal weights."""
    (store,) = node.stores
    mean, squares = store.buffers
    dtype = compute_dtype(program.buffers[mean].dtype)
    outer = tuple(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r)
    rows = variables(outer)
    total = program.add_temporary(f"{mean}_total", outer, dtype)
    average = program.add_temporary(f"{mean}_all", outer, dtype)
    distances = program.add_temporary(f"{squares}_all", outer, dtype)
    where = tuple(v for v, r in zip(variables(node.sizes), node.reduced, strict=True) if not r)

    def summed(name: str, target: Buffer, value: Value) -> list[LoopNode]:
        full = replace(
            node, name=f"{node.name}_{name}", stores=(Store((target.name,), where, value, "sum"),)
        )
        return in_parts(program, full, splits, across)

    count = const(
        product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r), dtype
    )
    divided = Store((average.name,), rows, make("div", load(total.name, rows, dtype), count))
    far = make("sub", cast(store.value, dtype), load(average.name, where, dtype))
    return [
        *summed("total", total, cast(store.value, dtype)),
        _over_rows(node, f"{node.name}_average", outer, divided),
        *summed("distances", distances, make("mul", far, far)),
        *_results(
            program, node, outer, load(average.name, rows, dtype), load(distances.name, rows, dtype)
        ),
    ]


def _over_rows(node: LoopNode, name: str, outer: Sequence[Expr], store: Store) -> LoopNode:
    return replace(
        node, name=name, sizes=tuple(outer), reduced=(False,) * len(outer), stores=(store,)
    )


def _results(
    program: LoopProgram, node: LoopNode, outer: Sequence[Expr], average: Value, total: Value
) -> list[LoopNode]:
    """Stores mean and squares where the node would have stored them."""
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

"""Builds the loop nest of a kernel: loop order, merged loops, and the vectorized loop.

Outer loops (rows) come before reduction loops; each kind is ordered so that writes are sequential
in memory. Adjacent loops that every access traverses contiguously are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr, Index, Indirect, Var, product, simplify, variable
from inductor_backend.ir.nodes import LoopNode, LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import topological
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.fusion_legality import Domain

#: Rows that a column kernel reduces side by side: at least, and at most where it reads them once.
#: Of a wide tile each step reads up to a page, so that memory is read in long stretches.
COLUMN_TILE = 64
WIDEST_TILE = 1024

#: Rows below this are reduced side by side where that is how their operands lie, and rows of less than a
#: vector in any case: a loop over one has less to do than there is to do around it.
SHORT_ROW = 16


@dataclass(frozen=True, slots=True)
class LoopNest:
    """outer, reduced: sizes of the loops, outermost first. place: for each variable of the domain,
    its loop (outer ones first, then reduced). last: whether it is the fastest of those merged
    there. column: the index of the outer loop that is vectorized while the reduction loops run
    outside it (None: the innermost loop is vectorized)."""

    outer: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    place: tuple[int, ...]
    last: tuple[bool, ...]
    column: int | None

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return self.outer + self.reduced


def accesses(program: LoopProgram, body: KernelBody) -> list[Index]:
    """Returns the flat address of every access to memory."""
    indexes: list[Index] = []
    for value in topological(body.values()):
        if value.name in ("load", "masked_load") and value.buffer not in body.registers:
            if value.buffer not in body.row_buffers:
                indexes.append(program.buffers[value.buffer].layout.flat(value.attr[1]))
    for phase in body.phases:
        for store in (*phase.row, *phase.stores, *phase.scans):
            for name in store.buffers:
                if name not in body.row_buffers:
                    indexes.append(program.buffers[name].layout.flat(store.index))
    return indexes


def index_values(body: KernelBody) -> list[Index]:
    """Returns index expressions used as values: merging their variables would need divisions."""
    return [value.attr for value in topological(body.values()) if value.name == "index"]


def _mergeable(first: int, second: int, size: Expr, flats: Sequence[Index]) -> bool:
    """Returns whether every access traverses the two loops (outer, inner of `size`) as one."""
    for flat in flats:
        positions = {atom.position for atom in flat.terms if isinstance(atom, Var)}
        hidden = frozenset().union(
            *(Index(0, {a: 1}).variables() for a in flat.terms if not isinstance(a, Var))
        )
        if first in hidden or second in hidden:
            return False
        if first in positions or second in positions:
            if flat.coefficient(first) != simplify(flat.coefficient(second) * size):
                return False
    return True


def _stride(flat: Index, position: int) -> Expr:
    """Returns how far apart a loop's iterations are; rows apart where the loop chooses a row by an
    index from memory."""
    chosen = (
        factor
        for atom, factor in flat.terms.items()
        if isinstance(atom, Indirect) and position in atom.value.variables
    )
    return flat.coefficient(position) or next(chosen, 0)


def _ordered(positions: list[int], flats: Sequence[Index], sizes: SizeVars) -> list[int]:
    """Returns positions from the greatest stride to the least, by the first access that
    distinguishes them."""

    def weight(position: int) -> tuple[int, ...]:
        strides = [abs(sizes.hint(_stride(flat, position))) for flat in flats]
        # Only the first access that depends on it counts fully: stores come first in `flats`.
        return tuple(strides[:1]) if strides and strides[0] else (max(strides, default=0),)

    return sorted(positions, key=lambda p: (-weight(p)[0], p))


def vector_dimension(flats: Sequence[Index], candidates: Sequence[int]) -> int | None:
    """Returns the candidate variable along which most accesses are contiguous."""
    votes = {p: sum(1 for flat in flats if flat.coefficient(p) == 1) for p in candidates}
    best = max(votes.values(), default=0)
    return None if best == 0 else max(p for p in candidates if votes[p] == best)


def is_column(
    program: LoopProgram, domain: Domain, nodes: Sequence[LoopNode], lanes: int = 0
) -> bool:
    """Returns whether the group's kernel reduces a strided dimension while rows are contiguous, or rows
    of fewer elements than a vector has lanes."""
    if not any(domain.reduced) or not any(not r for r in domain.reduced):
        return False
    # What the kernel itself makes of a row is in registers or nearby, whichever way it walks.
    row = product(size for size, r in zip(domain.sizes, domain.reduced, strict=True) if r)
    short = isinstance(row, int) and row < SHORT_ROW
    own = {name for node in nodes for name in node.writes}
    loads = [
        load
        for node in nodes
        for load in node.loads()
        if any(domain.reduced[p] for p in load.variables)
    ]
    flats = [
        program.buffers[load.buffer].layout.flat(load.attr[1])
        for load in loads
        if load.buffer not in own or all(other.buffer in own for other in loads)
    ]
    flats += [
        program.buffers[name].layout.flat(store.index)
        for node in nodes
        for store in node.stores
        if store.scan is not None or store.combine is not None
        for name in store.buffers
    ]
    # What each row has one of (its mean, its factor) takes no time beside the rows.
    most = max((len(flat.variables()) for flat in flats), default=0)
    deciding = [flat for flat in flats if len(flat.variables()) == most]
    best = vector_dimension(deciding, range(len(domain.sizes)))
    if short and row < lanes and not any(s.scan or s.combine for n in nodes for s in n.stores):
        return any(_fills_vectors(domain.sizes[p]) for p, r in enumerate(domain.reduced) if not r)
    return best is not None and not domain.reduced[best]


def _fills_vectors(size: Expr) -> bool:
    return not isinstance(size, int) or size >= SHORT_ROW


def loop_nest(
    program: LoopProgram,
    body: KernelBody,
    sizes: SizeVars,
    column: bool,
    extra: Sequence[Index] = (),
    by_volume: bool = False,
) -> LoopNest:
    """Returns the loops of a kernel. extra: other index expressions over the domain that the kernel
    evaluates. by_volume: the rows of a reduction come in the order of the access that touches most
    elements, not of its results."""
    domain = body.domain
    stores = [
        program.buffers[s.buffers[0]].layout.flat(s.index)
        for phase in body.phases
        for s in (*phase.stores, *phase.scans, *phase.row)
        if s.buffers[0] not in body.row_buffers
    ]
    all_accesses = [*accesses(program, body), *index_values(body), *extra]
    fixed = [*stores, *all_accesses]
    if by_volume and any(domain.reduced):
        volume = lambda flat: sizes.hint(product(domain.sizes[p] for p in flat.variables()))
        fixed.sort(key=volume, reverse=True)
    outer = _ordered([p for p, r in enumerate(domain.reduced) if not r], fixed, sizes)
    inner_flats = all_accesses if any(domain.reduced) else fixed
    inner = [p for p, r in enumerate(domain.reduced) if r]
    if not body.in_row_order:
        inner = _ordered(inner, inner_flats, sizes)
    vector: int | None = None
    if column:
        vector = vector_dimension(
            [f for f in all_accesses if any(domain.reduced[p] for p in f.variables())]
            or all_accesses,
            outer,  # a row may be contiguous too, by fewer loads of the nodes or more of the body
        )
        if vector is None:  # rows of less than a vector
            vector = next((p for p in reversed(outer) if _fills_vectors(domain.sizes[p])), None)
        outer = [p for p in outer if p != vector] + ([vector] if vector is not None else [])
    runs_outer = _merged(outer, domain, all_accesses)
    runs_inner = _merged(inner, domain, all_accesses)
    return _nest(domain, runs_outer, runs_inner, vector)


def _merged(order: list[int], domain: Domain, flats: Sequence[Index]) -> list[list[int]]:
    runs: list[list[int]] = []
    # A merged run [a, b, c] is walked with c's stride; comparing neighbours in turn covers the
    # whole run.
    for position in order:
        if runs and _mergeable(runs[-1][-1], position, domain.sizes[position], flats):
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs


def _nest(
    domain: Domain, outer: list[list[int]], inner: list[list[int]], vector: int | None
) -> LoopNest:
    place, last = [0] * len(domain.sizes), [True] * len(domain.sizes)
    for loop, run in enumerate((*outer, *inner)):
        for position in run:
            place[position], last[position] = loop, position == run[-1]
    sizes = [product(domain.sizes[p] for p in run) for run in (*outer, *inner)]
    column = place[vector] if vector is not None else None
    return LoopNest(
        tuple(sizes[: len(outer)]), tuple(sizes[len(outer) :]), tuple(place), tuple(last), column
    )


def walk(flat: Index, nest: LoopNest) -> Index:
    """Returns an address or index expression over the loops of the nest (loop k is variable k).

    Only the last variable of a merged run counts: by `_mergeable` the others continue it."""
    result = Index(flat.const)
    for atom, coefficient in flat.terms.items():
        if isinstance(atom, Var):
            if nest.last[atom.position]:
                loop = nest.place[atom.position]
                result = result + variable(loop, nest.sizes[loop]) * coefficient
        elif isinstance(atom, Indirect):
            result = result + Index(0, {atom: coefficient})
        else:
            base = walk(atom.base, nest)
            result = result + Index(0, {type(atom)(base, atom.divisor): coefficient})
    return result

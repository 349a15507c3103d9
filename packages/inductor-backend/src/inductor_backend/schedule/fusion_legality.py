"""Decides whether a loop node may join a group, by unifying their domains; gives a reason if not.

A node joins only where every element of a group's buffer that it loads is stored at the same point
of the domain, so that values pass in registers or in a row buffer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from inductor_backend.ir.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    flatten,
    product,
    reshape_groups,
    variables,
)
from inductor_backend.ir.nodes import LoopNode, LoopProgram, Store
from inductor_backend.ir.values import Rewriter
from inductor_backend.schedule.inline import redomain


@dataclass(frozen=True, slots=True)
class FusionRefused:
    """Why fusion is not legal."""

    reason: str


@dataclass(frozen=True, slots=True)
class Domain:
    """Loop sizes and which of them are reduction dimensions, in the order of the tensor's
    dimensions."""

    sizes: tuple[Expr, ...]
    reduced: tuple[bool, ...]

    @property
    def outer(self) -> tuple[Expr, ...]:
        return tuple(s for s, r in zip(self.sizes, self.reduced, strict=True) if not r)

    @property
    def inner(self) -> tuple[Expr, ...]:
        return tuple(s for s, r in zip(self.sizes, self.reduced, strict=True) if r)


def squeezed(node: LoopNode) -> LoopNode:
    """Returns the node without loops of size 1 (their variable is already 0 everywhere)."""
    keep = [p for p, size in enumerate(node.sizes) if not (isinstance(size, int) and size == 1)]
    if len(keep) == len(node.sizes):
        return node
    sizes = tuple(node.sizes[p] for p in keep)
    new = variables(sizes)
    by = [Index()] * len(node.sizes)
    for place, p in enumerate(keep):
        by[p] = new[place]
    return redomain(node, sizes, tuple(node.reduced[p] for p in keep), tuple(by))


@dataclass(frozen=True, slots=True)
class Refinement:
    """A domain that splits two others: its sizes and, for each of the two, its variables in the new
    ones."""

    sizes: tuple[Expr, ...]
    left: tuple[Index, ...]
    right: tuple[Index, ...]
    left_source: tuple[int, ...]  # for each new variable, the left variable it came from
    right_source: tuple[int, ...]


def refine(left: Sequence[Expr], right: Sequence[Expr]) -> Refinement | None:
    """Returns the coarsest common refinement of two row-major domains of equal size, None where
    they interleave."""
    if tuple(left) == tuple(right):
        same = variables(left)
        positions = tuple(range(len(left)))
        return Refinement(tuple(left), same, same, positions, positions)
    groups = reshape_groups(left, right)
    if groups is None:
        return None
    sizes: list[Expr] = []
    spans: list[tuple[list[int], list[int], int, int]] = []
    for a, b in groups:
        if len(a) > 1 and len(b) > 1:
            return None
        finer = [left[k] for k in a] if len(a) >= len(b) else [right[k] for k in b]
        spans.append((a, b, len(sizes), len(finer)))
        sizes += finer
    new = variables(sizes)
    maps: tuple[list[Index], list[Index]] = ([Index()] * len(left), [Index()] * len(right))
    sources: tuple[list[int], list[int]] = ([0] * len(sizes), [0] * len(sizes))
    for a, b, start, length in spans:
        for side, walked in enumerate((a, b)):
            span = range(start, start + length)
            if len(walked) == length:
                for p, k in zip(walked, span, strict=True):
                    maps[side][p], sources[side][k] = new[k], p
            elif walked:
                flat = flatten([new[k] for k in span], contiguous_strides([sizes[k] for k in span]))
                maps[side][walked[0]] = flat
                for k in span:
                    sources[side][k] = walked[0]
    return Refinement(
        tuple(sizes), tuple(maps[0]), tuple(maps[1]), tuple(sources[0]), tuple(sources[1])
    )


@dataclass(frozen=True, slots=True)
class Joined:
    """How a node joins: the group's new domain, its variables in it, and the node over it."""

    domain: Domain
    by: tuple[Index, ...] | None  # None: the group's domain is unchanged
    node: LoopNode


def unify(domain: Domain, node: LoopNode) -> Joined | FusionRefused:
    """Returns the common domain of a group and a squeezed node."""
    has_reduction = any(domain.reduced)
    total, own = product(domain.sizes), product(node.sizes)
    if total == own:
        return _unify_full(domain, node, has_reduction)
    if has_reduction and product(domain.outer) == own and not node.is_reduction:
        return _unify_outer(domain, node)
    return FusionRefused(
        f"another iteration space: {_text(node.sizes)} against {_text(domain.sizes)}"
    )


def unify_matmul(domain: Domain, node: LoopNode) -> Joined | FusionRefused:
    """Unifies a node with the results of a matmul, whose reduction dimensions come last; either may
    have finer dimensions."""
    if node.is_reduction:
        return FusionRefused("a reduction of a matmul's results")
    refinement = refine(domain.outer, node.sizes)
    if refinement is None:
        return FusionRefused(
            f"results {_text(domain.outer)} do not line up with {_text(node.sizes)}"
        )
    sizes = (*refinement.sizes, *domain.inner)
    reduced = (*[False] * len(refinement.sizes), *[True] * len(domain.inner))
    unchanged = sizes == domain.sizes
    by = None if unchanged else (*refinement.left, *variables(sizes)[len(refinement.sizes) :])
    return Joined(Domain(sizes, reduced), by, redomain(node, sizes, reduced, refinement.right))


def _unify_full(domain: Domain, node: LoopNode, has_reduction: bool) -> Joined | FusionRefused:
    refinement = refine(domain.sizes, node.sizes)
    if refinement is None:
        return FusionRefused(f"loops {_text(node.sizes)} do not line up with {_text(domain.sizes)}")
    of_group = tuple(domain.reduced[p] for p in refinement.left_source)
    of_node = tuple(node.reduced[p] for p in refinement.right_source)
    if has_reduction and node.is_reduction and of_group != of_node:
        return FusionRefused("reduces other dimensions")
    reduced = of_group if has_reduction else of_node
    unchanged = refinement.sizes == domain.sizes and reduced == domain.reduced
    moved = redomain(node, refinement.sizes, reduced, refinement.right)
    return Joined(Domain(refinement.sizes, reduced), None if unchanged else refinement.left, moved)


def _unify_outer(domain: Domain, node: LoopNode) -> Joined | FusionRefused:
    """Unifies a node with the outer dimensions of a reduction."""
    outer = [p for p, r in enumerate(domain.reduced) if not r]
    refinement = refine([domain.sizes[p] for p in outer], node.sizes)
    if refinement is None or len(refinement.sizes) != len(outer):
        return FusionRefused(f"rows {_text(node.sizes)} do not line up with {_text(domain.sizes)}")
    new = variables(domain.sizes)
    row = [new[p] for p in outer]
    by = tuple(Rewriter(row).index(index) for index in refinement.right)
    return Joined(domain, None, redomain(node, domain.sizes, domain.reduced, by))


def _text(sizes: Sequence[Expr]) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"


def check_values(
    program: LoopProgram, members: Sequence[LoopNode], node: LoopNode, mutated: frozenset[str]
) -> FusionRefused | None:
    """Checks that every load of what the group writes (and the reverse) is at the same point."""
    written = {
        name: store for member in members for store in member.stores for name in store.buffers
    }
    if any(name in written for name in node.writes):
        return FusionRefused("writes the same buffer")
    for load in node.loads():
        if load.buffer in program.extends and any(
            b in written for b in program.with_earlier([load.buffer])
        ):
            return FusionRefused(f"reads {load.buffer}, of which the group writes a region")
        store = written.get(load.buffer)
        if store is not None and store.combine is not None:
            return FusionRefused(f"reads {load.buffer}, to which the group scatters")
        if store is not None and (store.index != load.attr[1] or load.name != "load"):
            return FusionRefused(f"reads {load.buffer} at another index than it is written")
    overwritten = {
        name: store for store in node.stores for name in store.buffers if name in mutated
    }
    if not overwritten:
        return None
    if any(any(member.reduced) for member in members):
        if any(node.reduced[p] for s in node.stores for p in s.value.variables):
            return FusionRefused("overwrites an input inside a reduction's kernel")
        late = _read_in_loops(members, overwritten.keys())
        if late is not None:
            return FusionRefused(
                f"overwrites {late}, which a later loop over the same row may read"
            )
    for member in (*members, node):
        for load in member.loads():
            store = overwritten.get(load.buffer)
            if store is not None and store.index != load.attr[1]:
                return FusionRefused(f"overwrites {load.buffer}, which is read at another index")
    return None


def _read_in_loops(members: Sequence[LoopNode], names: Collection[str]) -> str | None:
    """Returns one of these buffers that something inside a row depends on, or None. The loop may
    run after the once-per-row work, and recomputes what it needs of that."""
    sources: dict[str, str] = {}
    for member in members:
        loaded = (load.buffer for load in member.loads())
        result = next(
            (source for name in loaded if (source := name if name in names else sources.get(name))),
            None,
        )
        if result is None:
            continue
        if member.is_reduction or any(_in_row(store, member.reduced) for store in member.stores):
            return result
        sources.update(dict.fromkeys(member.writes, result))
    return None


def _in_row(store: Store, reduced: Sequence[bool]) -> bool:
    """Returns whether a store is done for each point of a row, not once."""
    variables_of = (
        *store.value.variables,
        *(p for index in store.index for p in index.variables()),
    )
    return not store.is_assignment or any(reduced[p] for p in variables_of)

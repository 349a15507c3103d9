"""Splits loops whose variable is divided by a constant, so that addresses are sums again (CPU).

Heads that are merged into rows, as attention's are, read element ``(i // 64, i % 64)`` of a row. A
processor divides integers one by one: a copy of that form took 3.2 nanoseconds an element, 0.3 as two
loops. Runs after fusion, which compares the domains of nodes as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inductor_backend.ir.index_expr import (
    Expr,
    FloorDiv,
    Index,
    Mod,
    Var,
    exact_quotient,
    variable,
    variables,
)
from inductor_backend.ir.nodes import LoopNode, LoopProgram
from inductor_backend.ir.values import topological
from inductor_backend.schedule.fusion import FusionPlan, Group
from inductor_backend.schedule.fusion_legality import Domain
from inductor_backend.schedule.inline import redomain

#: Least length of the inner loop: a vector of floats.
MIN_PIECE = 16


def split_divided_loops(program: LoopProgram, plan: FusionPlan) -> list[str]:
    """Splits the loops of the groups; returns one line for each loop that was."""
    notes = []
    for group in plan.groups:
        if group.domain is None or group.loops[0].is_matmul or _in_order(group.loops):
            continue
        while (loop := _divided(program, group)) is not None:
            position, length = loop
            size = group.domain.sizes[position]
            _split(group, position, length)
            notes.append(f"{group.nodes[0].name}: loop {position} of {size}: rows of {length}")
    return notes


def _in_order(nodes: Sequence[LoopNode]) -> bool:
    """Checks for points that are computed one after the other, or whose places are results."""
    return any(
        store.scan is not None or store.combine is not None or store.reduce in ("argmax", "argmin")
        for node in nodes
        for store in node.stores
    )


def _indexes(program: LoopProgram, node: LoopNode) -> Iterator[Index]:
    """Yields addresses, and indexes that are values."""
    for store in node.stores:
        for name in store.buffers:
            yield program.buffers[name].layout.flat(store.index)
        for value in topological(store.roots):
            if value.name in ("load", "masked_load"):
                yield program.buffers[value.buffer].layout.flat(value.attr[1])
            elif value.name == "index":
                yield value.attr


def _divisors(index: Index) -> Iterator[tuple[int, Expr]]:
    """Yields each loop variable that is divided, with its divisor."""
    for atom in index.terms:
        if isinstance(atom, (FloorDiv, Mod)):
            yield from _divisors(atom.base)
            for inner in atom.base.terms:
                if isinstance(inner, Var):
                    yield inner.position, atom.divisor


def _divided(program: LoopProgram, group: Group) -> tuple[int, Expr] | None:
    """Returns a loop that is divided, and the length of the pieces in which it is not."""
    assert group.domain is not None
    by_loop: dict[int, set[Expr]] = {}
    for node in group.loops:
        for index in _indexes(program, node):
            for position, divisor in _divisors(index):
                by_loop.setdefault(position, set()).add(divisor)
    for position, divisors in by_loop.items():
        size = group.domain.sizes[position]
        for length in divisors:
            pieces = exact_quotient(size, length)
            if (
                pieces not in (None, 1)
                and all(exact_quotient(other, length) is not None for other in divisors)
                and not (isinstance(length, int) and length < MIN_PIECE)
            ):
                return position, length
    return None


def _split(group: Group, position: int, length: Expr) -> None:
    assert group.domain is not None
    sizes, reduced = list(group.domain.sizes), list(group.domain.reduced)
    pieces = exact_quotient(sizes[position], length)
    assert pieces is not None
    sizes[position : position + 1] = [pieces, length]
    reduced.insert(position, reduced[position])
    at = list(variables(sizes))
    at[position : position + 2] = [
        variable(position, pieces) * length + variable(position + 1, length)
    ]
    by = tuple(at)
    group.domain = Domain(tuple(sizes), tuple(reduced))
    group.nodes = [
        redomain(node, group.domain.sizes, group.domain.reduced, by) for node in group.loops
    ]

"""Replaces sums over one-hot rows by the only element that is not zero.

Runs after inlining. The gradient of a negative log likelihood is zero but for each
row's class, and the gradient of log_softmax sums its rows: as loops, ``sum(where(class == i, g, 0))``
over all classes ``i``. Of such a sum ``where(0 <= class < classes, g, 0)`` is left, without a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from inductor_backend.ir.index_expr import Expr, Index, variable
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Node, Store, loads_of
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.schedule.dependencies import stored_value

#: Functions of one value that return 0 for 0.
_KEEP_ZERO = frozenset({"cast", "round_to"})


def replace_one_hot_sums(program: LoopProgram) -> bool:
    """Replaces what it can; returns whether there was any."""
    writers = program.writers()
    replaced = [_without_loop(program, writers, node) for node in program.nodes]
    changed = any(new is not old for new, old in zip(replaced, program.nodes, strict=True))
    program.nodes = replaced
    return changed


def _without_loop(program: LoopProgram, writers: Mapping[str, Sequence[Node]], node: Node) -> Node:
    """Returns the pointwise loop that computes what the node sums, or the node."""
    if not isinstance(node, LoopNode) or len(node.stores) != 1 or sum(node.reduced) != 1:
        return node
    (store,), place = node.stores, node.reduced.index(True)
    if store.reduce != "sum":
        return node
    element = _element(stored_value(program, writers, store.value), place, node.sizes[place])
    if element is None or any(
        load.buffer in writers and program.buffers[load.buffer].kind is BufferKind.INPUT
        for load in loads_of([element])
    ):
        return node  # another value may be there by then
    sizes = tuple(1 if r else size for size, r in zip(node.sizes, node.reduced, strict=True))
    value = cast(element, program.buffers[store.buffers[0]].dtype)
    if value.dtype.is_floating_point:
        value = make("add", value, const(0, value.dtype))  # a sum of negative zeros is 0
    pointwise = Store(store.buffers, store.index, value)
    return replace(node, sizes=sizes, reduced=(False,) * len(sizes), stores=(pointwise,))


def _element(value: Value, place: int, size: Expr) -> Value | None:
    """Returns the element of a one-hot row that may differ from 0, or None for another row.

    place: of the variable that counts along the row. size: of the row."""
    if value.name in _KEEP_ZERO:
        inner = _element(value.args[0], place, size)
        return None if inner is None else make(value.name, inner, attr=value.attr)
    if value.name != "where":
        return None
    condition, element, other = value.args
    if place in element.variables or other.name != "constant" or other.attr[0] != 0:
        return None
    parts = list(_conjuncts(condition))
    along = [part for part in parts if place in part.variables]
    hot = _position(along[0], variable(place, size)) if len(along) == 1 else None
    if hot is None:
        return None
    inside = make("le", const(0, torch.int64), hot)
    result = make("bit_and", inside, make("lt", hot, const(size, torch.int64)))
    for part in parts:
        result = result if part is along[0] else make("bit_and", part, result)
    return make("where", result, element, other)


def _conjuncts(condition: Value) -> Iterator[Value]:
    if condition.name == "bit_and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    else:
        yield condition


def _position(comparison: Value, counter: Index) -> Value | None:
    """Returns what a comparison says that the counter is equal to, if it does that."""
    if comparison.name != "eq":
        return None
    for a, b in (comparison.args, comparison.args[::-1]):
        if a.name == "index" and a.attr == counter and b.dtype is torch.int64:
            return None if counter.variables() & b.variables else b
    return None

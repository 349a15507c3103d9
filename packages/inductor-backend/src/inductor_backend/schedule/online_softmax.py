"""Computes maximum and sum of exponentials of a long row in one pass, for GPUs.

Runs after inlining. softmax and log_softmax reduce each row twice: ``max(x)``, then
``sum(exp(x - max))``. Where a row is too long for registers, the second reduction reads it from
memory again, and computes x again. Both become one reduction with two results (`EXP_SUM`), which
scales its partial sums where their maximum rises (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018). Few long rows stay two reductions, which `split_reductions` splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from inductor_backend.ir.index_expr import product
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Node, Store
from inductor_backend.ir.ops import EXP_SUM
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.schedule.dependencies import stored_value
from inductor_backend.schedule.split_reductions import ENOUGH_ROWS


def merge_online(program: LoopProgram, sizes: SizeVars, held: int) -> list[str]:
    """Merges what it can; returns one line for each. held: the longest row that is in registers."""
    notes = []
    for node in list(program.nodes):
        if not isinstance(node, LoopNode) or not _is_max(program, node):
            continue
        rows, row = (
            product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r is reduced)
            for reduced in (False, True)
        )
        if sizes.hint(row) <= held or sizes.hint(rows) < ENOUGH_ROWS:
            continue
        writers = program.writers()
        sums = (other for other in program.nodes if _is_sum_of(program, writers, other, node))
        total = next(sums, None)
        if isinstance(total, LoopNode):
            _merge(program, node, total)
            notes.append(f"{node.name}: with {total.name}, in one pass")
    return notes


def _is_max(program: LoopProgram, node: LoopNode) -> bool:
    """Whether a node computes maxima of float32 that a graph does not write elsewhere."""
    store = node.stores[0]
    if len(node.stores) != 1 or store.reduce != "max" or store.value.dtype is not torch.float32:
        return False
    if program.buffers[store.buffers[0]].dtype is not torch.float32:
        return False
    written = {name for other in program.nodes for name in other.writes}
    used = (*node.reads(), *node.writes)
    return not any(
        name in written and program.buffers[name].kind is BufferKind.INPUT for name in used
    )


def _is_sum_of(
    program: LoopProgram, writers: Mapping[str, Sequence[Node]], node: object, maxima: LoopNode
) -> bool:
    """Whether a node sums ``exp(x - max)``, for the x of which another node computes the maxima."""
    if not isinstance(node, LoopNode) or len(node.stores) != 1 or node.after:
        return False
    (store,), (greatest,) = node.stores, maxima.stores
    same = (node.sizes, node.reduced, store.index, store.reduce) == (
        maxima.sizes,
        maxima.reduced,
        greatest.index,
        "sum",
    )
    (buffer,) = store.buffers if same else ("",)
    if not same or any(node.name in other.after for other in program.nodes):
        return False
    if program.buffers[buffer].dtype is not torch.float32:
        return False
    if program.buffers[buffer].kind is BufferKind.INPUT:
        return False
    power = stored_value(program, writers, store.value)
    if power.name != "exp":
        return False
    difference = stored_value(program, writers, power.args[0])
    if difference.name != "sub" or difference.args[0] is not greatest.value:
        return False
    load = difference.args[1]
    return load.name == "load" and load.attr[:2] == (greatest.buffers[0], greatest.index)


def _merge(program: LoopProgram, node: LoopNode, total: LoopNode) -> None:
    """Puts one node in place of both."""
    buffers = (*node.writes, *total.writes)
    store = Store(buffers, node.stores[0].index, node.stores[0].value, EXP_SUM)
    origins = dict.fromkeys((*node.inlined, *total.inlined, total.origin))
    merged = replace(node, stores=(store,), inlined=tuple(origins))
    program.nodes = [merged if old is node else old for old in program.nodes if old is not total]

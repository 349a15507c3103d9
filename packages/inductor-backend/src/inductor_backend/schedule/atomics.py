"""Lowers scatters to atomic additions, in which the order of updates is free (for GPUs)."""

from __future__ import annotations

from dataclasses import replace

from inductor_backend.ir.nodes import LoopNode, LoopProgram, Node


def scatter_in_any_order(program: LoopProgram) -> None:
    """Makes every scatter of the program atomic; none of its loops is a reduction afterwards."""
    program.nodes = [_in_any_order(node) for node in program.nodes]


def scatters_atomically(program: LoopProgram) -> bool:
    """Returns whether results of the program depend on the order in which its threads run."""
    loops = (node for node in program.nodes if isinstance(node, LoopNode))
    return any(store.atomic for node in loops for store in node.stores)


def _in_any_order(node: Node) -> Node:
    if not isinstance(node, LoopNode) or all(store.combine is None for store in node.stores):
        return node
    stores = tuple(replace(store, atomic=store.combine is not None) for store in node.stores)
    return replace(node, stores=stores, reduced=(False,) * len(node.reduced))

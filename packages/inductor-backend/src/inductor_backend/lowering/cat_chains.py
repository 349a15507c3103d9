"""Finds growing concatenations ([a, b], [a, b, c], ...), which share the longest one's buffer.

Each part is copied once, into its region of that buffer; a shorter concatenation is a version of
the buffer's beginning, and its readers wait only for the writers of its regions
(`Program.extends`). Without this, DenseNet-like models copy every feature once per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.plugin_api import Trait, operators, overloads_with

aten = operators("aten")

#: Operators that need a dense operand: a version of a longer buffer is strided.
_NEED_DENSE = overloads_with(Trait.PRODUCT)


@dataclass(frozen=True, slots=True)
class Chain:
    """cats: nodes from the shortest to the longest; each one's parts begin with those of the one
    before."""

    cats: tuple[torch.fx.Node, ...]


def _parts(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(node.args[0])  # type: ignore[arg-type]


def _dim(node: torch.fx.Node) -> int:
    rank: int = node.meta["val"].dim()
    dim = node.args[1] if len(node.args) > 1 else 0
    return int(str(dim)) % max(rank, 1)


def _suits(node: torch.fx.Node) -> bool:
    """Checks that no reader needs it dense and that all parts have its dtype and rank."""
    value = node.meta["val"]
    if any(user.op == "output" or user.target in _NEED_DENSE for user in node.users):
        return False
    parts = [part.meta["val"] for part in _parts(node)]
    return value.is_contiguous() and all(
        p.dtype == value.dtype and p.dim() == value.dim() for p in parts
    )


def find_chains(graph: torch.fx.Graph) -> dict[torch.fx.Node, Chain]:
    """Maps every node of a chain of at least two concatenations to its chain."""
    families: dict[Any, list[torch.fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        if _parts(node) and _suits(node):
            families.setdefault((_parts(node)[0], _dim(node)), []).append(node)
    result: dict[torch.fx.Node, Chain] = {}
    for family in families.values():
        chain: list[torch.fx.Node] = []
        for node in sorted(family, key=lambda n: len(_parts(n))):
            before = _parts(chain[-1]) if chain else ()
            if _parts(node)[: len(before)] == before and len(_parts(node)) > len(before):
                chain.append(node)
        if len(chain) > 1:
            result.update((node, Chain(tuple(chain))) for node in chain)
    return result

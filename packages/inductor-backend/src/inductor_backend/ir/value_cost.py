"""Estimates what computing a value costs, and whether computing it again costs less than storing it."""

from __future__ import annotations

from inductor_backend.ir.ops import OPS
from inductor_backend.ir.values import Value, topological

#: Below this cost, recomputing is cheaper than storing and loading the result.
CHEAP = 8

#: Most loads in a body that is recomputed.
CHEAP_LOADS = 3

#: Longest row of strided elements that a pointwise loop reduces (on GPUs).
UNROLLED = 8


def cost(value: Value) -> int:
    """Estimates the scalar instructions to compute the value once, not counting loads, nor rounding,
    which a store would do, too."""
    return sum(
        OPS[v.name].cost
        for v in topological([value])
        if v.name not in ("load", "constant", "index", "round_to")
    )


def load_count(value: Value) -> int:
    return sum(1 for v in topological([value]) if v.name in ("load", "masked_load"))


def is_cheap(value: Value) -> bool:
    """Returns whether recomputing the value costs no more than a load or two."""
    return cost(value) <= CHEAP and load_count(value) <= CHEAP_LOADS

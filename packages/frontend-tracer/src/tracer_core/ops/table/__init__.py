"""The table of operators, a file a group of families, and its lookups by trait.

A lookup gives a set: readers keep it as a constant, so that compile paths look up in sets.
"""

from __future__ import annotations

import functools
from typing import Any

from tracer_core.ops.table import indexing, linalg, nn, pointwise, views
from tracer_core.ops.traits import OpFamily, Trait
from tracer_core.torch_private.names import names

FAMILIES: tuple[OpFamily, ...] = (
    *pointwise.FAMILIES, *views.FAMILIES, *indexing.FAMILIES, *linalg.FAMILIES, *nn.FAMILIES
)  # fmt: skip


def _entries(traits: Trait) -> list[str]:
    return [name for family in FAMILIES if family.traits & traits for name in family.names.split()]


@functools.cache
def _overload(entry: str) -> tuple[Any, ...]:
    return names(entry, of="ops.aten")


def overloads_with(traits: Trait) -> frozenset[Any]:
    """Returns the overloads of ATen that the table lists with one of these traits; what this torch
    lacks is left out.

    Args:
        traits: One trait, or several joined by ``|``.
    """
    listed = [entry for entry in _entries(traits) if "." in entry]
    return frozenset(item for entry in listed for item in _overload(entry))


def spelled_with(traits: Trait) -> frozenset[str]:
    """Returns the names that the table lists with one of these traits, without overloads.

    Args:
        traits: One trait, or several joined by ``|``.
    """
    return frozenset(entry.partition(".")[0] for entry in _entries(traits))


def names_with(traits: Trait) -> frozenset[str]:
    """Returns these names without the underscores around them, which tell forms of one operator
    apart (``add_``, ``_assert``)."""
    return frozenset(name.strip("_") for name in spelled_with(traits))


_RAISING = names_with(Trait.RAISES_BY_VALUE)
_ANY_MATRIX = names_with(Trait.TAKES_ANY_MATRIX)


def raises_by_value(name: str) -> bool:
    """Returns whether an operator raises for some values of its operands.

    Args:
        name: The operator's name without the underscores around it.
    """
    return name not in _ANY_MATRIX if name.startswith("linalg_") else name in _RAISING


def reasons(trait: Trait) -> dict[Any, str]:
    """Returns the overloads that the table lists with a trait -> why (`OpFamily.why`).

    Args:
        trait: The trait.
    """
    rows = (family for family in FAMILIES if trait in family.traits)
    return {name: row.why for row in rows for name in names(row.names, of="ops.aten")}

"""Names of graphs: a graph that is made from a part of another one is named after it."""

from __future__ import annotations

from collections.abc import Collection

#: Name of a derived graph -> name of the graph that it was derived from.
_origins: dict[str, str] = {}


def derived_name(origin: str, suffix: str) -> str:
    """Returns the name of a graph derived from `origin`: its backward, a subgraph, one for fixed
    sizes.
    """
    name = f"{origin}_{suffix}"
    _origins[name] = origin
    return name


def is_part_of(name: str, graphs: Collection[str]) -> bool:
    """Whether a graph is one of `graphs`, or derived from one of them."""
    while name not in graphs and name in _origins:
        name = _origins[name]
    return name in graphs

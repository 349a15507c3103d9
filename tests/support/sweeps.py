"""Sweeps: of the tests marked ``sweep(keep=n)``, n stay in ``nox -s tests``, the others are
`full`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest


def sample(names: Iterable[str], keep: int) -> set[str]:
    """`keep` of the names, drawn by a hash of each.

    They are the same in every run, and hardly change when names come or go.
    """
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:keep])


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Marks `full` what is in no sample.

    A mark on a function draws among its cases, one on a module among all of the module's tests.
    """
    sweeps: dict[tuple[str, int], tuple[pytest.Mark, list[pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("sweep")
        if mark is not None:
            sweeps.setdefault((str(item.path), id(mark)), (mark, []))[1].append(item)
    for mark, swept in sweeps.values():
        kept = sample((item.nodeid for item in swept), mark.kwargs["keep"])
        for item in swept:
            if item.nodeid not in kept:
                item.add_marker("full")


def leave_out(items: list[pytest.Item], share: int) -> list[pytest.Item]:
    """Takes all but one in ``share`` of the tests marked `full` out of ``items``; returns those taken
    out. Of a function with cases in `tests`, a share has at most one more."""
    full = [item.nodeid for item in items if item.get_closest_marker("full")]
    chosen = sample(full, -(-len(full) // share))
    if share > 1:
        sampled = {function(item.nodeid) for item in items if not item.get_closest_marker("full")}
        first = {function(name): name for name in sorted(chosen)}
        chosen = {
            name
            for name in chosen
            if first[function(name)] == name or function(name) not in sampled
        }
    dropped = set(full) - chosen
    left_out = [item for item in items if item.nodeid in dropped]
    items[:] = [item for item in items if item.nodeid not in dropped]
    return left_out


def function(name: str) -> str:
    """Returns the name of a test without its parameters."""
    return name.partition("[")[0]

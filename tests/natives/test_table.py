"""The native effects table itself: its rows have unique names, and the rows that a trace uses can
be counted.
"""

from __future__ import annotations

import collections
import math

import torch

import tracer_core
from tests.support import effect_rows


def test_names_of_rows_are_unique():
    names = collections.Counter(effect_rows.names())
    assert len(names) > 600
    assert not [name for name, count in names.items() if count > 1]


def test_rows_used_are_counted():
    def f(x, items):
        return x * math.sqrt(len(items)), items.index(2), [*zip(items, items)]

    with effect_rows.counting() as used:
        compiled = tracer_core.compile(f, backend="eager")
        compiled(torch.ones(2), [1, 2])
    assert {"math.sqrt", "builtins.len", "builtins.list.index", "builtins.zip"} <= set(used)
    assert set(used) <= set(effect_rows.names())
    before = dict(used)
    tracer_core.compile(lambda: math.sqrt(4), backend="eager")()
    assert dict(used) == before

"""Look-ups of keys that hold objects of the program: tuples, named tuples and frozensets of them are
found by their members, which the next call may give in another combination."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import tracer_core


class Item:
    pass


class Pair(NamedTuple):
    first: Any
    second: int


A, B, C = Item(), Item(), Item()
#: What kind of key -> what makes one of an object and a number.
KEYS = {
    "tuple": lambda item, n: (item, n),
    "nested": lambda item, n: ((item, n), 0),
    "named tuple": Pair,
    "frozenset": lambda item, n: frozenset((item, n)),
    "object": lambda item, n: item,
}
#: Name -> a look-up of a key in a dictionary that has others.
LOOK_UPS = {
    "get": lambda table, key, other: table.get(key, "no"),
    "in": lambda table, key, other: key in table,
    "subscript": lambda table, key, other: table[key] if key in table else "no",
    "set": lambda table, key, other: key in set(table),
    "setdefault": lambda table, key, other: (table.setdefault(key, "no"), len(table)),
    "pop": lambda table, key, other: (table.pop(key, "no"), len(table)),
    "copy": lambda table, key, other: len({**table, key: 1}),
    "display": lambda table, key, other: ({other: "here"}.get(key, "no"), len({key, other})),
    "equal": lambda table, key, other: (key == other, {key: 1} == {other: 1}, hash(key) == hash(other)),
    "list": lambda table, key, other: (key in [other], [other, key].index(key)),
}  # fmt: skip


@pytest.mark.sweep(keep=25)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", LOOK_UPS)
def test_look_ups(name, kind):
    look_up, make = LOOK_UPS[name], KEYS[kind]
    compiled = tracer_core.compile(look_up, backend="eager")
    inside = [make(A, 1), make(A, 2), make(B, 2)]
    for item, n in ((A, 1), (A, 2), (A, 3), (B, 1), (C, 1), (B, 2), (A, 1)):
        calls = []
        for fn in (look_up, compiled):
            table = {key: i for i, key in enumerate(inside)}
            calls.append((fn(table, make(item, n), make(A, 1)), len(table)))
        assert calls[1] == calls[0]


def test_a_key_made_before_a_break():
    def fn(table, item, n):
        key = item, n
        tracer_core.graph_break()
        return table.get(key, "no"), key in table

    table = {(A, 1): "one", (A, 2): "two"}
    compiled = tracer_core.compile(fn, backend="eager")
    for n in (1, 2, 3, 1):
        assert compiled(table, A, n) == fn(table, A, n)

"""Objects with slots and objects with a dictionary, for programs that set and delete attributes."""

from __future__ import annotations

import types


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, value)


def space(**values):
    return types.SimpleNamespace(**values)

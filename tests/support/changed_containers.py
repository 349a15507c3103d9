"""Containers that a program holds, and objects that change them when they are compared."""

from __future__ import annotations

import torch

from tests.support.eager_reference import View, compare_with_eager

X, Y = torch.randn(3, 4), torch.randn(3, 4)
STEPS = ((X,), (X,), (Y,))


def held(make_value, change, look=lambda v: v, *steps, **expected):
    """change(x, value) runs compiled; look(value) is compared after each call."""

    def make():
        value = make_value()
        return (lambda x: change(x, value)), View(lambda: look(value), value)

    expected.setdefault("breaks", 0)
    return compare_with_eager(make, *(steps or STEPS), **expected)


class Reaction:
    """Equals nothing, and calls a function when it is compared."""

    def __init__(self, act):
        self.act = act

    def __eq__(self, other):
        self.act()
        return NotImplemented


def outcome_of(ask):
    try:
        return ask()
    except Exception as error:
        return type(error).__name__, str(error)

"""Attributes that change after an entry has held twice: its guards compare memory from then on.

CPython 3.13.0 counts no write to attributes that it keeps beside an object.
"""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch

import tracer_core


class Plain:
    def __init__(self):
        self.scale, self.other = 2, 1


class Setter(Plain):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)


@dataclasses.dataclass
class Data:
    scale: int = 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(2, 2), 2


MAKERS = (Plain, Setter, Data, Net, lambda: types.SimpleNamespace(scale=2))


@pytest.mark.parametrize("make", MAKERS)
def test_attribute_changes_after_two_calls(make):
    state = make()

    @tracer_core.compile(backend="eager")
    def program(x):
        return x * 2 if state.scale == 2 else x

    x = torch.ones(2)
    for scale in (2, 2, 2, 3, 2, 3):
        state.scale = scale
        assert torch.equal(program(x), x * 2 if scale == 2 else x)
    object.__setattr__(state, "scale", 2)
    assert torch.equal(program(x), x * 2)


def test_attribute_appears_and_goes_after_two_calls():
    state = Plain()

    @tracer_core.compile(backend="eager")
    def program(x):
        return x + getattr(state, "shift", 0)

    x = torch.ones(2)
    for shift in (0, 0, 0, 4, 0, 4):
        if shift:
            state.shift = shift
        elif hasattr(state, "shift"):
            del state.shift
        assert torch.equal(program(x), x + shift)

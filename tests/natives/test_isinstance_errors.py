"""Classes that refuse isinstance() and issubclass() with a TypeError, which the program may catch."""

from __future__ import annotations

import typing

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same

X = torch.randn(3, 4)


class Settings(typing.TypedDict, total=False):
    theta: float


def _matches(value, kinds):
    """What libraries do to check the fields of a configuration: the first kind that fits."""
    messages = []
    for kind in kinds:
        try:
            if isinstance(value, kind):
                return kind.__name__, messages
        except TypeError as error:
            messages.append(str(error))
    return None, messages


@pytest.mark.parametrize("kinds", [(Settings, dict), (dict, Settings), (list[int], Settings)])
@pytest.mark.parametrize("value", [{"theta": 2.0}, [1], 3, None])
def test_a_class_that_refuses_isinstance_raises_in_the_program(value, kinds):
    def run(x, value):
        name, messages = _matches(value, kinds)
        return x * (2 if name else 3), messages

    same(run, (X, value))


def test_a_class_that_refuses_isinstance_of_a_tensor():
    def run(x):
        try:
            return x + isinstance(x * 2, Settings)
        except TypeError as error:
            return x - 1, str(error)

    same(run, (X,))


def test_what_refuses_isinstance_reaches_the_caller():
    fast = tracer_core.compile(lambda x: isinstance(x.shape, Settings), backend="eager")
    with pytest.raises(TypeError, match="TypedDict does not support"):
        fast(X)

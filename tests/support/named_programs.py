"""Named programs: a test module registers functions of one tensor, pytest runs each of them as one
case.

In: functions decorated with a `Programs` object, each with the graphs and breaks it expects. Out:
the parameters of the module's test. Each case runs eagerly and compiled, three calls with changing
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.eager_reference import same

X, Y = torch.arange(12.0).reshape(3, 4) / 7 - 0.5, torch.arange(12.0, 0, -1).reshape(3, 4) / 5


def texts_of(
    *steps: Callable[..., Any], errors: Any = TypeError, argument: Any = None
) -> list[str]:
    """What each step says when it raises; part of the programs that call it. argument: makes what
    steps are given.
    """
    texts = []
    for step in steps:
        try:
            step(*([argument()] if argument is not None else []))
        except errors as error:
            texts.append(str(error))
    return texts


class Programs:
    """Mutable while a test module is imported. Programs are named after their functions."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}

    def __call__(self, program: Any = None, **expected: Any) -> Any:
        """Registers a program; without further words it is one graph and does not break."""
        expected.setdefault("graphs", 1)
        if "kinds" in expected and expected["graphs"] == 1:
            expected["graphs"] = None

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            name = function.__name__
            assert name not in self.found, f"two programs are called {name}"
            self.found[name] = function, expected
            return function

        return register if program is None else register(program)

    def cases(self) -> Any:
        """The decorator of the test that runs them."""
        return pytest.mark.parametrize("name", list(self.found))

    def run(self, name: str) -> None:
        program, expected = self.found[name]
        same(program, (X,), (Y,), (X,), **expected)

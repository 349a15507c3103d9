"""A backend that counts the graphs that it is given, and runs them as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CountingBackend:
    """Mutable. n_graphs: how many graphs it was given."""

    def __init__(self) -> None:
        self.n_graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.n_graphs += 1
        return gm.forward

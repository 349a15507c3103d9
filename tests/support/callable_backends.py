"""Backends in torch.compile's convention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def eager_graph(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the captured graph as it is."""
    return gm.forward

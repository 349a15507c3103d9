"""Which nodes the backend takes. In: a node of the graph. Out: None, or the reason it is
refused.
"""

from __future__ import annotations

import torch


def refuse(node: torch.fx.Node) -> str | None:
    """Complex numbers are left to PyTorch: a stand-in for the limits that a real engine has."""
    values = [
        node.meta.get("val"),
        *(argument.meta.get("val") for argument in node.all_input_nodes),
    ]
    if any(isinstance(value, torch.Tensor) and value.is_complex() for value in values):
        return "complex numbers are not supported"
    return None

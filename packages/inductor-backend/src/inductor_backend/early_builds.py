"""Starts the compiler of our own products while a graph is still being lowered.

In: a captured, torch-level graph. Out: nothing; threads build `externs.own` and `externs.packed` if the graph looks
as if it will need them. What always holds: only time depends on it; a graph that needs the products without being
recognised here builds them when it is compiled, and failures are told there.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.externs import own, packed

#: Names of captured functions and methods that become products or convolutions.
PRODUCTS = frozenset(
    {"linear", "matmul", "__matmul__", "mm", "addmm", "bilinear", "conv1d", "conv2d", "conv3d", "lstm", "gru"}
)


def start(captured: torch.fx.GraphModule) -> None:
    """Starts building what the graph will need."""
    names = {
        _name(node.target)
        for node in captured.graph.nodes
        if node.op in ("call_function", "call_method") and _is_float32(node.meta.get("val"))
    }
    if names & PRODUCTS:
        own.prepare()
    if "conv2d" in names and not torch.is_grad_enabled():  # ours in inference only
        packed.prepare()


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dtype == torch.float32


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")

"""Reads what passes have noted in the ``meta`` of ATen nodes, and the fake tensors of a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.plugin_api import Trait, operators, overloads_with

aten = operators("aten")

#: Key in a node's ``meta``, in a graph cut by `passes.outline`: the instance that the node
#: belongs to, and the node's position in it.
INSTANCE = "inductor_instance"

#: Key in the ``meta`` of a conversion of 16-bit floats: it takes their rounded values, also where
#: they are computed in the same kernel.
OF_STORED_VALUES = "inductor_of_stored_values"

_VIEWS = overloads_with(Trait.KEEPS_ELEMENTS)


def instance_of(node: Any) -> tuple[int, int] | None:
    """Returns (instance of the four, position in it), or None for a node outside them."""
    numbers: tuple[int, int] | None = (
        node.meta.get(INSTANCE) if isinstance(node, torch.fx.Node) else None
    )
    return numbers


def before_widening(node: Any) -> Any:
    """Returns the 16-bit floats that a conversion to float32 takes; another node as it is."""
    if node.target is not aten._to_copy.default or node.kwargs != {"dtype": torch.float32}:
        return node
    source = node.args[0]
    return source if source.meta["val"].dtype in (torch.bfloat16, torch.float16) else node


def tensors_of(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """Yields the fake tensors that a node reads and returns."""
    for source in (node, *node.all_input_nodes):
        value = source.meta.get("val")
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor):
                yield part


def is_returned(node: torch.fx.Node) -> bool:
    """Checks that the graph returns the value, or a view of all of it."""
    return any(
        user.op == "output" or (user.target in _VIEWS and is_returned(user)) for user in node.users
    )


def copies_across(node: torch.fx.Node) -> bool:
    """Tells whether a node copies from one device to another, which only an ATen operator does."""
    value, source = node.meta.get("val"), node.args[0] if node.args else None
    if node.target is not aten._to_copy.default or not isinstance(source, torch.fx.Node):
        return False
    return isinstance(value, torch.Tensor) and value.device != source.meta["val"].device

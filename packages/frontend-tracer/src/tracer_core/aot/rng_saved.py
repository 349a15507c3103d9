"""Decides which random numbers that a graph draws on accelerators its forward saves, and finds them
among what it saves.

With them the captured graph runs again as it ran, whatever kernels have drawn the numbers
(`rng_double_backward`). No state of a generator is needed, nor is a backend's promise to draw the same
numbers twice. (No partition recomputes a random operator: `ops.traits.runs_once`.)
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from tracer_core.aot.attention_seeds import SEEDS
from tracer_core.aot.rng_double_backward import RngReplayNode, name_of, uses_rng
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node

#: In the meta of a node: permutes its dimensions into those of the operator that it stands for.
ORDER = "tracer_order_of_draw"
#: Random numbers that no backward needs may take one part in so many of what is saved.
_SHARE_OF_RNG = 16
#: Operators that attention with dropout has as its backward: they draw the forward's numbers again
#: from its seed, which they are given.
_SEEDED = frozenset({
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
})  # fmt: skip


def on_accelerator(value: torch.Tensor) -> bool:
    """Whether kernels may draw other random numbers than eager for a value."""
    return value.device.type != "cpu"


def uses_accelerator_rng(nodes: Iterable[Node]) -> bool:
    """Whether kernels may draw other random numbers than eager for one of the nodes."""
    return any(is_rng_node(node) and any(map(on_accelerator, _tensors(node))) for node in nodes)


def is_rng_node(node: Node) -> bool:
    """Whether a node uses rng of its own."""
    return node.target not in _SEEDED and uses_rng(node.target, node.args)


def replayed_rng(nodes: Collection[Node]) -> list[Node]:
    """Returns the values that hold the random numbers of a forward's nodes, as far as these
    operators are known; none where kernels draw as eager does."""
    if not uses_accelerator_rng(nodes):
        return []
    values = (value for node in nodes if is_rng_node(node) for value in _results(node) or ())
    return [value for value in values if value is not None]


def worth_saving(size_with_rng: int, size: int) -> bool:
    """Returns whether random numbers that no backward needs may join what is saved."""
    return size_with_rng <= size + size // _SHARE_OF_RNG


def rng_of(nodes: Iterable[Node], saved: Mapping[Node, int]) -> tuple[RngReplayNode, ...] | str:
    """Returns what a forward's nodes draw, or why an eager run cannot be given these numbers. saved:
    node -> the position of its value among the saved tensors."""
    result = []
    for node in nodes:
        if not is_rng_node(node):
            continue
        results = _results(node)
        if results is None or any(result is not None and result not in saved for result in results):
            reason = "it draws random numbers on an accelerator, and does not save those of"
            return f"{reason} {name_of(node.target)}"
        value = node.meta["val"]
        several = isinstance(value, (tuple, list))
        result.append(
            RngReplayNode(
                name_of(node.target),
                tuple(None if result is None else saved[result] for result in results),
                _plain(value) if several else (),
                "" if several else str(value.dtype).removeprefix("torch."),
                tuple(node.meta.get(ORDER, ())),
            )
        )
    return tuple(result)


def _results(node: Node) -> Sequence[Node | None] | None:
    """Returns the results of an operator that must be saved, None for those that need not; None where
    the operator is not known."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return (node,)
    items: dict[Any, Node] = {
        user.args[1]: user for user in node.users if user.target is operator.getitem
    }
    if node.target is aten.native_dropout.default:
        return (None, items[1])
    if node.target not in SEEDS or _plain(value) is None:
        return None
    unread = len(value) - 1 if len(value) > max(SEEDS[node.target][1]) + 1 else -1  # a debug mask
    return [
        items[at] if isinstance(item, torch.Tensor) and at != unread else None
        for at, item in enumerate(value)
    ]


def _plain(values: Sequence[Any]) -> Any:
    """Returns the values that are no tensors; None where some are not known before a call."""
    simple = [None if isinstance(value, torch.Tensor) else value for value in values]
    known = all(item is None or type(item) is int for item in simple)
    return tuple(simple) if known else None


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [value for value in values if isinstance(value, torch.Tensor)]

"""Replaces the rng seeds that attention without dropout saves for its backward by zeros.

Kernels leave these values unset, on the CPU or on the GPU depending on the kernel, while fakes
always say the GPU. Nobody reads them, and zeros need not be saved. Attention with dropout keeps its
seed and offset.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from tracer_core.torch_private.names import operators

aten = operators("aten")

#: operator -> (position of the dropout probability, positions of seed and offset in the result)
SEEDS: dict[Any, tuple[int, tuple[int, int]]] = {
    aten._scaled_dot_product_flash_attention.default: (3, (6, 7)),
    aten._scaled_dot_product_efficient_attention.default: (5, (2, 3)),
    aten._scaled_dot_product_cudnn_attention.default: (5, (6, 7)),
}


def drops_out(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether an attention of `SEEDS` has dropout, so that its seeds matter."""
    place = SEEDS[target][0]
    return len(args) > place and args[place] != 0


def without_seeds(graph: torch.fx.Graph) -> None:
    """Gives zeros to the readers of unused seeds, in place."""
    for node in list(graph.nodes):
        if node.target not in SEEDS or drops_out(node.target, node.args):
            continue
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] in SEEDS[node.target][1]:
                _replace(graph, user)


def _replace(graph: torch.fx.Graph, seed: torch.fx.Node) -> None:
    value = seed.meta["val"]
    readers = [user for user in seed.users if user.op != "output"]
    if not readers:
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    with graph.inserting_before(min(readers, key=order.__getitem__)):
        zeros = graph.call_function(
            aten.zeros.default, (list(value.shape),), {"dtype": value.dtype, "device": value.device}
        )
    zeros.meta = {**readers[0].meta, "val": value}
    for reader in readers:
        reader.replace_input_with(seed, zeros)

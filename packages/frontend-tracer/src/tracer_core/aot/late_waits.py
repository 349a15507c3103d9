"""Moves the waits for collectives to where their results are read first, so that what lies between
runs while the ranks communicate. The collectives themselves keep their order.
"""

from __future__ import annotations

import torch

from tracer_core.ops.traits import writes
from tracer_core.torch_private.names import names

_WAITS = frozenset(names("ops._c10d_functional.wait_tensor.default"))


def wait_late(graph: torch.fx.Graph) -> None:
    """Moves each wait, in place, to before its first reader; at the latest to before the first
    write, which may change what the collective still reads."""
    waits = [node for node in graph.nodes if node.target in _WAITS]
    if not waits:
        return
    order = {node: at for at, node in enumerate(graph.nodes)}
    last = next(node for node in graph.nodes if node.op == "output" or writes(node.target))
    for wait in reversed(waits):
        if order[wait] < order[last]:
            readers = [user for user in wait.users if order[user] < order[last]]
            first = min(readers, key=order.__getitem__, default=last)
            first.prepend(wait)
            order[wait] = order[first]

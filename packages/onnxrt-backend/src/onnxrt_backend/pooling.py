"""Max pooling of NaN, or of nothing but minus infinity: ONNX Runtime gives numbers, eager does not.

In: an fx graph of ATen operators with values. Out: the same graph with one result more, the alarm: a number that is NaN or
minus infinity if a pooled tensor may hold such a value, whereupon the runner takes eager's results instead
(`binding.BoundSession`). What always holds: the session's own results stay as they are. How: a mean (a sum, where means
have no kernel) of each pooled tensor is NaN or minus infinity if one of its values is; no number and no plus infinity
makes it so but an overflow, for which eager is right too. Why not mend the windows in the session: what finds them leaves
ONNX Runtime's blocked layout, 4 % of resnet18. The positions of maxima are refused (`positions_are_read`).
"""

from __future__ import annotations

from typing import Any

import torch

from onnxrt_backend.rewriting import call_after

aten = torch.ops.aten

POOLS = frozenset({aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default})

#: Below it, or NaN, the alarm is given.
QUIET = float("-inf")


def positions_are_read(node: torch.fx.Node) -> bool:
    """Whether the graph wants to know where the maxima are."""
    return node.target in POOLS and any(user.args[1] == 1 and user.users for user in node.users)


def add_alarm(graph: torch.fx.Graph) -> str | None:
    """Adds the alarm to the graph's results, in place. Gives its name; None where nothing pools maxima."""
    pooled = {node.args[0]: None for node in graph.nodes if node.target in POOLS}
    marks = [_mark(source) for source in pooled if source.meta["val"].dtype.is_floating_point]  # type: ignore[union-attr]
    if not marks:
        return None
    (output,) = graph.find_nodes(op="output")
    alarm = marks[0]
    for mark in marks[1:]:
        alarm = call_after(output.prev, aten.add.Tensor, alarm, mark)
    output.args = ((*output.args[0], alarm),)
    return alarm.name


def sounds(alarm: float) -> bool:
    """Whether eager's results must be taken."""
    return not alarm > QUIET


def _mark(source: Any) -> torch.fx.Node:
    """A float32 number that is NaN or minus infinity if a value of `source` is."""
    value, end = source.meta["val"], source
    single = value.dtype is torch.float32
    if single and value.dim() == 4 and all(isinstance(size, int) for size in value.shape[2:]):
        end = call_after(end, aten.avg_pool2d.default, end, list(value.shape[2:]))  # stays in the blocked layout
    end = call_after(end, aten.sum.default, end)
    return end if single else call_after(end, aten._to_copy.default, end, dtype=torch.float32)

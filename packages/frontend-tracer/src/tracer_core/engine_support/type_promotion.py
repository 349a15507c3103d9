"""Makes ATen's type promotion explicit, for engines whose operators take arguments of one dtype.

Inserts ``aten._to_copy`` nodes before pointwise operators, sums and matmuls whose arguments have
another dtype than the one the operator computes in. The dtype of every existing value stays.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait, is_pointwise
from tracer_core.torch_private.names import names, operators

aten = operators("aten")

#: Pointwise operators with a bool result that compare in the common dtype of their arguments.
_COMPARISONS = overloads_with(Trait.COMPARES)

#: Pointwise operators whose arguments keep their own dtypes, or whose first argument is a
#: condition.
OWN_DTYPES = frozenset(names(
    "_to_copy copy clone masked_fill where isnan isinf logical_not logical_and logical_or logical_xor fill bernoulli",
    of="ops.aten",
))  # fmt: skip

#: Operators along a dimension that compute in their result's dtype: booleans are summed as int64.
ACCUMULATIONS = frozenset(names("sum prod cumsum cumprod", of="ops.aten"))


def promote(graph: torch.fx.Graph) -> None:
    """Adds the casts of ATen's implicit type promotion to a graph, in place.

    Args:
        graph: An ATen graph with values in ``meta["val"]``.
    """
    for node in list(graph.nodes):
        dtype = common_dtype(node)
        if dtype is not None:
            for source in node.all_input_nodes:
                value = source.meta["val"]
                if isinstance(value, torch.Tensor) and value.dtype != dtype:
                    node.replace_input_with(source, _cast(graph, node, source, dtype))


def common_dtype(node: torch.fx.Node) -> torch.dtype | None:
    """Returns the dtype in which an operator computes, or None if its arguments need no cast."""
    target: Any = node.target
    packet = getattr(target, "overloadpacket", None)
    if packet in ACCUMULATIONS:
        result: torch.dtype = node.meta["val"].dtype
        return result
    if node.op != "call_function" or not is_pointwise(target):
        return None
    if packet in OWN_DTYPES or not isinstance(node.meta["val"], torch.Tensor):
        return None
    if target not in _COMPARISONS:
        dtype: torch.dtype = node.meta["val"].dtype
        return None if dtype is torch.bool else dtype
    left: Any
    right: Any
    left, right = (
        arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args[:2]
    )
    return torch.result_type(left, right)


def _cast(
    graph: torch.fx.Graph, before: torch.fx.Node, source: torch.fx.Node, dtype: torch.dtype
) -> torch.fx.Node:
    with graph.inserting_before(before):
        node = graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})
    node.meta = dict(before.meta)
    node.meta["val"] = aten._to_copy.default(source.meta["val"], dtype=dtype)
    return node

"""What saving or recomputing a value costs, besides its bytes, where pointwise operators are fused.

The partitioner decides by bytes first. Cuts of about the same bytes differ in what the forward
writes only to save it, and in how much the backward computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tracer_core.aot.joint_graph import Joint
from tracer_core.aot.memory_owners import Owners
from tracer_core.aot.norm_recomputation import Formula
from tracer_core.aot.softmax_recomputation import SoftmaxFormula
from tracer_core.aot.symbolic_sizes import hint_of
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait

Node = torch.fx.Node

#: Operators whose cost is not proportional to bytes.
HEAVY = ("convolution", "mm", "attention", "linear", "lstm", "gru", "einsum")

#: Writing a byte in the forward, or recomputing one at some cost, weighs as much as to save one part
#: in so many of it.
SHARE_OF_WORK = 64

#: Recomputed at next to no cost, on any device.
_CHEAP = overloads_with(Trait.CHEAP) | overloads_with(Trait.EXACT)


def is_heavy(node: Node) -> bool:
    return any(name in str(node.target) for name in HEAVY)


def bytes_of(value: Any) -> int:
    """Returns the bytes of a tensor, by the sizes of the captured call; 8 for a number."""
    if not isinstance(value, torch.Tensor):
        return 8
    count: int = math.prod(map(hint_of, value.shape))
    return max(1, count * value.element_size())


def result_bytes(node: Node) -> int:
    """Returns the bytes of all tensors that an operator returns."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return sum(bytes_of(value) for value in values if isinstance(value, torch.Tensor))


class FusedCosts:
    """The costs of one joint graph's forward.

    depths: how many heavy operators follow one another up to a node. in_memory: values that have
    memory in the forward even if they are not saved: results and operands of heavy operators,
    outputs, and what is read both before and after a heavy operator (a residual).
    """

    def __init__(
        self, joint: Joint, owners: Owners, formulas: Mapping[Node, Formula | SoftmaxFormula]
    ) -> None:
        self.owners, self.formulas = owners, formulas
        self.depths: dict[Node, int] = {}
        self.in_memory = {owners.of(node) for node in joint.outputs}
        readers: dict[Node, set[int]] = {}
        for node in joint.forward:
            heavy, sources = is_heavy(node), node.all_input_nodes
            self.depths[node] = heavy + max((self.depths[source] for source in sources), default=0)
            if heavy:
                self.in_memory.update(map(owners.of, (node, *sources)))
            elif not owners.is_view(node):
                for source in sources:
                    readers.setdefault(owners.of(source), set()).add(self.depths[node])
        self.in_memory |= {node for node, depths in readers.items() if len(depths) > 1}

    def writing(self, node: Node, size: int) -> int:
        """Returns the bytes that are written only to save a value of this size."""
        return 0 if node in self.in_memory else size

    def recomputing(self, node: Node, sources: Sequence[Node]) -> int:
        """Returns the bytes of a value that takes longer to recompute than to write and read: a
        function (exp, tanh) and rounding on CPUs, and what joins values from before and after a heavy operator,
        where one recomputed value after the other would lead back to the first layer.
        """
        value, formula = node.meta["val"], self.formulas.get(node)
        if not isinstance(value, torch.Tensor) or self.owners.is_view(node):
            return 0
        size = bytes_of(value)
        large = [s for s in sources if s.op != "placeholder" and result_bytes(s) >= size]
        if len({self.depths[source] for source in large}) > 1:
            return size
        if value.device.type != "cpu" or node.target in _CHEAP:
            return 0
        if formula is None:
            return size
        return size if isinstance(formula, SoftmaxFormula) and value.dtype.itemsize < 4 else 0

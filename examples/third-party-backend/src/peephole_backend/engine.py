"""The backend itself.

In: a functional ATen graph with fake tensors in ``meta["val"]``. Out: a runner of the same graph in which
``add(x, mul(a, b))`` has become ``addcmul(x, a, b)``. What always holds: a fusion changes no shape, stride
or dtype: each is tried on the fake tensors first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from tracer_core.plugin_api import CompileSpec, Runner, stage, wants_text

aten = torch.ops.aten


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Fuses, and returns a runner that calls the graph's generated Python code."""
    with stage("peephole", graph=spec.name, suffix=".py") as record:
        limit = spec.options.max_fusions if spec.options.fuse else 0
        fused = fuse_multiply_add(graph, limit)
        if wants_text():
            record.text = f"# {fused} fusions\n{graph.code}"
    forward = graph.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = forward(*inputs)
        return outputs

    return run


def fuse_multiply_add(graph: torch.fx.GraphModule, limit: int | None) -> int:
    """Rewrites the graph in place; returns how many places it fused, at most `limit`."""
    count = 0
    for node in graph.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if limit is not None and count >= limit:
            break
        operands = fusible(node)
        if operands is None:
            continue
        with graph.graph.inserting_before(node):
            fused = graph.graph.call_function(aten.addcmul.default, operands)
        fused.meta = dict(node.meta)
        node.replace_all_uses_with(fused)
        count += 1
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return count


def fusible(add: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node] | None:
    """``(x, a, b)`` if `add` is ``x + a * b`` and addcmul gives the same kind of result, else None."""
    if add.kwargs.get("alpha", 1) != 1:
        return None
    for product, addend in (add.args[:2], add.args[1::-1]):
        if not is_single_product(product) or not is_floating(addend):
            continue
        a, b = product.args[:2]
        assert isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node)  # is_single_product saw to it
        result = aten.addcmul.default(addend.meta["val"], a.meta["val"], b.meta["val"])
        expected = add.meta["val"]
        if (result.shape, result.stride(), result.dtype) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
        ):
            return addend, a, b
    return None


def is_single_product(node: Any) -> TypeGuard[torch.fx.Node]:
    """A product of two floating tensors that nothing else reads."""
    return (
        isinstance(node, torch.fx.Node)
        and node.target is aten.mul.Tensor
        and len(node.users) == 1
        and all(is_floating(operand) for operand in node.args[:2])
    )


def is_floating(node: Any) -> TypeGuard[torch.fx.Node]:
    """A node whose value is a floating-point tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()

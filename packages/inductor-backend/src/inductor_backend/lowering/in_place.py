"""Writes at indices directly into an input, where a functional graph writes into a new tensor and
copies that back (``copy_``): a key-value cache gets one row per step.

Nothing reads the input's old values except the first writer. Readers of the result read the input's
memory, but outputs never share it.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.nodes import Buffer, BufferKind
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten
from inductor_backend.lowering.fallback import argument
from tracer_core.plugin_api import Trait, overloads_with

#: Operator -> its in-place form.
IN_PLACE: dict[Any, Any] = {
    operator: getattr(getattr(aten, f"{name}_"), overload)
    for operator in overloads_with(Trait.SCATTERS)
    for name, overload in [str(operator).split(".")[1:]]
}


def in_place_writes(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Maps each writing node to the placeholder that it may write to."""
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, last = write.args[0], write.args[1]
        if not isinstance(target, torch.fx.Node) or target.op != "placeholder":
            continue
        chain, reader, node = [], write, last
        while (
            isinstance(node, torch.fx.Node) and node is not target and _writes(node, reader, last)
        ):
            chain.append(node)
            reader, node = node, node.args[0]
        if (
            chain
            and node is target
            and _readers(target) == {chain[-1], write}
            and _alike(target, chain)
        ):
            result.update(dict.fromkeys(chain, target))
    return result


def _writes(node: torch.fx.Node, reader: torch.fx.Node, last: Any) -> bool:
    """Checks that a node writes at indices and is the last writer or read by the next one only."""
    return node.target in IN_PLACE and (node is last or set(node.users) == {reader})


def _readers(node: torch.fx.Node) -> set[torch.fx.Node]:
    return {user for user in node.users if user.target is not aten.sym_size.int}


def _alike(target: torch.fx.Node, chain: list[torch.fx.Node]) -> bool:
    """Checks that the writers keep the input's dtype and read it once, and that no two of its
    elements share memory."""
    value = target.meta["val"]
    return all(
        node.meta["val"].dtype == value.dtype and list(node.all_input_nodes).count(target) <= 1
        for node in chain
    ) and not any(isinstance(step, int) and step == 0 for step in value.stride())


def write_in_place(
    ctx: Lowering, target: Ref, written: Ref, args: Any, kwargs: dict[str, Any]
) -> Ref:
    """Adds the in-place operator. target: the input. written: what the node reads in place of it
    (the input, or the previous writer's result)."""
    node = ctx.node
    nodes = [*node.args, *[None] * len(args)]
    created = [argument(ctx, value, n) for value, n in list(zip(args, nodes, strict=False))[1:]]
    named = {name: argument(ctx, value, node.kwargs.get(name)) for name, value in kwargs.items()}
    own = target.buffer
    result = Buffer(ctx.new_name("buf"), own.dtype, own.layout, BufferKind.INPUT)
    ctx.program.buffers[result.name] = result
    form, args = IN_PLACE[node.target], (ctx.strided(written), *created)
    ctx.add_call(form, args, [result], named, fallback=True, in_place=own.name)
    return Ref.of(result)

"""Lowers functional collectives to extern calls, which keep the graph's order.

A collective reads its operands, and fills its result, until something waits for it: the wait reads
them too, so that no kernel gets their memory before.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.ir.nodes import ExternNode, Strided
from inductor_backend.ir.views import Ref
from inductor_backend.kernels import collectives
from inductor_backend.lowering.context import Lowering, lower
from inductor_backend.lowering.fallback import argument
from tracer_core.plugin_api import BackendError, operators

_ops, _of_autograd = operators("_c10d_functional"), operators("_c10d_functional_autograd")


@lower(
    _of_autograd.all_gather_into_tensor.default,
    _of_autograd.reduce_scatter_tensor.default,
    _of_autograd.all_to_all_single.default,
    _ops.all_reduce.default,
    _ops.all_gather_into_tensor.default,
    _ops.reduce_scatter_tensor.default,
    _ops.all_to_all_single.default,
    _ops.broadcast.default,
    _ops.all_reduce_coalesced.default,
    _ops.all_gather_into_tensor_coalesced.default,
    _ops.reduce_scatter_tensor_coalesced.default,
    operators("_dtensor").shard_dim_alltoall.default,  # done when it returns
)
def collective(ctx: Lowering, *args: Any) -> Any:
    pairs = zip(args, ctx.node.args, strict=True)
    result = [argument(ctx, value, node) for value, node in pairs]
    results = ctx.externs(ctx.node.target, result, sequential=True)
    return results if isinstance(ctx.node.meta["val"], (tuple, list)) else results[0]


@lower(_ops.wait_tensor.default)
def wait(ctx: Lowering, tensor: Ref) -> Ref:
    name = tensor.buffer.name
    maker = next((node for node in reversed(ctx.program.nodes) if name in node.writes), None)
    if not isinstance(maker, ExternNode):
        raise BackendError("inductor", "lower", "a wait for a collective that is not in the graph")
    layout = tensor.strided()
    if layout is None:
        raise BackendError("inductor", "lower", "a wait for a view of what a collective fills")
    filled = Strided(name, layout)
    return ctx.extern(collectives.wait, [filled, *maker.tensors()], sequential=True)

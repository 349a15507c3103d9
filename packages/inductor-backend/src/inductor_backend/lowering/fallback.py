"""Lowers operators of `kernels.aten_fallbacks.FALLBACKS` to extern nodes that call ATen.

They are marked `fallback` (counted, and shown in the dump). An operator with neither a lowering nor
a fallback raises a BackendError that names it. Operators that use random numbers keep their order.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.views import Ref
from inductor_backend.lowering.channels_last import FOLLOWERS
from inductor_backend.lowering.context import Lowering, aten, last_strides
from tracer_core.plugin_api import is_random

#: Operators whose result keeps gaps between rows of their first operand; others return dense ones.
_KEEP_GAPS = frozenset(
    {aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default}
)


def argument(ctx: Lowering, value: Any, node: Any) -> Any:
    """Returns tensors as strided views with eager's strides; everything else as it is."""
    if isinstance(value, Ref):
        wanted = (
            ctx.sizes.exprs(node.meta["val"].stride()) if isinstance(node, torch.fx.Node) else None
        )
        gaps = (
            ctx.node.target in _KEEP_GAPS and node is ctx.node.args[0] and 0 not in (wanted or ())
        )
        return ctx.strided(value, wanted, exactly=gaps)
    if isinstance(value, (list, tuple)):
        nodes = node if isinstance(node, (list, tuple)) else [None] * len(value)
        return [argument(ctx, element, inner) for element, inner in zip(value, nodes, strict=True)]
    return value


def call_aten(ctx: Lowering, *args: Any, **kwargs: Any) -> Ref:
    """Calls the node's own operator, which has one result."""
    ref: Ref = call_any(ctx, ctx.node.target, args, kwargs)
    return ref


def call_any(ctx: Lowering, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls the operator on materialised operands; returns a Ref, or a tuple of them."""
    if target in FOLLOWERS and ctx.node in ctx.last:
        images = [
            ctx.strided(value, last_strides(value.sizes)) if isinstance(value, Ref) else value
            for value in args
        ]
        return ctx.extern(target, images, kwargs, fallback=True, strides=ctx.strides())
    nodes = [*ctx.node.args, *[None] * len(args)]
    result = [argument(ctx, value, node) for value, node in zip(args, nodes, strict=False)]
    named = {
        name: argument(ctx, value, ctx.node.kwargs.get(name)) for name, value in kwargs.items()
    }
    sequential = is_random(target)
    how: dict[str, Any] = {"fallback": True, "sequential": sequential}
    if not isinstance(ctx.node.meta["val"], (tuple, list)):
        return ctx.extern(target, result, named, **how)
    used = ctx.used_outputs() if isinstance(ctx.node.meta["val"], tuple) else None
    return ctx.externs(target, result, named, used=used, **how)

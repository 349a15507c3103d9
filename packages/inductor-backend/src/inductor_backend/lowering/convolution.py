"""Lowers convolution to an extern node."""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, last_strides, lower


@lower(aten.convolution.default)
def convolution(ctx: Lowering, x: Ref, weight: Ref, bias: Ref | None, *rest: Any) -> Ref:
    """Operands keep eager's strides (the operator chooses its result's layout by them), unless the
    graph's images are channels-last."""
    if ctx.node in ctx.last:
        images = [ctx.strided(ref, last_strides(ref.sizes)) for ref in (x, weight)]
        offset = None if bias is None else ctx.strided(bias)
        return ctx.extern(ctx.node.target, [*images, offset, *rest], strides=ctx.strides())
    fakes = [
        argument.meta["val"] if isinstance(argument, torch.fx.Node) else None
        for argument in ctx.node.args[:3]
    ]
    operands = [
        None if ref is None or fake is None else ctx.strided(ref, ctx.sizes.exprs(fake.stride()))
        for ref, fake in zip((x, weight, bias), fakes, strict=True)
    ]
    return ctx.extern(ctx.node.target, [*operands, *rest])

"""Dropout's masks: zeros and ones, drawn from eager's stream and kept as bools.

In: ``aten.bernoulli.p`` nodes. Out: an extern node that draws bools (`externs.draws`) and the loop that makes numbers of
them, which is computed inside its readers; what keeps the mask for the backward keeps the drawn bools themselves. What
always holds: the stream is eager's, in eager's order; where ours is not the same, or the order in memory is not
row-major, the operator runs as ATen has it.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.externs import draws
from inductor_backend.index_expr import contiguous_strides
from inductor_backend.loop_ir.nodes import BufferKind, ExternNode
from inductor_backend.loop_ir.values import cast
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.registry import Lowering, aten, lower


@lower(aten.bernoulli.p)
def bernoulli(ctx: Lowering, x: Ref, p: float = 0.5, generator: Any = None) -> Ref:
    sizes, dtype = ctx.shape(), ctx.meta().dtype
    if not (_is_ours(ctx) and isinstance(p, float) and 0 <= p <= 1 and generator is None):
        given = {} if generator is None else {"generator": generator}
        found: Ref = call_fallback(ctx, ctx.node.target, (x, p), given)
        return found
    drawn = ctx.buffer(sizes, torch.bool, kind=BufferKind.EXTERN)
    ctx.program.nodes.append(
        ExternNode(
            ctx.new_name("op"),
            draws.bernoulli,
            (tuple(sizes), p),
            {},
            (drawn.name,),
            False,
            ctx.origin("bernoulli"),
            sequential=True,
        )
    )
    bits = Ref.of(drawn)
    if dtype is torch.bool:
        return bits
    numbers = ctx.pointwise(lambda at: cast(bits.at(at), dtype), label="bernoulli")
    ctx.bits[numbers.buffer.name] = bits
    return numbers


def _is_ours(ctx: Lowering) -> bool:
    value = ctx.meta()
    row_major = tuple(ctx.strides()) == contiguous_strides(ctx.shape())
    return row_major and value.device.type == "cpu" and draws.same_stream(value.dtype)

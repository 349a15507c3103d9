"""Lowers the operators of whole loops and branches (``tracer_core::scan``, ``associative_scan``,
``while_loop``, ``cond``) to one call each.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.index_expr import contiguous_strides
from inductor_backend.lowering.context import Lowering, lower
from tracer_core.plugin_api import ASSOCIATIVE_SCAN, COND, SCAN, WHILE_LOOP

#: Dtypes that the Triton kernel of an associative scan takes: blocks of one byte are not supported.
SCANNED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def _dense(ctx: Lowering, tensors: Any) -> list[Any]:
    return [ctx.strided(tensor, contiguous_strides(tensor.sizes)) for tensor in tensors]


@lower(SCAN)
def loop(ctx: Lowering, *args: Any) -> Any:
    outer, carry, rows, *rest = args
    result = [_dense(ctx, part) for part in (outer, carry, rows)]
    return ctx.externs(SCAN, [*result, *rest])


@lower(ASSOCIATIVE_SCAN)
def associative(ctx: Lowering, rows: Any, program: str) -> Any:
    return ctx.externs(ASSOCIATIVE_SCAN, [_dense(ctx, rows), program])


@lower(WHILE_LOOP)
def while_loop(ctx: Lowering, more: Any, outer: Any, carry: Any, *rest: Any) -> Any:
    result = [_dense(ctx, part) for part in ((more,), outer, carry)]
    return ctx.externs(WHILE_LOOP, [result[0][0], *result[1:], *rest])


@lower(COND)
def cond(ctx: Lowering, predicate: Any, inputs: Any, *rest: Any) -> Any:
    result = _dense(ctx, (predicate, *inputs))
    return ctx.externs(COND, [result[0], result[1:], *rest])

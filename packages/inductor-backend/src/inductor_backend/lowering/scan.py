"""Running sums, products, extremes.

In: graph nodes of cumulative operators. Out: one scan node each. What always holds: the result's dtype is
eager's; a dimension of one element has nothing to run over and becomes pointwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.index_expr import Index
from inductor_backend.loop_ir.values import Value, cast, const
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.registry import Lowering, aten, lower
from inductor_backend.ops import compute_dtype


def _nothing_to_run(x: Ref, dim: int) -> bool:
    return not x.sizes or x.sizes[dim % len(x.sizes)] == 1


def _running(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
        result = ctx.meta().dtype

        if not x.sizes and dim not in (0, -1):
            return call_fallback(ctx, ctx.node.target, [x, dim], {"dtype": dtype} if dtype else {})  # eager's error

        def body(at: Sequence[Index]) -> Value:
            return cast(x.at(at), result)

        if _nothing_to_run(x, dim):
            return ctx.pointwise(body)
        return ctx.scan(kind, body, x.sizes, dim % len(x.sizes), [(result, ctx.strides())])[0]

    return lowering


lower(aten.cumsum.default)(_running("sum"))
lower(aten.cumprod.default)(_running("prod"))
lower(aten.logcumsumexp.default)(_running("logsumexp"))


def _running_extreme(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dim: int) -> tuple[Ref, Ref]:
        used, dtype = ctx.used_outputs(), compute_dtype(x.dtype)

        def body(at: Sequence[Index]) -> Value:
            return cast(x.at(at), dtype)

        if not x.sizes and dim not in (0, -1):
            return call_fallback(ctx, ctx.node.target, [x, dim], {})  # eager's error
        if _nothing_to_run(x, dim):
            where = ctx.pointwise(lambda at: const(0, torch.int64), x.sizes, torch.int64)
            return ctx.pointwise(body, x.sizes, x.dtype, ctx.strides(0)), where
        dim, values = dim % len(x.sizes), (x.dtype, ctx.strides(0))
        if used == {0} and x.dtype != torch.bool:
            (found,) = ctx.scan(kind, body, x.sizes, dim, [values])
            return found, found
        outputs = [values, (torch.int64, ctx.strides(1))]
        found, where = ctx.scan(kind + "_at", body, x.sizes, dim, outputs)
        return found, where

    return lowering


lower(aten.cummax.default)(_running_extreme("max"))
lower(aten.cummin.default)(_running_extreme("min"))

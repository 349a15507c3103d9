"""Lowers functional forms of writes (copy, slice_scatter, select_scatter), which functionalization
makes of ``x[1:3] = y``, to one pointwise node that reads new values inside the region and old ones
outside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index, floordiv, simplify
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.views import element_at, slice_start


@lower(aten.copy.default)
def copy(ctx: Lowering, x: Ref, source: Any, *unused: Any) -> Ref:
    return ctx.pointwise(lambda at: ctx.element(source, at, ctx.meta().dtype))


def _both(test: Value | None, other: Value) -> Value:
    return other if test is None else make("bit_and", test, other)


def _number(index: Index) -> Value:
    return make("index", attr=index)


@lower(aten.slice_scatter.default)
def slice_scatter(
    ctx: Lowering,
    x: Ref,
    source: Ref,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Ref:
    dim = dim % len(x.sizes)
    size = x.sizes[dim]
    length = source.sizes[dim]
    start = slice_start(ctx, size, start, end, length, step)
    dtype = x.dtype

    def body(at: Sequence[Index]) -> Value:
        shifted = at[dim] - start
        test = None if start == 0 else make("ge", _number(at[dim]), _number(Index(start)))
        if not (step == 1 and simplify(start + length) == size):
            test = _both(
                test, make("lt", _number(shifted), _number(Index(simplify(length * step))))
            )
        if step != 1:
            remainder = make("mod", _number(shifted), const(step, torch.int64))
            test = _both(test, make("eq", remainder, const(0, torch.int64)))
        position = list(at)
        position[dim] = floordiv(shifted, step)
        old = cast(x.at(at), dtype)
        if test is None:
            return cast(source.at(position), dtype)
        return cast(
            make(
                "masked_load",
                test,
                cast(old, source.dtype),
                attr=(source.buffer.name, source.place(position), source.dtype),
            ),
            dtype,
        )

    return ctx.pointwise(body)


@lower(aten.select_scatter.default)
def select_scatter(ctx: Lowering, x: Ref, source: Ref, dim: int, index: Any) -> Ref:
    dim = dim % len(x.sizes)
    index = element_at(ctx, x.sizes[dim], index)

    def body(at: Sequence[Index]) -> Value:
        test = make("eq", _number(at[dim]), _number(Index(index)))
        position = [*at[:dim], *at[dim + 1 :]]
        return make("where", test, cast(source.at(position), x.dtype), cast(x.at(at), x.dtype))

    return ctx.pointwise(body)

"""Lowers creation operators to constant bodies, inlined wherever they are read."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.deterministic as fill_settings

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower


@lower(aten.full.default)
def full(ctx: Lowering, sizes: Any, value: Any, **unused: Any) -> Ref:
    return ctx.pointwise(lambda at: ctx.element(value, at, ctx.meta().dtype))


@lower(aten.full_like.default, aten.new_full.default)
def full_like(ctx: Lowering, x: Ref, *rest: Any, **unused: Any) -> Ref:
    return ctx.pointwise(lambda at: ctx.element(rest[-1], at, ctx.meta().dtype))


def _filled(value: int) -> Any:
    return lambda ctx, *args, **kwargs: ctx.pointwise(lambda at: const(value, ctx.meta().dtype))


lower(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)(_filled(0))
lower(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(_filled(1))


@lower(
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten.empty_strided.default, aten.new_empty_strided.default,
)  # fmt: skip
def empty(ctx: Lowering, *args: Any, **kwargs: Any) -> Ref:
    """Fills uninitialized memory: zeros keep runs repeatable and cost nothing where unused."""
    fills = getattr(fill_settings, "fill_uninitialized_memory", True)
    known = fills and torch.are_deterministic_algorithms_enabled()
    value = torch.empty((), dtype=ctx.meta().dtype).item() if known else 0
    return ctx.pointwise(lambda at: const(value, ctx.meta().dtype))


@lower(aten.scalar_tensor.default)
def scalar_tensor(ctx: Lowering, value: Any, **unused: Any) -> Ref:
    return ctx.pointwise(lambda at: ctx.element(value, at, ctx.meta().dtype))


@lower(aten.fill.Scalar, aten.fill.Tensor)
def fill(ctx: Lowering, x: Ref, value: Any) -> Ref:
    return ctx.pointwise(lambda at: ctx.element(value, at, ctx.meta().dtype))


def _range(ctx: Lowering, start: Any, step: Any) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    if dtype.is_floating_point:
        # eager computes start + step * i in the accumulation type, double for float32 too
        def body(at: Any) -> Any:
            steps = make(
                "mul",
                cast(make("index", attr=at[0]), torch.float64),
                ctx.element(step, at, torch.float64),
            )
            return cast(make("add", steps, ctx.element(start, at, torch.float64)), dtype)

        return ctx.pointwise(body, label="arange")
    # eager computes these in integers, too
    start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    return ctx.pointwise(
        lambda at: cast(make("index", attr=at[0] * step + Index(start)), dtype), label="arange"
    )


@lower(aten.arange.default)
def arange(ctx: Lowering, end: Any, **unused: Any) -> Ref:
    return _range(ctx, 0, 1)


@lower(aten.arange.start)
def arange_start(ctx: Lowering, start: Any, end: Any, **unused: Any) -> Ref:
    return _range(ctx, start, 1)


@lower(aten.arange.start_step)
def arange_step(ctx: Lowering, start: Any, end: Any, step: Any = 1, **unused: Any) -> Ref:
    return _range(ctx, start, step)


def _triangle(name: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, diagonal: int = 0) -> Ref:
        def body(at: Any) -> Any:
            column = make("index", attr=at[-1])
            edge = make("index", attr=at[-2] + diagonal)
            value = ctx.element(x, at, x.dtype)
            return make("where", make(name, column, edge), value, const(0, value.dtype))

        return ctx.pointwise(body)

    return lowering


lower(aten.tril.default)(_triangle("le"))
lower(aten.triu.default)(_triangle("ge"))


@lower(aten.eye.default, aten.eye.m)
def eye(ctx: Lowering, *sizes: Any, **unused: Any) -> Ref:
    """Lowers eye; torch's decomposition compares ranges of unsigned integers, which no loop does."""

    def body(at: Any) -> Any:
        same = make("eq", make("index", attr=at[0]), make("index", attr=at[1]))
        return cast(same, compute_dtype(ctx.meta().dtype))

    return ctx.pointwise(body, label="eye")

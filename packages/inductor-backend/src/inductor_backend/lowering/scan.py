"""Lowers cumulative sums, products and extremes to one scan node each; few long rows on a GPU to
three loops over equal parts of the rows.

The result's dtype is eager's. A dimension of size 1 becomes pointwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, Index, product, variables
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, from_zero, lower
from inductor_backend.lowering.fallback import call_any, call_aten

#: On a GPU one program scans a row: ENOUGH_ROWS fill the device, and MAX_ROW fits in registers.
#: Parts of rows have a length within PARTS, for about PROGRAMS parts in all.
ENOUGH_ROWS, MAX_ROW, PARTS, PROGRAMS = 128, 8192, (512, 4096), 528

#: Scans that can be split -> op that combines the total before a part with its first element.
_TOGETHER = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}

_KINDS = {
    aten.cumsum.default: "sum", aten.cumprod.default: "prod",
    aten.logcumsumexp.default: "logsumexp",
    aten.cummax.default: "max_at", aten.cummin.default: "min_at",
}  # fmt: skip


def part_length(sizes: Sequence[int], dim: int) -> int | None:
    """Returns the length of the parts that long rows are split into on a GPU: 0 where they are not
    split, None where no length fits."""
    row, rows = sizes[dim], product(size for k, size in enumerate(sizes) if k != dim)
    if row <= MAX_ROW or rows >= ENOUGH_ROWS:
        return 0
    least, most = PARTS
    wanted = max(least, min(most, row * rows // PROGRAMS))
    lengths = [*range(wanted, most + 1), *range(wanted - 1, least - 1, -1)]
    return next((length for length in lengths if row % length == 0), None)


def is_slow_on_gpus(node: torch.fx.Node) -> bool:
    """Checks for few long rows that cannot be split into parts or, with symbolic sizes, are not:
    ATen's kernel is faster."""
    dim: Any = node.args[1]
    inputs = node.args[0].meta["val"]  # type: ignore[union-attr]
    if not inputs.dim():
        return False
    if not all(isinstance(size, int) for size in inputs.shape):
        hints = [size if isinstance(size, int) else size.node.hint for size in inputs.shape]
        return any(hint is None for hint in hints) or part_length(hints, dim % len(hints)) != 0
    length = part_length(list(inputs.shape), dim % inputs.dim())
    together = _KINDS[node.target] in _TOGETHER or _values_alone(node, inputs.dtype)
    return length is None or (length > 0 and not together)


def _values_alone(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    """Checks for a cummax/cummin whose indices nothing reads."""
    extreme = node.target in (aten.cummax.default, aten.cummin.default) and dtype != torch.bool
    return extreme and all(user.args[1] == 0 for user in node.users)


def _in_parts(
    ctx: Lowering,
    kind: str,
    body: Any,
    sizes: tuple[Expr, ...],
    dim: int,
    length: int,
    strides: Sequence[Expr],
    result: torch.dtype,
) -> Ref:
    """Adds three loops: the total of each part; the scan of the totals; the scan of each part,
    begun with the total of all parts before it."""
    row = sizes[dim]
    assert isinstance(row, int)
    parts = row // length
    wide: tuple[Expr, ...] = (*sizes[:dim], parts, length, *sizes[dim + 1 :])

    def in_rows(at: Sequence[Index]) -> tuple[Index, ...]:
        return (*at[:dim], at[dim] * length + at[dim + 1], *at[dim + 2 :])

    dtype = compute_dtype(result)
    (totals,) = ctx.reduction(kind, lambda at: body(in_rows(at)), wide, [dim + 1], dtype)
    (running,) = ctx.scan(kind, totals.at, totals.sizes, dim, [(dtype, None)])

    def element(at: Sequence[Index]) -> Value:
        value = body(in_rows(at))
        zero = const(0, torch.int64)
        first = make("eq", make("index", attr=at[dim + 1]), zero)
        inside = make("gt", make("index", attr=at[dim]), zero)
        place = (*at[:dim], at[dim] - Index(1), Index(), *at[dim + 2 :])
        test = make("bit_and", first, inside)
        before = make(
            "masked_load", test, value, attr=(running.buffer.name, running.place(place), dtype)
        )
        return make("where", test, make(_TOGETHER[kind], before, value), value)

    buffer = ctx.buffer(sizes, result, ctx.dense(sizes, strides))
    index = variables(wide)
    reduced = [k == dim + 1 for k in range(len(wide))]
    ctx.add_loop(wide, reduced, [Store((buffer.name,), in_rows(index), element(index), scan=kind)])
    return Ref.of(buffer)


def _nothing_to_run(x: Ref, dim: int) -> bool:
    return not x.sizes or x.sizes[dim % len(x.sizes)] == 1


def _length(ctx: Lowering, kind: str, sizes: tuple[Expr, ...], dim: int) -> int | None:
    """Returns the length of the parts that rows are split into; 0 or None for no split."""
    if not ctx.gpu or kind not in _TOGETHER or not all(isinstance(size, int) for size in sizes):
        return 0
    return part_length(sizes, dim)


def _running(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
        result = ctx.meta().dtype

        if not x.sizes and dim not in (0, -1):
            return call_aten(ctx, x, dim, **({"dtype": dtype} if dtype else {}))  # eager's error

        def body(at: Sequence[Index]) -> Value:
            return cast(x.at(at), result)

        if _nothing_to_run(x, dim):
            begun = kind == "sum" and x.sizes and not ctx.gpu and result.is_floating_point
            return ctx.pointwise(from_zero(body, result) if begun else body)
        dim %= len(x.sizes)
        length = _length(ctx, kind, x.sizes, dim)
        if length:
            return _in_parts(ctx, kind, body, x.sizes, dim, length, ctx.strides(), result)
        return ctx.scan(kind, body, x.sizes, dim, [(result, ctx.strides())])[0]

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
            both: tuple[Ref, Ref] = call_any(ctx, ctx.node.target, [x, dim], {})  # eager's error
            return both
        if _nothing_to_run(x, dim):
            where = ctx.pointwise(lambda at: const(0, torch.int64), x.sizes, torch.int64)
            return ctx.pointwise(body, x.sizes, x.dtype, ctx.strides(0)), where
        dim, values = dim % len(x.sizes), (x.dtype, ctx.strides(0))
        if used == {0} and x.dtype != torch.bool:
            length = _length(ctx, kind, x.sizes, dim)
            if length:
                result = _in_parts(ctx, kind, body, x.sizes, dim, length, ctx.strides(0), x.dtype)
                return result, result
            (result,) = ctx.scan(kind, body, x.sizes, dim, [values])
            return result, result
        outputs = [values, (torch.int64, ctx.strides(1))]
        result, where = ctx.scan(kind + "_at", body, x.sizes, dim, outputs)
        return result, where

    return lowering


lower(aten.cummax.default)(_running_extreme("max"))
lower(aten.cummin.default)(_running_extreme("min"))

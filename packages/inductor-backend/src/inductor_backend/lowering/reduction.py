"""Lowers reductions (sum, mean, max, var, softmax, ...) to reduction nodes over the operand's shape
and the pointwise nodes around them.

Results keep reduced dims with size 1 until a view drops them. As in eager, sums of 16-bit floats
accumulate in float32, sums of integers and bools in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, Index, product
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.value_cost import UNROLLED
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower, normalize_dims


def count(sizes: Sequence[Expr], dims: Iterable[int]) -> Expr:
    """Returns the number of elements in these dimensions."""
    return product(sizes[dim] for dim in dims)


def as_number(expr: Expr, dtype: torch.dtype) -> Value:
    return (
        const(expr, dtype)
        if isinstance(expr, int)
        else cast(make("index", attr=Index(expr)), dtype)
    )


def reduced_input(x: Ref, dtype: torch.dtype) -> Callable[[Sequence[Index]], Value]:
    return lambda at: cast(x.at(at), dtype)


@lower(aten.sum.default, aten.sum.dim_IntList)
def sum_(ctx: Lowering, x: Ref, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    reduced_dims = normalize_dims(dims, len(x.sizes))
    body = reduced_input(x, compute_dtype(ctx.meta().dtype))
    result = _result_dtype(ctx, x, reduced_dims)
    (total,) = ctx.reduction("sum", body, x.sizes, reduced_dims, result)
    return ctx.as_output(total)


def vecdot(ctx: Lowering, x: Ref, y: Ref, dims: Sequence[int], label: str) -> Ref:
    """Returns sums of x * y along dimensions, which stay, in the dtype in which x is computed."""
    dtype = compute_dtype(x.dtype)

    def term(at: Sequence[Index]) -> Value:
        return make("mul", cast(x.at(at), dtype), cast(y.at(at), dtype))

    (total,) = ctx.reduction("sum", term, x.sizes, dims, dtype, label)
    return total


def _result_dtype(ctx: Lowering, x: Ref, dims: Sequence[int]) -> torch.dtype:
    """Returns the dtype in which a sum or product is stored: the wide one that it is computed in,
    because the reduction may be split; the result's own on GPUs for rows of a few elements, whose
    results take as much memory as what they are computed from."""
    dtype, row = ctx.meta().dtype, product(x.sizes[dim] for dim in dims)
    short = ctx.gpu and isinstance(row, int) and 1 < row <= UNROLLED
    return dtype if short else compute_dtype(dtype)


@lower(aten.mean.default, aten.mean.dim)
def mean(ctx: Lowering, x: Ref, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    reduced_dims = normalize_dims(dims, len(x.sizes))
    result = compute_dtype(ctx.meta().dtype)
    (total,) = ctx.reduction(
        "sum", reduced_input(x, result), x.sizes, reduced_dims, result, label="mean"
    )
    return mean_of(ctx, total, x.sizes, reduced_dims)


def mean_of(
    ctx: Lowering, total: Ref, sizes: Sequence[Expr], dims: Sequence[int] | None = None
) -> Ref:
    """Returns the node's mean, given the sum over `dims` (None: all) of a tensor of `sizes`."""
    dims = range(len(sizes)) if dims is None else dims
    shaped = total.reshape(ctx.shape())
    size = as_number(count(sizes, dims), total.dtype)
    return ctx.pointwise(lambda at: make("div", shaped.at(at), size))


@lower(aten.prod.default, aten.prod.dim_int)
def prod(ctx: Lowering, x: Ref, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    dims = normalize_dims(dim, len(x.sizes))
    body = reduced_input(x, compute_dtype(ctx.meta().dtype))
    (total,) = ctx.reduction("prod", body, x.sizes, dims, _result_dtype(ctx, x, dims))
    return ctx.as_output(total)


def _plain(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dims: Any = None, keepdim: bool = False) -> Ref:
        dtype = torch.bool if kind in ("any", "all") else compute_dtype(x.dtype)
        (result,) = ctx.reduction(
            kind, reduced_input(x, dtype), x.sizes, normalize_dims(dims, len(x.sizes)), dtype
        )
        return ctx.as_output(result)

    return lowering


lower(aten.amax.default, aten.max.default)(_plain("max"))
lower(aten.amin.default, aten.min.default)(_plain("min"))
lower(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(_plain("any"))
lower(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(_plain("all"))


def _arg(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
        source = x if dim is not None or len(x.sizes) <= 1 else x.reshape((product(x.sizes),))
        dims = normalize_dims(dim, len(source.sizes))
        (result,) = ctx.reduction(
            kind, reduced_input(source, compute_dtype(x.dtype)), source.sizes, dims, torch.int64
        )
        return result.reshape(ctx.shape())

    return lowering


lower(aten.argmax.default)(_arg("argmax"))
lower(aten.argmin.default)(_arg("argmin"))


def _extreme_with_index(kind: str) -> Any:
    def lowering(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
        dims, dtype = normalize_dims(dim, len(x.sizes)), compute_dtype(x.dtype)
        (value,) = ctx.reduction(kind, reduced_input(x, dtype), x.sizes, dims, x.dtype)
        (where,) = ctx.reduction("arg" + kind, reduced_input(x, dtype), x.sizes, dims, torch.int64)
        return value.reshape(ctx.shape(0)), where.reshape(ctx.shape(1))

    return lowering


lower(aten.max.dim)(_extreme_with_index("max"))
lower(aten.min.dim)(_extreme_with_index("min"))


def variance_nodes(
    ctx: Lowering,
    x: Ref,
    dims: list[int],
    correction: Any,
    dtype: torch.dtype,
    wide: torch.dtype | None = None,
) -> tuple[Ref, Ref, Value]:
    """Returns (mean, sum of squared distances, divisor), the first two with reduced dims of size 1. wide: dtype of
    the sum."""
    average, squares = ctx.reduction(
        "welford", reduced_input(x, dtype), x.sizes, dims, dtype, "var", wide
    )
    size = as_number(count(x.sizes, dims), dtype)
    return (
        average,
        squares,
        make("maximum", make("sub", size, const(correction, dtype)), const(0, dtype)),
    )


def _var_like(
    ctx: Lowering, x: Ref, dim: Any, correction: Any, root: bool, with_mean: bool
) -> tuple[Ref, ...]:
    correction = 1 if correction is None else correction
    first = ctx.meta(0) if with_mean else ctx.meta()
    dtype = compute_dtype(first.dtype)
    if root and dtype is torch.float32 and not ctx.gpu:
        # As eager: squares of float32 may be none of float32's numbers while their root is one.
        dtype = torch.float64
    dims = normalize_dims(dim, len(x.sizes))
    shape = ctx.sizes.exprs(first.shape)
    # whatever the divisor: Welford's running mean and squares start at 0
    if count(x.sizes, dims) == 0:
        return tuple(
            ctx.pointwise(lambda at: const(float("nan"), dtype), shape, meta.dtype)
            for meta in ([first, ctx.meta(1)] if with_mean else [first])
        )
    average, squares, divisor = variance_nodes(ctx, x, dims, correction, dtype)
    shaped = squares.reshape(shape)

    def body(at: Sequence[Index]) -> Value:
        value = make("div", shaped.at(at), divisor)
        return make("sqrt", value) if root else value

    result = ctx.pointwise(body, shape, first.dtype)
    if not with_mean:
        return (result,)
    return result, mean_of_steps(ctx, average, squares, count(x.sizes, dims), shape)


def mean_of_steps(
    ctx: Lowering, average: Ref, squares: Ref, size: Expr, shape: Sequence[Expr]
) -> Ref:
    """Returns output 1 of the node: the mean that Welford's steps end with in eager, which is NaN, as
    the squares are, where one of several elements is infinite."""
    dtype = ctx.meta(1).dtype
    average, squares = average.reshape(shape), squares.reshape(shape)
    if size == 1:
        return ctx.as_output(average, 1)

    def body(at: Sequence[Index]) -> Value:
        mean, distance = average.at(at), squares.at(at)
        known = make("eq", distance, distance)
        if not isinstance(size, int):
            single = make("eq", as_number(size, torch.int64), const(1, torch.int64))
            known = make("bit_or", known, single)
        return make("where", known, mean, const(float("nan"), average.dtype))

    return ctx.pointwise(body, shape, dtype, label="mean")


@lower(aten.var.correction)
def var(
    ctx: Lowering, x: Ref, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Ref:
    return _var_like(ctx, x, dim, correction, root=False, with_mean=False)[0]


@lower(aten.std.correction)
def std(
    ctx: Lowering, x: Ref, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Ref:
    return _var_like(ctx, x, dim, correction, root=True, with_mean=False)[0]


@lower(aten.var_mean.correction)
def var_mean(
    ctx: Lowering, x: Ref, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Ref, ...]:
    return _var_like(ctx, x, dim, correction, root=False, with_mean=True)


def _nothing(ctx: Lowering) -> Ref:
    """Returns an empty result: eager has some operators of integers for empty tensors only."""
    return ctx.pointwise(lambda at: const(0, ctx.meta().dtype))


@lower(aten._softmax.default, aten._safe_softmax.default)
def softmax(ctx: Lowering, x: Ref, dim: int, *unused: Any, **also_unused: Any) -> Ref:
    """Computes exp(x - max) / sum; a row of -inf gives NaN, or 0 for _safe_softmax."""
    safe = ctx.node.target is aten._safe_softmax.default
    sizes, dtype = x.sizes, compute_dtype(ctx.meta().dtype)
    if not dtype.is_floating_point:
        return _nothing(ctx)
    dims = normalize_dims(dim, len(sizes))
    source = reduced_input(x, dtype)
    (greatest,) = ctx.reduction("max", source, sizes, dims, dtype, label="softmax")

    def power(at: Sequence[Index]) -> Value:
        return make("exp", make("sub", source(at), greatest.at(broadcast(at, greatest.sizes))))

    powers = ctx.pointwise(power, sizes, dtype, label="softmax")
    (total,) = ctx.reduction("sum", powers.at, sizes, dims, dtype, label="softmax")

    def body(at: Sequence[Index]) -> Value:
        # One division per row: dividing each element takes a third of a row's time. The reciprocal
        # is safe: the sum is NaN or between 1 and the row's length.
        share = make("div", const(1, dtype), total.at(broadcast(at, total.sizes)))
        value = make("mul", powers.at(at), share)
        if not safe:
            return value
        top = greatest.at(broadcast(at, greatest.sizes))  # -inf: nothing in the row is visible
        empty = make("eq", top, const(float("-inf"), dtype))
        return make("where", empty, const(0, dtype), value)

    return ctx.pointwise(body)


@lower(aten._log_softmax.default)
def log_softmax(ctx: Lowering, x: Ref, dim: int, *unused: Any) -> Ref:
    sizes, dtype = x.sizes, compute_dtype(ctx.meta().dtype)
    if not dtype.is_floating_point:
        return _nothing(ctx)
    dims = normalize_dims(dim, len(sizes))
    source = reduced_input(x, dtype)
    (greatest,) = ctx.reduction("max", source, sizes, dims, dtype, label="log_softmax")

    def shifted(at: Sequence[Index]) -> Value:
        return make("sub", source(at), greatest.at(broadcast(at, greatest.sizes)))

    (total,) = ctx.reduction(
        "sum", lambda at: make("exp", shifted(at)), sizes, dims, dtype, label="log_softmax"
    )
    return ctx.pointwise(
        lambda at: make("sub", shifted(at), make("log", total.at(broadcast(at, total.sizes))))
    )


@lower(aten.logsumexp.default)
def logsumexp(ctx: Lowering, x: Ref, dims: Any, keepdim: bool = False) -> Ref:
    sizes, dtype = x.sizes, compute_dtype(ctx.meta().dtype)
    reduced_dims = normalize_dims(dims, len(sizes))
    source = reduced_input(x, dtype)
    (greatest,) = ctx.reduction("max", source, sizes, reduced_dims, dtype)

    def base(at: Sequence[Index]) -> Value:
        """Returns the maximum, 0 where it is infinite: inf - inf would be NaN."""
        value = greatest.at(broadcast(at, greatest.sizes))
        infinite = make("eq", make("abs", value), const(float("inf"), dtype))
        return make("where", infinite, const(0, dtype), value)

    (total,) = ctx.reduction(
        "sum", lambda at: make("exp", make("sub", source(at), base(at))), sizes, reduced_dims, dtype
    )
    both = total.sizes
    with_dims = ctx.pointwise(
        lambda at: make("add", make("log", total.at(at)), base(at)), both, ctx.meta().dtype
    )
    return with_dims.reshape(ctx.shape())

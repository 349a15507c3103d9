"""Converters of clamp and of max and min that keep NaN, which TVM's own converters lose.

A clamp's bounds are scalars, symbolic ones included; where the lower bound exceeds the upper
one, the upper one wins."""

from __future__ import annotations

import math
from typing import Any

import torch

from tvm_backend.matmul import POINTWISE
from tvm_backend.tvm_private import Converter


def reducer(largest: bool) -> Any:
    """Returns a TVM reducer for max or min along reduce axes that gives NaN where there is one;
    elements of nothing but -inf (min: inf) give that."""
    from tvm import te, tirx

    def first(a: Any, b: Any) -> Any:
        beyond = a >= b if largest else a <= b
        return tirx.Select(tirx.any(beyond, tirx.isnan(a)), a, b)

    return te.comm_reducer(
        first, lambda dtype: tirx.const(float("-inf" if largest else "inf"), dtype)
    )


def _extreme(largest: bool) -> Converter:
    """Returns the converter of ``(x, dims=(), keepdim=False)``; no dims means all."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax

        x, *rest = importer.retrieve_args(node)
        rank = len(x.ty.shape)
        dims = sorted({dim % rank for dim in rest[0]} if rest and rest[0] and rank else range(rank))
        keepdim = bool(rest[1]) if len(rest) > 1 else bool(node.kwargs.get("keepdim", False))
        if not rank or not node.meta["val"].dtype.is_floating_point:
            name = "max" if largest else "min"
            return importer.block_builder.emit(
                getattr(relax.op, name)(x, axis=dims or None, keepdims=keepdim)
            )
        return importer.block_builder.emit_te(
            _over, x, dims, keepdim, largest, primfunc_name_hint="extreme"
        )

    return convert


def _over(x: Any, dims: list[int], keepdim: bool, largest: bool) -> Any:
    from tvm import te

    reduce = reducer(largest)
    axes = {dim: te.reduce_axis((0, x.shape[dim]), name=f"k{dim}") for dim in dims}
    outer_dims = [dim for dim in range(len(x.shape)) if keepdim or dim not in axes]
    shape = [1 if dim in axes else x.shape[dim] for dim in outer_dims]

    def value(*at: Any) -> Any:
        place = dict(zip(outer_dims, at, strict=True)) | axes
        return reduce(x[tuple(place[dim] for dim in range(len(x.shape)))], axis=list(axes.values()))

    return te.compute(shape, value, name="extreme")


def _clamp(low: str | None, high: str | None) -> Converter:
    """Returns a clamp converter. low, high: the operator's names for its bounds."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        target: Any = node.target
        inputs = {argument.name: argument.default_value for argument in target._schema.arguments}
        inputs |= dict(zip(inputs, importer.retrieve_args(node), strict=False)) | node.kwargs
        bounds = [inputs.get(name) for name in (low, high)]
        if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
            raise NotImplementedError("a bound that is no number")
        return importer.block_builder.emit_te(
            _within, inputs["self"], *bounds, primfunc_name_hint="within", primfunc_attrs=POINTWISE
        )

    return convert


def _within(x: Any, low: Any, high: Any) -> Any:
    """Returns x, replaced by low where x is less and by high where the result is more."""
    from tvm import te, tirx

    def bound(value: Any) -> Any:
        return (
            tirx.const(value, x.dtype) if isinstance(value, (int, float)) else value.astype(x.dtype)
        )

    def value(*at: Any) -> Any:
        select = x[at]
        if low is not None:
            select = tirx.Select(select < bound(low), bound(low), select)
        return select if high is None else tirx.Select(select > bound(high), bound(high), select)

    return te.compute(x.shape, value, name="within")


def _either(name: str) -> Converter:
    """Returns a converter of maximum or minimum. name: the comparison by which the first operand
    is taken."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax

        a, b = importer.retrieve_args(node)
        emit = importer.block_builder.emit
        first = emit(getattr(relax.op, name)(a, b))
        if node.meta["val"].dtype.is_floating_point:
            first = emit(relax.op.logical_or(first, emit(relax.op.isnan(a))))
        return emit(relax.op.where(first, a, b))

    return convert


#: Operator name without ``aten.`` -> converter.
BOUNDS: dict[str, Converter] = {
    **dict.fromkeys(("amax.default", "max.default"), _extreme(True)),
    **dict.fromkeys(("amin.default", "min.default"), _extreme(False)),
    "clamp.default": _clamp("min", "max"),
    "clamp_min.default": _clamp("min", None),
    "clamp_max.default": _clamp(None, "max"),
    "hardtanh.default": _clamp("min_val", "max_val"),
    "maximum.default": _either("greater_equal"),
    "minimum.default": _either("less_equal"),
}

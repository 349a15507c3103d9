"""Our converters of clamps and of the larger or smaller of two: NaN stays NaN, which TVM's own lose.

In: the importer and a node. Out: a Relax expression of comparisons. What always holds: bounds of a clamp are numbers or sizes of
the graph; a lower bound gives way to an upper one below it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tvm_backend.products import POINTWISE
from tvm_backend.tvm_private import Converter


def _clamp(low: str | None, high: str | None) -> Converter:
    """low, high: what the operator calls its bounds."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        target: Any = node.target
        given = {one.name: one.default_value for one in target._schema.arguments}
        given |= dict(zip(given, importer.retrieve_args(node), strict=False)) | node.kwargs
        bounds = [given.get(name) for name in (low, high)]
        if any(isinstance(one, float) and math.isnan(one) for one in bounds):
            raise NotImplementedError("a bound that is no number")
        return importer.block_builder.emit_te(
            _within, given["self"], *bounds, primfunc_name_hint="within", primfunc_attrs=POINTWISE
        )

    return convert


def _within(x: Any, low: Any, high: Any) -> Any:
    """x, low where it is less, high where that is more."""
    from tvm import te, tirx

    def bound(given: Any) -> Any:
        return tirx.const(given, x.dtype) if isinstance(given, (int, float)) else given.astype(x.dtype)

    def value(*at: Any) -> Any:
        found = x[at]
        if low is not None:
            found = tirx.Select(found < bound(low), bound(low), found)
        return found if high is None else tirx.Select(found > bound(high), bound(high), found)

    return te.compute(x.shape, value, name="within")


def _either(name: str) -> Converter:
    """name: of the comparison by which the first of two is taken."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax

        a, b = importer.retrieve_args(node)
        emit = importer.block_builder.emit
        first = emit(getattr(relax.op, name)(a, b))
        if node.meta["val"].dtype.is_floating_point:
            first = emit(relax.op.logical_or(first, emit(relax.op.isnan(a))))
        return emit(relax.op.where(first, a, b))

    return convert


#: By the operator's name below ``aten``.
BOUNDS: dict[str, Converter] = {
    "clamp.default": _clamp("min", "max"),
    "clamp_min.default": _clamp("min", None),
    "clamp_max.default": _clamp(None, "max"),
    "hardtanh.default": _clamp("min_val", "max_val"),
    "maximum.default": _either("greater_equal"),
    "minimum.default": _either("less_equal"),
}

"""Converters of embedding, index, index_select and gather.

Value checks before each of these operators guarantee indices within their dimension and not
negative (`tracer_core.engine_support.value_checks`); compiled code reads without checking. Index
tensors of one operator broadcast together as in PyTorch; TVM's importer applies some lists of
them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.plugin_api import ValueClass, checks_indices, operators
from tvm_backend.tvm_private import Converter

#: TVM starts from the dtype's least finite number, so that it misses NaN and rows of -inf.
POSITIONS = frozenset({operators("aten").argmax.default, operators("aten").argmin.default})


def fault(node: torch.fx.Node) -> ValueClass | None:
    """Returns the values for which eager's results must be taken, or None."""
    if node.target in POSITIONS:
        return ValueClass.INFINITE
    return (
        ValueClass.INDEX
        if getattr(node.target, "__name__", "") in INDEXING and checks_indices(node)
        else None
    )


def _rows(importer: Any, node: torch.fx.Node) -> Any:
    """Converts embedding(table, indices, ...)."""
    table, index = (importer.env[arg] for arg in node.args[:2])
    return _emit(importer, table, [index])


def _along(importer: Any, node: torch.fx.Node) -> Any:
    """Converts index_select(x, dim, index)."""
    x, dim, index = importer.retrieve_args(node)
    if not len(x.ty.shape) or len(index.ty.shape) != 1:
        raise NotImplementedError("index_select of one number")
    return _emit(importer, x, [None] * (dim % len(x.ty.shape)) + [index])


def _positions(importer: Any, node: torch.fx.Node) -> Any:
    """Converts index.Tensor(x, indices)."""
    x, indices = importer.retrieve_args(node)
    return _emit(importer, x, list(indices))


def _gather(importer: Any, node: torch.fx.Node) -> Any:
    """Converts gather(x, dim, index)."""
    from tvm import te

    x, dim, index = importer.retrieve_args(node)[:3]
    if not len(x.ty.shape) or not len(index.ty.shape):
        raise NotImplementedError("gather of one number")
    dim %= len(x.ty.shape)

    def body(x: Any, index: Any) -> Any:
        return te.compute(
            index.shape, lambda *at: x[(*at[:dim], index[at], *at[dim + 1 :])], name="gathered"
        )

    return importer.block_builder.emit_te(body, x, index, primfunc_name_hint="gather")


def _emit(importer: Any, x: Any, indices: Sequence[Any]) -> Any:
    """Emits x[indices]; None, like a missing trailing index, takes all of a dimension."""
    inputs = [index for index in indices if index is not None]
    places = [dim for dim, index in enumerate(indices) if index is not None]

    def body(x: Any, *value: Any) -> Any:
        return _taken(x, dict(zip(places, value, strict=True)))

    return importer.block_builder.emit_te(body, x, *inputs, primfunc_name_hint="taken")


def _taken(x: Any, indices: dict[int, Any]) -> Any:
    """Computes x[indices]. indices: dimension -> index tensor. Where the indexed dimensions are
    not adjacent, the indices' shape comes first in the result."""
    from tvm import te

    shape = _broadcast([index.shape for index in indices.values()])
    dims = sorted(indices)
    start = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    outer_dims = [dim for dim in range(len(x.shape)) if dim not in indices]
    sizes = [x.shape[dim] for dim in outer_dims]

    def value(*at: Any) -> Any:
        place, rest = at[start : start + len(shape)], (*at[:start], *at[start + len(shape) :])
        spots = dict(zip(outer_dims, rest, strict=True))
        for dim, index in indices.items():
            own = place[len(place) - len(index.shape) :]
            spots[dim] = index[
                tuple(
                    0 if _is_one(size) else item
                    for size, item in zip(index.shape, own, strict=True)
                )
            ]
        return x[tuple(spots[dim] for dim in range(len(x.shape)))]

    return te.compute((*sizes[:start], *shape, *sizes[start:]), value, name="taken")


def _broadcast(shapes: Sequence[Any]) -> list[Any]:
    """Returns the common shape; symbolic sizes are never 1."""
    length = max(len(shape) for shape in shapes)
    common: list[Any] = [1] * length
    for shape in shapes:
        for dim, size in enumerate(shape, length - len(shape)):
            common[dim] = common[dim] if _is_one(size) else size
    return common


def _is_one(size: Any) -> bool:
    return (
        bool(getattr(size, "value", size) == 1)
        if isinstance(getattr(size, "value", size), int)
        else False
    )


#: Operator name without ``aten.`` -> converter.
INDEXING: dict[str, Converter] = {
    "embedding.default": _rows,
    "gather.default": _gather,
    "index.Tensor": _positions,
    "_unsafe_index.Tensor": _positions,
    "index_select.default": _along,
}

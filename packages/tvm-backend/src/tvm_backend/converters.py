"""Our converters, for operators that TVM's importer lacks or converts to something else.

In: the importer and a node. Out: a Relax expression. What always holds: `tracer_core`'s probe of one node compares what
they compute with PyTorch before a graph uses them, so a form that a converter does not take may be refused by
raising NotImplementedError.
"""

from __future__ import annotations

from typing import Any

import torch

from tvm_backend.dtypes import DTYPES
from tvm_backend.tvm_private import Converter


def _permute_last_two(importer: Any, node: torch.fx.Node) -> Any:
    from tvm import relax

    (x,) = importer.retrieve_args(node)
    axes = [1, 0] if len(x.ty.shape) == 2 else None
    return x if axes is None else importer.block_builder.emit(relax.op.permute_dims(x, axes))


def _reduce(name: str) -> Converter:
    """amax, amin: ``(x, dims=(), keepdim=False)``, no dims: all."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax

        x, *rest = importer.retrieve_args(node)
        dims = list(rest[0]) if rest and rest[0] else None
        keepdim = bool(rest[1]) if len(rest) > 1 else bool(node.kwargs.get("keepdim", False))
        return importer.block_builder.emit(getattr(relax.op, name)(x, axis=dims, keepdims=keepdim))

    return convert


def _select_dim(importer: Any, node: torch.fx.Node) -> Any:
    """select.int with any sign of the index."""
    from tvm import relax

    x, dim, index = importer.retrieve_args(node)
    size = x.ty.shape[dim]
    place = relax.const(int(index) if int(index) >= 0 else int(size) + int(index), "int64")
    return importer.block_builder.emit(relax.op.take(x, place, axis=dim))


def _power(importer: Any, node: torch.fx.Node) -> Any:
    """Squares and cubes as products, as PyTorch computes them; TVM's pow is wrong for negative bases."""
    from tvm import relax

    x, exponent = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    if exponent not in (2, 3):
        return emit(relax.op.power(x, relax.const(exponent, x.ty.dtype)))
    square = emit(relax.op.multiply(x, x))
    return square if exponent == 2 else emit(relax.op.multiply(square, x))


def _product(importer: Any, node: torch.fx.Node) -> Any:
    """mm, bmm in the dtype of their arguments; TVM's own is float32 whatever they are."""
    from tvm import relax

    a, b = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.matmul(a, b, out_dtype=DTYPES[node.meta["val"].dtype]))


#: By the operator's name below ``aten``.
CONVERTERS: dict[str, Converter] = {
    "t.default": _permute_last_two,
    "amax.default": _reduce("max"),
    "amin.default": _reduce("min"),
    "bmm.default": _product,
    "mm.default": _product,
    "pow.Tensor_Scalar": _power,
    "select.int": _select_dim,
}

"""Converters for ATen operators that TVM's importer lacks or converts wrongly.

The op support check compares each of them with PyTorch on a graph of one node before a graph
uses it, so a converter may raise NotImplementedError for a form that it does not support."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tvm_backend import elementary, matmul, softmax
from tvm_backend.clamp_and_extremes import BOUNDS
from tvm_backend.convolutions import convolution
from tvm_backend.dtypes import DTYPES
from tvm_backend.indexing import INDEXING
from tvm_backend.pooling import POOLING
from tvm_backend.tvm_private import Converter


def _permute_last_two(importer: Any, node: torch.fx.Node) -> Any:
    from tvm import relax

    (x,) = importer.retrieve_args(node)
    axes = [1, 0] if len(x.ty.shape) == 2 else None
    return x if axes is None else importer.block_builder.emit(relax.op.permute_dims(x, axes))


def _select_dim(importer: Any, node: torch.fx.Node) -> Any:
    """Converts select.int; the index may be negative."""
    from tvm import relax

    x, dim, index = importer.retrieve_args(node)
    size = x.ty.shape[dim]
    place = relax.const(int(index) if int(index) >= 0 else int(size) + int(index), "int64")
    return importer.block_builder.emit(relax.op.take(x, place, axis=dim))


def _power(importer: Any, node: torch.fx.Node) -> Any:
    """Converts squares and cubes to products, as PyTorch computes them; TVM's pow is wrong for
    negative bases."""
    from tvm import relax

    x, exponent = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    if exponent not in (2, 3):
        return emit(relax.op.power(x, relax.const(exponent, x.ty.dtype)))
    square = emit(relax.op.multiply(x, x))
    return square if exponent == 2 else emit(relax.op.multiply(square, x))


def _product(importer: Any, node: torch.fx.Node) -> Any:
    """Converts mm and bmm in the dtype of their operands; TVM's own converter always uses
    float32."""
    a, b = node.args
    return _multiplied(importer, a, b, node.meta["val"].dtype)


def _multiplied(importer: Any, a: Any, b: Any, dtype: torch.dtype) -> Any:
    """Emits a @ b. A transposed b (the weight of torch.nn.Linear) is read as it lies, without a
    transpose in memory."""
    from tvm import relax

    builder, left, right = importer.block_builder, importer.env[a], importer.env[b]
    if dtype not in (torch.float32, torch.float64):
        return builder.emit(relax.op.matmul(left, right, out_dtype=DTYPES[dtype]))
    original = _transposed(b)
    if original is None:
        return matmul.product(builder, left, right, b.name in importer.frozen)
    return matmul.transposed(
        builder, left, importer.env[original], original.name in importer.frozen
    )


def _transposed(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node whose 2-d value this node transposes, if it does."""
    swapped = {"t.default": (), "permute.default": ([1, 0],), "transpose.int": (0, 1)}.get(
        getattr(node.target, "__name__", "")
    )
    if swapped is None or node.meta["val"].dim() != 2:
        return None
    items = tuple(list(arg) if isinstance(arg, (list, tuple)) else arg for arg in node.args[1:])
    original: Any = node.args[0]
    return original if items == swapped else None


def _matmul_and_add(importer: Any, node: torch.fx.Node) -> Any:
    """Converts addmm without alpha and beta, in the operands' dtype; TVM's own always uses
    float32."""
    from tvm import relax

    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise NotImplementedError("addmm with factors")
    bias, a, b = node.args
    product = _multiplied(importer, a, b, node.meta["val"].dtype)
    return importer.block_builder.emit(relax.op.add(product, importer.env[bias]))


def _relu(importer: Any, node: torch.fx.Node) -> Any:
    """Converts relu to a comparison; TVM's maximum gives 0 for NaN."""
    from tvm import relax

    (x,) = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    zero = relax.const(0, x.ty.dtype)
    return emit(relax.op.where(emit(relax.op.less_equal(x, zero)), zero, x))


def _elementary(function: Callable[[Any], Any], name: str) -> Converter:
    """Returns a converter to a polynomial for float32. name: TVM's own operator, for other
    dtypes."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax, te

        x = importer.env[node.args[0]]
        if node.meta["val"].dtype is torch.float32 and x.ty.dtype == "float32":
            body = lambda x: te.compute(
                x.shape, lambda *at: function(x[at]), name=function.__name__
            )
            return importer.block_builder.emit_te(
                body, x, primfunc_name_hint=function.__name__, primfunc_attrs=matmul.POINTWISE
            )
        own = functools.reduce(getattr, name.split("."), relax.op)
        return importer.block_builder.emit(own(x))

    return convert


def _gelu(importer: Any, node: torch.fx.Node) -> Any:
    if node.kwargs.get("approximate", "none") == "tanh":
        return _elementary(elementary.gelu_tanh, "nn.gelu_tanh")(importer, node)
    return _elementary(elementary.gelu, "nn.gelu")(importer, node)


def _softmax(importer: Any, node: torch.fx.Node) -> Any:
    """Converts _softmax(x, dim, half_to_float)."""
    from tvm import relax

    x, dim, widened = importer.retrieve_args(node)
    if widened:
        raise NotImplementedError("a softmax into a wider dtype")
    builder, last = importer.block_builder, len(x.ty.shape) - 1
    if x.ty.dtype != "float32" or dim not in (-1, last) or last < 0:
        return builder.emit(relax.op.nn.softmax(x, dim))
    return builder.emit_te(
        softmax.softmax, x, primfunc_name_hint="softmax", primfunc_attrs=matmul.FUSABLE
    )


#: Operator name without ``aten.`` -> converter.
CONVERTERS: dict[str, Converter] = (
    {
        "t.default": _permute_last_two,
        "_softmax.default": _softmax,
        "addmm.default": _matmul_and_add,
        "bmm.default": _product,
        "convolution.default": convolution,
        "erf.default": _elementary(elementary.erf, "erf"),
        "exp.default": _elementary(elementary.exp, "exp"),
        "gelu.default": _gelu,
        "mm.default": _product,
        "pow.Tensor_Scalar": _power,
        "relu.default": _relu,
        "select.int": _select_dim,
        "sigmoid.default": _elementary(elementary.sigmoid, "sigmoid"),
        "silu.default": _elementary(elementary.silu, "nn.silu"),
        "tanh.default": _elementary(elementary.tanh, "tanh"),
    }
    | BOUNDS
    | INDEXING
    | POOLING
)

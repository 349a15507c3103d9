"""Converter of max_pool1d, 2d and 3d that keeps NaN, which TVM's maximum loses.

A window of padding alone gives -inf. Where ATen returns indices too, zeros take their place: the
op support check reports a graph that reads indices as unsupported, as with TVM's own converter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from tvm_backend.clamp_and_extremes import reducer
from tvm_backend.tvm_private import Converter


def max_pool(dimensions: int, indices: bool) -> Converter:
    """Returns the converter for images with so many spatial dimensions."""

    def convert(importer: Any, node: torch.fx.Node) -> Any:
        from tvm import relax

        x, kernel, *rest = importer.retrieve_args(node)
        items: list[Any] = list(rest[:3])  # the result's sizes imply ceil_mode, the last argument
        stride, padding, dilation = items + [None, 0, 1][len(items) :]
        value: Any = node.meta["val"]
        sizes = (value[0] if indices else value).shape[-dimensions:]
        image = node.args[0].meta["val"]  # type: ignore[union-attr]
        if not all(isinstance(size, int) for size in (*sizes, *image.shape[-dimensions:])):
            raise NotImplementedError("max pooling of images whose size changes")
        if not image.dtype.is_floating_point:
            raise NotImplementedError("max pooling of integers")
        steps = [_each(item, dimensions) for item in (kernel, stride or kernel, padding, dilation)]
        result = importer.block_builder.emit_te(
            _largest, x, *steps, list(sizes), primfunc_name_hint="largest"
        )
        return (
            importer.block_builder.emit(relax.Tuple([result, relax.op.zeros_like(result)]))
            if indices
            else result
        )

    return convert


def _each(values: Any, dimensions: int) -> list[int]:
    """Returns one number per dimension."""
    items = list(values) if isinstance(values, Sequence) else [values]
    return [int(item) for item in (items * dimensions if len(items) == 1 else items)]


def _largest(
    x: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    sizes: list[int],
) -> Any:
    from tvm import te, tirx

    least = tirx.const(float("-inf"), x.dtype)
    larger = reducer(largest=True)
    lead = len(x.shape) - len(kernel)
    taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(kernel)]

    def value(*place: Any) -> Any:
        steps = zip(place[lead:], stride, taps, dilation, padding, strict=True)
        at = [spot * step + tap * gap - pad for spot, step, tap, gap, pad in steps]
        tests = []
        for axis, spot in enumerate(at):
            size = x.shape[lead + axis]
            if padding[axis]:
                tests.append(spot >= 0)
            if (sizes[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] - padding[
                axis
            ] >= int(size):
                tests.append(spot < size)
        read = x[(*place[:lead], *at)]
        return larger(
            tirx.if_then_else(tirx.all(*tests), read, least) if tests else read, axis=taps
        )

    return te.compute((*x.shape[:lead], *sizes), value, name="largest")


#: Operator name without ``aten.`` -> converter.
POOLING: dict[str, Converter] = {
    f"max_pool{dimensions}d{'_with_indices' * indices}.default": max_pool(dimensions, bool(indices))
    for dimensions, indices in itertools.product((1, 2, 3), (0, 1))
}

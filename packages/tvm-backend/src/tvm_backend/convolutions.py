"""Converter of aten.convolution to forms that the default schedules can vectorise.

TVM's own converter vectorises only along the image's last axis, and its grouped convolutions
have no axis for a tile's rows. Sums run over the same products as in PyTorch. Forms (TVM's
converter takes the others):

- one result pixel: a matmul per group, both operands as they lie; taps that read padding only
  are cut;
- 1x1 windows: a matmul over all pixels of an image;
- narrow images: the output channels are the vector; weights are packed for that (with freeze,
  while TVM compiles);
- other grouped and depthwise convolutions: one axis for groups and one for their channels, so
  that a tile has rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tvm_backend.tiles import WIDTHS, largest
from tvm_backend.tvm_private import theirs

#: Output channels in a vector, the best first.
CHANNELS = (32, 16, 8)

#: Images whose result columns divide into vectors of fewer lanes than this are narrow.
NARROW = 4

#: Below so many results per weight, packing the weights in each call costs more than it gains.
REUSED = 16

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class KernelWindow:
    """One dimension of a convolution."""

    size: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def results(self) -> int:
        """Returns the size of the result in this dimension."""
        return (
            self.size + 2 * self.padding - self.dilation * (self.taps - 1) - 1
        ) // self.stride + 1

    @property
    def inside(self) -> range:
        """Returns, for a window with one position, the taps that read the image rather than
        padding."""
        places = [
            tap for tap in range(self.taps) if 0 <= tap * self.dilation - self.padding < self.size
        ]
        return range(places[0], places[-1] + 1) if places else range(0)

    @property
    def point(self) -> bool:
        """Returns whether each result reads one pixel, its own."""
        return self.taps == self.stride == 1 and self.padding == 0


def convolution(importer: Any, node: torch.fx.Node) -> Any:
    """Converts ``convolution(x, weight, bias, stride, padding, dilation, transposed,
    output_padding, groups)``."""
    inputs = _windows(node)
    if inputs is None:
        return theirs(importer, node)
    windows, groups = inputs
    image: Any = node.args[0]
    weight_node: Any = node.args[1]
    weights = weight_node.meta["val"].shape
    x, weight = importer.env[node.args[0]], importer.env[node.args[1]]
    channels, narrow = int(weights[0]) // groups, largest(windows[1].results, WIDTHS) < NARROW
    vector = largest(channels, CHANNELS)
    pixels = windows[0].results * windows[1].results
    point = groups == 1 and all(window.point for window in windows)
    if pixels == 1 and all(window.inside for window in windows):
        result = _one_pixel(importer, x, weight, windows, groups)
    elif point and largest(pixels, WIDTHS) >= NARROW:
        result = _points(importer, x, weight, windows)
    elif narrow and vector > 1 and _images(image) * pixels >= REUSED:
        result = _by_channels(importer, x, weight, windows, groups, vector)
    elif groups > 1:
        result = _by_groups(importer, x, weight, windows, groups)
    else:
        return theirs(importer, node)
    return _plus(importer, result, node.args[2])


def _windows(node: torch.fx.Node) -> tuple[tuple[KernelWindow, KernelWindow], int] | None:
    """Returns the windows and groups of a 2-d convolution whose sizes are static except the
    batch, else None."""
    image: Any = node.args[0]
    weight: Any = node.args[1]
    stride, padding, dilation, transposed, _, groups = (*node.args[3:9],)
    shape, weights = image.meta["val"].shape, weight.meta["val"].shape
    if transposed or len(shape) != 4 or image.meta["val"].dtype not in DTYPES:
        return None
    if not all(isinstance(size, int) for size in (*shape[1:], *weights)):
        return None

    def of(values: Any, axis: int) -> int:
        return int(values[axis] if len(values) > 1 else values[0])

    first, second = (
        KernelWindow(
            shape[2 + axis],
            weights[2 + axis],
            of(stride, axis),
            of(padding, axis),
            of(dilation, axis),
        )
        for axis in (0, 1)
    )
    return ((first, second), int(groups)) if isinstance(groups, int) else None


def _images(image: torch.fx.Node) -> int:
    """Returns the batch size; a symbolic one counts as large."""
    size = image.meta["val"].shape[0]
    return size if isinstance(size, int) else REUSED


def _plus(importer: Any, result: Any, bias: Any) -> Any:
    from tvm import relax

    if bias is None:
        return result
    emit = importer.block_builder.emit
    return emit(relax.op.add(result, emit(relax.op.reshape(importer.env[bias], (1, -1, 1, 1)))))


def _one_pixel(
    importer: Any, x: Any, weight: Any, windows: tuple[KernelWindow, KernelWindow], groups: int
) -> Any:
    from tvm import relax, te

    op, emit = relax.op, importer.block_builder.emit
    images, outputs = x.ty.shape[0], weight.ty.shape[0]
    for axis, window in enumerate(windows, 2):
        taps = window.inside
        if len(taps) != window.taps:
            weight = emit(op.strided_slice(weight, [axis], [taps.start], [taps.stop]))
        first, last = (
            tap * window.dilation - window.padding for tap in (taps.start, taps.stop - 1)
        )
        if (first, last - first + 1) != (0, window.size) or window.dilation > 1:
            x = emit(op.strided_slice(x, [axis], [first], [last + 1], [window.dilation]))
    length = math.prod(int(size) for size in tuple(weight.ty.shape)[1:])
    x = emit(op.reshape(x, (images, groups, length)))
    weight = emit(op.reshape(weight, (groups, int(outputs) // groups, length)))

    def by_rows(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, length), name="k")
        shape = (a.shape[0], b.shape[0], b.shape[1])
        return te.compute(
            shape, lambda n, g, o: te.sum(a[n, g, k] * b[g, o, k], axis=k), name="pixel_by_rows"
        )

    result = importer.block_builder.emit_te(by_rows, x, weight, primfunc_name_hint="pixel_by_rows")
    return emit(op.reshape(result, (images, outputs, 1, 1)))


def _points(importer: Any, x: Any, weight: Any, windows: tuple[KernelWindow, KernelWindow]) -> Any:
    from tvm import relax, te

    op, emit = relax.op, importer.block_builder.emit
    images, outputs, inputs = x.ty.shape[0], weight.ty.shape[0], weight.ty.shape[1]
    height, width = windows[0].size, windows[1].size

    def points(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, b.shape[1]), name="k")
        shape = (a.shape[0], b.shape[0], a.shape[2])
        return te.compute(
            shape, lambda n, o, p: te.sum(b[o, k] * a[n, k, p], axis=k), name="points"
        )

    a = emit(op.reshape(x, (images, inputs, height * width)))
    b = emit(op.reshape(weight, (outputs, inputs)))
    result = importer.block_builder.emit_te(points, a, b, primfunc_name_hint="points")
    return emit(op.reshape(result, (images, outputs, height, width)))


def _padded(te: Any, tirx: Any, x: Any, windows: tuple[KernelWindow, ...], fill: float) -> Any:
    """Returns images with their padding in two dimensions; copies nothing where there is none."""
    if not any(window.padding for window in windows):
        return x
    first, second = windows
    shape = (
        x.shape[0],
        x.shape[1],
        first.size + 2 * first.padding,
        second.size + 2 * second.padding,
    )

    def value(n: Any, c: Any, h: Any, w: Any) -> Any:
        places = [
            (place - window.padding, window) for place, window in zip((h, w), windows, strict=True)
        ]
        bounds = [
            test for at, window in places if window.padding for test in (at >= 0, at < window.size)
        ]
        at = [place for place, _ in places]
        return tirx.if_then_else(
            tirx.all(*bounds), x[n, c, at[0], at[1]], tirx.const(fill, x.dtype)
        )

    return te.compute(shape, value, name="padded")


def _by_channels(
    importer: Any,
    x: Any,
    weight: Any,
    windows: tuple[KernelWindow, KernelWindow],
    groups: int,
    vector: int,
) -> Any:
    from tvm import relax, te, tirx

    op, emit = relax.op, importer.block_builder.emit
    images, outputs, inputs = x.ty.shape[0], int(weight.ty.shape[0]), int(weight.ty.shape[1])
    first, second = windows
    blocks = outputs // groups // vector
    packed = emit(op.reshape(weight, (groups, blocks, vector, inputs, first.taps, second.taps)))
    packed = emit(op.permute_dims(packed, [0, 1, 3, 4, 5, 2]))

    def by_channels(a: Any, b: Any) -> Any:
        read = _padded(te, tirx, a, windows, 0.0)
        c, i, j = (
            te.reduce_axis((0, size), name=name)
            for size, name in zip(tuple(b.shape)[2:5], "cij", strict=True)
        )

        def value(n: Any, g: Any, block: Any, h: Any, w: Any, o: Any) -> Any:
            at = h * first.stride + i * first.dilation, w * second.stride + j * second.dilation
            return te.sum(
                read[n, g * inputs + c, at[0], at[1]] * b[g, block, c, i, j, o], axis=(c, i, j)
            )

        shape = (a.shape[0], groups, blocks, first.results, second.results, vector)
        return te.compute(shape, value, name="by_channels")

    result = importer.block_builder.emit_te(
        by_channels, x, packed, primfunc_name_hint="by_channels"
    )
    result = emit(op.permute_dims(result, [0, 1, 2, 5, 3, 4]))
    return emit(op.reshape(result, (images, outputs, first.results, second.results)))


def _by_groups(
    importer: Any, x: Any, weight: Any, windows: tuple[KernelWindow, KernelWindow], groups: int
) -> Any:
    from tvm import relax, te, tirx

    images, outputs, inputs = x.ty.shape[0], int(weight.ty.shape[0]), int(weight.ty.shape[1])
    first, second = windows

    def by_groups(a: Any, b: Any) -> Any:
        read = _padded(te, tirx, a, windows, 0.0)
        c, i, j = (
            te.reduce_axis((0, size), name=name)
            for size, name in zip(tuple(b.shape)[2:5], "cij", strict=True)
        )

        def value(n: Any, g: Any, o: Any, h: Any, w: Any) -> Any:
            at = h * first.stride + i * first.dilation, w * second.stride + j * second.dilation
            return te.sum(read[n, g * inputs + c, at[0], at[1]] * b[g, o, c, i, j], axis=(c, i, j))

        shape = (a.shape[0], groups, outputs // groups, first.results, second.results)
        return te.compute(shape, value, name="by_groups")

    op, emit = relax.op, importer.block_builder.emit
    parts = emit(op.reshape(weight, (groups, outputs // groups, inputs, first.taps, second.taps)))
    result = importer.block_builder.emit_te(by_groups, x, parts, primfunc_name_hint="by_groups")
    return emit(op.reshape(result, (images, outputs, first.results, second.results)))

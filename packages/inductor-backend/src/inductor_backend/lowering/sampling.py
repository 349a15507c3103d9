"""Lowers interpolation (nearest, linear and cubic, 1 to 3 dimensions) and grid sampling to
pointwise nodes that read neighbours at computed positions; gradients scatter to these.

Positions and weights are computed as in eager, in float32 (float64 for float64), and lie inside the
operand.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, Index
from inductor_backend.ir.index_expr import contiguous_strides as dense_strides
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.integer_resize import (
    linear_columns,
    nearest_columns,
    nearest_gradient,
    resize_rows,
    whole_factor,
)
from inductor_backend.lowering.padding import known, position_dtype
from inductor_backend.lowering.pools import both, number, read_if
from inductor_backend.lowering.scatter import zeros

#: One neighbour along a dimension: its position, and its weight (None: 1).
Tap = tuple[Index, "Value | None"]

#: align_corners, scale of each dimension, dtype of positions and weights.
Options = tuple[bool, list[Any], torch.dtype]


def _ratio(size: Expr, output: Expr, scale: float | None, dtype: torch.dtype) -> Value:
    """Returns elements of the operand per element of the result."""
    if scale is not None and scale > 0:
        return const(1.0 / scale, dtype)
    return make("div", cast(number(Index(size)), dtype), cast(number(Index(output)), dtype))


def _clamped(position: Value, size: Expr) -> Value:
    low = make("maximum", position, const(0, position.dtype))
    return make("minimum", low, cast(number(Index(size - 1)), position.dtype))


def nearest(at: Index, size: Expr, output: Expr, scale: float | None, exact: bool) -> list[Tap]:
    if size == output and scale in (None, 1.0):
        return [(at, None)]
    here = cast(cast(number(at), position_dtype(size, output)), torch.float32)
    if exact:
        here = make("add", here, const(0.5, torch.float32))
    place = make("floor", make("mul", here, _ratio(size, output, scale, torch.float32)))
    return [(known(_clamped(cast(place, position_dtype(size, output)), size), size), None)]


def _source(
    at: Index, size: Expr, output: Expr, scale: float | None, corners: bool, dtype: torch.dtype
) -> Value:
    """Returns the position in the operand, with its fraction."""
    here = cast(cast(number(at), position_dtype(size, output)), dtype)
    if corners:
        last, divisor = (cast(number(Index(n - 1)), dtype) for n in (size, output))
        if isinstance(output, int) and output == 1:
            return const(0, dtype)
        step = make(
            "where",
            make("gt", divisor, const(0, dtype)),
            make("div", last, divisor),
            const(0, dtype),
        )
        return make("mul", step, here)
    centre = make("add", here, const(0.5, dtype))
    return make("fma", _ratio(size, output, scale, dtype), centre, const(-0.5, dtype))


def linear(
    at: Index, size: Expr, output: Expr, scale: float | None, corners: bool, dtype: torch.dtype
) -> list[Tap]:
    if size == output and (corners or scale in (None, 1.0)):
        return [(at, None)]
    source = make("maximum", _source(at, size, output, scale, corners, dtype), const(0, dtype))
    kind = position_dtype(size, output)
    last = cast(number(Index(size - 1)), kind)
    low = make("minimum", cast(source, kind), last)
    high = make("minimum", make("add", low, const(1, kind)), last)
    far = make(
        "minimum",
        make("maximum", make("sub", source, cast(low, dtype)), const(0, dtype)),
        const(1, dtype),
    )
    return [(known(low, size), make("sub", const(1, dtype), far)), (known(high, size), far)]


def _cubic_weights(t: Value) -> list[Value]:
    """Returns Keys' kernel with a = -0.75 at the distances t + 1, t, 1 - t, 2 - t."""
    dtype, a = t.dtype, -0.75
    unit = const(1, dtype)

    def linear_in(x: Value, slope: float, start: float) -> Value:
        return make("fma", x, const(slope, dtype), const(start, dtype))

    def inner(x: Value) -> Value:
        return make("fma", make("mul", linear_in(x, a + 2, -(a + 3)), x), x, unit)

    def outer(x: Value) -> Value:
        square = make("fma", linear_in(x, a, -5 * a), x, const(8 * a, dtype))
        return make("fma", square, x, const(-4 * a, dtype))

    rest = make("sub", unit, t)
    return [outer(make("add", t, unit)), inner(t), inner(rest), outer(make("add", rest, unit))]


def cubic(
    at: Index, size: Expr, output: Expr, scale: float | None, corners: bool, dtype: torch.dtype
) -> list[Tap]:
    source = _source(at, size, output, scale, corners, dtype)
    floor = make("floor", source)
    kind = position_dtype(size, output)
    begin = cast(floor, kind)
    return [
        (known(_clamped(make("add", begin, const(k - 1, kind)), size), size), weight)
        for k, weight in enumerate(_cubic_weights(make("sub", source, floor)))
    ]


def _weighted(value: Value, weights: Sequence[Value | None]) -> Value:
    for weight in weights:
        value = value if weight is None else make("mul", value, weight)
    return value


def _along(x: Ref, position: list[Index], taps: Sequence[list[Tap]], dtype: torch.dtype) -> Value:
    """Sums the weighted neighbours dimension by dimension, the last one innermost."""
    if not taps:
        return cast(x.at(position), dtype)
    parts = [(_along(x, [*position, place], taps[1:], dtype), weight) for place, weight in taps[0]]
    total = _weighted(parts[0][0], parts[0][1:])
    for value, weight in parts[1:]:
        total = make("add", total, value) if weight is None else make("fma", value, weight, total)
    return total


def _taps(
    ctx: Lowering,
    kind: str,
    at: At,
    lead: int,
    sizes: Sequence[Expr],
    outputs: Sequence[Expr],
    options: Any,
) -> list[list[Tap]]:
    corners, scales, dtype = options
    result = []
    for k, (size, output) in enumerate(zip(sizes, outputs, strict=True)):
        here, scale = at[lead + k], scales[k]
        if kind in ("nearest", "exact"):
            result.append(nearest(here, size, output, scale, kind == "exact"))
        else:
            form = linear if kind == "linear" else cubic
            result.append(form(here, size, output, scale, corners, dtype))
    return result


def _options(kind: str, rank: int, rest: Sequence[Any], dtype: torch.dtype) -> Options:
    """Returns (align_corners, scale of each dimension, dtype of positions and weights)."""
    corners = bool(rest[0]) if kind in ("linear", "cubic") else False
    scales = list(rest[1:] if kind in ("linear", "cubic") else rest)
    return corners, [*scales, *[None] * rank][:rank], compute_dtype(dtype)


def _resize(kind: str, rank: int) -> Any:
    def lowering(ctx: Lowering, x: Ref, output_size: Any, *rest: Any, **named: Any) -> Ref:
        outputs, sizes, lead = ctx.shape()[-rank:], x.sizes[-rank:], len(x.sizes) - rank
        if not x.dtype.is_floating_point or not all(
            s is None or isinstance(s, float) for s in rest[kind in ("linear", "cubic") :]
        ):
            return call_aten(ctx, x, list(output_size), *rest, **named)
        options = _options(kind, rank, [*rest, *named.values()], x.dtype)
        dtype = compute_dtype(x.dtype)
        full = _by_rows(ctx, kind, x, options, rank)
        if full is not None:
            return full
        # two gathers per element: ATen's are faster
        if kind == "linear" and _contiguous_rows(ctx, x):
            return call_aten(ctx, x, list(output_size), *rest, **named)

        def body(at: At) -> Value:
            taps = _taps(ctx, kind, at, lead, sizes, outputs, options)
            return _along(x, list(at[:lead]), taps, dtype)

        return ctx.pointwise(body, label="resize")

    return lowering


def _contiguous_rows(ctx: Lowering, x: Ref) -> bool:
    """Checks that operand and result have stride 1 along rows (channels-last images do not)."""
    layout = x.strided()
    return ctx.strides()[-1] == 1 and (layout is None or layout.strides[-1] == 1)


def _by_rows(ctx: Lowering, kind: str, x: Ref, options: Options, rank: int) -> Ref | None:
    """Resizes rows that grow by an integer factor; None for others."""
    corners, scales, _ = options
    if (
        not _contiguous_rows(ctx, x)
        or corners
        or kind == "cubic"
        or tuple(ctx.strides()) != dense_strides(ctx.shape())
    ):
        return None
    factor = whole_factor(x.sizes[-1], ctx.shape()[-1], scales[-1])
    if factor is None:
        return None
    lead, sizes, outputs = len(x.sizes) - rank, x.sizes[-rank:-1], ctx.shape()[-rank:-1]

    def row(at: At, column: Index) -> Value:
        taps = _taps(ctx, kind, at, lead, sizes, outputs, options)
        return _along(x, list(at[:lead]), [*taps, [(column, None)]], compute_dtype(x.dtype))

    columns = linear_columns(factor) if kind == "linear" else nearest_columns(factor)
    return resize_rows(ctx, x, columns, row)


def _resize_backward(kind: str, rank: int) -> Any:
    def lowering(
        ctx: Lowering, dy: Ref, output_size: Any, input_size: Any, *rest: Any, **named: Any
    ) -> Ref:
        sizes, outputs, lead = ctx.shape()[-rank:], dy.sizes[-rank:], len(dy.sizes) - rank
        options = _options(kind, rank, [*rest, *named.values()], dy.dtype)
        dtype = compute_dtype(dy.dtype)
        if not all(s is None or isinstance(s, float) for s in options[1]):
            return call_aten(ctx, dy, list(output_size), list(input_size), *rest, **named)
        factors = [
            whole_factor(n, o, s) for n, o, s in zip(sizes, outputs, options[1], strict=True)
        ]
        if kind in ("nearest", "exact") and None not in factors:
            return nearest_gradient(ctx, dy, [f for f in factors if f is not None])
        if kind == "linear" and _contiguous_rows(ctx, dy):
            return call_aten(ctx, dy, list(output_size), list(input_size), *rest, **named)
        count = {"nearest": 1, "exact": 1, "linear": 2, "cubic": 4}[kind]

        def gradient(choice: tuple[int, ...]) -> Any:
            def taps(at: At) -> list[Tap]:
                match = _taps(ctx, kind, at, lead, sizes, outputs, options)
                return [
                    of_dim[min(c, len(of_dim) - 1)] for of_dim, c in zip(match, choice, strict=True)
                ]

            def place(at: At) -> Sequence[Index]:
                return [*at[:lead], *(where for where, _ in taps(at))]

            def body(at: At) -> Value:
                return _weighted(cast(dy.at(at), dtype), [weight for _, weight in taps(at)])

            return place, body

        widths = [
            1 if size == output and kind != "cubic" and _is_same(options, k) else count
            for k, (size, output) in enumerate(zip(sizes, outputs, strict=True))
        ]
        target = zeros(ctx, ctx.shape(), ctx.strides())
        target.scatter_each(
            "add",
            dy.sizes,
            [gradient(choice) for choice in itertools.product(*(range(w) for w in widths))],
        )
        return target.result()

    return lowering


def _is_same(options: Options, k: int) -> bool:
    """Checks that a dimension of equal size is copied without resampling."""
    corners, scales, _ = options
    return corners or (scales[k]) in (None, 1.0)


#: kind -> operators by rank.
RESIZES = {
    "nearest": {k: f"upsample_nearest{k}d" for k in (1, 2, 3)},
    "exact": {k: f"_upsample_nearest_exact{k}d" for k in (1, 2, 3)},
    "linear": {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"},
    "cubic": {2: "upsample_bicubic2d"},
}
for _kind, _names in RESIZES.items():
    for _rank, _name in _names.items():
        lower(getattr(aten, _name).default)(_resize(_kind, _rank))
        lower(getattr(aten, f"{_name}_backward").default)(_resize_backward(_kind, _rank))


# sampling at a grid ------------------------------------------------------------------------------


def _unnormalized(x: Value, size: Expr, corners: bool) -> Value:
    """Maps [-1, 1] to positions."""
    dtype = x.dtype
    n, half = cast(number(Index(size)), dtype), const(2, dtype)
    shifted = make("add", x, const(1, dtype))
    if corners:
        return make("mul", make("div", shifted, half), make("sub", n, const(1, dtype)))
    return make("div", make("fma", shifted, n, const(-1, dtype)), half)


def _within(position: Value, size: Expr) -> Value:
    low = make("ge", position, const(0, torch.int64))
    return make("bit_and", low, make("lt", position, number(Index(size))))


@lower(aten.grid_sampler_2d.default)
def grid_sampler_2d(
    ctx: Lowering, x: Ref, grid: Ref, mode: int, padding: int, corners: bool
) -> Ref:
    """Lowers bilinear (0) and nearest (1) mode, with zeros (0) or border (1) padding, for
    channels-last operands."""
    rows = _contiguous_rows(ctx, x)  # ATen's gathers are faster there
    if mode not in (0, 1) or padding not in (0, 1) or rows:
        return call_aten(ctx, x, grid, mode, padding, corners)
    dtype = compute_dtype(x.dtype)
    h, w = x.sizes[-2:]

    def coordinate(at: At, which: int, size: Expr) -> Value:
        value = cast(grid.at([at[0], at[2], at[3], Index(which)]), dtype)
        value = _unnormalized(value, size, corners)
        if padding == 1:
            value = make("maximum", value, const(0, dtype))
            value = make("minimum", value, cast(number(Index(size - 1)), dtype))
        return value

    def taps(value: Value, size: Expr) -> list[tuple[Value, Value | None]]:
        if mode == 1:
            return [(cast(make("round", value), torch.int64), None)]
        floor = make("floor", value)
        far = make("sub", value, floor)
        low = cast(floor, torch.int64)
        near = make("sub", const(1, dtype), far)
        return [(low, near), (make("add", low, const(1, torch.int64)), far)]

    def body(at: At) -> Value:
        parts = []
        rows, columns = taps(coordinate(at, 1, h), h), taps(coordinate(at, 0, w), w)
        for (y, wy), (c, wc) in itertools.product(rows, columns):
            test = both(_within(y, h), _within(c, w))
            place = [at[0], at[1], known(_clamped(y, h), h), known(_clamped(c, w), w)]
            parts.append(_weighted(read_if(x, place, test, dtype, 0), [wy, wc]))
        return functools.reduce(lambda a, b: make("add", a, b), parts)

    return ctx.pointwise(body)

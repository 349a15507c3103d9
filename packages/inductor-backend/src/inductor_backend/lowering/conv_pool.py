"""Convolution (an operator call) and pooling (unrolled windows).

In: graph nodes. Out: extern nodes for convolutions; pointwise nodes whose body reads each element of
the window for pools,
cut into interior and borders so that the loops have no tests. What always holds: a window element
outside the operand is never read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.errors import unsupported
from inductor_backend.index_expr import Expr, Index, variables
from inductor_backend.loop_ir.nodes import Store
from inductor_backend.loop_ir.values import Value, cast, const, make
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.reduction import as_number
from inductor_backend.lowering.registry import Lowering, aten, lower
from inductor_backend.ops import compute_dtype


@lower(aten.convolution.default)
def convolution(ctx: Lowering, x: Ref, weight: Ref, bias: Ref | None, *rest: Any) -> Ref:
    """Operands keep the strides that eager would see: they decide which layout the operator returns."""
    fakes = [
        argument.meta["val"] if isinstance(argument, torch.fx.Node) else None
        for argument in ctx.node.args[:3]
    ]
    operands = [
        None if ref is None or fake is None else ctx.strided(ref, ctx.sizes.exprs(fake.stride()))
        for ref, fake in zip((x, weight, bias), fakes, strict=True)
    ]
    return ctx.extern(ctx.node.target, [*operands, *rest])


def _pair(value: Any, rank: int) -> list[int]:
    values = [value] * rank if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _inside(position: Index, size: Expr, low: bool, high: bool) -> Value | None:
    """The test 0 <= position < size, with only the sides that can fail."""
    here = make("index", attr=position)
    test = make("ge", here, const(0, torch.int64)) if low else None
    if high:
        below = make("lt", here, make("index", attr=Index(size)))
        test = below if test is None else make("bit_and", test, below)
    return test


def _window(
    x: Ref,
    at: Sequence[Index],
    offsets: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    outputs: Sequence[Expr],
    dtype: torch.dtype,
    outside: float,
) -> Value:
    """The window's element at `offsets`, or `outside` where it lies in the padding."""
    lead = len(x.sizes) - len(stride)
    position = list(at[:lead])
    test: Value | None = None
    for k, offset in enumerate(offsets):
        here = at[lead + k] * stride[k] + (offset - padding[k])
        size = x.sizes[lead + k]
        last = (outputs[k] - 1) * stride[k] + offset - padding[k]
        fits = isinstance(last, int) and isinstance(size, int) and last < size
        inside = _inside(here, size, offset < padding[k], not fits)
        if inside is not None:
            test = inside if test is None else make("bit_and", test, inside)
        position.append(here)
    if test is None:
        return cast(x.at(position), dtype)
    return make("masked_load", test, const(outside, dtype), attr=(x.buffer.name, x.place(position), x.dtype))


@dataclass(frozen=True, slots=True)
class _Span:
    """Output positions [start, start + length) of one dimension whose windows all have the elements
    `offsets` inside the operand, and no others."""

    start: int
    length: int
    offsets: tuple[int, ...]


def _spans(size: int, output: int, kernel: int, stride: int, padding: int, dilation: int) -> list[_Span]:
    """The output positions of one dimension, border by border; neighbours of equal windows are one span."""
    spans: list[_Span] = []
    for at in range(output):
        first = at * stride - padding
        inside = tuple(k * dilation for k in range(kernel) if 0 <= first + k * dilation < size)
        if spans and spans[-1].offsets == inside:
            spans[-1] = _Span(spans[-1].start, spans[-1].length + 1, inside)
        else:
            spans.append(_Span(at, 1, inside))
    return spans


#: Regions (interior and borders) that one pool may be split into.
LARGEST_REGIONS = 12


def _regions(
    x: Ref,
    outputs: Sequence[Expr],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[_Span, ...]] | None:
    """The pool's output cut so that no window needs a test; None where sizes are symbolic or cuts many."""
    sizes = x.sizes[-len(kernel) :]
    if not all(isinstance(v, int) for v in (*sizes, *outputs)):
        return None
    found: list[tuple[_Span, ...]] = [()]
    for k in range(len(kernel)):
        spans = _spans(int(sizes[k]), int(outputs[k]), kernel[k], stride[k], padding[k], dilation[k])  # type: ignore[arg-type]
        found = [(*head, span) for head in found for span in spans]
    usable = len(found) <= LARGEST_REGIONS and all(span.offsets for region in found for span in region)
    return found if usable else None


def _pool_by_regions(
    ctx: Lowering,
    x: Ref,
    regions: Sequence[tuple[_Span, ...]],
    stride: Sequence[int],
    padding: Sequence[int],
    combine: Callable[[list[Value]], Value],
    sizes: Sequence[Expr],
    strides: Sequence[Expr],
    label: str,
) -> Ref:
    """One store a region into one buffer; combine: the elements of a window -> the result."""
    dtype = compute_dtype(x.dtype)
    buffer = ctx.buffer(sizes, x.dtype, Lowering.dense(sizes, strides))
    lead = len(sizes) - len(stride)
    for region in regions:
        domain = [*sizes[:lead], *(span.length for span in region)]
        at = variables(domain)
        place = [*at[:lead], *(at[lead + k] + span.start for k, span in enumerate(region))]
        elements: list[Value] = []
        for offsets in itertools.product(*(span.offsets for span in region)):
            position = [
                place[lead + k] * stride[k] + (offset - padding[k]) for k, offset in enumerate(offsets)
            ]
            elements.append(cast(x.at([*at[:lead], *position]), dtype))
        store = Store((buffer.name,), tuple(place), cast(combine(elements), x.dtype))
        ctx.add_loop(domain, [False] * len(domain), [store], label)
    return Ref.of(buffer)


def _offsets(kernel: Sequence[int], dilation: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for size, step in zip(kernel, dilation, strict=True):
        found = [[*head, k * step] for head in found for k in range(size)]
    return found


@lower(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_with_indices(
    ctx: Lowering,
    x: Ref,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    rank = 2 if ctx.node.target is aten.max_pool2d_with_indices.default else 3
    kernel, padding, dilation = (_pair(v, rank) for v in (kernel, padding, dilation))
    stride = _pair(stride, rank) if stride not in ((), []) else kernel
    if 1 in ctx.used_outputs():
        from inductor_backend.lowering.fallback import call_fallback  # rare: indices asked for

        return call_fallback(ctx, ctx.node.target, [x, kernel, stride, padding, dilation, ceil_mode], {})
    dtype = compute_dtype(x.dtype)
    least = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    outputs = ctx.shape(0)[-rank:]
    regions = _regions(x, outputs, kernel, stride, padding, dilation)
    if regions is not None:
        return _pool_by_regions(
            ctx,
            x,
            regions,
            stride,
            padding,
            lambda found: functools.reduce(lambda a, b: make("maximum", a, b), found),
            ctx.shape(0),
            ctx.strides(0),
            "max_pool",
        ), None

    def body(at: Sequence[Index]) -> Value:
        best: Value | None = None
        for offsets in _offsets(kernel, dilation):
            value = _window(x, at, offsets, stride, padding, outputs, dtype, least)
            best = value if best is None else make("maximum", best, value)
        assert best is not None
        return best

    pooled = ctx.pointwise(body, ctx.shape(0), x.dtype, ctx.strides(0), label="max_pool")
    return pooled, None


@lower(aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(
    ctx: Lowering,
    x: Ref,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Ref:
    rank = 2 if ctx.node.target is aten.avg_pool2d.default else 3
    kernel, padding = _pair(kernel, rank), _pair(padding, rank)
    stride = _pair(stride, rank) if stride not in ((), []) else kernel
    dtype = compute_dtype(x.dtype)
    outputs = ctx.shape()[-rank:]
    window = 1
    for size in kernel:
        window *= size
    if ceil_mode and divisor_override is None:
        raise unsupported("lower", "avg_pool with ceil_mode=True is not built", ctx.node)
    regions = _regions(x, outputs, kernel, stride, padding, [1] * rank)
    if regions is not None:

        def average(found: list[Value]) -> Value:
            total = functools.reduce(lambda a, b: make("add", a, b), found)
            count = divisor_override or (window if count_include_pad else len(found))
            return make("div", total, const(count, dtype))

        return _pool_by_regions(
            ctx, x, regions, stride, padding, average, ctx.shape(), ctx.strides(), "avg_pool"
        )

    def body(at: Sequence[Index]) -> Value:
        total, seen = const(0, dtype), const(0, dtype)
        for offsets in _offsets(kernel, [1] * rank):
            value = _window(x, at, offsets, stride, padding, outputs, dtype, 0)
            total = make("add", total, value)
            if not count_include_pad:
                lead = len(x.sizes) - rank
                test: Value | None = None
                for k, offset in enumerate(offsets):
                    part = _inside(
                        at[lead + k] * stride[k] + (offset - padding[k]),
                        x.sizes[lead + k],
                        padding[k] > 0,
                        padding[k] > 0,
                    )
                    test = part if test is None else (test if part is None else make("bit_and", test, part))
                seen = make("add", seen, const(1, dtype) if test is None else cast(test, dtype))
        if divisor_override is not None:
            return make("div", total, const(divisor_override, dtype))
        return make("div", total, const(window, dtype) if count_include_pad else seen)

    return ctx.pointwise(body, label="avg_pool")


@lower(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(ctx: Lowering, x: Ref, sizes: Sequence[Any]) -> Ref:
    """Where the output divides the input, or is 1: a mean over equal windows."""
    *lead, h, w = x.sizes
    oh, ow = ctx.shape()[-2:]
    dtype = compute_dtype(x.dtype)
    if (oh, ow) == (1, 1):
        dims = [len(lead), len(lead) + 1]
        (total,) = ctx.reduction("sum", lambda at: cast(x.at(at), dtype), x.sizes, dims, dtype, "avg_pool")
        size = as_number(h * w, dtype)
        return ctx.pointwise(lambda at: make("div", total.at(at), size), label="avg_pool")
    if not all(isinstance(v, int) for v in (h, w, oh, ow)) or h % oh or w % ow:
        from inductor_backend.lowering.fallback import call_fallback  # rare: uneven windows

        return call_fallback(ctx, ctx.node.target, [x, [oh, ow]], {})
    kernel = [h // oh, w // ow]

    def body(at: Sequence[Index]) -> Value:
        total = const(0, dtype)
        for offsets in _offsets(kernel, [1, 1]):
            total = make("add", total, _window(x, at, offsets, kernel, [0, 0], (oh, ow), dtype, 0))
        return make("div", total, const(kernel[0] * kernel[1], dtype))

    return ctx.pointwise(body, label="avg_pool")

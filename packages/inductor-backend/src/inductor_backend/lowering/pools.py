"""Lowers pooling to pointwise nodes with unrolled windows of fixed size.

The output is split into interior and borders, so that loops need no bounds tests; where sizes are
symbolic or there are too many regions, one node tests. Elements outside the operand are never read.
Of equal elements, and of NaNs, max pooling chooses the one that eager chooses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, Index, flatten, variables
from inductor_backend.ir.index_expr import contiguous_strides as dense_strides
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.limits import MAX_POOL_REGIONS, MAX_UNROLLED_WINDOW
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_any, call_aten


@dataclass(frozen=True, slots=True)
class PoolWindows:
    """The windows of a pool: for k in range(kernel), window o of a dimension has the elements at
    ``o * stride - padding + k * dilation``."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        steps = [
            [k * d for k in range(size)] for size, d in zip(self.kernel, self.dilation, strict=True)
        ]
        return list(itertools.product(*steps))


def per_dimension(value: Any, rank: int) -> list[int]:
    values = [value] * rank if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def windows(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> PoolWindows:
    kernel, padding, dilation = (per_dimension(v, rank) for v in (kernel, padding, dilation))
    stride = per_dimension(stride, rank) if stride not in ((), [], None) else kernel
    return PoolWindows(kernel, stride, padding, dilation)


def number(index: Index) -> Value:
    return make("index", attr=index)


def both(a: Value | None, b: Value | None) -> Value | None:
    """Returns the conjunction; None is true."""
    if a is None or b is None:
        return a or b
    return make("bit_and", a, b)


def inside(position: Index, size: Expr, low: bool = True, high: bool = True) -> Value | None:
    """Returns the test 0 <= position < size, with only the sides that can fail."""
    test = make("ge", number(position), const(0, torch.int64)) if low else None
    return both(test, make("lt", number(position), number(Index(size))) if high else None)


def read_if(x: Ref, position: At, test: Value | None, dtype: torch.dtype, outside: float) -> Value:
    """Returns the element where the test holds, else `outside`; reads memory only if it holds."""
    if test is None:
        return cast(x.at(position), dtype)
    attr = (x.buffer.name, x.place(position), x.dtype)
    return cast(make("masked_load", test, const(outside, x.dtype), attr=attr), dtype)


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a window: its value, its flat position in the operand's last dimensions, and
    the test for being inside the operand (None: always)."""

    value: Value
    position: Index
    there: Value | None


@dataclass(frozen=True, slots=True)
class _Span:
    """Output positions [start, start + length) of one dimension whose windows have exactly the
    elements `offsets` inside the operand."""

    start: int
    length: int
    offsets: tuple[int, ...]
    #: The window's size, padding included.
    reach: int


def _spans(size: int, output: int, w: PoolWindows, k: int) -> list[_Span]:
    """Splits the output positions of one dimension where the shape of windows changes."""
    spans: list[_Span] = []
    for at in range(output):
        first = at * w.stride[k] - w.padding[k]
        here = tuple(
            j * w.dilation[k] for j in range(w.kernel[k]) if 0 <= first + j * w.dilation[k] < size
        )
        reach = min(first + w.kernel[k], size + w.padding[k]) - first
        if spans and (spans[-1].offsets, spans[-1].reach) == (here, reach):
            spans[-1] = _Span(spans[-1].start, spans[-1].length + 1, here, reach)
        else:
            spans.append(_Span(at, 1, here, reach))
    return spans


def _regions(x: Ref, outputs: Sequence[Expr], w: PoolWindows) -> list[tuple[_Span, ...]] | None:
    """Splits the output so that no window needs a test; None where sizes are symbolic, regions too
    many, or a window is empty."""
    sizes = x.sizes[-w.rank :]
    if not all(isinstance(v, int) for v in (*sizes, *outputs)):
        return None
    result: list[tuple[_Span, ...]] = [()]
    for k in range(w.rank):
        spans = _spans(int(sizes[k]), int(outputs[k]), w, k)
        result = [(*head, span) for head in result for span in spans]
    usable = len(result) <= MAX_POOL_REGIONS and all(
        span.offsets for region in result for span in region
    )
    return result if usable else None


#: (a window's elements, divisor of an average or None) -> the results.
Combine = Callable[[list[Element], Value | None], list[Value]]


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: operand, windows, and `combine`, applied to a window's elements."""

    ctx: Lowering
    x: Ref
    w: PoolWindows
    combine: Combine
    #: (output number, or None where the node has one output; dtype).
    results: Sequence[tuple[int | None, torch.dtype]]
    outside: float
    label: str

    @property
    def sizes(self) -> tuple[Expr, ...]:
        return self.ctx.shape(self.results[0][0])

    @property
    def lead(self) -> int:
        return len(self.x.sizes) - self.w.rank

    def run(
        self,
        of_region: Callable[[tuple[_Span, ...]], Value | None],
        of_point: Callable[[At], Value | None],
    ) -> list[Ref]:
        if self.ctx.gpu:  # launching more kernels costs more than tests
            return self._tested(of_point)
        regions = _regions(self.x, self.sizes[self.lead :], self.w)
        if regions is None:
            return self._tested(of_point)
        return self._cut(regions, of_region)

    def _flat(self, position: At) -> Index:
        spatial = self.x.sizes[self.lead :]
        return flatten(position[self.lead :], dense_strides(spatial))

    def _cut(
        self,
        regions: list[tuple[_Span, ...]],
        of_region: Callable[[tuple[_Span, ...]], Value | None],
    ) -> list[Ref]:
        """Adds one store per region, into one buffer per result."""
        ctx, x, lead = self.ctx, self.x, self.lead
        dtype = compute_dtype(x.dtype)
        buffers = [
            ctx.buffer(self.sizes, kind, Lowering.dense(self.sizes, ctx.strides(place)))
            for place, kind in self.results
        ]
        for region in regions:
            domain = [*self.sizes[:lead], *(span.length for span in region)]
            at = variables(domain)
            place = [*at[:lead], *(at[lead + k] + span.start for k, span in enumerate(region))]
            elements: list[Element] = []
            for offsets in itertools.product(*(span.offsets for span in region)):
                spatial = [
                    place[lead + k] * self.w.stride[k] + (offset - self.w.padding[k])
                    for k, offset in enumerate(offsets)
                ]
                position = [*at[:lead], *spatial]
                elements.append(Element(cast(x.at(position), dtype), self._flat(position), None))
            values = self.combine(elements, of_region(region))
            for buffer, value in zip(buffers, values, strict=True):
                store = Store((buffer.name,), tuple(place), cast(value, buffer.dtype))
                ctx.add_loop(domain, [False] * len(domain), [store], self.label)
        return [Ref.of(buffer) for buffer in buffers]

    def _elements(self, at: At) -> list[Element]:
        """Returns the window's elements, each with its test."""
        x, w, lead = self.x, self.w, self.lead
        dtype = compute_dtype(x.dtype)
        elements: list[Element] = []
        for offsets in w.offsets:
            position, test = list(at[:lead]), None
            for k, offset in enumerate(offsets):
                here = at[lead + k] * w.stride[k] + (offset - w.padding[k])
                size, outputs = x.sizes[lead + k], self.sizes[lead + k]
                last = (outputs - 1) * w.stride[k] + offset - w.padding[k]
                fits = isinstance(last, int) and isinstance(size, int) and last < size
                test = both(test, inside(here, size, offset < w.padding[k], not fits))
                position.append(here)
            value = read_if(x, position, test, dtype, self.outside)
            elements.append(Element(value, self._flat(position), test))
        return elements

    def _tested(self, of_point: Callable[[At], Value | None]) -> list[Ref]:
        def result(k: int, place: int | None, kind: torch.dtype) -> Ref:
            def body(at: At) -> Value:
                return self.combine(self._elements(at), of_point(at))[k]

            return self.ctx.pointwise(
                body, self.sizes, kind, self.ctx.strides(place), label=self.label
            )

        return [result(k, place, kind) for k, (place, kind) in enumerate(self.results)]


def greatest(elements: list[Element], unused: Value | None) -> list[Value]:
    """Returns the greatest element."""
    best = elements[0].value
    for element in elements[1:]:
        best = make("maximum", best, element.value)
    return [best]


def greatest_and_where(elements: list[Element], unused: Value | None) -> list[Value]:
    """Returns the greatest element and its position: the first of equal ones, the last NaN, the
    first one inside where none is greater than -inf.

    Positions are compared as distances from the first element's, in 32 bits: vectors of floats and of
    64-bit integers have different numbers of elements."""
    first = elements[0].position
    best, where, seen = elements[0].value, const(0, torch.int32), elements[0].there
    for element in elements[1:]:
        value = element.value
        better = [make("gt", value, best)]
        if value.dtype.is_floating_point:
            better.append(make("ne", value, value))
        if seen is not None:
            better.append(make("bit_not", seen))
        # without tests several choices in a row stay, which alone GCC vectorizes
        if element.there is not None or seen is not None:
            any_of = functools.reduce(lambda a, b: make("bit_or", a, b), better)
            better = [any_of if element.there is None else make("bit_and", any_of, element.there)]
        distance = cast(number(element.position - first), torch.int32)
        for test in better:
            best = make("where", test, value, best)
            where = make("where", test, distance, where)
        if seen is not None:
            seen = None if element.there is None else make("bit_or", seen, element.there)
    return [best, make("add", number(first), cast(where, torch.int64))]


def least_value(dtype: torch.dtype) -> float:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _max_pool(rank: int) -> Any:
    def lowering(
        ctx: Lowering,
        x: Ref,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        w = windows(rank, kernel, stride, padding, dilation)
        if len(w.offsets) > MAX_UNROLLED_WINDOW:
            args = [x, w.kernel, w.stride, w.padding, w.dilation, ceil_mode]
            return call_any(ctx, ctx.node.target, args, {})
        with_indices = 1 in ctx.used_outputs()
        combine = greatest_and_where if with_indices else greatest
        results: list[tuple[int | None, torch.dtype]] = [(0, x.dtype), (1, torch.int64)]
        pool = Pool(
            ctx, x, w, combine, results[: 1 + with_indices], least_value(x.dtype), "max_pool"
        )
        result = pool.run(lambda region: None, lambda at: None)
        return tuple(result) if with_indices else (result[0], None)

    return lowering


lower(aten.max_pool2d_with_indices.default)(_max_pool(2))
lower(aten.max_pool3d_with_indices.default)(_max_pool(3))


def reach(position: Index, window: int, size: Expr, padding: int, dtype: torch.dtype) -> Value:
    """Returns the size of a window that begins at `position`, padding included; what ceil_mode adds
    beyond the padding does not count."""
    end = make("minimum", number(position + window), number(Index(size + padding)))
    return cast(make("sub", end, number(position)), dtype)


def _avg_pool(rank: int) -> Any:
    def lowering(
        ctx: Lowering,
        x: Ref,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Ref:
        w = windows(rank, kernel, stride, padding)
        if len(w.offsets) > MAX_UNROLLED_WINDOW:
            sizes = (w.kernel, w.stride, w.padding)
            return call_aten(ctx, x, *sizes, ceil_mode, count_include_pad, divisor_override)
        dtype = compute_dtype(x.dtype)
        lead, zero = len(x.sizes) - rank, const(0, dtype)  # where eager's sums begin: no -0.0

        def average(elements: list[Element], size: Value | None) -> list[Value]:
            total, count = make("add", elements[0].value, zero), _present(elements[0], dtype)
            for element in elements[1:]:
                total = make("add", total, element.value)
                count = make("add", count, _present(element, dtype))
            return [make("div", total, count if size is None else size)]

        def of_region(region: tuple[_Span, ...]) -> Value | None:
            elements = 1
            for span in region:
                elements *= span.reach if count_include_pad else len(span.offsets)
            return const(divisor_override or elements, dtype)

        def of_point(at: At) -> Value | None:
            if divisor_override is not None:
                return const(divisor_override, dtype)
            if not count_include_pad:
                return None
            size = const(1, dtype)
            for k in range(rank):
                begin = at[lead + k] * w.stride[k] - w.padding[k]
                part = (
                    reach(begin, w.kernel[k], x.sizes[lead + k], w.padding[k], dtype)
                    if ceil_mode
                    else const(w.kernel[k], dtype)
                )
                size = make("mul", size, part)
            return size

        pool = Pool(ctx, x, w, average, [(None, x.dtype)], 0, "avg_pool")
        return pool.run(of_region, of_point)[0]

    return lowering


def _present(element: Element, dtype: torch.dtype) -> Value:
    return const(1, dtype) if element.there is None else cast(element.there, dtype)


lower(aten.avg_pool2d.default)(_avg_pool(2))
lower(aten.avg_pool3d.default)(_avg_pool(3))

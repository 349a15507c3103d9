"""Scatters: index_put, scatter, index_add and the like, and gradients of gathers.

A node fills a new buffer with the old values; scatter nodes then combine the source into it in the
source's order, as eager does, whatever the number of threads: of several "set" values for one
element the last wins, and sums add up in that order. Every index passes `check_index`. A scatter
that is the only reader of another reuses its buffer. On GPUs, where the order is free, 16-bit
floats are summed in a float32 buffer that is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, Index, product, simplify, variables
from inductor_backend.ir.nodes import Buffer, Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_any, call_aten
from inductor_backend.lowering.gathers import indirect

Place = Callable[[Sequence[Index]], Sequence[Index]]
Body = Callable[[Sequence[Index]], Value]

#: Element types that Triton adds atomically on every device, with eager's rounding.
ATOMIC_DTYPES = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})


class Target:
    """A buffer that scatters write to, and the last node that wrote to it. Mutable."""

    def __init__(self, ctx: Lowering, buffer: Buffer, last: str | None) -> None:
        """last: None where the buffer is an input."""
        self.ctx, self.buffer, self.last = ctx, buffer, last

    @staticmethod
    def filled(
        ctx: Lowering,
        body: Body,
        sizes: Sequence[Expr],
        strides: Sequence[Expr] | None,
        dtype: torch.dtype,
    ) -> Target:
        """Adds a buffer with body's values."""
        buffer = ctx.buffer(sizes, dtype, Lowering.dense(sizes, strides))
        index = variables(sizes)
        store = Store((buffer.name,), index, cast(body(index), dtype))
        node = ctx.add_loop(sizes, [False] * len(sizes), [store], "scatter_base")
        return Target(ctx, buffer, node.name)

    @staticmethod
    def like(ctx: Lowering, x: Ref, adds: bool = False) -> Target:
        """Returns a buffer with the operand's values: the operand's own buffer where that came from
        a scatter and nothing else reads it. adds: what is scattered is added."""
        source = ctx.node.args[0]
        dtype = sums_dtype(ctx) if adds else ctx.meta().dtype
        before: Target | None = (
            ctx.scattered.get(source) if isinstance(source, torch.fx.Node) else None
        )
        written = ctx.in_place.get(ctx.node)
        if written is not None and written.dtype == dtype:
            if before is not None and before.buffer is written:
                return before
            return Target(ctx, written, None)
        if (
            isinstance(source, torch.fx.Node)
            and before is not None
            and set(source.users) == {ctx.node}
            and before.buffer.dtype == dtype
        ):
            return before
        result = Target.filled(ctx, x.at, x.sizes, ctx.strides(), dtype)
        ctx.scattered[ctx.node] = result
        return result

    def scatter(self, combine: str, domain: Sequence[Expr], place: Place, body: Body) -> None:
        """Combines each point of the domain into its place. Dimensions whose points cannot collide
        run in parallel; the others in order."""
        self.scatter_each(combine, domain, [(place, body)])

    def scatter_each(
        self, combine: str, domain: Sequence[Expr], pairs: Sequence[tuple[Place, Body]]
    ) -> None:
        """Does `scatter` for points that each have several places, one after the other."""
        at = variables(domain)
        indices = [tuple(place(at)) for place, _ in pairs]
        stores = [
            Store((self.buffer.name,), index, cast(body(at), self.buffer.dtype), combine=combine)
            for index, (_, body) in zip(indices, pairs, strict=True)
        ]
        alone = _alone(indices)
        shared = [k not in alone and size != 1 for k, size in enumerate(domain)]
        after = () if self.last is None else (self.last,)
        self.last = self.ctx.add_loop(domain, shared, stores, "scatter", after=after).name

    def result(self) -> Ref:
        """Returns the buffer as the node's result, rounded to its dtype."""
        self.ctx.scattered[self.ctx.node] = self
        total = Ref.of(self.buffer)
        if self.buffer.dtype == self.ctx.meta().dtype:
            return total
        return self.ctx.pointwise(total.at, label="scatter")


def sums_dtype(ctx: Lowering) -> torch.dtype:
    """Returns the dtype of the buffer in which the node's result is summed up: on GPUs float32 for
    16-bit floats, which have no atomic additions on every device and would be rounded at each."""
    dtype = ctx.meta().dtype
    return torch.float32 if ctx.gpu and dtype in (torch.float16, torch.bfloat16) else dtype


def _alone(indices: Sequence[Sequence[Index]]) -> set[int]:
    """Returns the variables that alone (up to a shift) index some dimension, the same one in every
    store: points that differ in such a variable never collide."""
    return {
        loop
        for ones in zip(*indices, strict=True)
        if len(set(ones)) == 1 and (loop := ones[0].loop) is not None
    }


#: torch's name of a reduction -> `Store.combine`.
REDUCES = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def _identity(combine: str, dtype: torch.dtype) -> float | int | bool:
    """Returns the neutral element of `combine`."""
    if combine in ("add", "mul"):
        return 1 if combine == "mul" else 0
    if dtype.is_floating_point:
        return float("-inf") if combine == "max" else float("inf")
    if dtype == torch.bool:
        return combine == "min"
    return torch.iinfo(dtype).min if combine == "max" else torch.iinfo(dtype).max


def _reduced_into(
    ctx: Lowering,
    x: Ref,
    how: str,
    domain: Sequence[Expr],
    place: Place,
    body: Body,
    include_self: bool,
) -> Ref:
    """Combines the source into x; mean divides by the number of combined values (x itself included,
    where `include_self`)."""
    dtype = ctx.meta().dtype
    combine = "add" if how == "mean" else REDUCES[how]
    target = Target.like(ctx, x)
    if not include_self:
        target.scatter("set", domain, place, lambda at: const(_identity(combine, dtype), dtype))
    target.scatter(combine, domain, place, body)
    if how != "mean":
        return target.result()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    kind = wide if dtype.is_floating_point else torch.int64
    start = const(1 if include_self else 0, kind)
    counts = Target.filled(ctx, lambda at: start, x.sizes, None, kind)
    counts.scatter("add", domain, place, lambda at: const(1, kind))
    ctx.scattered.pop(ctx.node, None)
    total, number = Ref.of(target.buffer), Ref.of(counts.buffer)

    def mean(at: Sequence[Index]) -> Value:
        divisor = make("maximum", number.at(at), const(1, kind))
        if dtype.is_floating_point:
            return make("div", cast(total.at(at), kind), divisor)
        return cast(make("floor_div", cast(total.at(at), kind), divisor), dtype)

    return ctx.pointwise(mean)


# scatter along a dimension -----------------------------------------------------------------------


def _along(x: Ref, dim: int, index: Ref) -> Place:
    def place(at: Sequence[Index]) -> Sequence[Index]:
        position = list(at)
        position[dim] = indirect(index.at(at), x.sizes[dim], wrap=False)
        return position

    return place


def _source(ctx: Lowering, source: Any) -> Body:
    dtype = compute_dtype(ctx.meta().dtype)
    return lambda at: (
        cast(source.at(at), dtype) if isinstance(source, Ref) else const(source, dtype)
    )


@lower(
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
)
def scatter(ctx: Lowering, x: Ref, dim: int, index: Ref, source: Any, *, reduce: str = "") -> Ref:
    if not x.sizes or len(index.sizes) != len(x.sizes):
        return call_aten(ctx, x, dim, index, source, **({"reduce": reduce} if reduce else {}))
    added = ctx.node.target is aten.scatter_add.default
    combine = "add" if added else REDUCES[reduce] if reduce else "set"
    dim = dim % len(x.sizes)
    target = Target.like(ctx, x, combine == "add")
    target.scatter(combine, index.sizes, _along(x, dim, index), _source(ctx, source))
    return target.result()


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Lowering,
    x: Ref,
    dim: int,
    index: Ref,
    source: Ref,
    reduce: str,
    *,
    include_self: bool = True,
) -> Ref:
    if not x.sizes or len(index.sizes) != len(x.sizes):
        return call_aten(ctx, x, dim, index, source, reduce, include_self=include_self)
    dim = dim % len(x.sizes)
    place = _along(x, dim, index)
    return _reduced_into(ctx, x, reduce, index.sizes, place, _source(ctx, source), include_self)


# rows along a dimension --------------------------------------------------------------------------


def _rows(x: Ref, dim: int, index: Ref, wrap: bool = False) -> Place:
    def place(at: Sequence[Index]) -> Sequence[Index]:
        position = list(at)
        row = index.at([at[dim]]) if index.sizes else index.at([])
        position[dim] = indirect(row, x.sizes[dim], wrap)
        return position

    return place


def _is_rows(x: Ref, dim: int, index: Ref, source: Ref) -> bool:
    """Checks that the source has one row per index; eager handles the rest (mostly errors)."""
    if not x.sizes or len(source.sizes) != len(x.sizes) or len(index.sizes) > 1:
        return False
    return source.sizes[dim % len(x.sizes)] == (index.sizes[0] if index.sizes else 1)


@lower(aten.index_add.default)
def index_add(ctx: Lowering, x: Ref, dim: int, index: Ref, source: Ref, *, alpha: Any = 1) -> Ref:
    if not _is_rows(x, dim, index, source):
        return call_aten(ctx, x, dim, index, source, alpha=alpha)
    body, dim = _source(ctx, source), dim % len(x.sizes)

    def scaled(at: Sequence[Index]) -> Value:
        value = body(at)
        if alpha == 1:
            return value
        name = "bit_and" if value.dtype == torch.bool else "mul"
        return make(name, value, const(alpha, value.dtype))

    target = Target.like(ctx, x, adds=True)
    target.scatter("add", source.sizes, _rows(x, dim, index), scaled)
    return target.result()


@lower(aten.index_copy.default)
def index_copy(ctx: Lowering, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    if not _is_rows(x, dim, index, source):
        return call_aten(ctx, x, dim, index, source)
    target = Target.like(ctx, x)
    target.scatter("set", source.sizes, _rows(x, dim % len(x.sizes), index), _source(ctx, source))
    return target.result()


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ctx: Lowering, x: Ref, dim: int, index: Ref, value: Any) -> Ref:
    if not x.sizes:
        return call_aten(ctx, x, dim, index, value)
    dim, dtype = dim % len(x.sizes), compute_dtype(x.dtype)
    domain = list(x.sizes)
    domain[dim] = index.sizes[0] if index.sizes else 1
    target = Target.like(ctx, x)
    place = _rows(x, dim, index, wrap=True)
    target.scatter("set", domain, place, lambda at: ctx.element(value, at, dtype))
    return target.result()


@lower(aten.index_reduce.default)
def index_reduce(
    ctx: Lowering,
    x: Ref,
    dim: int,
    index: Ref,
    source: Ref,
    reduce: str,
    *,
    include_self: bool = True,
) -> Ref:
    if not _is_rows(x, dim, index, source):
        return call_aten(ctx, x, dim, index, source, reduce, include_self=include_self)
    place = _rows(x, dim % len(x.sizes), index)
    return _reduced_into(ctx, x, reduce, source.sizes, place, _source(ctx, source), include_self)


# several index tensors ---------------------------------------------------------------------------


def _is_mask(index: Ref | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _covers(x: Ref, mask: Ref | None, first: int) -> bool:
    """Checks that the mask's sizes equal the dimensions that it indexes; else eager raises."""
    if mask is None or not mask.sizes:
        return False
    return tuple(mask.sizes) == tuple(x.sizes[first : first + len(mask.sizes)])


def _masked(ctx: Lowering, x: Ref, mask: Ref, first: int, values: Ref, accumulate: bool) -> Ref:
    """Writes one value wherever a mask over the dimensions from `first` on is true."""
    dtype = compute_dtype(x.dtype)
    rank = len(mask.sizes)

    def body(at: Sequence[Index]) -> Value:
        chosen = cast(cast(mask.at(at[first : first + rank]), mask.dtype), torch.bool)
        old, new = cast(x.at(at), dtype), ctx.element(values, [], dtype)
        if accumulate:
            new = make("bit_or" if dtype == torch.bool else "add", old, new)
        return make("where", chosen, new, old)

    return ctx.pointwise(body)


@lower(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Lowering, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False
) -> Ref:
    inputs = [k for k, index in enumerate(indices) if index is not None]
    masks = [k for k in inputs if _is_mask(indices[k])]
    if (
        masks
        and len(inputs) == 1
        and product(values.sizes) == 1
        and _covers(x, indices[masks[0]], masks[0])
    ):
        single = values.reshape(())
        return _masked(ctx, x, indices[masks[0]], masks[0], single, accumulate)  # type: ignore[arg-type]
    if masks or not inputs or len(indices) > len(x.sizes):
        ref: Ref = call_any(ctx, aten.index_put.default, [x, list(indices), values, accumulate], {})
        return ref
    return put_into(Target.like(ctx, x, accumulate), x.sizes, indices, values, accumulate)


def put_into(
    target: Target, sizes: Sequence[Expr], indices: Sequence[Ref | None], values: Ref, adds: bool
) -> Ref:
    """Stores or adds values at integer indices of a target of these sizes."""
    ctx = target.ctx
    indices = [*indices, *[None] * (len(sizes) - len(indices))]
    inputs = [k for k, index in enumerate(indices) if index is not None]
    adjacent = inputs == list(range(inputs[0], inputs[-1] + 1))
    shared = _common([indices[k].sizes for k in inputs])  # type: ignore[union-attr]
    first = inputs[0] if adjacent else 0
    rest = [size for k, size in enumerate(sizes) if indices[k] is None]
    domain = [*rest[:first], *shared, *rest[first:]]
    dtype, rank = compute_dtype(ctx.meta().dtype), len(shared)

    def place(at: Sequence[Index]) -> Sequence[Index]:
        common, others = at[first : first + rank], [*at[:first], *at[first + rank :]]
        return [
            (
                others.pop(0)
                if index is None
                else indirect(index.at(broadcast(common, index.sizes)), sizes[k], wrap=True)
            )
            for k, index in enumerate(indices)
        ]

    body = lambda at: ctx.element(values, at, dtype)
    target.scatter("add" if adds else "set", domain, place, body)
    return target.result()


def _common(shapes: Sequence[Sequence[Expr]]) -> list[Expr]:
    """Returns the broadcast shape; guards symbols to equal the sizes that they broadcast with."""
    rank = max(len(shape) for shape in shapes)
    expressions: list[Expr] = [1] * rank
    for shape in shapes:
        for k, size in enumerate(shape):
            place = rank - len(shape) + k
            if expressions[place] == 1 or (isinstance(size, int) and size != 1):
                expressions[place] = size
    return expressions


@lower(aten.put.default)
def put(ctx: Lowering, x: Ref, index: Ref, source: Ref, accumulate: bool = False) -> Ref:
    """Writes at positions that count all elements in row-major order."""
    total = product(x.sizes)
    if total == 0 or product(index.sizes) != product(source.sizes):
        return call_aten(ctx, x, index, source, accumulate)
    target = Target.filled(ctx, x.reshape((total,)).at, (total,), None, ctx.meta().dtype)
    number = (product(index.sizes),)
    places, values = index.reshape(number), source.reshape(number)

    def place(at: Sequence[Index]) -> Sequence[Index]:
        return [indirect(places.at(at), total, wrap=True)]

    target.scatter("add" if accumulate else "set", number, place, _source(ctx, values))
    return Ref.of(target.buffer).reshape(ctx.shape())


# gradients of gathers ----------------------------------------------------------------------------


def zeros(ctx: Lowering, sizes: Sequence[Expr], strides: Sequence[Expr] | None) -> Target:
    dtype = ctx.meta().dtype
    return Target.filled(ctx, lambda at: const(0, dtype), sizes, strides, dtype)


@lower(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Lowering, dy: Ref, indices: Ref, rows: Any, padding: Any, scale_by_frequency: bool
) -> Ref:
    if scale_by_frequency:
        return call_aten(ctx, dy, indices, rows, padding, scale_by_frequency)
    dtype = sums_dtype(ctx)
    target = Target.filled(ctx, lambda at: const(0, dtype), ctx.shape(), ctx.strides(), dtype)
    return embedding_gradient(ctx, target, dy, indices, padding)


def embedding_gradient(ctx: Lowering, target: Target, dy: Ref, indices: Ref, padding: Any) -> Ref:
    """Adds rows of dy to the target's rows that they were looked up from."""
    rank, (count, _) = len(indices.sizes), ctx.shape()
    body = _source(ctx, dy)

    def value(at: Sequence[Index]) -> Value:
        if isinstance(padding, int) and padding < 0:
            return body(at)
        here = cast(indices.at(at[:rank]), torch.int64)
        result = body(at)
        return make(
            "where", make("eq", here, const(padding, torch.int64)), const(0, result.dtype), result
        )

    def place(at: Sequence[Index]) -> Sequence[Index]:
        return [indirect(indices.at(at[:rank]), count, wrap=False), at[rank]]

    target.scatter("add", dy.sizes, place, value)
    return target.result()


def to_positions(ctx: Lowering, dy: Ref, indices: Ref, rank: int) -> Ref:
    """Adds gradients of windows at the flat positions, in the last `rank` dims, that the forward
    chose."""
    sizes, strides = ctx.shape(), ctx.strides()
    lead, spatial = sizes[:-rank], sizes[-rank:]
    area = product(spatial)
    merged = (*lead, area)
    step = strides[-1]
    dense = all(
        strides[len(lead) + k] == simplify(product(spatial[k + 1 :]) * step) or spatial[k] == 1
        for k in range(rank)
    )
    target = zeros(ctx, merged, (*strides[: len(lead)], step) if dense else None)

    def place(at: Sequence[Index]) -> Sequence[Index]:
        return [*at[: len(lead)], indirect(indices.at(at), area, wrap=False)]

    target.scatter("add", dy.sizes, place, _source(ctx, dy))
    return Ref.of(target.buffer).reshape(sizes)


def _pool_backward(rank: int) -> Any:
    return lambda ctx, dy, x, *rest: to_positions(ctx, dy, rest[-1], rank)


lower(
    aten.adaptive_max_pool2d_backward.default,
    aten.fractional_max_pool2d_backward.default,
)(_pool_backward(2))
lower(
    aten.adaptive_max_pool3d_backward.default,
    aten.fractional_max_pool3d_backward.default,
)(_pool_backward(3))


@lower(aten.unfold_backward.default)
def unfold_backward(ctx: Lowering, dy: Ref, sizes: Any, dim: int, size: int, step: int) -> Ref:
    if not ctx.shape():
        return call_aten(ctx, dy, list(sizes), dim, size, step)
    dim = dim % len(ctx.shape())

    def place(at: Sequence[Index]) -> Sequence[Index]:
        position = list(at[:-1])
        position[dim] = at[dim] * step + at[-1]
        return position

    target = zeros(ctx, ctx.shape(), ctx.strides())
    target.scatter("add", dy.sizes, place, _source(ctx, dy))
    return target.result()

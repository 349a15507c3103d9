"""Lowers padding (constant, reflection, replication), im2col/col2im and channel shuffles.

These become index maps, or pointwise nodes that read at a position computed from the loop variables
(gradients: scatters to it). Such positions always lie inside the operand and need no check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, Index, Indirect, product, simplify, variables
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.pools import both, inside, number, read_if
from inductor_backend.lowering.scatter import zeros


def known(position: Value, size: Expr) -> Index:
    """Returns a computed position, known to lie inside a dimension, as an index."""
    return Index(0, {Indirect(position, size): 1})


def position_dtype(*sizes: Expr) -> torch.dtype:
    """Returns int32 where every position fits: vector units compute twice as many."""
    small = all(isinstance(size, int) and size < 2**30 for size in sizes)
    return torch.int32 if small else torch.int64


def _pair(here: Index, size: Expr) -> tuple[Value, Value]:
    """Returns (position, last position) in one dtype; both are below 2 * size for any padding that
    torch accepts."""
    kind = position_dtype(size)
    return cast(number(here), kind), cast(number(Index(simplify(size - 1))), kind)


def _reflected(here: Index, size: Expr) -> Value:
    """Mirrors the position at the first and the last element."""
    at, last = _pair(here, size)
    return make("sub", last, make("abs", make("sub", last, make("abs", at))))


def _replicated(here: Index, size: Expr) -> Value:
    at, last = _pair(here, size)
    return make("minimum", make("maximum", at, const(0, at.dtype)), last)


Where = Callable[[Index, Expr], Value]


def _place(
    at: At, sizes: Sequence[Expr], before: Sequence[Expr], padded: Sequence[bool], where: Where
) -> list[Index]:
    """Maps a position in the padded tensor to one in the operand."""
    lead = len(sizes) - len(before)
    position = list(at[:lead])
    for k, low in enumerate(before):
        size = sizes[lead + k]
        position.append(known(where(at[lead + k] - low, size), size) if padded[k] else at[lead + k])
    return position


def _pads(ctx: Lowering, pads: Sequence[Any]) -> tuple[list[Expr], list[bool]]:
    """Returns (elements before each dimension, whether it is padded at all), in the order of the
    dimensions."""
    pairs = [(ctx.sizes.expr(pads[k]), ctx.sizes.expr(pads[k + 1])) for k in range(0, len(pads), 2)]
    return [low for low, _ in reversed(pairs)], [pair != (0, 0) for pair in reversed(pairs)]


def _pad(where: Where) -> Any:
    def lowering(ctx: Lowering, x: Ref, pads: Sequence[Any]) -> Ref:
        if product(x.sizes) == 0:
            return call_aten(ctx, x, list(pads))
        before, padded = _pads(ctx, pads)
        static = (
            isinstance(x.sizes[-1], int)
            and isinstance(before[-1], int)
            and isinstance(ctx.shape()[-1], int)
        )
        if padded[-1] and ctx.strides()[-1] == 1 and static:
            return _by_rows(ctx, x, before, padded, where)
        return ctx.pointwise(
            lambda at: x.at(_place(at, x.sizes, before, padded, where)), label="pad"
        )

    return lowering


def _by_rows(
    ctx: Lowering, x: Ref, before: Sequence[Expr], padded: Sequence[bool], where: Where
) -> Ref:
    """Stores the middle of each row, a plain copy, separately from the padding on its left and
    right."""
    sizes, size, low = ctx.shape(), x.sizes[-1], before[-1]
    buffer = ctx.buffer(sizes, x.dtype, Lowering.dense(sizes, ctx.strides()))
    assert isinstance(low, int) and isinstance(size, int) and isinstance(sizes[-1], int)
    first, last = max(low, 0), min(low + size, sizes[-1])
    for begin, end in ((0, first), (first, last), (last, sizes[-1])):
        if begin < end:
            domain = (*sizes[:-1], end - begin)
            at = variables(domain)
            place = [*at[:-1], at[-1] + begin]
            middle = (begin, end) == (first, last)
            position = _place(place, x.sizes, before, [*padded[:-1], not middle], where)
            if middle:
                position[-1] = place[-1] - low
            store = Store((buffer.name,), tuple(place), cast(x.at(position), x.dtype))
            ctx.add_loop(domain, [False] * len(domain), [store], "pad")
    return Ref.of(buffer)


def _pad_backward(where: Where) -> Any:
    def lowering(ctx: Lowering, dy: Ref, x: Ref, pads: Sequence[Any]) -> Ref:
        if product(x.sizes) == 0:
            return call_aten(ctx, dy, x, list(pads))
        before, padded = _pads(ctx, pads)
        dtype = compute_dtype(dy.dtype)
        target = zeros(ctx, ctx.shape(), ctx.strides())
        target.scatter(
            "add",
            dy.sizes,
            lambda at: _place(at, x.sizes, before, padded, where),
            lambda at: cast(dy.at(at), dtype),
        )
        return target.result()

    return lowering


for _rank in (1, 2, 3):
    for _kind, _where in (("reflection", _reflected), ("replication", _replicated)):
        _name = f"{_kind}_pad{_rank}d"
        lower(getattr(aten, _name).default)(_pad(_where))
        lower(getattr(aten, f"{_name}_backward").default)(_pad_backward(_where))


# shuffles ----------------------------------------------------------------------------------------


@lower(aten.pixel_shuffle.default)
def pixel_shuffle(ctx: Lowering, x: Ref, factor: int) -> Ref:
    *lead, channels, h, w = x.sizes
    inner = (
        simplify(product([channels]) / (factor * factor))
        if not isinstance(channels, int)
        else channels // factor**2
    )
    split = x.reshape((*lead, inner, factor, factor, h, w))
    n = len(lead)
    return split.permute([*range(n), n, n + 3, n + 1, n + 4, n + 2]).reshape(ctx.shape())


@lower(aten.pixel_unshuffle.default)
def pixel_unshuffle(ctx: Lowering, x: Ref, factor: int) -> Ref:
    *lead, channels, _, _ = x.sizes
    h, w = ctx.shape()[-2:]
    split = x.reshape((*lead, channels, h, factor, w, factor))
    n = len(lead)
    return split.permute([*range(n), n, n + 2, n + 4, n + 1, n + 3]).reshape(ctx.shape())


@lower(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(ctx: Lowering, x: Ref, groups: int) -> Ref:
    n, channels, *rest = x.sizes
    if not isinstance(channels, int):
        return call_aten(ctx, x, groups)
    split = x.reshape((n, groups, channels // groups, *rest))
    return split.permute([0, 2, 1, *range(3, len(split.sizes))]).reshape(x.sizes)


# im2col, col2im ----------------------------------------------------------------------------------


def _column_domain(
    batch: Sequence[Expr], channels: Expr, kernel: Sequence[int], outputs: Sequence[Expr]
) -> tuple[Expr, ...]:
    return (*batch, channels, *kernel, *outputs)


def _outputs(size: Expr, kernel: int, dilation: int, padding: int, stride: int) -> Expr | None:
    if not isinstance(size, int):
        return None
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@lower(aten.im2col.default)
def im2col(ctx: Lowering, x: Ref, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Ref:
    *batch, channels, h, w = x.sizes
    spans = [
        _outputs(n, *(value[k] for value in (kernel, dilation, padding, stride)))
        for k, n in enumerate((h, w))
    ]
    outputs = [n for n in spans if n is not None]
    if len(outputs) < 2:
        return call_aten(ctx, x, kernel, dilation, padding, stride)
    n, dtype = len(batch), compute_dtype(x.dtype)

    def body(at: At) -> Value:
        position, test = list(at[: n + 1]), None
        for k, size in enumerate((h, w)):
            here = at[n + 3 + k] * stride[k] + at[n + 1 + k] * dilation[k] - padding[k]
            if padding[k]:
                test = both(test, inside(here, size))
            position.append(here)
        return read_if(x, position, test, dtype, 0)

    domain = _column_domain(batch, channels, kernel, outputs)
    return ctx.pointwise(body, domain, x.dtype).reshape(ctx.shape())


@lower(aten.col2im.default)
def col2im(
    ctx: Lowering, x: Ref, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Ref:
    """Adds up in a buffer that includes the padding and returns its middle."""
    *batch, channels, h, w = ctx.shape()
    spans = [
        _outputs(n, *(value[k] for value in (kernel, dilation, padding, stride)))
        for k, n in enumerate((h, w))
    ]
    outputs = [n for n in spans if n is not None]
    if len(outputs) < 2:
        return call_aten(ctx, x, list(sizes), kernel, dilation, padding, stride)
    n, dtype = len(batch), compute_dtype(x.dtype)
    domain = _column_domain(batch, channels, kernel, outputs)
    columns = x.reshape(domain)
    wide = (*batch, channels, h + 2 * padding[0], w + 2 * padding[1])

    def place(at: At) -> Sequence[Index]:
        spatial = [at[n + 3 + k] * stride[k] + at[n + 1 + k] * dilation[k] for k in range(2)]
        return [*at[: n + 1], *spatial]

    target = zeros(ctx, wide, None)
    target.scatter("add", domain, place, lambda at: cast(columns.at(at), dtype))
    return Ref.of(target.buffer).slice(n + 1, padding[0], h).slice(n + 2, padding[1], w)


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(ctx: Lowering, x: Ref, pads: Sequence[Any], value: Any = 0) -> Ref:
    """Reads inside the operand and the constant outside it."""
    rank, dtype = len(x.sizes), ctx.meta().dtype
    before: list[Expr] = [0] * rank
    padded = [False] * rank
    for k in range(len(pads) // 2):
        low, high = ctx.sizes.expr(pads[2 * k]), ctx.sizes.expr(pads[2 * k + 1])
        before[rank - 1 - k] = low
        padded[rank - 1 - k] = not (low == 0 and high == 0)

    def body(at: Sequence[Index]) -> Any:
        inside = None
        position = [index - before[k] for k, index in enumerate(at)]
        for k in range(rank):
            if not padded[k]:
                continue
            here = make("index", attr=position[k])
            size = make("index", attr=Index(x.sizes[k]))
            test = make("bit_and", make("ge", here, const(0, torch.int64)), make("lt", here, size))
            inside = test if inside is None else make("bit_and", inside, test)
        if inside is None:
            return x.at(position)
        return make(
            "masked_load",
            inside,
            const(value, dtype),
            attr=(x.buffer.name, x.place(position), x.dtype),
        )

    return ctx.pointwise(body, label="pad")

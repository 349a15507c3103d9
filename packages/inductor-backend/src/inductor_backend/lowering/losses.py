"""Lowers the gradients of softmax and log_softmax, nll_loss with its gradient, and
binary_cross_entropy.

A class or a probability that eager rejects raises IndexError after the kernel, and nothing is read
outside a buffer; the class `ignored` is never looked up.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make, required
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower, normalize_dims
from inductor_backend.lowering.gathers import indirect
from inductor_backend.lowering.normalization import At
from inductor_backend.lowering.reduction import mean_of


@lower(aten._softmax_backward_data.default)
def softmax_backward(ctx: Lowering, dy: Ref, y: Ref, dim: int, *unused: Any) -> Ref:
    """Computes (dy - sum(dy * y)) * y; on GPUs dy * y - y * sum(dy * y), as kernels of ATen there do."""
    dtype = compute_dtype(y.dtype)

    def scaled(at: At) -> Value:
        return make("mul", cast(dy.at(at), dtype), cast(y.at(at), dtype))

    label = "softmax_backward"
    (total,) = ctx.reduction(
        "sum", scaled, y.sizes, normalize_dims(dim, len(y.sizes)), dtype, label
    )

    def body(at: At) -> Value:
        share, sum_of_row = cast(y.at(at), dtype), total.at(broadcast(at, total.sizes))
        if ctx.gpu:
            return make("sub", scaled(at), make("mul", share, sum_of_row))
        return make("mul", make("sub", cast(dy.at(at), dtype), sum_of_row), share)

    return ctx.pointwise(body, label=label)


@lower(aten._log_softmax_backward_data.default)
def log_softmax_backward(ctx: Lowering, dy: Ref, y: Ref, dim: int, *unused: Any) -> Ref:
    """Computes dy - exp(y) * sum(dy)."""
    dtype = compute_dtype(y.dtype)
    label = "log_softmax_backward"
    dims = normalize_dims(dim, len(y.sizes))
    (total,) = ctx.reduction("sum", lambda at: cast(dy.at(at), dtype), y.sizes, dims, dtype, label)

    def body(at: At) -> Value:
        share = make(
            "mul", make("exp", cast(y.at(at), dtype)), total.at(broadcast(at, total.sizes))
        )
        return make("sub", cast(dy.at(at), dtype), share)

    return ctx.pointwise(body, label=label)


#: Reductions of losses, as ATen numbers them.
_NONE, _MEAN = 0, 1


class _Likelihood:
    """x: [classes], [batch, classes] or [batch, classes, ...]; target: the same without classes.
    Immutable."""

    def __init__(self, x: Ref, target: Ref, weight: Ref | None, ignored: int) -> None:
        self.x, self.target, self.weight, self.ignored = x, target, weight, ignored
        self.dtype = compute_dtype(x.dtype)
        self.dim = 0 if len(x.sizes) == 1 else 1
        self.classes = x.sizes[self.dim]
        self.sizes = target.sizes if len(x.sizes) > 1 else ()

    def number(self, at: At) -> Value:
        """Returns the class at a position (without the class dimension)."""
        position = at if len(self.target.sizes) == len(at) else [Index()] * len(self.target.sizes)
        return cast(self.target.at(position), torch.int64)

    def counts(self, at: At) -> Value:
        """Returns whether the element is not ignored."""
        return make("ne", self.number(at), const(self.ignored, torch.int64))

    def place(self, at: At) -> Index:
        """Returns the class as an index; 0 where it is ignored."""
        safe = make("where", self.counts(at), self.number(at), const(0, torch.int64))
        return indirect(safe, self.classes, wrap=False)

    def share(self, at: At, where: Index) -> Value:
        """Returns the weight of the element, whose class is `where`: 0 where it is ignored."""
        term = (
            const(1, self.dtype)
            if self.weight is None
            else cast(self.weight.at([where]), self.dtype)
        )
        return make("where", self.counts(at), term, const(0, self.dtype))

    def loss(self, at: At) -> Value:
        where = self.place(at)
        position = [*at[: self.dim], where, *at[self.dim :]]
        result = make("mul", cast(self.x.at(position), self.dtype), self.share(at, where))
        return make("where", self.counts(at), make("neg", result), const(0, self.dtype))


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    ctx: Lowering, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignored: int
) -> tuple[Ref, Ref]:
    """Returns (loss, total weight)."""
    of = _Likelihood(x, target, weight, ignored)
    result = ctx.meta(0).dtype
    if reduction == _NONE and len(x.sizes) > 1:
        losses = ctx.pointwise(of.loss, of.sizes, result, label="nll_loss")
        return losses, ctx.pointwise(
            lambda at: const(0, result), ctx.shape(1), result, label="nll_loss"
        )
    dims = list(range(len(of.sizes)))
    (loss,) = ctx.reduction("sum", of.loss, of.sizes, dims, of.dtype, "nll_loss")
    (total,) = ctx.reduction(
        "sum", lambda at: of.share(at, of.place(at)), of.sizes, dims, of.dtype, "nll_loss"
    )
    losses, totals = loss.reshape(()), total.reshape(())

    def body(at: At) -> Value:
        return make("div", losses.at(at), totals.at(at)) if reduction == _MEAN else losses.at(at)

    return (
        ctx.pointwise(body, (), result, label="nll_loss"),
        ctx.pointwise(totals.at, (), ctx.meta(1).dtype, label="nll_loss"),
    )


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    target: Ref,
    weight: Ref | None,
    reduction: int,
    ignored: int,
    total: Ref,
) -> Ref:
    of = _Likelihood(x, target, weight, ignored)

    def body(at: At) -> Value:
        here = [*at[: of.dim], *at[of.dim + 1 :]]
        mine = make("index", attr=at[of.dim])
        factor = const(1, of.dtype) if weight is None else cast(weight.at([at[of.dim]]), of.dtype)
        slope = cast(dy.at(broadcast(here, dy.sizes)), of.dtype)
        if reduction == _MEAN:
            slope = make("div", slope, cast(total.at([]), of.dtype))
        chosen = make("bit_and", of.counts(here), make("eq", of.number(here), mine))
        return make("where", chosen, make("neg", make("mul", slope, factor)), const(0, of.dtype))

    return ctx.pointwise(body, label="nll_loss_backward")


def _probability(value: Value) -> Value:
    """Returns the value; one that is not from 0 to 1 raises."""
    dtype = value.dtype
    inside = make("bit_and", make("ge", value, const(0, dtype)), make("le", value, const(1, dtype)))
    return required(value, inside)


@lower(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    ctx: Lowering, x: Ref, target: Ref, weight: Ref | None = None, reduction: int = _MEAN
) -> Ref:
    """Computes -(target * log(x) + (1 - target) * log(1 - x)), logarithms at least -100."""
    dtype = compute_dtype(x.dtype)
    least, label = const(-100, dtype), "binary_cross_entropy"

    def loss(at: At) -> Value:
        chance = _probability(cast(x.at(at), dtype))
        wanted = _probability(cast(target.at(at), dtype))
        yes = make("maximum", make("log", chance), least)
        no = make("maximum", make("log1p", make("neg", chance)), least)
        rest = make("sub", wanted, const(1, dtype))
        result = make("sub", make("mul", rest, no), make("mul", wanted, yes))
        if weight is None:
            return result
        return make("mul", result, cast(weight.at(broadcast(at, weight.sizes)), dtype))

    if reduction == _NONE:
        return ctx.pointwise(loss, label=label)
    dims = list(range(len(x.sizes)))
    (total,) = ctx.reduction("sum", loss, x.sizes, dims, dtype, label)
    return mean_of(ctx, total, x.sizes) if reduction == _MEAN else ctx.as_output(total)

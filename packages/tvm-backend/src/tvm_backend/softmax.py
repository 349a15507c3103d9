"""Reductions along the last dimension (softmax) with one partial result per vector lane.

Elements beyond the last whole vector are reduced one by one, as are rows of symbolic length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_backend import elementary
from tvm_backend.tiles import TILE_LANES

LANES = 16


def softmax(x: Any) -> Any:
    """Computes softmax along the last dimension."""
    from tvm import te

    *batch, length = x.shape
    largest = _over_rows(x, te.max, te.max, "largest")
    powers = te.compute(
        x.shape, lambda *at: elementary.exp(x[at] - largest[at[:-1]]), name="powers"
    )
    total = _over_rows(powers, te.sum, lambda a, b: a + b, "total")
    return te.compute((*batch, length), lambda *at: powers[at] / total[at[:-1]], name="softmax")


def _over_rows(
    x: Any, reduce: Callable[..., Any], join: Callable[[Any, Any], Any], name: str
) -> Any:
    """Reduces each row to one element."""
    from tvm import te

    *batch, length = x.shape
    size = getattr(length, "value", length)
    # at least one vector: a TVM reduction over no elements leaves memory uninitialised
    if not isinstance(size, int) or size < 2 * LANES:
        k = te.reduce_axis((0, length), name="k")
        return te.compute(tuple(batch), lambda *at: reduce(x[(*at, k)], axis=k), name=name)
    full, left = divmod(size, LANES)
    k = te.reduce_axis((0, full), name="k")
    partial = te.compute(
        (*batch, LANES),
        lambda *at: reduce(x[(*at[:-1], k * LANES + at[-1])], axis=k),
        name=f"{name}_partial",
        attrs={TILE_LANES: 1},
    )
    lane = te.reduce_axis((0, LANES), name="lane")
    head = te.compute(
        tuple(batch), lambda *at: reduce(partial[(*at, lane)], axis=lane), name=f"{name}_head"
    )
    if not left:
        return head
    rest = te.reduce_axis((0, left), name="rest")
    tail = te.compute(
        tuple(batch),
        lambda *at: reduce(x[(*at, full * LANES + rest)], axis=rest),
        name=f"{name}_tail",
    )
    return te.compute(tuple(batch), lambda *at: join(head[at], tail[at]), name=name)

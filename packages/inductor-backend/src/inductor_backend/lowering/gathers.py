"""Lowers gathers (embedding, gather, index_select, index) to pointwise nodes with `Indirect` loads.

Every index passes `check_index`: one that eager rejects raises IndexError after the kernel and
never reads outside a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index, Indirect
from inductor_backend.ir.values import Value, cast, checked, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower


def indirect(position: Value, size: Expr, wrap: bool) -> Index:
    """Returns the checked position as an index. wrap: negative positions count from the end."""
    position = cast(position, torch.int64)
    if wrap:
        position = make("wrap_index", position, attr=size)
    return Index(0, {Indirect(make("check_index", position, attr=size), size): 1})


@lower(aten.embedding.default)
def embedding(ctx: Lowering, weight: Ref, indices: Ref, *unused: Any) -> Ref:
    rank = len(indices.sizes)

    def body(at: Sequence[Index]) -> Value:
        position = [indirect(indices.at(at[:rank]), weight.sizes[0], wrap=False), at[rank]]
        return checked(weight.at(position), position)

    return ctx.pointwise(body)


@lower(aten.index_select.default)
def index_select(ctx: Lowering, x: Ref, dim: int, indices: Ref) -> Ref:
    single = not x.sizes
    x = x.unsqueeze(0) if single else x
    dim = dim % len(x.sizes)

    def body(at: Sequence[Index]) -> Value:
        position = [Index()] if single else list(at)
        row = indices.at([position[dim]]) if indices.sizes else indices.at([])
        position[dim] = indirect(row, x.sizes[dim], wrap=False)
        return checked(x.at(position), position)

    return ctx.pointwise(body)


@lower(aten.gather.default)
def gather(ctx: Lowering, x: Ref, dim: int, indices: Ref, **unused: Any) -> Ref:
    x = x if x.sizes else x.unsqueeze(0)
    if 0 in ctx.shape():  # of any number of dimensions
        return ctx.pointwise(lambda at: ctx.element(0, at, x.dtype))
    dim = dim % len(x.sizes)

    def body(at: Sequence[Index]) -> Value:
        place = indirect(indices.at(at), x.sizes[dim], wrap=False)
        position = [place] if len(x.sizes) == 1 else [*at[:dim], place, *at[dim + 1 :]]
        return checked(x.at(position), position)

    return ctx.pointwise(body)


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ctx: Lowering, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """Lowers advanced indexing with integer tensors (results of boolean masks have data-dependent
    sizes)."""
    indices = [*indices, *[None] * (len(x.sizes) - len(indices))]
    inputs = [k for k, index in enumerate(indices) if index is not None]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        raise unsupported(
            "lower", "indexing with a boolean mask has a size that depends on data", ctx.node
        )
    adjacent = inputs == list(range(inputs[0], inputs[-1] + 1))
    rank = max(len(indices[k].sizes) for k in inputs)  # type: ignore[union-attr]
    first = inputs[0] if adjacent else 0

    def body(at: Sequence[Index]) -> Value:
        shared = at[first : first + rank]
        rest = [*at[:first], *at[first + rank :]]
        position: list[Index] = []
        for k, index in enumerate(indices):
            if index is None:
                position.append(rest.pop(0))
            else:
                position.append(
                    indirect(index.at(broadcast(shared, index.sizes)), x.sizes[k], wrap=True)
                )
        return checked(x.at(position), position)

    return ctx.pointwise(body)

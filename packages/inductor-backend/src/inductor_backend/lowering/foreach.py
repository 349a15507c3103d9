"""Lowers ``_foreach_`` operators tensor by tensor, so that an optimizer's chain of them fuses into
one kernel per parameter.

Each tensor uses the lowering of the operator on one tensor. Lists of mixed or integer dtypes stay
ATen's, except for copy and zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.lowering.context import LOWERINGS, Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Replaces the graph node while one tensor of its list is lowered."""

    name: str
    target: Any
    args: tuple[Any, ...]
    meta: dict[str, Any]


#: Operator on a list -> on one tensor. List arguments are indexed item by item.
EACH: dict[Any, Any] = {
    aten._foreach_add.Scalar: aten.add.Tensor, aten._foreach_add.List: aten.add.Tensor,
    aten._foreach_add.ScalarList: aten.add.Tensor, aten._foreach_add.Tensor: aten.add.Tensor,
    aten._foreach_sub.Scalar: aten.sub.Tensor, aten._foreach_sub.List: aten.sub.Tensor,
    aten._foreach_sub.ScalarList: aten.sub.Tensor,
    aten._foreach_mul.Scalar: aten.mul.Tensor, aten._foreach_mul.List: aten.mul.Tensor,
    aten._foreach_mul.ScalarList: aten.mul.Tensor, aten._foreach_mul.Tensor: aten.mul.Tensor,
    aten._foreach_div.Scalar: aten.div.Tensor, aten._foreach_div.List: aten.div.Tensor,
    aten._foreach_div.ScalarList: aten.div.Tensor, aten._foreach_div.Tensor: aten.div.Tensor,
    aten._foreach_maximum.List: aten.maximum.default,
    aten._foreach_minimum.List: aten.minimum.default,
    aten._foreach_addcdiv.Scalar: aten.addcdiv.default,
    aten._foreach_addcdiv.ScalarList: aten.addcdiv.default,
    aten._foreach_addcmul.Scalar: aten.addcmul.default,
    aten._foreach_addcmul.ScalarList: aten.addcmul.default,
    aten._foreach_lerp.Scalar: aten.lerp.Scalar, aten._foreach_lerp.List: aten.lerp.Tensor,
    aten._foreach_sqrt.default: aten.sqrt.default, aten._foreach_rsqrt.default: aten.rsqrt.default,
    aten._foreach_neg.default: aten.neg.default, aten._foreach_abs.default: aten.abs.default,
    aten._foreach_reciprocal.default: aten.reciprocal.default,
    aten._foreach_exp.default: aten.exp.default,
    aten._foreach_sign.default: aten.sign.default, aten._foreach_copy.default: aten.copy.default,
    aten._foreach_zero.default: aten.zeros_like.default,
}  # fmt: skip

#: Operators whose tensors may differ in dtype.
ANY_DTYPE = frozenset({aten._foreach_copy.default, aten._foreach_zero.default})


def _of_lists(target: Any) -> Callable[..., Any]:
    single = EACH[target]

    def lowering(ctx: Lowering, *args: Any, **kwargs: Any) -> Any:
        node = ctx.node
        results = node.meta["val"]
        if target not in ANY_DTYPE and not _alike(results, (*node.args, *node.kwargs.values())):
            return call_aten(ctx, *args, **kwargs)
        result = []
        try:
            for place, fake in enumerate(results):
                items = tuple(_taken(argument, place) for argument in node.args)
                meta = {**node.meta, "val": fake}
                ctx.node = Item(f"{node.name}_{place}", single, items, meta)  # type: ignore[assignment]
                result.append(
                    LOWERINGS[single](
                        ctx, *(_taken(argument, place) for argument in args), **kwargs
                    )
                )
        finally:
            ctx.node = node
        return result

    return lowering


def _taken(argument: Any, place: int) -> Any:
    return argument[place] if isinstance(argument, (list, tuple)) else argument


def _alike(results: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
    """Checks that all tensors of the lists and results have one floating dtype; a tensor outside
    the lists may have another."""
    lists = [list(argument) for argument in args if isinstance(argument, (list, tuple))]
    values = [x.meta["val"] for items in lists for x in items if isinstance(x, torch.fx.Node)]
    tensors = [*results, *(value for value in values if isinstance(value, torch.Tensor))]
    dtypes = {tensor.dtype for tensor in tensors}
    return len(dtypes) == 1 and next(iter(dtypes)).is_floating_point


for _target in EACH:
    lower(_target)(_of_lists(_target))

"""The calls that a row of the sweep makes: an operator's samples, and variants of their inputs.

In: an OpInfo and a dtype. Out: `Case`s. What always holds: the same cases in every process
(seeded); a call that eager refuses is a case too (`raises`), in which the compiled program must
raise the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.opinfo.unusual import EAGER_FAULTS
from tests.opinfo.values import copied, rebuild, tensors

#: Variants are made of at most one sample in this many of those that a row may have, spread over
#: them.
VARIANTS_OF = 5


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """kind: forward, in-place, out, backward or error. name: unique in the row."""

    kind: str
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def spread(items: list[Any], count: int) -> list[Any]:
    """`count` of them, evenly spaced; all for 0."""
    if not count or len(items) <= count:
        return items
    return [items[k * len(items) // count] for k in range(count)]


def samples(
    op: Any, dtype: torch.dtype, limit: int, device: str, requires_grad: bool = False
) -> list[tuple[int, Any, Any]]:
    """(number, positional arguments, named ones) of the operator's own samples."""
    torch.manual_seed(0)
    items = list(op.sample_inputs(device, dtype, requires_grad=requires_grad))
    chosen = spread(list(enumerate(items)), limit)
    return [(number, (item.input, *item.args), dict(item.kwargs)) for number, item in chosen]


def _strided(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized
    )


def _gaps(leaf: Any) -> Any:
    """Non-contiguous: every second element of a larger tensor."""
    if not _strided(leaf) or leaf.dim() == 0 or leaf.numel() < 2:
        return leaf
    wide = torch.stack([leaf.detach(), leaf.detach().roll(1, -1)], -1)
    return wide[..., 0].requires_grad_(leaf.requires_grad)


def _reversed_strides(leaf: Any) -> Any:
    """The same values, the first dimension running fastest."""
    if not _strided(leaf) or leaf.dim() < 2:
        return leaf
    order = tuple(range(leaf.dim()))[::-1]
    return (
        leaf.detach().permute(order).contiguous().permute(order).requires_grad_(leaf.requires_grad)
    )


def _overlapping(leaf: Any) -> Any:
    """The first row, repeated without copies."""
    if not _strided(leaf) or leaf.dim() == 0 or leaf.shape[0] < 2:
        return leaf
    return leaf.detach()[:1].expand(leaf.shape)


def _empty(leaf: Any) -> Any:
    """No elements along the first dimension."""
    return leaf.detach()[:0] if _strided(leaf) and leaf.dim() else leaf


def _nothing_first(leaf: Any) -> Any:
    """One number in place of a tensor."""
    return leaf.detach().reshape(-1)[0] if _strided(leaf) and leaf.numel() and leaf.dim() else leaf


def _special(leaf: Any) -> Any:
    """NaN, infinities and both zeros among the values."""
    if not _strided(leaf) or not leaf.is_floating_point() or leaf.numel() < 5:
        return leaf
    result = leaf.detach().clone()
    result.reshape(-1)[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    return result


def _extreme(leaf: Any) -> Any:
    """The least and greatest integers among the values."""
    if (
        not _strided(leaf)
        or leaf.dtype not in (torch.int32, torch.int64, torch.uint8)
        or leaf.numel() < 4
    ):
        return leaf
    result, info = leaf.detach().clone(), torch.iinfo(leaf.dtype)
    result.reshape(-1)[:4] = torch.tensor(
        [info.min, info.max, info.max - 1, info.min + 1], dtype=leaf.dtype
    )
    return result


VARIANTS: dict[str, Callable[[Any], Any]] = {
    "gaps": _gaps, "transposed": _reversed_strides, "overlapping": _overlapping, "empty": _empty,
    "zero-dim": _nothing_first,
}  # fmt: skip

#: Only for operators that compute element by element: others read integers as sizes and positions.
ELEMENTWISE_VARIANTS: dict[str, Callable[[Any], Any]] = {"special": _special, "extreme": _extreme}


def _variants(
    op: Any, numbers: list[tuple[int, Any, Any]], limit: int
) -> Iterator[tuple[str, Any, Any]]:
    elementwise = type(op).__name__ in ("UnaryUfuncInfo", "BinaryUfuncInfo")
    chosen = {**VARIANTS, **(ELEMENTWISE_VARIANTS if elementwise else {})}
    for number, args, kwargs in spread(numbers, max(2, limit // VARIANTS_OF) if limit else 0):
        before = tensors((args, kwargs))
        for name, change in chosen.items():
            if name in EAGER_FAULTS.get(op.name, ()):
                continue
            changed = rebuild((args, kwargs), change)
            if any(a is not b for a, b in zip(tensors(changed), before, strict=True)):
                yield f"{number} {name}", *changed


def _leaf(value: Any) -> Any:
    return value if not isinstance(value, torch.Tensor) or value.is_leaf else value.detach()


def forward(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Case]:
    result = samples(op, dtype, limit, device)
    for number, args, kwargs in result:
        yield Case("forward", f"forward {number}", op.op, *rebuild((args, kwargs), _leaf))
    for name, args, kwargs in _variants(op, result, limit):
        yield Case("forward", f"forward {name}", op.op, args, kwargs)


def in_place(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Case]:
    """The in-place form of the operator, on those samples whose first input may be written to."""
    if op.inplace_variant is None:
        return
    result = samples(op, dtype, limit, device)
    chosen = [*((str(n), a, k) for n, a, k in result), *_variants(op, result, limit)]
    for name, args, kwargs in chosen:
        if isinstance(args[0], torch.Tensor) and "overlapping" not in name:
            yield Case("in-place", f"in-place {name}", op.inplace_variant, args, kwargs)


def out(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Case]:
    """``out=`` with tensors of the right sizes, for a few samples."""
    if not op.supports_out:
        return
    for number, args, kwargs in spread(samples(op, dtype, limit, device), 3):
        try:
            result = op.op(*copied(args), **copied(kwargs))
        except Exception:  # a call that eager refuses has no results to make room for
            continue
        if tensors(result):
            room = rebuild(result, lambda leaf: torch.zeros_like(leaf) if _strided(leaf) else leaf)
            room = tuple(room) if isinstance(room, (tuple, list)) else room
            yield Case("out", f"out {number}", op.op, args, {**kwargs, "out": room})


def backward(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Case]:
    if dtype not in op.supported_backward_dtypes(device) or not op.supports_autograd:
        return
    result = samples(op, dtype, limit, device, requires_grad=True)
    layouts = {name: VARIANTS[name] for name in ("gaps", "transposed")}
    for number, args, kwargs in result:
        if any(tensor.requires_grad for tensor in tensors((args, kwargs))):
            yield Case("backward", f"backward {number}", op.op, args, kwargs)
    for number, args, kwargs in spread(result, 2):
        for name, change in layouts.items():
            yield Case(
                "backward", f"backward {number} {name}", op.op, *rebuild((args, kwargs), change)
            )


def errors(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Case]:
    """Calls that the database says are wrong; with one dtype, since it chooses that itself."""
    if op.error_inputs_func is None or dtype is not torch.float32:
        return
    torch.manual_seed(0)
    for number, error in enumerate(itertools.islice(op.error_inputs(device), 12)):
        item = error.sample_input
        if any(
            tensor.device.type != device for tensor in tensors((item.input, item.args, item.kwargs))
        ):
            continue
        yield Case("error", f"error {number}", op.op, (item.input, *item.args), dict(item.kwargs))


KINDS: dict[str, Callable[[Any, torch.dtype, int, str], Iterator[Case]]] = {
    "forward": forward, "in-place": in_place, "out": out, "backward": backward, "error": errors,
}  # fmt: skip

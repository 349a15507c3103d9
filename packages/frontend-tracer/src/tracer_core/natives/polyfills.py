"""Polyfills: Python versions of C functions that call user code, interpreted in their place.

Each does exactly what the documentation of the original says. The tracer itself calls none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.needed import pytree


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    """itertools.count of numbers that are no plain ints or floats."""
    value = start
    while True:
        yield value
        value = value + step


_NOTHING = object()


class GroupBy:
    """itertools.groupby. Mutable."""

    def __init__(self, iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> None:
        self.items = iter(iterable)
        self.key = key
        self.target = self.current_key = self.value = _NOTHING
        self.group: object = None

    def __iter__(self) -> GroupBy:
        return self

    def __next__(self) -> tuple[Any, Iterator[Any]]:
        self.group = object()
        while self.current_key is self.target or self.current_key == self.target:
            self.value = next(self.items)
            self.current_key = self.value if self.key is None else self.key(self.value)
        self.target = self.current_key
        return self.current_key, self._members(self.target, self.group)

    def _members(self, target: Any, group: object) -> Iterator[Any]:
        while self.group is group and (self.current_key is target or self.current_key == target):
            yield self.value
            try:
                self.value = next(self.items)
            except StopIteration:
                self.current_key = self.target = _NOTHING
                self.items = iter(())
                return
            self.current_key = self.value if self.key is None else self.key(self.value)


def use_grad_for_differentiable(step: Any, args: Any, kwargs: Any) -> Any:
    """The wrapper that torch.optim's _use_grad_for_differentiable puts around Optimizer.step."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return step(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def cached_property_get(self: Any, instance: Any, owner: Any = None) -> Any:
    """functools.cached_property.__get__ without its lock, which no other thread can take in a
    trace."""
    if instance is None:
        return self
    if self.attrname is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    if not hasattr(instance, "__dict__"):
        raise TypeError(
            f"No '__dict__' attribute on {type(instance).__name__!r} "
            f"instance to cache {self.attrname!r} property."
        )
    cache = instance.__dict__
    value = cache.get(self.attrname, _NOTHING)
    if value is _NOTHING:
        value = self.func(instance)
        cache[self.attrname] = value
    return value


def map_rows(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """torch._higher_order_ops.map: `f` of the slices along the first dimension, stacked."""
    leaves, structure = pytree.tree_flatten(xs)
    rows = [
        pytree.tree_flatten(
            f(pytree.tree_unflatten([leaf[i] for leaf in leaves], structure), *args)
        )
        for i in range(leaves[0].shape[0])
    ]
    return pytree.tree_unflatten(
        [torch.stack(parts) for parts in zip(*[flat for flat, _ in rows], strict=True)], rows[0][1]
    )


def attention_device(query: Any, key: Any, value: Any) -> None:
    """flex_attention's check of devices."""
    if query.device.type not in ("cuda", "cpu"):
        raise ValueError(f"flex_attention is compiled for CUDA and the CPU, not {query.device}")


def is_finite(scores: Any) -> Any:
    """The end of create_mask: where a score_mod does not mask a score."""
    return torch.where(torch.isneginf(scores), False, True)


def ordered_to_dense(counts: Any, indices: Any, columns: int) -> Any:
    """A BlockMask's matrix of blocks: 1 at the first `counts` of `indices` of each row."""
    place = torch.arange(indices.shape[-1], device=indices.device)
    listed = torch.where(place < counts.unsqueeze(-1), indices, columns)
    shape = (*indices.shape[:-1], columns + 1)
    empty = torch.zeros(shape, dtype=torch.int32, device=indices.device)
    return empty.scatter(-1, listed.to(torch.int64), 1)[..., :columns].contiguous()


def dense_to_ordered(dense: Any) -> Any:
    """A BlockMask's rows of blocks: how many, and which (those first)."""
    dense = dense.to(dtype=torch.int32)
    indices = torch.argsort(dense, dim=-1, descending=True, stable=True)
    counts = dense.sum(dim=-1)
    return (
        counts.to(torch.int32, memory_format=torch.contiguous_format),
        indices.to(torch.int32, memory_format=torch.contiguous_format),
    )


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool
) -> Any:
    """torch._higher_order_ops.associative_scan: inclusive scan along `dim`, by a tree of depth
    log2(length).

    `combine_fn` runs on whole slices for both of torch's modes, and autograd differentiates it.
    Torch's gradient of ``combine_mode="pointwise"`` (CUDA) wrongly treats the leaves of `xs` as
    independent.
    """
    leaves, structure = pytree.tree_flatten(xs)
    combine = torch.vmap(combine_fn)
    leaves = [torch.movedim(leaf, dim, 0) for leaf in leaves]
    if reverse:
        leaves = [leaf.flip([0]) for leaf in leaves]

    def scan(items: list[Any]) -> list[Any]:
        length = items[0].shape[0]
        if length < 2:
            return items
        left = pytree.tree_unflatten([item[: length - 1 : 2] for item in items], structure)
        right = pytree.tree_unflatten([item[1::2] for item in items], structure)
        odd = scan(pytree.tree_leaves(combine(left, right)))
        even = [item[:1] for item in items]
        if length > 2:
            left = pytree.tree_unflatten([item[: (length - 1) // 2] for item in odd], structure)
            right = pytree.tree_unflatten([item[2::2] for item in items], structure)
            rest = pytree.tree_leaves(combine(left, right))
            even = [torch.cat([first, others]) for first, others in zip(even, rest, strict=True)]
        whole = length - length % 2  # the last element of an odd length has no partner
        both = [
            torch.stack([a[: whole // 2], b], 1).flatten(0, 1)
            for a, b in zip(even, odd, strict=True)
        ]
        if whole < length:
            both = [
                torch.cat([pairs, a[whole // 2 :]]) for pairs, a in zip(both, even, strict=True)
            ]
        return both

    results = scan(leaves)
    if reverse:
        results = [result.flip([0]) for result in results]
    return pytree.tree_unflatten([torch.movedim(result, 0, dim) for result in results], structure)

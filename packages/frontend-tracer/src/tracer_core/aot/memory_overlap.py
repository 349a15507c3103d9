"""Memory overlap of tensors that share a storage.

The answers "apart" and "the same" are certain for all values of symbolic sizes (a comparison that
decides becomes a guard). Where neither holds, expect an overlap.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.symbolic_sizes import hint_of
from tracer_core.debug.crossed_limits import crossed
from tracer_core.limits import MAX_OVERLAP_STEPS


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Where the elements of a tensor lie in its storage, in bytes.

    dims: (size, stride) of each dimension that has more than one element, the greatest stride
    first. empty: whether there are no elements.
    """

    start: Any
    dims: tuple[tuple[Any, Any], ...]
    item: int
    empty: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> MemoryRange:
        """Returns the place of a strided tensor; inside torch.func's transforms, that of the whole
        underlying tensor.
        """
        tensor = torch_private.inside_transforms(tensor)
        item = tensor.element_size()
        empty = any(type(size) is int and size == 0 for size in tensor.shape)
        dims = [
            (size, stride * item)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if not (type(size) is int and size == 1)
        ]
        dims.sort(key=lambda dim: -hint_of(dim[1]))
        return MemoryRange(tensor.storage_offset() * item, tuple(dims), item, empty)

    @property
    def static(self) -> bool:
        """Whether the place is constant."""
        return all(type(dim) is int for dim in (self.start, *itertools.chain(*self.dims)))

    def end(self) -> Any:
        """The end of the last byte of a nonempty tensor."""
        return self.start + sum(((n - 1) * step for n, step in self.dims), 0) + self.item


def storage(tensor: torch.Tensor) -> int:
    """Returns a key that is equal for tensors of one storage; unwraps tensors of torch.func's
    transforms.
    """
    return torch_private.storage_id(torch_private.inside_transforms(tensor))


def same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage have the same elements in the same order."""
    if tensor is other:
        return True
    tensor, other = map(torch_private.inside_transforms, (tensor, other))
    if tensor.dtype is not other.dtype or tensor.dim() != other.dim():
        return False
    if not _equal(tensor.storage_offset(), other.storage_offset()):
        return False
    pairs = zip(tensor.shape, other.shape, tensor.stride(), other.stride(), strict=True)
    return all(
        _equal(n, m) and (_equal(n, 1) or _equal(step, stride)) for n, m, step, stride in pairs
    )


def apart(a: MemoryRange, b: MemoryRange) -> bool:
    """Whether two tensors of one storage have no byte in common."""
    if a.empty or b.empty:
        return True
    if a.static and b.static:
        return a.end() <= b.start or b.end() <= a.start or not _meet(a, b)
    return _apart_for_all_sizes(a, b)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may share memory."""
    place = MemoryRange.of(tensor)
    if place.empty:
        return False
    return not _nested(place.dims, place.item)


def _equal(item: Any, other: Any) -> bool:
    """Whether two numbers are equal as expressions."""
    item, other = (
        value.node.expr if isinstance(value, torch.SymInt) else value for value in (item, other)
    )
    return bool(item == other)


def _nested(dims: tuple[tuple[Any, Any], ...], reach: Any) -> bool:
    """Whether each dimension's stride exceeds the extent of the dimensions inside it, so that no
    two indices collide.

    reach: bytes of the innermost elements.
    """
    for size, step in reversed(dims):
        if not _equal(step, reach) and not torch_private.holds(step >= reach):
            return False
        reach = step * size if _equal(step, reach) else reach + step * (size - 1)
    return True


def _meet(memory_range: MemoryRange, other: MemoryRange) -> bool:
    """Whether two constant places have a byte in common.

    Counted from the other's end, its steps add up with those of the first to a given distance.
    """
    dims = [*memory_range.dims, *other.dims]
    distance = other.end() - memory_range.start - other.item
    if memory_range.item != other.item or distance % memory_range.item:
        dims += [(memory_range.item, 1), (other.item, 1)]
        distance += other.item - 1
    most: dict[int, int] = {}
    for size, step in dims:
        if step:
            most[step] = most.get(step, 0) + size - 1
    return _reaches(sorted(most.items(), reverse=True), distance)


def _reaches(terms: list[tuple[int, int]], distance: int) -> bool:
    """Whether `distance` is a sum of steps, each taken a bounded number of times; True also if the
    search takes too long.

    Searches from the greatest step, and prunes what the smaller steps cannot reach.
    """
    rest = [0]
    for step, most in reversed(terms):
        rest.append(rest[-1] + step * most)
    rest.reverse()
    open_ends = [(0, distance)]
    for _ in range(MAX_OVERLAP_STEPS):
        if not open_ends:
            return False
        level, left = open_ends.pop()
        if left == 0:
            return True
        if level == len(terms) or left > rest[level]:
            continue
        step, most = terms[level]
        fewest = max(0, -((rest[level + 1] - left) // step))
        counts = range(fewest, min(most, left // step) + 1)[:MAX_OVERLAP_STEPS]
        open_ends += [(level + 1, left - step * count) for count in counts]
    crossed("MAX_OVERLAP_STEPS")
    return True


def _apart_for_all_sizes(memory_range: MemoryRange, other: MemoryRange) -> bool:
    """Decides `apart` for symbolic sizes.

    At each index of the common outer dimensions one place ends before the other begins, and those
    dimensions step over both.
    """
    first, second = sorted((memory_range, other), key=lambda place: hint_of(place.start))
    outer = 0
    while True:
        shared = memory_range.dims[:outer]
        a, b = (
            MemoryRange(place.start, place.dims[outer:], place.item, False)
            for place in (first, second)
        )
        if hint_of(a.end()) <= hint_of(b.start) and _nested(shared, b.end() - a.start):
            return torch_private.holds(a.end() <= b.start)
        if outer == min(len(memory_range.dims), len(other.dims)):
            return False
        if not all(map(_equal, memory_range.dims[outer], other.dims[outer])):
            return False
        outer += 1

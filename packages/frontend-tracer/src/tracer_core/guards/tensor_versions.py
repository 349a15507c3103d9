"""Offsets in memory of a tensor's version counter, found and confirmed in this process.

Gives the memory fields that tell whether a tensor still has its version and its memory, or None
where an assumption fails (another torch version). Before an offset is first used, it was seen to
follow what it stands for, and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.guards.object_layout import INLINE_DIMS, ObjectLayout, layout, storage_fields, word

#: Number of words of a VersionCounter that are scanned: vtable, reference count, then the version.
_COUNTER_FIELDS = 4


def version_fields(
    tensor: torch.Tensor, object_layout: ObjectLayout, version: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yields (depth, address), as in `object_layout.tensor_fields`, of a tensor's memory and
    version.

    version: `version_offsets`.
    """
    counter, count = version
    yield 0, id(tensor) + object_layout.impl
    impl = _impl(tensor, object_layout)
    yield 1, impl + object_layout.sizes + _STORAGE_OFFSET
    yield 1, impl + counter
    yield 2, word(impl + counter) + count
    yield from storage_fields(tensor, object_layout)


#: Of TensorImpl::storage_offset_ after SizesAndStrides.
_STORAGE_OFFSET = 8 + 2 * 8 * INLINE_DIMS


@functools.cache
def version_offsets() -> tuple[int, int] | None:
    """Returns the offset of the VersionCounter pointer in TensorImpl, and that of the count in
    VersionCounter.
    """
    result = layout()
    if result is None:
        return None
    with torch.inference_mode(False), torch.no_grad():
        places = {_counter(result) for _ in range(2)}
        counter = places.pop()
        if counter is None or places:
            return None
        counts = {_count(result, counter) for _ in range(2)}
        count = counts.pop()
        if count is None or counts:
            return None
        version = (counter, count)
        return version if all(_is_seen(result, version, *case) for case in _CASES) else None


def _impl(tensor: torch.Tensor, object_layout: ObjectLayout) -> int:
    return word(id(tensor) + object_layout.impl)


def _counter(object_layout: ObjectLayout) -> int | None:
    """Finds the one word before the sizes, other than the storage, that a tensor shares only with
    its views.
    """
    item, other = torch.zeros(5), torch.zeros(5)
    view = item[1:]
    places = [
        offset
        for offset in range(8, object_layout.sizes, 8)
        if offset != object_layout.storage
        and 1 << 12 < word(_impl(item, object_layout) + offset) < 1 << 47
        and word(_impl(item, object_layout) + offset) % 8 == 0
        and word(_impl(item, object_layout) + offset) == word(_impl(view, object_layout) + offset)
        and word(_impl(item, object_layout) + offset) != word(_impl(other, object_layout) + offset)
    ]
    return places[0] if len(places) == 1 else None


def _count(object_layout: ObjectLayout, counter: int) -> int | None:
    """Finds the one word of the VersionCounter that counts writes."""
    tensor = torch.zeros(5)
    start = word(_impl(tensor, object_layout) + counter)
    addresses = [start + 8 * i for i in range(1, _COUNTER_FIELDS)]
    before = list(map(word, addresses))
    for _ in range(3):
        tensor.add_(1)
    grown = [(a - start, word(a) - old) for a, old in zip(addresses, before, strict=True)]
    ((offset, step), *others) = [item for item in grown if item[1]] or [(0, 0)]
    return offset if step in (3, 3 << 32) and not others else None


def _is_seen(
    object_layout: ObjectLayout, version: tuple[int, int], work: Callable[[Any], Any], changes: bool
) -> bool:
    """Returns whether a word changes with an operation that must bump the version, and only then."""
    tensor = torch.zeros(4, 6)
    addresses = [address for _, address in sorted(version_fields(tensor, object_layout, version))]
    before = list(map(word, addresses))
    result = work(tensor)  # alive while the words are read again
    # In order of depth: behind a pointer that changed, the old memory may be gone.
    changed = any(word(address) != old for address, old in zip(addresses, before, strict=True))
    del result
    return changed is changes


def _set_data(tensor: torch.Tensor) -> None:
    tensor.data = torch.ones(4, 6)


#: (operation on a tensor, whether it must bump the version)
_CASES: tuple[tuple[Callable[[torch.Tensor], Any], bool], ...] = (
    (lambda t: t.add_(1), True),
    (lambda t: t.copy_(torch.ones(4, 6)), True),
    (lambda t: t[0].add_(1), True),
    (lambda t: t.detach().add_(1), True),
    (_set_data, True),
    (lambda t: t.set_(t.untyped_storage(), 1, (4, 5), (5, 1)), True),
    (lambda t: torch.utils.swap_tensors(t, torch.ones(4, 6)), True),
    (lambda t: (t[1:], t.detach(), t.view(-1), t + 1, t.clone(), t.sum().item()), False),
    (lambda t: [t.reshape(24) for _ in range(3)], False),
)


def watchable() -> tuple[ObjectLayout, tuple[int, int]] | None:
    """Returns (layout, `version_offsets`), or None where one of them is unknown."""
    result, version = layout(), version_offsets()
    return None if result is None or version is None else (result, version)

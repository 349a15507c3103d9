"""Offsets in memory of a tensor's version counter, found and confirmed in this process.

Gives the words of memory that tell whether a tensor still has its version and its memory, or None
where an assumption fails (another torch version). Before an offset is first used, it was seen to
follow what it stands for, and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.guards.object_layout import INLINE_DIMS, Layout, layout, storage_words, word

#: Number of words of a VersionCounter that are scanned: vtable, reference count, then the version.
_COUNTER_WORDS = 4


def version_words(
    tensor: torch.Tensor, found: Layout, version: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Yields (depth, address), as in `object_layout.tensor_words`, of a tensor's memory and
    version.

    version: `version_offsets`.
    """
    counter, count = version
    yield 0, id(tensor) + found.impl
    impl = _impl(tensor, found)
    yield 1, impl + found.sizes + _STORAGE_OFFSET
    yield 1, impl + counter
    yield 2, word(impl + counter) + count
    yield from storage_words(tensor, found)


#: Of TensorImpl::storage_offset_ after SizesAndStrides.
_STORAGE_OFFSET = 8 + 2 * 8 * INLINE_DIMS


@functools.cache
def version_offsets() -> tuple[int, int] | None:
    """Returns the offset of the VersionCounter pointer in TensorImpl, and that of the count in
    VersionCounter.
    """
    found = layout()
    if found is None:
        return None
    with torch.inference_mode(False), torch.no_grad():
        places = {_counter(found) for _ in range(2)}
        counter = places.pop()
        if counter is None or places:
            return None
        counts = {_count(found, counter) for _ in range(2)}
        count = counts.pop()
        if count is None or counts:
            return None
        version = (counter, count)
        return version if all(_is_seen(found, version, *case) for case in _CASES) else None


def _impl(tensor: torch.Tensor, found: Layout) -> int:
    return word(id(tensor) + found.impl)


def _counter(found: Layout) -> int | None:
    """Finds the one word before the sizes, other than the storage, that a tensor shares only with
    its views.
    """
    one, other = torch.zeros(5), torch.zeros(5)
    view = one[1:]
    places = [
        offset
        for offset in range(8, found.sizes, 8)
        if offset != found.storage
        and 1 << 12 < word(_impl(one, found) + offset) < 1 << 47
        and word(_impl(one, found) + offset) % 8 == 0
        and word(_impl(one, found) + offset) == word(_impl(view, found) + offset)
        and word(_impl(one, found) + offset) != word(_impl(other, found) + offset)
    ]
    return places[0] if len(places) == 1 else None


def _count(found: Layout, counter: int) -> int | None:
    """Finds the one word of the VersionCounter that counts writes."""
    tensor = torch.zeros(5)
    start = word(_impl(tensor, found) + counter)
    addresses = [start + 8 * i for i in range(1, _COUNTER_WORDS)]
    before = list(map(word, addresses))
    for _ in range(3):
        tensor.add_(1)
    grown = [(a - start, word(a) - old) for a, old in zip(addresses, before, strict=True)]
    ((offset, step), *others) = [one for one in grown if one[1]] or [(0, 0)]
    return offset if step in (3, 3 << 32) and not others else None


def _is_seen(
    found: Layout, version: tuple[int, int], work: Callable[[Any], Any], changes: bool
) -> bool:
    """Returns whether a word changes with an operation that must bump the version, and only then."""
    tensor = torch.zeros(4, 6)
    addresses = [address for _, address in sorted(version_words(tensor, found, version))]
    before = list(map(word, addresses))
    kept = work(tensor)  # alive while the words are read again
    # In order of depth: behind a pointer that changed, the old memory may be gone.
    changed = any(word(address) != old for address, old in zip(addresses, before, strict=True))
    del kept
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


def watchable() -> tuple[Layout, tuple[int, int]] | None:
    """Returns (layout, `version_offsets`), or None where one of them is unknown."""
    found, version = layout(), version_offsets()
    return None if found is None or version is None else (found, version)

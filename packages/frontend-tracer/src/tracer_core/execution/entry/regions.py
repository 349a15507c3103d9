"""The code regions of one compiled function: where its calls begin, and where they go on after
graph breaks."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.execution.call import BreakKey, RegionKey, StartKey
from tracer_core.execution.entry.guarded_cache import GuardedCache

use_own_builtins(globals())


class Region(Protocol):
    """What calls find: a guarded cache, or what stands in for it (`tiers.eager_or_compiled`)."""

    def run(self, state: Any) -> Any:
        """Returns the result of the call, or MISS."""


class Regions:
    """The guarded caches of a function's regions. Mutable."""

    __slots__ = ("starts", "inside", "positional", "named")

    def __init__(self) -> None:
        self.starts: dict[StartKey, GuardedCache] = {}
        self.inside: dict[BreakKey, GuardedCache] = {}
        #: What calls without keyword arguments find, by the number of arguments.
        self.positional: dict[int, Region] = {}
        #: What calls with keyword arguments find.
        self.named: dict[Any, Region] = {}

    def __iter__(self) -> Iterator[GuardedCache]:
        return iter([*self.starts.values(), *self.inside.values()])

    def items(self) -> list[tuple[RegionKey, GuardedCache]]:
        """Returns the regions with their keys."""
        return [*self.starts.items(), *self.inside.items()]

    def start(self, key: StartKey) -> GuardedCache:
        """Returns the region where calls of a form begin, made if missing."""
        cache = self.starts.get(key)
        if cache is None:
            cache = self.starts[key] = GuardedCache(key)
        return cache

    def loaded(self, key: tuple[Any, ...], is_start: bool) -> GuardedCache:
        """Returns the region of an entry that another process captured, made if missing."""
        if is_start:
            return self.start(StartKey(key))
        return self.inside.setdefault(key, GuardedCache(key))

    def shown(self, key: StartKey) -> Region | None:
        """Returns what calls of a form find."""
        table, entry = self._table(key)
        return table.get(entry)

    def show(self, key: StartKey, region: Region) -> None:
        """Lets calls of a form find a region."""
        table, entry = self._table(key)
        table[entry] = region

    def replace(self, key: StartKey, old: Region, new: Region) -> None:
        """Replaces what calls of a form find, unless it was replaced meanwhile."""
        if self.shown(key) is old:
            self.show(key, new)

    def forget_blank(self, key: StartKey, cache: GuardedCache) -> None:
        """Drops a start of which nothing is known: names that are new in each call would pile up."""
        if self.starts.get(key) is cache and cache.is_blank():
            del self.starts[key]
            table, entry = self._table(key)
            table.pop(entry, None)

    def drop_inside(self, code: types.CodeType, entries: Collection[Callable[[Any], Any]]) -> None:
        """Drops the regions that begin inside calls of a function's code, and of the other regions
        all entries but `entries`."""
        for layouts in [key for key in self.inside if any(layout.code is code for layout in key)]:
            del self.inside[layouts]
        for cache in self:
            cache.keep(entries)

    def clear(self) -> None:
        """Drops every region."""
        for table in (self.starts, self.inside, self.positional, self.named):
            table.clear()

    def _table(self, key: StartKey) -> tuple[dict[Any, Region], Any]:
        return (self.positional, key[0]) if len(key) == 1 else (self.named, key)

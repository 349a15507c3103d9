"""Changes that a trace made to objects that existed before it.

In: a call to `before_change` ahead of each mutation. Out: an undo that restores every object, and the
difference between before and after, which the generated code replays after the graph ran.
What always holds: after `undo`, each object has exactly the contents it had when the trace began.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType
from typing import Any

_MISSING: Any = object()


def _cell_contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _restore_cell(cell: CellType, value: Any) -> None:
    if value is _MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _restore_dict(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    dict.clear(target)
    dict.update(target, saved)


def _restore_ordered(target: Any, saved: Any) -> None:
    collections.OrderedDict.clear(target)
    for key, value in saved.items():
        collections.OrderedDict.__setitem__(target, key, value)


def _restore_list(target: list[Any], saved: list[Any]) -> None:
    list.__setitem__(target, slice(None), saved)


def _restore_set(target: set[Any], saved: set[Any]) -> None:
    set.clear(target)
    set.update(target, saved)


def _restore_deque(target: Any, saved: list[Any]) -> None:
    collections.deque.clear(target)
    collections.deque.extend(target, saved)


@dataclass(frozen=True, slots=True)
class Snapshotter:
    """save: a copy of an object's contents. restore: puts it back."""

    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]


#: Base type -> how to save and restore it; the first that an object is an instance of.
SNAPSHOTTERS: dict[type, Snapshotter] = {
    collections.OrderedDict: Snapshotter(lambda d: dict(collections.OrderedDict.items(d)), _restore_ordered),
    dict: Snapshotter(dict.copy, _restore_dict),
    list: Snapshotter(list.copy, _restore_list),
    set: Snapshotter(lambda s: set(s), _restore_set),
    collections.deque: Snapshotter(list, _restore_deque),
    CellType: Snapshotter(_cell_contents, _restore_cell),
}


def snapshotter_of(obj: Any) -> tuple[type, Snapshotter] | None:
    for kind, how in SNAPSHOTTERS.items():
        if isinstance(obj, kind):
            return kind, how
    return None


@dataclass(frozen=True, slots=True)
class Change:
    """obj was changed: `kind` is its row in SNAPSHOTTERS, `before` the saved contents."""

    obj: Any
    kind: type
    before: Any


class Effects:
    """The changes of one trace, in the order of each object's first mutation. Mutable."""

    def __init__(self) -> None:
        self.changes: dict[int, Change] = {}

    def changed(self, obj: Any) -> Change | None:
        return self.changes.get(id(obj))

    def before_change(self, obj: Any) -> bool:
        """Saves `obj` before its first mutation; False when objects of its type cannot be saved."""
        if id(obj) in self.changes:
            return True
        found = snapshotter_of(obj)
        if found is None:
            return False
        kind, how = found
        self.changes[id(obj)] = Change(obj, kind, how.save(obj))
        return True

    def undo(self) -> dict[int, Any]:
        """Restores every object; returns id -> contents after the trace, for the replay."""
        after: dict[int, Any] = {}
        for change in reversed(list(self.changes.values())):
            how = SNAPSHOTTERS[change.kind]
            after[id(change.obj)] = how.save(change.obj)
            how.restore(change.obj, change.before)
        return after


MISSING = _MISSING

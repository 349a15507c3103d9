"""Side effects: the mutations that a trace made to objects that existed before it.

Before each mutation, trace/save_before_mutation.py calls a `begin...` method here. `restore` gives
every object exactly the contents it had before the trace, and may be called again after an
interruption. What other threads add to a container meanwhile stays, unless the trace guards all of
its contents. Generated code replays each `Change` after the graph ran.
"""

from __future__ import annotations

import array
import collections
import contextvars
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from tracer_core.fx_capture.set_order import refill
from tracer_core.guards.object_layout import namespace

MISSING: Any = object()


class Slot:
    """Kind of a change: one attribute stored by a descriptor of the object's class (``__slots__``)."""


class ClassAttribute:
    """Kind of a change: one attribute of a class."""


class ThreadAttribute:
    """Kind of a change: one attribute of a threading.local, in the thread of the call."""


class ContextValue:
    """Kind of a change: the value of a context variable, in the context of the call. The change's
    `added` holds the tokens that unset the variable."""


class Gradient:
    """Kind of a change: ``.grad`` of a tensor. The tensor keeps its gradient during the trace; the
    change's `where` is an instance of this class that holds what the program would read (mutable).
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Content:
    """Kind of a change: ``.data`` of a tensor. The tensor keeps its memory during the trace; the
    change's `where` is an instance of this class that holds what the program has given (mutable).
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class GradientFlag:
    """Kind of a change: ``requires_grad`` of a leaf, where no operator records gradients."""


@dataclass(slots=True, eq=False)
class Change:
    """One object, or one attribute of it, was changed. Mutable.

    kind: its row in `SNAPSHOTTERS`. before: the saved contents; after: those at the end of the
    trace, set by `look`. where: the descriptor of a Slot, the name of a ClassAttribute or
    ThreadAttribute, "value" of a ContextValue, a Gradient or Content.
    whole: all of `before` is guarded, so the replay may be the difference; otherwise the replay
    follows the log: written and removed (dictionary keys, in the order a new dictionary would have
    them; written: also positions in a list, and ids of tokens that reset a ContextValue to `before`),
    added (to a list, deque or set). moved: a deque's items were not only replaced, which its iterators
    notice; a ContextValue is not reset.
    """

    obj: Any
    kind: type
    before: Any
    where: Any = None
    all_contents: bool = False
    moved: bool = False
    after: Any = None
    written: dict[Any, None] = field(default_factory=dict)
    removed: dict[Any, None] = field(default_factory=dict)
    added: list[Any] = field(default_factory=list)

    def store(self, key: Any) -> None:
        """Logs that the program sets an entry of a dictionary."""
        self.written.setdefault(key)

    def remove(self, key: Any) -> None:
        """Logs that the program deletes an entry of a dictionary."""
        self.written.pop(key, None)
        self.removed[key] = None

    def may_have_set(self, key: Any) -> bool:
        """Returns whether the trace, and not only another thread, may have set or deleted the
        dictionary's entry."""
        return self.all_contents or key in self.written or key in self.removed

    def is_new(self, index: int) -> bool:
        """Returns whether the program itself put the item at this position of a list there, or all
        old items are guarded."""
        return self.all_contents or index in self.written or index >= len(self.before)

    def decided(self, key: Any) -> bool:
        """Returns whether the program itself set or deleted the dictionary's entry."""
        if key in self.written or key in self.removed:
            return True
        return self.all_contents and self.before.get(key, MISSING) is not dict.get(
            self.obj, key, MISSING
        )


# -- saving and restoring
# -----------------------------------------------------------------------------


def _cell_contents(cell: CellType, _: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _restore_cell(change: Change) -> None:
    if change.before is not MISSING:
        change.obj.cell_contents = change.before
    elif _cell_contents(change.obj, None) is not MISSING:
        del change.obj.cell_contents


def _copy_of(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Copies a dictionary. For a class with an ``__iter__`` of its own, dict.copy calls methods."""
    if type(entries).__iter__ is dict.__iter__:
        return dict.copy(entries)
    return dict(dict.items(entries))


#: Types of keys that are looked up without code of the program.
_BUILTIN_KEYS = frozenset({str, int, bool, bytes, type(None)})


def _typed(keys: Iterable[Any]) -> list[tuple[type, Any]]:
    return [(type(key), key) for key in keys]


def _keys_of(kind: Any, entries: Any) -> list[Any]:
    """Returns the keys in their order; of a plain dictionary in one step, without the GIL too."""
    return list(dict.keys(entries)) if kind is dict else list(kind.__iter__(entries))


def _restore_dict(change: Change) -> None:
    """Restores entry by entry if the order allows: other threads may be reading a module's globals,
    and an iterator may be at an entry. Keys of other types are not looked up: that may run the
    program's code."""
    target, saved = change.obj, change.before
    kind: Any = change.kind
    # not an empty dictionary of attributes: clearing it would end its sharing of keys
    now = _keys_of(kind, target)
    if (saved or kind is dict) and _BUILTIN_KEYS.issuperset(map(type, now)):
        for key in [key for key in now if key not in saved and change.may_have_set(key)]:
            kind.pop(target, key, None)
        now = _keys_of(kind, target)
        if _typed(now[: len(saved)]) == _typed(saved):
            for key, value in saved.items():
                if change.may_have_set(key) and dict.get(target, key) is not value:
                    kind.__setitem__(target, key, value)
            return
        saved = saved | {key: dict.get(target, key) for key in now if key not in saved}
    kind.clear(target)
    if kind is dict:
        dict.update(target, saved)
        return
    for key, value in saved.items():
        kind.__setitem__(target, key, value)


def _of_others(change: Change, now: list[Any]) -> list[Any] | None:
    """Returns the items that other threads have put behind the old ones of a list or deque; None
    if that cannot be told."""
    size = len(change.before)
    if change.all_contents or not all(map(operator.is_, now, change.before)) or len(now) < size:
        return None
    added = collections.Counter(map(id, change.added))
    others = []
    for item in now[size:]:
        if added[id(item)]:
            added[id(item)] -= 1
        else:
            others.append(item)
    return others


def _restore_list(change: Change) -> None:
    now = list(list.__iter__(change.obj))
    others = _of_others(change, now)
    if others is None:
        list.__setitem__(change.obj, slice(None), change.before)
        return
    # what a thread appends from now on stands behind
    list.__setitem__(change.obj, slice(len(change.before), len(now)), others)
    change.added.clear()


def _restore_set(change: Change) -> None:
    now = list(set.__iter__(change.obj))
    if list(map(id, now)) != list(map(id, change.before)):
        known = {*map(id, change.before), *map(id, change.added)}
        refill(change.obj, change.before)
        if not change.all_contents:
            set.update(change.obj, [item for item in now if id(item) not in known])


def _restore_deque(change: Change) -> None:
    """Restores item by item if that is possible: an iterator refuses to go on after the rest."""
    target, deque = change.obj, collections.deque
    now = list(deque.__iter__(target))
    if len(now) != len(change.before):
        others = _of_others(change, now) or []
        deque.clear(target)
        deque.extend(target, [*change.before, *others])
        change.added.clear()
        return
    for position, item in enumerate(now):
        if item is not change.before[position]:
            deque.__setitem__(target, position, change.before[position])


def _restore_buffer(change: Change) -> None:
    change.obj[:] = change.before


def _slot_value(obj: Any, descriptor: Any) -> Any:
    try:
        return descriptor.__get__(obj, type(obj))
    except AttributeError:
        return MISSING


def _restore_slot(change: Change) -> None:
    if change.before is not MISSING:
        change.where.__set__(change.obj, change.before)
    elif _slot_value(change.obj, change.where) is not MISSING:
        change.where.__delete__(change.obj)


def _class_value(cls: Any, name: str) -> Any:
    return namespace(cls).get(name, MISSING)


def _restore_class(change: Change) -> None:
    if change.before is not MISSING:
        type.__setattr__(change.obj, change.where, change.before)
    elif _class_value(change.obj, change.where) is not MISSING:
        type.__delattr__(change.obj, change.where)


def _local_value(local: Any, name: str) -> Any:
    return getattr(local, name, MISSING)


def _restore_local(change: Change) -> None:
    if change.before is not MISSING:
        setattr(change.obj, change.where, change.before)
    elif _local_value(change.obj, change.where) is not MISSING:
        delattr(change.obj, change.where)


def _restore_context(change: Change) -> None:
    if change.before is not MISSING:
        change.obj.set(change.before)
    while change.added:  # they were made while the variable was not set
        change.obj.reset(change.added.pop())


@dataclass(frozen=True, slots=True)
class Snapshotter:
    """save(object, where): returns a copy of its contents. restore(change): puts the saved contents
    back."""

    save: Callable[[Any, Any], Any]
    restore: Callable[[Change], None]


#: Base type -> how to save and restore it; the first match by isinstance counts. None of them runs
#: a method that a subclass may override.
SNAPSHOTTERS: dict[type, Snapshotter] = {
    collections.OrderedDict: Snapshotter(
        lambda d, _: dict(collections.OrderedDict.items(d)), _restore_dict
    ),
    dict: Snapshotter(lambda d, _: _copy_of(d), _restore_dict),
    list: Snapshotter(lambda v, _: list(list.__iter__(v)), _restore_list),
    set: Snapshotter(lambda s, _: list(set.__iter__(s)), _restore_set),
    collections.deque: Snapshotter(
        lambda d, _: list(collections.deque.__iter__(d)), _restore_deque
    ),
    bytearray: Snapshotter(lambda b, _: bytes(b), _restore_buffer),
    array.array: Snapshotter(lambda a, _: a[:], _restore_buffer),
    CellType: Snapshotter(_cell_contents, _restore_cell),
    Slot: Snapshotter(_slot_value, _restore_slot),
    ClassAttribute: Snapshotter(_class_value, _restore_class),
    ThreadAttribute: Snapshotter(_local_value, _restore_local),
    ContextValue: Snapshotter(lambda variable, _: variable.get(MISSING), _restore_context),
    Content: Snapshotter(lambda _, held: held.value, lambda change: None),
    GradientFlag: Snapshotter(
        lambda tensor, _: tensor.requires_grad,
        lambda change: change.obj.requires_grad_(change.before),
    ),
    Gradient: Snapshotter(lambda _, held: held.value, lambda change: None),
}


def kind_of(obj: Any) -> type | None:
    """Returns the row of SNAPSHOTTERS for an object's contents; None if they cannot be saved."""
    return next((kind for kind in SNAPSHOTTERS if isinstance(obj, kind)), None)


def same_contents(before: Any, now: Any) -> bool:
    """Returns whether an object holds the very same objects as before."""
    if isinstance(before, dict) and isinstance(now, dict):
        return list(before) == list(now) and all(before[key] is now[key] for key in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
    if isinstance(before, set):
        return bool(before == now)
    return before is now


class Effects:
    """The changes of one trace, in the order of each object's first mutation. Mutable.
    realize(change): guards all prior contents of the object, called when they are read as a whole.
    """

    def __init__(self, realize: Callable[[Change], None]) -> None:
        self.changes: dict[Any, Change] = {}
        self._realize = realize

    def peek(self, obj: Any) -> Change | None:
        """Returns the change of an object's contents, for readers of single entries only."""
        return self.changes.get(id(obj))

    def changed(self, obj: Any) -> Change | None:
        """Returns the change of an object's contents, all of which may now be read without further
        guards."""
        change = self.changes.get(id(obj))
        if change is not None and not change.all_contents:
            self._realize(change)
        return change

    def begin(self, obj: Any) -> Change | None:
        """Returns the change of an object's contents, saved at the first call; None if the type
        cannot be saved."""
        change = self.changes.get(id(obj))
        if change is None:
            kind = kind_of(obj)
            if kind is None:
                return None
            change = Change(obj, kind, SNAPSHOTTERS[kind].save(obj, None))
            self.changes[id(obj)] = change
        return change

    def attribute(self, obj: Any, where: Any) -> Change | None:
        """Returns the change of one slot (where: its descriptor), or of one attribute of a class or
        threading.local, or value of a context variable (where: its name)."""
        return self.changes.get((id(obj), where if isinstance(where, str) else id(where)))

    def begin_attribute(self, obj: Any, where: Any) -> Change:
        """Does `attribute`, and saves the value at the first call."""
        named: type = ClassAttribute if isinstance(obj, type) else ThreadAttribute
        if type(obj) is contextvars.ContextVar:
            named = ContextValue
        kind, key = (named, where) if isinstance(where, str) else (Slot, id(where))
        change = self.changes.get((id(obj), key))
        if change is None:
            change = Change(obj, kind, SNAPSHOTTERS[kind].save(obj, where), where)
            self.changes[id(obj), key] = change
        return change

    def gradient(self, tensor: Any) -> Change | None:
        """Returns the change of a tensor's ``.grad``."""
        return self.changes.get((id(tensor), Gradient))

    def set_gradient(self, tensor: Any, value: Any) -> None:
        """Applies the program's ``tensor.grad = value``."""
        change = self.changes.get((id(tensor), Gradient))
        if change is None:
            held = Gradient(None)
            change = self.changes[id(tensor), Gradient] = Change(tensor, Gradient, None, held)
        change.where.value = value

    def set_content(self, tensor: Any, value: Any) -> None:
        """Applies the program's ``tensor.data = value``."""
        change = self.changes.get((id(tensor), Content))
        if change is None:
            change = self.changes[id(tensor), Content] = Change(
                tensor, Content, None, Content(None)
            )
        change.where.value = value

    def begin_gradient_flag(self, tensor: Any) -> None:
        """Saves whether a tensor requires gradients."""
        if (id(tensor), GradientFlag) not in self.changes:
            before = SNAPSHOTTERS[GradientFlag].save(tensor, None)
            self.changes[id(tensor), GradientFlag] = Change(tensor, GradientFlag, before)

    def drop(self, change: Change) -> None:
        """Drops a change whose mutation failed before it had an effect."""
        for key in [key for key, other in self.changes.items() if other is change]:
            del self.changes[key]

    def look(self) -> None:
        """Saves the final contents of each object for the replay."""
        for change in self.changes.values():
            change.after = SNAPSHOTTERS[change.kind].save(change.obj, change.where)

    def restore(self) -> None:
        """Restores every object, whatever its current contents."""
        for change in reversed(list(self.changes.values())):
            SNAPSHOTTERS[change.kind].restore(change)

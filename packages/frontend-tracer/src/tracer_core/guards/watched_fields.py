"""The memory fields that tell whether anything that a full guard check read has changed.

`WatchedFields` collects, from a `Checked`, addresses by depth, and the guarded state that no word
tells, which Python re-checks. While the roots and the objects in `alive` and `references` live, and
the words of lesser depth are unchanged, the addresses of a depth may be read. An unchanged word
means that the state it stands for is unchanged.

Objects of the program are not kept alive where that can be helped: those that can be referred to
weakly end the fast path when they die, and a dictionary that an unchanged word leads to (an
object's own, and one in it) lives as long as its owner.
"""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from tracer_core.guards.dict_counters import can_count, count_changes
from tracer_core.guards.guard import exact_members, same_objects
from tracer_core.guards.object_layout import (  # fmt: skip
    CELL_CONTENTS,
    DICT_SIZE,
    HEAP_TYPE,
    LIST_ITEMS,
    LIST_SIZE,
    TUPLE_ITEMS,
    TUPLE_SIZE,
    TYPE,
    ObjectLayout,
    dict_slot,
    flags,
    member_slot,
    storage_fields,
    tensor_fields,
    word,
)
from tracer_core.guards.own_reference import OwnDict, OwnReference, refers_weakly

_EXACT_DICTS = (dict, collections.OrderedDict)
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """What a full check read. Generated code gives the fields by name.

    fetched: values for the generated code. dicts: (dictionary or class namespace, keys read in it;
    None: all of them). holders: (object, its `__dict__`). objects: those whose exact type was
    checked. classes: those whose MRO was checked. empties: containers that must be falsy. tensors:
    those whose metadata was checked. lists: those read by position. probes: watched calls, which
    must return the same object again. storages: tensors whose memory must be the same. lengths:
    lists whose length was checked. moving: dictionaries of `dicts` that the entry itself changes.
    """

    fetched: Sequence[Any] = ()
    dicts: Sequence[Any] = ()
    holders: Sequence[Any] = ()
    objects: Sequence[Any] = ()
    classes: Sequence[Any] = ()
    empties: Sequence[Any] = ()
    tensors: Sequence[Any] = ()
    lists: Sequence[Any] = ()
    probes: Sequence[Any] = ()
    storages: Sequence[Any] = ()
    lengths: Sequence[list[Any]] = ()
    moving: Sequence[Any] = ()


def exact_dict(namespace: Any) -> dict[Any, Any] | None:
    """The dict behind a class namespace."""
    if isinstance(namespace, dict):
        return namespace
    if isinstance(namespace, MappingProxyType):
        for referent in gc.get_referents(namespace):
            if isinstance(referent, dict):
                return referent
    return None


class WatchedFields:
    """Mutable while it is built. depths: addresses, by depth. dicts: (path, id of the dict), where
    the path ends at the address of its version, which may be read if the words before it are
    unchanged. alive, references: objects that the addresses lie in, without the roots.
    died(reference): called when an object of `references` dies. empties, lists, probes, entries:
    for Python: (container), (sequence, items), (call, result), (namespace, ids of the values
    by key, all keys in order or None). Where dictionaries carry no version, a path is one word: the
    dictionary's counter."""

    def __init__(
        self,
        layout: ObjectLayout,
        checked: Checked,
        roots: Sequence[Any],
        volatile: frozenset[int],
        died: Callable[[Any], None],
    ) -> None:
        self.depths: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.dicts: list[tuple[tuple[int, ...], int]] = []
        self.alive: list[Any] = []
        self.references: list[OwnReference] = []
        self.empties: list[Any] = []
        self.lists: list[tuple[Any, list[Any]]] = []
        self.probes: list[tuple[Callable[[], Any], Any]] = []
        self.entries: list[tuple[Any, dict[Any, int], list[Any] | None]] = []
        self._layout, self._died = layout, died
        self._volatile = volatile.union(map(id, map(exact_dict, checked.moving)))
        self._counts = layout.dict_version is None and can_count()
        #: Dictionaries whose changes are counted, by id.
        self._counted: dict[int, dict[Any, Any]] = {}
        self._held = set(map(id, roots))
        #: id of an object's own dictionary -> what leads to it without keeping it alive.
        self.own_dicts: dict[int, OwnDict] = {}
        #: id of a container that unchanged words lead to -> their addresses.
        self._paths: dict[int, tuple[int, ...]] = {}
        for name, take in _READERS.items():
            for item in getattr(checked, name):
                take(self, item)
        if self._counted:
            self._counters = count_changes(list(self._counted.values()))
            self.depths[0].extend(self._counters.addresses)
            for address, value in zip(self._counters.addresses, self._counted, strict=True):
                self.dicts.append(((address,), value))
            self._counted.clear()  # the counters tell when a dictionary has died

    def _keep(self, obj: Any) -> None:
        if id(obj) in self._held:
            return
        if refers_weakly(obj):
            self.references.append(OwnReference(obj, self._died))
        else:
            self.alive.append(obj)
        self._held.add(id(obj))

    def _watch(self, obj: Any, *offsets: int) -> tuple[int, ...]:
        """Watches words of an object; returns the words that lead to it."""
        path = self._paths.get(id(obj), ())
        if not path:
            self._keep(obj)
        self.depths[len(path)].extend(id(obj) + offset for offset in offsets)
        return path

    def _holder(self, holder: tuple[Any, Any]) -> None:
        """`owner.__dict__` can be replaced, except a class's or a module's."""
        owner, namespace = holder
        if isinstance(owner, types.ModuleType):
            return
        if isinstance(owner, type):
            self._keep(owner)
            simple = exact_dict(namespace)
            self._held.add(id(simple))  # by the class: it leads back to the class
            return
        slot = dict_slot(owner)
        if slot is None or word(slot) != id(namespace):
            self.alive.append(namespace)
            self._probe(partial(getattr, owner, "__dict__"))
        else:
            self._keep(owner)
            self.depths[0].append(slot)
            self._paths[id(namespace)] = (slot,)
            if refers_weakly(owner):
                self.own_dicts[id(namespace)] = OwnDict(owner)

    def _object(self, obj: Any) -> None:
        if flags(type(obj)) & HEAP_TYPE:  # nothing can change the type of another object
            self._watch(obj, TYPE)

    def _empty(self, container: Any) -> None:
        if type(container) not in _EXACT_DICTS:
            self.empties.append(container)
        elif self._counts and id(container) not in self._volatile:
            self._counted[id(container)] = container
        else:
            self._watch(container, DICT_SIZE)

    def _tensor(self, tensor: torch.Tensor) -> None:
        self._keep(tensor)
        for depth, address in tensor_fields(tensor, self._layout):
            self.depths[depth].append(address)

    def _storage(self, tensor: torch.Tensor) -> None:
        """Among `tensors`: the depths before were compared."""
        self._keep(tensor)
        for depth, address in storage_fields(tensor, self._layout):
            self.depths[depth].append(address)

    def _length(self, items: list[Any]) -> None:
        self._watch(items, LIST_SIZE)

    def _class(self, cls: Any) -> None:
        """The bases, by the words of the tuple of them; a tuple that was kept would keep the
        class."""
        self._watch(cls, self._layout.class_mro)
        bases = cls.__mro__
        for base in bases:
            self._keep(base)
        start = id(bases) + TUPLE_ITEMS
        self.depths[1].append(id(bases) + TUPLE_SIZE)
        self.depths[1].extend(range(start, start + 8 * len(bases), 8))

    def _dict(self, read: tuple[Any, Any]) -> None:
        namespace, keys = read
        simple, version = exact_dict(namespace), self._layout.dict_version
        if simple is None or id(simple) in self._volatile or not (version or self._counts):
            self._entries(namespace, keys)
            return
        if keys is None and isinstance(simple, collections.OrderedDict):
            self._watch(simple, self._layout.order)
        if version is None:
            self._counted[id(simple)] = simple
            return
        path = (*self._watch(simple, version), id(simple) + version)
        self.dicts.append((path, id(simple)))
        if 1 < len(path) < len(self.depths):
            self._leads_to(simple, simple if keys is None else keys, path)

    def _entries(self, namespace: Any, keys: Any) -> None:
        read = namespace if keys is None else keys
        before = {key: namespace.get(key, _ABSENT) for key in read}
        order = list(namespace) if keys is None else None
        for key, value in before.items():
            self._keep(value)
            before[key] = id(value)
        namespace = self.own_dicts.get(id(namespace), namespace)
        self.entries.append((namespace, before, order))

    def _leads_to(self, simple: dict[Any, Any], keys: Any, path: tuple[int, ...]) -> None:
        """Notes the dictionaries among the values of a dictionary that is not kept alive: while its
        version is unchanged it holds them."""
        for key in keys:
            value = simple.get(key)
            if isinstance(value, _EXACT_DICTS):
                self._paths[id(value)] = path

    def _list(self, items: Any) -> None:
        if type(items) is tuple:
            return
        if not isinstance(items, list):
            self.lists.append((items, list(items)))
            return
        self._watch(items, LIST_SIZE, LIST_ITEMS)
        for item in items:  # an item at the address of another is then that very item
            self._keep(item)
        start = word(id(items) + LIST_ITEMS)
        self.depths[1].extend(range(start, start + 8 * list.__len__(items), 8))

    def _probe(self, probe: Any) -> None:
        if isinstance(probe, partial) and probe.func is getattr:
            owner, name = probe.args
            value = getattr(owner, name)
            slot = self._slot_of(owner, name)
            if slot is not None and word(slot) in (id(value), 0 if value is None else id(value)):
                self._keep(owner)
                if (type(owner), name) not in _READ_ONLY:
                    self._keep(value)  # another value could be at its address
                self.depths[0].append(slot)
                return
            if refers_weakly(owner):
                self._keep(owner)
                probe = partial(_attribute_of, OwnReference(owner), name)
        reference = probe()
        if refers_weakly(reference) and not holds_scalars(reference):
            self._keep(reference)
            reference = OwnReference(reference)
        self.probes.append((probe, reference))

    def _slot_of(self, owner: Any, name: str) -> int | None:
        """The address of the word that holds an attribute, if it is one that CPython stores as it
        is given.
        """
        if type(owner) is types.FunctionType:
            offset = self._layout.function.get(name)
            return None if offset is None else id(owner) + offset
        if type(owner) is types.CellType:
            return id(owner) + CELL_CONTENTS
        return member_slot(owner, name)

    def holds_in_python(self) -> bool:
        """Re-checks the guarded state that has no version counter."""
        if any(self.empties):
            return False
        for items, old in self.lists:
            if not same_objects(items, old):
                return False
        for probe, before in self.probes:
            try:
                now = probe()
            except (AttributeError, ValueError):  # a slot or a cell became empty
                return False
            if type(before) is OwnReference:
                before = before()
            if now is not before and not _is_same_constant(now, before):
                return False
        for namespace, values, keys in self.entries:
            if type(namespace) is OwnDict:
                namespace = namespace()
            if keys is not None and not same_objects(tuple(namespace), keys):
                return False
            for key, value in values.items():
                if id(namespace.get(key, _ABSENT)) != value:
                    return False
        return True

    @property
    def needs_python(self) -> bool:
        """Whether `holds_in_python` has anything to look at."""
        return bool(self.empties or self.lists or self.probes or self.entries)


#: Field of `Checked` -> what reads one of its items, in this order: a dictionary is led to by its
#: owner's words.
_READERS: dict[str, Callable[[WatchedFields, Any], None]] = {
    "holders": WatchedFields._holder, "dicts": WatchedFields._dict, "objects": WatchedFields._object,
    "classes": WatchedFields._class, "empties": WatchedFields._empty, "tensors": WatchedFields._tensor,
    "storages": WatchedFields._storage, "lists": WatchedFields._list, "lengths": WatchedFields._length,
    "probes": WatchedFields._probe,
}  # fmt: skip


#: Attributes whose value lives as long as their object.
_READ_ONLY = frozenset({(types.FunctionType, "__closure__"), (types.FunctionType, "__globals__")})


def _attribute_of(reference: weakref.ref[Any], name: str) -> Any:
    return getattr(reference(), name)


#: Immutable values that getters make anew each time.
_SCALARS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def holds_scalars(value: Any) -> bool:
    """Returns whether a value is a set of scalars that the check itself has made: nothing else
    keeps it alive, and an equal one is as good."""
    return type(value) is frozenset and all(type(item) in _SCALARS for item in value)


def _is_same_constant(now: Any, before: Any) -> bool:
    kind = type(before)
    if kind is not type(now):
        return False
    if kind is tuple:
        return len(now) == len(before) and all(map(_is_same_constant, now, before))
    if holds_scalars(before):
        return holds_scalars(now) and exact_members(now) == exact_members(before)
    return kind in _SCALARS and repr(now) == repr(before) and bool(now == before)

"""Reads containers that existed before the trace, without user code; each read is guarded."""

from __future__ import annotations

import array
import collections
import enum
import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind, data_of
from tracer_core.guards.source import Source, SourceKind
from tracer_core.guards.value_kinds import is_constant, keys_of
from tracer_core.limits import (
    MAX_GUARDED_BUFFER,
    MAX_GUARDED_ITEMS,
    MAX_READ_DEPTH,
    MAX_SYMBOLIC_INT,
)
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket
from tracer_core.trace import special_methods
from tracer_core.trace.component import Component
from tracer_core.trace.guarded_calls import applied, identity

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: ``__iter__`` of dictionaries that no user code iterates.
_KEY_ITERATORS = (dict.__iter__, collections.OrderedDict.__iter__)


def is_by_identity(value: Any) -> bool:
    """Returns whether a value compares and hashes by identity."""
    kind: Any = type(value)
    return kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__


def _addresses(members: Any) -> frozenset[int]:
    """Returns the identities of the members of a set."""
    return frozenset(map(id, members))


#: Aliases of types: ``list[int]``, ``int | str``, typing's own -> the attributes that they are made
#: of.
ALIASES: dict[Any, Callable[[Any], Iterable[str]]] = {
    types.GenericAlias: lambda alias: ("__origin__", "__args__", "__unpacked__"),
    types.UnionType: lambda union: ("__args__",),
    typing._GenericAlias: lambda alias: (  # type: ignore[attr-defined]
        vars(alias).keys() & {"__origin__", "__args__", "__metadata__"}
    ),
}


class GuardedReads(Component):
    """Guarded reads in a trace. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        #: id of a dictionary that existed before the trace and is unchanged -> key -> its position;
        #: all keys are guarded.
        self.positions: dict[int, dict[Any, int]] = {}
        #: id -> dictionary or set that has simple keys only.
        self.simple: dict[int, Any] = {}
        #: id of a key whose hash the program computes -> (key, hash, step) of the first time.
        self.key_hashes: dict[int, tuple[Any, int, int]] = {}

    def expand(self, obj: Any, depth: int = MAX_READ_DEPTH) -> None:
        """Guards everything that native code may read in a container from before the trace."""
        if depth == 0:
            crossed("MAX_READ_DEPTH")
            reason = f"a container nested more than {MAX_READ_DEPTH} deep is read by native code"
            raise Break("unsupported_value", reason)
        if is_constant(obj) or isinstance(obj, torch.Tensor):
            return
        if isinstance(obj, (bytearray, array.array)):
            self._expand_buffer(obj)
            return
        if self.effects.changed(obj) is not None:
            children = list(obj.values()) if isinstance(obj, dict) else list(obj)
        elif isinstance(obj, (list, tuple, collections.deque)):
            children = self.items(obj)
        elif isinstance(obj, tuple(ALIASES)):
            kind = next(kind for kind in ALIASES if isinstance(obj, kind))
            children = [self.tracer.attributes.getattr(obj, part) for part in ALIASES[kind](obj)]
        elif isinstance(obj, dict):
            children = [value for _, value in self.entries(obj)]
        elif isinstance(obj, (set, frozenset)):
            source = self.provenance.source_of(obj)
            if source is not None:
                self.guard_members(source, obj)
                return
            children = keys_of(obj)
        elif type(obj) in special_methods.VIEWS:
            mapping = self.viewed(obj)
            if not isinstance(mapping, dict):
                raise Break("unknown_native", f"a {type(obj).__name__} of no dictionary is read")
            self.expand(mapping, depth)
            return
        else:
            return
        for child in children:
            if isinstance(child, (list, tuple, dict, set, frozenset, collections.deque, *ALIASES)):
                self.expand(child, depth - 1)

    def entries(self, obj: dict[Any, Any], varies: bool = False) -> list[tuple[Any, Any]]:
        """Returns the items of a dictionary, all of them guarded. varies: numbers may become
        symbols."""
        self.check_size(obj)
        keys = self.keys(obj)  # checked once: a check of each key takes as long as all keys
        simple = SIMPLE_KEYS.issuperset(map(type, keys))
        read = self._entry if simple else self.dict_get
        return [(key, read(obj, key, None, varies)) for key in keys]

    def viewed(self, view: Any) -> Any:
        """Returns the mapping that a view of a dictionary or a mappingproxy shows; of one that
        existed before the trace, guarded."""
        if self.provenance.is_fresh(view):
            return special_methods.mapping_of(view)
        return applied(self.tracer, special_methods.mapping_of, view)

    def holds_object(self, members: Any, value: Any) -> bool | None:
        """Returns whether a set from before the trace of objects that compare by identity has a
        member, by the guarded ids of both; None for other sets. Its members themselves have no
        source."""
        known = self.provenance.source_of(members) is not None and members
        if not known or not all(map(is_by_identity, (value, *members))):
            return None
        if self.effects.peek(members) is not None:
            return None
        addresses = applied(self.tracer, _addresses, members)
        if is_constant(value) or self.provenance.is_fresh(value):
            return value in members
        return identity(self.tracer, value) in addresses

    def note_order(self, obj: Any) -> None:
        """Notes that the trace follows the order of a set, which strings have and objects have
        another in each process."""
        if len(obj) > 1 and not all(map(_hashes_alike, keys_of(obj))):
            self.tracer.unguarded["the order of a set differs between processes"] = None

    def note_orders(self, obj: Any) -> None:
        """Does `note_order` for a set that native code gets, perhaps in a list, tuple or dict."""
        if isinstance(obj, (set, frozenset)):
            self.note_order(obj)
        elif type(obj) in (list, tuple, dict):
            for item in obj.values() if type(obj) is dict else obj:
                if isinstance(item, (set, frozenset)):
                    self.note_order(item)

    def guard_order(self, obj: Any) -> None:
        """Guards the iteration order of a set: equal sets may differ in it."""
        source = self.provenance.source_of(obj)
        change = self.effects.peek(obj)
        if source is not None and len(obj) > 1 and (change is None or change.all_contents):
            members = list(set.__iter__(obj) if isinstance(obj, set) else frozenset.__iter__(obj))
            if change is not None:
                members = change.before
            self.provenance.guard(GuardKind.KEYS, source, members)

    def guard_members(self, source: Any, members: Any) -> None:
        """Guards the members of a set."""
        if not all(is_constant(member) or isinstance(member, type) for member in members):
            raise Break(
                "unsupported_value", "a set of objects that existed before the trace is read"
            )
        self.provenance.guard(GuardKind.KEYS, source, frozenset(members))

    def _expand_buffer(self, obj: Any) -> None:
        """Guards the contents of a bytearray or array, which are compared on every call."""
        source = self.provenance.source_of(obj)
        if source is None or self.effects.changed(obj) is not None:
            return
        if len(obj) > MAX_GUARDED_BUFFER:
            crossed("MAX_GUARDED_BUFFER", reached=len(obj))
            raise Break(
                "unsupported_value", f"a {type(obj).__name__} of {len(obj)} elements is read"
            )
        self.provenance.guard(GuardKind.DATA, source, data_of(obj))

    def check_size(self, obj: Any) -> None:
        """Breaks for a container with more entries than are guarded one by one."""
        size = _size(obj)
        if size > MAX_GUARDED_ITEMS and self.provenance.source_of(obj) is not None:
            crossed("MAX_GUARDED_ITEMS", reached=size)
            raise Break("unsupported_value", f"a {type(obj).__name__} of {size} entries is read")

    def length(self, obj: Any) -> int:
        """Returns how many items a container holds, without user code."""
        source, size = self.provenance.source_of(obj), _size(obj)
        if source is None or type(obj) is tuple:
            return size
        change = self.effects.peek(obj)
        if change is not None and change.kind is list and not change.all_contents:
            self.guard_length(obj, source, len(change.before))
        elif self.effects.changed(obj) is None:
            self.guard_length(obj, source, size)
        return size

    def guard_length(self, obj: Any, source: Source, size: int) -> None:
        """Guards how many items a container held when the trace began."""
        method = self.tracer.entries.static(type(obj), "__len__")
        if isinstance(method, types.WrapperDescriptorType):
            empty = size == 0 and isinstance(obj, dict)
            self.provenance.guard(
                GuardKind.EMPTY if empty else GuardKind.LEN, source, None if empty else size
            )
        else:  # the guard must not call the program's
            read = self.sources.make(
                source, SourceKind.APPLIED, self.provenance.constant(_size).key
            )
            self.provenance.guard(GuardKind.EQ, read, size)

    def list_item(self, obj: Any, index: int, varies: bool = False) -> Any:
        """Returns obj[index] of a list or tuple, without user code. varies: a number may become a
        symbol."""
        value = _base(obj).__getitem__(obj, index)
        if self.provenance.source_of(obj) is None:
            return value
        change = self.effects.peek(obj)
        if change is not None and change.kind is not list:
            self.effects.changed(obj)
            return value
        if change is not None and change.is_new(index):
            return value
        return self.provenance.item(obj, index, value, varies=varies)

    def items(self, obj: Any, varies: bool = False) -> list[Any]:
        """Returns the items of a list, tuple or deque: its length and each item are guarded."""
        self.check_size(obj)
        return [self.list_item(obj, i, varies) for i in range(self.length(obj))]

    def keys(self, obj: dict[Any, Any]) -> list[Any]:
        """Returns the keys of a dict, guarded."""
        items = list(dict.keys(obj))
        if isinstance(obj, collections.OrderedDict):  # it keeps an order of its own
            is_fresh = self.provenance.is_fresh(obj)
            if not is_fresh and special_methods.any_has_own_hash(self.tracer, items):
                raise Break("unknown_native", "an OrderedDict hashes its keys while it is read")
            entries = set(map(id, items))
            items = list(collections.OrderedDict.__iter__(obj))
            if entries != set(map(id, items)):
                raise Break("unsupported_value", "an OrderedDict was changed by methods of dict")
        source = self.provenance.source_of(obj)
        if source is None or self.effects.changed(obj) is not None:
            return items
        self.guard_keys(obj, source, items)
        return items

    def guard_keys(self, obj: Any, source: Any, result: list[Any]) -> None:
        """Guards the keys of a dictionary and their order."""
        if type(obj).__iter__ not in _KEY_ITERATORS:  # which the guard would call
            raise Break(
                "unknown_native", f"the keys of a {type(obj).__name__} with its own __iter__"
            )
        if result and all(is_constant(key) for key in result):
            self.provenance.guard(GuardKind.KEYS, source, result)
        else:
            self.guard_length(obj, source, len(result))
            for i, key in enumerate(result):
                self.provenance.read(key, self.sources.make(source, SourceKind.NTH_KEY, i))

    def check_key(self, key: Any, container: Any) -> None:
        """Interprets the program's code in a look-up of a key, after which it may be put in. C code
        reads the members of one that is a tuple or a frozenset."""
        if isinstance(key, (tuple, frozenset)):
            self.expand(key)
        if type(key) not in SIMPLE_KEYS or not self._has_simple_keys(container):
            special_methods.realize_key(self.tracer, key, container)
            self.provenance.note_hashed(key)
            self.provenance.note_members(container)
            self.simple.pop(id(container), None)

    def _has_simple_keys(self, container: Any) -> bool:
        """Returns whether no key of a container is an object of the program's; found out once,
        since each change of the container says so here."""
        if self.simple.get(id(container)) is not container:
            if not SIMPLE_KEYS.issuperset(map(type, keys_of(container))):
                return False
            self.simple[id(container)] = container
        return True

    def note_change(self, container: Any, added: Sequence[Any] | None = None) -> None:
        """Notes that a container changes. added: the keys that come into it, if that is all."""
        if added is None or not SIMPLE_KEYS.issuperset(map(type, added)):
            self.simple.pop(id(container), None)

    def dict_get(self, obj: dict[Any, Any], key: Any, default: Any, varies: bool = False) -> Any:
        """Traces dict.get without user code; guards the entry or its absence. varies: a number may
        become a symbol."""
        key = self.tracer.scalars.concrete(key)
        self.check_key(key, obj)
        return self._entry(obj, key, default, varies)

    def _entry(self, obj: dict[Any, Any], key: Any, default: Any, varies: bool = False) -> Any:
        source = self.provenance.source_of(obj)
        change = self.effects.peek(obj)
        present = dict.__contains__(obj, key)
        if source is None and isinstance(key, (tuple, frozenset)) and not is_literal(key):
            self._expand_keys(obj)
        if source is None or (change is not None and change.decided(key)):
            return dict.__getitem__(obj, key) if present else default
        if not is_literal(key):
            return self._get_by_object(obj, key, default, varies)
        if not present:
            self.provenance.guard(GuardKind.HAS_NOT, source, key)
            return default
        return self.provenance.item(obj, key, dict.__getitem__(obj, key), SourceKind.KEY, varies)

    def copied_entry(self, table: dict[Any, Any], key: Any) -> Any:
        """Does `dict_get` for an entry that is only copied. A large integer stays unread: it is rather
        an identity (a hash of a text, a time) than an amount, and differs between processes."""
        base: Source | None = self.provenance.source_of(table)
        value: Any = dict.get(table, key)
        is_large = type(value) is int and abs(value) >= MAX_SYMBOLIC_INT
        if base is None or not is_large or not is_literal(key):
            return self.dict_get(table, key, None)
        change, source = self.effects.peek(table), self.sources.make(base, SourceKind.KEY, key)
        was_read = self.provenance.value_at(source) is not None
        if (change is not None and change.decided(key)) or was_read:
            return self.dict_get(table, key, None, varies=True)
        return self.tracer.scalars.opaque_number(value, source)

    def _get_by_object(self, obj: dict[Any, Any], key: Any, default: Any, varies: bool) -> Any:
        """Returns the entry of a key that is compared by identity (or a tuple of such); guards
        every key."""
        if not all(map(self._is_stable, key if type(key) is tuple else (key,))):
            raise Break("unknown_native", f"a dictionary is read by a {type(key).__name__}")
        change = self.effects.peek(obj)
        known = self.positions.get(id(obj)) if change is None else None
        if known is None:  # an optimizer looks up its state for each parameter
            known = {item: i for i, item in enumerate(self.keys(obj))}
            if change is None:
                self.positions[id(obj)] = known
        if isinstance(key, (tuple, frozenset)):
            self._expand_keys(obj)
        if not dict.__contains__(obj, key):
            return default
        position = known[key]
        value = dict.__getitem__(obj, key)
        if change is not None:
            return value  # `keys` has guarded every earlier entry
        source = self.sources.make(self.provenance.source_of(obj), SourceKind.NTH_VALUE, position)
        read = self.provenance.read_varying if varies else self.provenance.read
        return read(value, source)

    def _is_stable(self, key: Any) -> bool:
        """Returns whether C code may look the key up: it runs no user code, or only code that
        `check_key` has interpreted or guarded."""
        return (
            is_constant(key)
            or _by_identity(key)
            or type(key) in special_methods.COMPARED_BY_PARTS
            or special_methods.has_own_hash(self.tracer, key)
            or self.tracer.scalars.payload(key) is not key
        )

    def has_key(self, obj: dict[Any, Any], key: Any) -> bool:
        """Returns ``key in obj`` without user code; guards the key's presence, not its value."""
        source, change = self.provenance.source_of(obj), self.effects.peek(obj)
        present = dict.__contains__(obj, key)
        if source is not None and not (change is not None and change.decided(key)):
            if is_literal(key):
                self.provenance.guard(GuardKind.HAS if present else GuardKind.HAS_NOT, source, key)
            else:
                self.keys_for(obj, key)
        return present

    def keys_for(self, obj: dict[Any, Any], key: Any) -> None:
        """Guards what decides whether a key that is no literal is in a dictionary."""
        self.keys(obj)
        if isinstance(key, (tuple, frozenset)):
            self._expand_keys(obj)

    def _expand_keys(self, obj: dict[Any, Any]) -> None:
        """Guards the members of keys, which C code compares with those of a key."""
        for key in keys_of(obj):
            if isinstance(key, (tuple, frozenset)):
                self.expand(key)


def _hashes_alike(value: Any) -> bool:
    """Returns whether a value has the same hash in every process."""
    if type(value) is tuple:
        return all(map(_hashes_alike, value))
    return type(value) in (int, bool, float, complex)


def is_literal(key: Any) -> bool:
    """Returns whether a key's source in a guard evaluates to the key."""
    if type(key) is tuple:
        return all(map(is_literal, key))
    return type(key) in _LITERALS or (type(key) is float and math.isfinite(key))


SIMPLE_KEYS = frozenset({str, int, bool, float, type(None), bytes, type})
_LITERALS = (type(None), bool, int, str, bytes, type(Ellipsis))


def _by_identity(value: Any) -> bool:
    """Returns whether a dictionary finds an object by its identity alone."""
    cls: Any = type(value)
    return isinstance(value, (torch.Tensor, enum.Enum, *_FUNCTIONS)) or (
        cls.__hash__ in _IDENTITY_HASHES and cls.__eq__ in _IDENTITY_EQUALITIES
    )


def _base(obj: Any) -> Any:
    """Returns the type whose methods read a container, whatever its class overrides."""
    return next((kind for kind in _BASES if isinstance(obj, kind)), type(obj))


def _size(obj: Any) -> int:
    return int(_base(obj).__len__(obj))


#: C functions, which compare by what they are and the object that they are bound to, and torch's
#: operators.
_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, OpOverload, OpOverloadPacket)
_BASES = (tuple, list, dict, collections.deque, set, frozenset)
_IDENTITY_HASHES = (object.__hash__, type.__hash__)
_IDENTITY_EQUALITIES = (object.__eq__, type.__eq__)

"""Registry of the pre-existing objects that a trace reads: their sources, and the guards of each
read.

An object that existed before the trace is registered before interpreted code sees it. An immutable
value gets an equality guard when it is read, so the trace may then use it as a constant.
"""

from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import Guard, GuardKind
from tracer_core.guards.object_lifetime import BOUND_TYPES, is_bound
from tracer_core.guards.own_reference import outlives_entries
from tracer_core.guards.source import Source, SourceKind, Sources
from tracer_core.guards.tensor_guard import tensor_facts
from tracer_core.guards.value_kinds import (
    IDENTITY_TYPES,
    INTERNED,
    WITH_EQUALS,
    is_constant,
    keys_of,
    may_be_one_of_several,
    metaclass_hashes,
)
from tracer_core.limits import MAX_TUPLE_PARTS

#: Types of descriptors that take no weak reference -> the parts that make two of them alike.
WRAPPED: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel", "__doc__"),
}
#: Tuples whose numbers may be symbols, each on its own.
_TUPLES = (tuple, torch.Size)


def _parts_die(value: Any) -> bool:
    """Returns whether a part of a descriptor may die before the cache entry."""
    parts = (getattr(value, part) for part in WRAPPED[type(value)])
    return not all(is_constant(part) or outlives_entries(part) for part in parts)


class Provenance:
    """The registry of one trace. Mutable. guards: in the order made. tensors: source -> input
    tensor, in the order read. symbolic_dims: (tensor, source) -> sizes for its guard, None where
    symbolic. number: (number, source, always) -> a symbol for it, or the number itself.
    varies(number, source): whether it would be a symbol. stand_in(generator): the replacement of a
    generator from before the trace. read_subclass(tensor, source): guards a tensor of a subclass."""

    def __init__(
        self,
        symbolic_dims: Callable[[torch.Tensor, Source], Any],
        number: Callable[[Any, Source, bool], Any],
        varies: Callable[[Any, Source], bool],
        stand_in: Callable[[Any], Any],
        read_subclass: Callable[[torch.Tensor, Source], None],
        where: Callable[[], str],
    ) -> None:
        self._read_subclass, self._where = read_subclass, where
        self.sources = Sources()
        self.guards: list[Guard] = []
        self.tensors: dict[Source, torch.Tensor] = {}
        self.constants: list[Any] = []
        #: Functions that C code or the tracer made: nothing but the trace holds them.
        self.held: list[Any] = []
        self._constant_index: dict[int, int] = {}
        self._by_id: dict[int, Source] = {}
        self._alive: list[Any] = []
        self._read: dict[Source, Any] = {}
        self._passed: dict[Source, Any] = {}
        self._guarded: set[tuple[int, Source, Any]] = set()
        self._symbolic_dims = symbolic_dims
        #: Whether the trace dereferenced a weak reference, or read a tensor's gradient.
        self.follows_late = False
        #: Whether a number is computed from several sources.
        self.combines = False
        self._number, self._varies, self._polyfill = number, varies, stand_in
        #: id of a tuple with symbols in it -> (that tuple, the source of the original, the original).
        self._copies: dict[int, tuple[Any, Source, Any]] = {}
        self._copied: dict[Source, tuple[Any, ...]] = {}
        #: id of an object that is a key of a set or dictionary -> that object; such containers.
        self._hashed: dict[int, Any] = {}
        self._noted: dict[int, Any] = {}
        #: Number of sources read, and id of a constant -> the first of them, at that time.
        self._constants_read: tuple[int, dict[int, Source]] = (0, {})
        #: Source of a number that changes between calls -> its symbol.
        self.symbols: dict[Source, Any] = {}

    # -- registry --

    def source_of(self, obj: Any) -> Source | None:
        return self._by_id.get(id(obj))

    def source_of_constant(self, obj: Any) -> Source | None:
        """Returns where the program read this very number, text or tuple, if its value may be
        shared by several objects."""
        if not may_be_one_of_several(obj):
            return None
        n_read, result = self._constants_read
        if n_read != len(self._read):
            result = {
                id(value): source
                for source, value in reversed(self._read.items())
                if type(value) in WITH_EQUALS and source not in self.symbols
            }
            self._constants_read = len(self._read), result
        return result.get(id(obj))

    def same_constant(self, left: Any, right: Any) -> bool:
        """Returns ``left is right`` for two numbers or strings, and guards it where equal ones may be
        one object or two."""
        same = left is right
        if type(left) is bool or (type(left) is int and left in INTERNED):
            return same
        if not same and left != right and left == left:
            return False  # the values are guarded
        sources = self._readings(left)
        others = sources if same else self._readings(right)
        if sources and others and not same:
            self.guard(GuardKind.NOT_SAME, sources[0], others[0])
        elif len(sources) > 1:
            for other in sources[1:]:
                self.guard(GuardKind.SAME, sources[0], other)
        elif sources or others:
            raise Break("native_python", "whether two equal constants are one object")
        return same

    def _readings(self, value: Any) -> list[Source]:
        """Returns where the program read this very object."""
        return [source for source, read in self._read.items() if read is value]

    def is_fresh(self, obj: Any) -> bool:
        """Returns whether the trace, or native code in it, made an object."""
        return id(obj) not in self._by_id

    def note_hashed(self, *keys: Any) -> None:
        """Notes keys of a set or dictionary: those that it tells apart by identity must stay
        different objects."""
        for key in keys:
            if isinstance(key, (tuple, frozenset)):
                base: Any = tuple if isinstance(key, tuple) else frozenset
                self.note_hashed(*base.__iter__(key))
            elif not is_constant(key) and not isinstance(key, IDENTITY_TYPES):
                self._hashed[id(key)] = key

    def note_members(self, container: Any) -> None:
        """Does `note_hashed` for all keys, once: an optimizer looks up its state for each parameter,
        and keys that are added later are noted themselves."""
        if id(container) not in self._noted:
            self._noted[id(container)] = container
            self.note_hashed(*keys_of(container))

    def hashed(self) -> list[Source]:
        """Returns the sources of the noted keys. Reading a container gives its keys theirs, which
        may come after the look-up."""
        result = (self.source_of(key) for key in self._hashed.values())
        return list(dict.fromkeys(source for source in result if source is not None))

    def register(self, obj: Any, source: Source) -> None:
        self._by_id[id(obj)] = source
        self._alive.append(obj)

    def adopt(self, obj: Any, source: Source) -> None:
        """Registers an object whose identity at `source` is guarded already."""
        self.register(obj, source)
        self._read[source] = obj

    def adopt_same(self, obj: Any, source: Source) -> None:
        """Registers an object of a known type; guards that it is that of an earlier source."""
        result = self._by_id.get(id(obj))
        if result is None:
            self.adopt(obj, source)
        elif result is not source:
            self.guard(GuardKind.SAME, source, result)

    def has_identity(self, obj: Any, source: Source) -> bool:
        """Returns whether guards see to it that a source leads to this very object."""
        return source.kind is SourceKind.CONST or self._read.get(source) is obj

    def constant(self, obj: Any) -> Source:
        """Returns a source for an object that is the same on every call (classes, functions,
        modules)."""
        result = self._by_id.get(id(obj))
        if result is not None:
            return result
        index = self._constant_index.get(id(obj))
        if index is None:
            index = self._constant_index[id(obj)] = len(self.constants)
            self.constants.append(obj)
        label = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
        label = label or type(obj).__name__
        source = self.sources.make(None, SourceKind.CONST, (index, str(label)))
        self.register(obj, source)
        return source

    def value_at(self, source: Source) -> Any:
        """Returns the value read at a source or on the path to a value read; None if there is none."""
        return self._read.get(source, self._passed.get(source))

    def passes(self, value: Any, source: Source) -> None:
        """Notes a container that the program does not see itself; its items are read and guarded."""
        self._passed[source] = value

    def objects_of(self, kind: type) -> list[tuple[Source, Any]]:
        """Returns (source, object) of every object of exactly this type that was read."""
        return [
            (s, v) for s, v in self._read.items() if type(v) is kind and self._by_id.get(id(v)) is s
        ]

    # -- guards --

    def guard(self, kind: GuardKind, source: Source, expected: Any = None) -> None:
        # An enum's hash is Python code.
        key = expected if isinstance(expected, (str, int, type)) else id(expected)
        handle = (id(kind), source, key)
        if handle not in self._guarded:
            self._guarded.add(handle)
            self.guards.append(Guard(kind, source, expected, self._where()))

    def read(self, value: Any, source: Source) -> Any:
        """Guards a value that the program reads at `source`; returns it, or its replacement in this
        trace."""
        if type(value) is types.GeneratorType:
            self._read_object(value, source)
            return self._polyfill(value)
        return self._read_object(value, source)

    def note_read(self, value: Any, source: Source) -> None:
        """Lets the program read a value that is guarded otherwise."""
        self._read[source] = value

    def _read_object(self, value: Any, source: Source) -> Any:
        known = self._read.get(source, self)
        if known is value and source not in self.symbols:
            return value
        self._read[source] = value
        if type(value) in weakref.ProxyTypes:  # isinstance() would ask the object behind it
            raise Break("unknown_native", "a weakref.proxy is used")
        if metaclass_hashes(value if isinstance(value, type) else type(value)):
            raise Break(
                "unknown_native", "a class whose metaclass has a __hash__ of its own is used"
            )
        if is_constant(value):
            self.guard(GuardKind.EQ, source, value)
            return value
        if isinstance(value, BOUND_TYPES) and is_bound(value.__self__):
            return self._read_bound(value, source)
        if type(value) in WRAPPED and _parts_die(value):
            return self._read_wrapped(value, source)
        if isinstance(value, IDENTITY_TYPES):
            if source.root.kind is not SourceKind.CONST or source.base is not None:
                self.guard(GuardKind.IS, source, value)
            known = self._by_id.get(id(value))
            if known is None:
                self.register(value, source)
            elif type(value) is types.FunctionType and not self.has_identity(value, known):
                self._read[known] = value  # it was only called, or its frame resumed
                self.guard(GuardKind.IS, known, value)
            return value
        result = self._by_id.get(id(value))
        if result is not None:
            if result is not source:
                self.guard(GuardKind.SAME, source, result)
            return value
        self.register(value, source)
        if isinstance(value, torch.Tensor):
            self._read_tensor(value, source)
        else:
            self.guard(GuardKind.TYPE, source, type(value))
            if type(value) is tuple:
                self.guard(GuardKind.LEN, source, len(value))
        return value

    def _read_wrapped(self, value: Any, source: Source) -> Any:
        """Reads a descriptor that the entry could not refer to weakly: its parts are guarded."""
        known = self._by_id.get(id(value))
        if known is not None:
            if known is not source:
                self.guard(GuardKind.SAME, source, known)
            return value
        self.register(value, source)
        self.guard(GuardKind.TYPE, source, type(value))
        for part in WRAPPED[type(value)]:
            self.read(getattr(value, part), self.sources.slot(source, part))
        return value

    def _read_bound(self, value: Any, source: Source) -> Any:
        """Reads a bound C method: each access makes a new object, so its parts are guarded instead."""
        if id(value) not in self._by_id:
            self.register(value, source)
        self.guard(GuardKind.TYPE, source, type(value))
        self.read(value.__name__, self.sources.slot(source, "__name__"))
        self.read(value.__self__, self.sources.slot(source, "__self__"))
        return value

    def read_varying(self, value: Any, source: Source, always: bool = False) -> Any:
        """Does `read` for a value that the program sees only through the result. A number that
        changes between calls (always: any number that can) becomes a symbol instead of an equality
        guard, also inside a tuple of constants."""
        if type(value) in _TUPLES and is_constant(value) and self._holds_varying(value, source):
            return self._copy_of(value, source)
        if type(value) is not int and type(value) is not float:
            return self.read(value, source)
        self._read[source] = value
        if source in self.symbols:
            return self.symbols[source]
        symbol = self._number(value, source, always)
        if symbol is value:  # specialized: already, or now
            self.guard(GuardKind.EQ, source, value)
        else:
            self.symbols[source] = symbol
        return symbol

    def _holds_varying(self, value: tuple[Any, ...], source: Source) -> bool:
        """Returns whether a number in a tuple of constants varies."""
        result = False
        if len(value) > MAX_TUPLE_PARTS:
            crossed("MAX_TUPLE_PARTS", reached=len(value))
        for i, part in enumerate(value[:MAX_TUPLE_PARTS]):
            if type(part) in (int, float, *_TUPLES):
                inside = self.sources.make(source, SourceKind.ITEM, i)
                varies = self._holds_varying if type(part) in _TUPLES else self._varies
                result |= varies(part, inside)
        return result

    def _copy_of(self, value: tuple[Any, ...], source: Source) -> tuple[Any, ...]:
        """Returns a copy of a tuple with symbols in place of the numbers that vary."""
        copy = self._copied.get(source)
        if copy is None:
            self.guard(GuardKind.TYPE, source, type(value))
            self.guard(GuardKind.LEN, source, len(value))
            make = self.sources.make
            items = [(part, make(source, SourceKind.ITEM, i)) for i, part in enumerate(value)]
            copy = type(value)([self.read_varying(part, item) for part, item in items])
            self._copied[source] = self._read[source] = copy
            self._copies[id(copy)] = copy, source, value
        return copy

    def origin_of(self, obj: Any) -> Source | None:
        """Returns the source of a value; for a tuple with symbols, the source of the original."""
        known = self._copies.get(id(obj))
        return self.source_of(obj) if known is None else known[1]

    def original(self, obj: Any) -> Any:
        """Returns the program's tuple for a tuple with symbols, any other value unchanged."""
        known = self._copies.get(id(obj))
        return obj if known is None else known[2]

    def is_copy(self, obj: Any) -> bool:
        """Returns whether a value is a tuple with symbols, which stands for one of the program's."""
        return id(obj) in self._copies

    def same_copy(self, left: Any, right: Any) -> bool:
        """Returns ``left is right`` for tuples with symbols or constant ones, and guards it: the
        numbers of one that has symbols may change alone."""
        same = self.original(left) is self.original(right)
        sources = [
            [known[1]] if (known := self._copies.get(id(value))) else self._readings(value)
            for value in (left, right)
        ]
        if not all(sources):
            if same:
                raise Break("native_python", "whether two equal constants are one object")
            return False  # one is made in the trace
        self.guard(GuardKind.SAME if same else GuardKind.NOT_SAME, sources[0][0], sources[1][0])
        return same

    def _read_tensor(self, value: torch.Tensor, source: Source) -> None:
        if type(value) not in torch_private.BASE_TENSOR_TYPES:
            self._read_subclass(value, source)
            return
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            kind = "nested" if value.is_nested else str(value.layout)
            kind = "quantized" if value.is_quantized else kind
            raise Break("tensor_subclass", f"{source.name} is a {kind} tensor")
        self.tensors[source] = value
        facts = tensor_facts(value, self._symbolic_dims(value, source))
        self.guard(GuardKind.TENSOR, source, facts)

    def item(
        self,
        container: Any,
        key: Any,
        value: Any,
        kind: SourceKind = SourceKind.ITEM,
        varies: bool = False,
    ) -> Any:
        """Reads an entry of a sourced container (or attribute dictionary's owner, `SourceKind.KEY`).
        varies: a number may become a symbol."""
        base = self.source_of(container)
        if base is None:
            return value
        cls = type(container)
        if cls not in _BUILTIN_CONTAINERS and isinstance(container, (dict, list, tuple)):
            if cls.__getitem__ not in _BUILTIN_SUBSCRIPTS or hasattr(cls, "__missing__"):
                if isinstance(container, dict):
                    kind = SourceKind.OWN_KEY
                else:
                    kind, key = SourceKind.OWN_ITEM, (_base(cls), key)
        source = self.sources.make(base, kind, key)
        return self.read_varying(value, source) if varies else self.read(value, source)


#: Subscript functions that run no user code and create no missing entry.
_BUILTIN_CONTAINERS = (dict, list, tuple, collections.OrderedDict)
_BUILTIN_SUBSCRIPTS = (dict.__getitem__, list.__getitem__, tuple.__getitem__)


def _base(cls: type) -> str:
    """Returns the name of the built-in sequence that a class derives from."""
    return "list" if issubclass(cls, list) else "tuple"

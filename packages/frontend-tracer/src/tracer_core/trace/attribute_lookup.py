"""Reads the dictionary entries that decide an attribute: of classes along the MRO, objects, cells.

Each entry of an object that existed before the trace is guarded where it is read, and so is its
absence, unless the program has decided it since. ABSENT stands for a missing entry.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.fx_capture.provenance import WRAPPED
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.object_layout import namespace as read_only_view
from tracer_core.guards.own_reference import outlives_entries
from tracer_core.guards.source import Source
from tracer_core.guards.value_kinds import IDENTITY_TYPES, is_constant
from tracer_core.guards.watched_fields import exact_dict
from tracer_core.torch_private.names import classes
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

ABSENT: Any = object()
_NUMBERS = (int, float)
_C_METHODS: tuple[type, ...] = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType,
    *(type(vars(kind)["__hash__"]) for kind in classes("Tag")),  # pybind11's methods
)  # fmt: skip


def has_python(function: Any) -> bool:
    """Returns whether a slot of a type is user code."""
    return isinstance(function, types.FunctionType)


def is_native(function: Any) -> bool:
    """Returns whether a slot of a type is C code, or empty."""
    return function is None or function is ABSENT or isinstance(function, _C_METHODS)


def is_slot(function: Any, name: str) -> bool:
    """Returns whether a special method is the C code that a C base has for it."""
    return isinstance(function, types.WrapperDescriptorType) and function.__name__ == name


def hides_class(meta: type) -> bool:
    """Returns whether a metaclass changes what its classes say of their own parts."""
    if meta is type:
        return False
    result = (Entries.static(meta, name) for name in _PARTS_OF_CLASS)
    # A string is the metaclass's own; C code (pybind11's metaclass) changes class variables only.
    return any(
        not (item is type.__dict__[name] or isinstance(item, str) or is_slot(item, name))
        for name, item in zip(_PARTS_OF_CLASS, result, strict=True)
    )


def is_subtype(cls: type, base: type) -> bool:
    """Returns whether a class inherits from another; unlike issubclass(), asks no metaclass."""
    return any(item is base for item in cls.__mro__)


def is_tensor_like(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


_PARTS_OF_CLASS = (
    "__getattribute__", "__dict__", "__mro__", "__bases__", "__base__", "__flags__", "__name__",
    "__qualname__", "__module__", "__dictoffset__",
)  # fmt: skip


_CLASS = object.__dict__["__class__"]


def class_namespace(cls: type) -> dict[str, Any]:
    """Returns the dictionary of a class's entries itself, not the read-only view."""
    result: Any = exact_dict(read_only_view(cls))
    return result  # type: ignore[no-any-return]


class Entries(Component):
    """Entries of classes and objects in a trace. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        #: id -> classes that the trace made.
        self.classes: dict[int, Any] = {}
        #: (class, name) -> result of `class_entry`; emptied when the program changes a class.
        self._specials: dict[tuple[type, str], tuple[type | None, Any]] = {}
        self._lineages: set[type] = set()
        #: id of the ``__dict__`` of an object that the trace made -> both.
        self._owners: dict[int, tuple[dict[str, Any], Any]] = {}
        #: id -> dictionaries that the program has made the ``__dict__`` of an object.
        self._given: dict[int, Any] = {}
        #: class -> its special methods written in Python (trace/native_reads.py).
        self.methods_of: dict[type, frozenset[str]] = {}

    # -- of classes --

    def class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """Returns (class that defines it, raw value) along the MRO; guarded for mutable classes."""
        owner, value = result = self._entry(cls, name)
        if type(value) in _NUMBERS and owner is not None and self.is_guarded(owner, name):
            self.provenance.guard(GuardKind.EQ, self.entry_source(owner, name), value)
        return result

    def read_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """Returns `class_entry` for a read by the program: a varying number is a symbol."""
        owner, value = self._entry(cls, name)
        if type(value) in _NUMBERS and owner is not None and self.is_guarded(owner, name):
            value = self.provenance.read_varying(value, self.entry_source(owner, name))
        return owner, value

    def _entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """Returns `class_entry` without a guard on a number."""
        handle = cls, name
        special = self._specials.get(handle)
        if special is None:
            special = self._specials[handle] = self._find_class_entry(cls, name)
        return special

    def is_guarded(self, owner: type, name: str) -> bool:
        """Returns whether a class's entry may differ at the next call, other than by the traced
        code."""
        changes = owner.__flags__ & HEAP_TYPE and self.effects.attribute(owner, name) is None
        return bool(changes) and not self.made_class(owner)

    def entry_source(self, owner: type, name: str) -> Source:
        return self.sources.entry(self.namespace_of(owner), name)

    def _find_class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        self.guard_lineage(cls)
        for owner in cls.__mro__:
            namespace = owner.__dict__
            guarded = self.is_guarded(owner, name)
            if name in namespace:
                value = namespace[name]
                if guarded and type(value) not in _NUMBERS:
                    self.read_class_entry(value, self.entry_source(owner, name), owner)
                return owner, value
            if guarded:
                self.provenance.guard(GuardKind.HAS_NOT, self.namespace_of(owner), name)
        return None, ABSENT

    def made_class(self, cls: Any) -> bool:
        """Returns whether the trace made the class: nothing in it is guarded."""
        return id(cls) in self.classes

    def guard_lineage(self, cls: type) -> None:
        """Guards the classes that a class inherits from: `__bases__` can be assigned."""
        if cls not in self._lineages:
            if hides_class(type(cls)):
                raise Break("unknown_native", f"{type(cls).__name__} answers for its classes")
            self._lineages.add(cls)
            for owner in cls.__mro__ if self.made_class(cls) else (cls,):
                if owner.__flags__ & HEAP_TYPE and not self.made_class(owner):
                    self.provenance.guard(
                        GuardKind.MRO, self.provenance.constant(owner), owner.__mro__
                    )

    def read_class_entry(self, value: Any, source: Source, owner: type) -> None:
        """Guards a value found on a class. The contents of the value are guarded where they are
        read. The guards keep no value alive that only a class holds that may die."""
        if isinstance(value, (tuple, torch.Tensor)):
            self.provenance.read(value, source)
            return
        if is_constant(value):
            self.provenance.guard(GuardKind.EQ, source, value)
            return
        if type(value) in WRAPPED:
            self.provenance.read(value, source)
            return
        known = self.provenance.source_of(value)
        dies = not isinstance(value, (*IDENTITY_TYPES, *_C_METHODS)) and not outlives_entries(owner)
        if not dies:
            self.provenance.guard(GuardKind.IS, source, value)
        elif known is not None and known is not source:
            self.provenance.guard(GuardKind.SAME, source, known)
        if dies or type(value).__flags__ & HEAP_TYPE:
            # The type decides whether the value is a descriptor.
            self.provenance.guard(GuardKind.TYPE, source, type(value))
        if known is None:
            self.provenance.adopt(value, source)

    def forget_entries(self) -> None:
        """Drops cached class look-ups after a class changed."""
        self._specials.clear()

    def special(self, cls: type, name: str) -> Any:
        """Returns the special method `name`, which CPython looks up on the class alone; ABSENT if
        no class of the MRO has it. Guarded either way."""
        return self.class_entry(cls, name)[1]

    def python_method(self, obj: Any, name: str) -> Any:
        """Returns a special method of the object's class if it is user code, else None."""
        cls = type(obj)
        if not cls.__flags__ & HEAP_TYPE or is_tensor_like(obj):
            return None
        result = self.special(cls, name)
        if has_python(result):
            return result
        if not (is_native(result) or isinstance(obj, type)):
            raise Break("unknown_native", f"{cls.__name__}.{name} is a {type(result).__name__}")
        return None

    def class_may_run_code(self, cls: type) -> bool:
        """Returns whether ``obj.__class__`` of the class's objects, which isinstance() reads, may be
        user code."""
        return bool(cls.__flags__ & HEAP_TYPE) and not (
            self.special(cls, "__class__") is _CLASS
            and is_slot(self.special(cls, "__getattribute__"), "__getattribute__")
        )

    def is_disabled(self, value: Any, name: str) -> bool:
        """Returns whether the value's class sets the special method `name` to None."""
        cls = type(value)
        return bool(cls.__flags__ & HEAP_TYPE) and self.special(cls, name) is None

    def operator_method(self, obj: Any, name: str) -> Any:
        """Returns `python_method` for an operator, which C code calls even if it is None; ABSENT if
        the method is not user code."""
        if self.is_disabled(obj, name):
            return None
        method = self.python_method(obj, name)
        return ABSENT if method is None else method

    def lacks(self, value: Any, *names: str) -> bool:
        """Returns whether the value's class has none of these special methods, which C code looks
        up."""
        cls = type(value)
        if not cls.__flags__ & HEAP_TYPE:
            return False
        return all(
            (result := self.special(cls, name)) is ABSENT
            or result is object.__dict__.get(name, ABSENT)
            for name in names
        )

    def guard_operator(self, name: str) -> None:
        """Guards torch.Tensor's implementation of an operator: its methods can be replaced."""
        for method in (f"__{name}__", f"__r{name}__"):
            self.special(torch.Tensor, method)

    def namespace_of(self, cls: type) -> Source:
        return self.sources.namespace(self.provenance.constant(cls))

    @staticmethod
    def static(cls: type, name: str) -> Any:
        """The same without guards."""
        for owner in cls.__mro__:
            if name in owner.__dict__:
                return owner.__dict__[name]
        return ABSENT

    # -- of objects --

    def is_data_descriptor(self, raw: Any) -> bool:
        return any(self.type_has(raw, name) is not ABSENT for name in ("__set__", "__delete__"))

    def type_has(self, raw: Any, name: str) -> Any:
        """Returns the descriptor method `name` of the type of a class's value; guarded if it can
        change."""
        kind = type(raw)
        return self.special(kind, name) if kind.__flags__ & HEAP_TYPE else self.static(kind, name)

    def instance_entry(self, obj: Any, name: str) -> Any:
        """Returns the value in the object's own dictionary, or ABSENT; guarded either way."""
        namespace = self.instance_dict(obj)
        if namespace is None:
            return self._hidden_entry(obj, name) if type(obj).__dictoffset__ else ABSENT
        source = self.provenance.source_of(obj)
        change = self.effects.peek(namespace)
        decided = source is None or (change is not None and change.decided(name))
        if name in namespace:
            value = namespace[name]
            if decided or source is None:
                return value
            return self.provenance.read_varying(value, self.sources.attribute(source, name))
        if not decided and source is not None:
            self.provenance.guard(GuardKind.HAS_NOT, self.sources.namespace(source), name)
        return ABSENT

    def _hidden_entry(self, obj: Any, name: str) -> Any:
        """Returns `instance_entry` for a C class that hides its objects' dictionary (TypeVar of
        3.12)."""
        try:
            value = object.__getattribute__(obj, name)
        except AttributeError:
            return ABSENT
        source = self.provenance.source_of(obj)
        if value is self.static(type(obj), name) or source is None:
            return value
        return self.provenance.read(value, self.sources.slot(source, name))

    @staticmethod
    def instance_dict(obj: Any) -> dict[str, Any] | None:
        try:
            result = object.__getattribute__(obj, "__dict__")
        except AttributeError:
            return None
        return result if isinstance(result, dict) else None

    def dict_of(self, obj: Any) -> dict[str, Any]:
        namespace = self.instance_dict(obj)
        if namespace is None:
            raise AttributeError(
                f"'{type(obj).__name__}' object has no attribute '__dict__'",
                name="__dict__",
                obj=obj,
            )
        source = self.provenance.source_of(obj)
        if source is None:
            self._owners[id(namespace)] = namespace, obj
        elif self.provenance.source_of(namespace) is None:
            self.provenance.register(namespace, self.sources.namespace(source))
        return namespace

    def owner_of(self, namespace: dict[Any, Any]) -> Any:
        """Returns the object of the trace whose ``__dict__`` the program has read as `namespace`, or
        the class of the trace whose entries it holds, or None."""
        _, owner = self._owners.get(id(namespace), (None, None))
        if isinstance(owner, type):
            return owner
        if owner is None or self.is_given(namespace) or self.instance_dict(owner) is not namespace:
            return None
        return owner

    def note_class(self, cls: type) -> None:
        """Notes the entries of a class that the trace made: since 3.14 the code that evaluates its
        annotations holds them."""
        namespace = class_namespace(cls)
        self._owners[id(namespace)] = namespace, cls

    def give(self, namespace: Any) -> None:
        """Notes that the program has made a dictionary the ``__dict__`` of an object."""
        self._given[id(namespace)] = namespace

    def is_given(self, namespace: dict[Any, Any]) -> bool:
        return self._given.get(id(namespace)) is namespace

    def class_value(self, raw: Any) -> Any:
        """Returns a plain value of a class: its identity is guarded; its contents may be read."""
        if self.provenance.source_of(raw) is None and not self.provenance.is_fresh(raw):
            self.provenance.constant(raw)
        return raw

"""Traces attribute assignment and deletion: CPython's descriptor protocol, with guards.

An object that existed before the trace is saved before it is changed. User code that the write runs
(properties, `__setattr__`, `__set__`, ...) is interpreted.
"""

from __future__ import annotations

import ast
import functools
import struct
import threading
import types
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.object_mutations import MISSING
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.object_layout import HEAP_TYPE, IMMUTABLE_TYPE
from tracer_core.guards.value_kinds import is_constant
from tracer_core.trace import class_creation, gradients
from tracer_core.trace.attribute_lookup import Entries
from tracer_core.trace.attributes import ABSENT, LOCAL_WRITES, has_python, is_slot, kind_is_slot
from tracer_core.trace.component import Component
from tracer_core.trace.generators import TracedGenerator
from tracer_core.trace.tensor_data import set_data

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class AttributeWrites(Component):
    """setattr and delattr in a trace."""

    def __init__(self, tracer: Tracer, entries: Entries) -> None:
        super().__init__(tracer)
        self.entries = entries

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        self._write("__setattr__", obj, name, value)

    def delattr(self, obj: Any, name: str) -> None:
        self._write("__delattr__", obj, name, ABSENT)

    def _write(self, hook: str, obj: Any, name: str, value: Any) -> None:
        """Traces one write; hook: the special method of the object's class that does it."""
        method = self.entries.special(type(obj), hook)
        if method in LOCAL_WRITES:
            self._write_local(obj, name, value)
            return
        if type(obj) is TracedGenerator:
            raise Restart(obj.allocation_step, "native_python", f"a generator's {name} is set")
        if isinstance(obj, torch.Tensor):
            self._write_tensor_attribute(obj, name, value)
        elif not is_slot(method, hook):
            self.tracer.attributes.call_special(method, obj, hook, name, *_given(value))
        elif isinstance(obj, type):
            self.set_class_attribute(obj, name, value)
        elif method not in _GENERIC:
            raise Break(
                "unknown_native", f"{type(obj).__name__} has a way of its own to set {name}"
            )
        else:
            self.generic_setattr(obj, name, value)

    def _write_local(self, local: Any, name: str, value: Any) -> None:
        """Writes an attribute of a threading.local; value: ABSENT deletes."""
        self.tracer.attributes.require_local(local)
        if self.provenance.is_fresh(local):
            _write_directly(threading.local, local, name, value)
            return
        if name.startswith("__") or self.entries.is_data_descriptor(
            self.entries.static(type(local), name)
        ):
            raise Break("unknown_native", f"{name} of a threading.local is set")
        if self.provenance.source_of(vars(local)) is not None:
            raise Break("unknown_native", "a threading.local is set whose __dict__ was read")
        if value is ABSENT:
            self.tracer.attributes.getattr(local, name)  # guards that it is there
        self.tracer.side_effects.before_attribute(local, name)
        _write_directly(threading.local, local, name, value)

    def _write_tensor_attribute(self, tensor: torch.Tensor, name: str, value: Any) -> None:
        if torch_private.is_subclass(tensor) and self._has_own(tensor, name):
            self.generic_setattr(tensor, name, value)
        elif name == "requires_grad" and value is True and self.may_require_grad(tensor):
            self.recorder.require_grad(tensor)
        elif name == "requires_grad" and gradients.may_set_flag(self.tracer, tensor, value):
            gradients.set_flag(self.tracer, tensor, value)
        elif name == "grad":
            gradients.write(self.tracer, tensor, None if value is ABSENT else value)
        elif name == "data" and value is not ABSENT and set_data(self.tracer, tensor, value):
            pass
        elif self.entries.static(torch.Tensor, name) is not ABSENT:
            reason = f"attribute {name!r} of a tensor is {_done(value)}"
            raise Break("tensor_metadata_mutation", reason)
        elif not torch_private.is_fake(tensor):
            self._write_entry(tensor, tensor.__dict__, name, value)
        elif value is not ABSENT:
            self.tracer.attributes.tensor_attributes.setdefault(id(tensor), {})[name] = value
        elif self.tracer.attributes.attributes_of(tensor).pop(name, ABSENT) is ABSENT:
            raise AttributeError(name)

    def _has_own(self, tensor: torch.Tensor, name: str) -> bool:
        """Returns whether a tensor's subclass has a class attribute that torch.Tensor lacks."""
        result = self.entries.class_entry(type(tensor), name)[1]
        return result is not self.entries.static(torch.Tensor, name)

    @staticmethod
    def may_require_grad(tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is an intermediate that becomes a leaf of the autograd graph
        being traced."""
        return (
            torch_private.is_fake(tensor)
            and torch.is_grad_enabled()
            and tensor.is_leaf
            and not tensor.requires_grad
            and tensor.is_floating_point()
        )

    def set_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """Traces type.__setattr__; value: ABSENT deletes."""
        if type(cls) is not type:
            owner, raw = self.entries.class_entry(type(cls), name)
            if owner is not None and owner is not type and self.entries.is_data_descriptor(raw):
                self.set_descriptor(raw, cls, name, value)
                return
        if self.entries.made_class(cls):
            if self.entries.classes[id(cls)].recipe:  # which says how the class was made, no more
                reason = f"attribute {name!r} of the enumeration {cls.__name__} is set"
                raise Break("unsupported_mutation", reason)
            _write_directly(type, cls, name, value)
            class_creation.note_functions(self.tracer, value)
            self.entries.forget_entries()
            return
        library = cls.__module__.partition(".")[0]
        before_and_now = (cls.__dict__.get(name, ()), value)
        has_all = all(
            is_constant(item) or id(item) in self.tracer.scalars.numbers for item in before_and_now
        )
        has_all = has_all and not name.startswith("__")
        own = library in ("torch", "tracer_core") and not has_all
        if name in type.__dict__ or own or not _is_writable(cls):
            # Entries that the tracer itself relies on, or CPython's own error.
            raise Break(
                "unsupported_mutation", f"attribute {name!r} of class {cls.__name__} is set"
            )
        if value is ABSENT:
            known = self.effects.attribute(cls, name) is not None
            if name not in cls.__dict__:
                if not known:
                    self.provenance.guard(GuardKind.HAS_NOT, self.entries.namespace_of(cls), name)
                type.__delattr__(cls, name)  # raises CPython's own error
            if not known:
                self.provenance.guard(GuardKind.HAS, self.entries.namespace_of(cls), name)
        self.tracer.side_effects.before_attribute(cls, name)
        _write_directly(type, cls, name, value)
        self.entries.forget_entries()  # special methods of the class may have changed

    def generic_setattr(self, obj: Any, name: str, value: Any) -> None:
        """Traces object.__setattr__; value: ABSENT deletes."""
        owner, raw = self.entries.class_entry(type(obj), name)
        if owner is not None and self.entries.is_data_descriptor(raw):
            self.set_descriptor(raw, obj, name, value)
            return
        namespace = self.entries.instance_dict(obj)
        if namespace is not None:
            self._write_entry(obj, namespace, name, value)
        elif type(obj).__dictoffset__ == 0 or self.provenance.is_fresh(obj):
            _write_directly(object, obj, name, value)  # raises CPython's own error
        else:
            reason = f"attribute {name!r} of a {type(obj).__name__} is {_done(value)}"
            raise Break("unsupported_mutation", reason)

    def set_descriptor(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        """Writes an object's value of a data descriptor; value: ABSENT deletes."""
        slot = "__delete__" if value is ABSENT else "__set__"
        method = self.entries.type_has(raw, slot)
        if method is ABSENT:
            raise AttributeError(slot)
        if has_python(method):
            self.tracer.calls.call_value(method, [raw, obj, *_given(value)], {})
        elif isinstance(raw, property):
            method = raw.fdel if value is ABSENT else raw.fset
            if method is None:
                getattr(property, slot)(raw, obj, *_given(value))  # raises Python's own error
            self.tracer.calls.call_value(method, [obj, *_given(value)], {})
        else:
            self._set_slot(raw, obj, name, value)

    def _set_slot(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        """Stores a value through a C descriptor; value: ABSENT deletes it."""
        self.tracer.side_effects.mutations += 1
        if not self.provenance.is_fresh(obj) and not kind_is_slot(raw):
            raise Break("unsupported_mutation", f"slot {name!r} of a {type(obj).__name__} is set")
        known = self.effects.attribute(obj, raw)
        change = self.tracer.side_effects.before_attribute(obj, raw)
        if change is not None and known is None and value is ABSENT:
            kind = GuardKind.UNSET if change.before is MISSING else GuardKind.IS_SET
            self.provenance.guard(kind, self.provenance.source_of(obj), raw)  # type: ignore[arg-type]
        try:
            raw.__delete__(obj) if value is ABSENT else raw.__set__(obj, value)
            if name == "__dict__" and value is not ABSENT:
                self.entries.give(value)
        except BaseException:
            if change is not None and known is None:
                self.effects.drop(change)
            raise

    def _write_entry(self, obj: Any, namespace: dict[str, Any], name: str, value: Any) -> None:
        """Writes an entry of an object's own dictionary; value: ABSENT deletes."""
        if value is not ABSENT:
            self.tracer.side_effects.before_store(namespace, name, obj)
            namespace[name] = value
            return
        if name in namespace:
            self.tracer.side_effects.before_remove(namespace, name, obj)
            del namespace[name]
            return
        source, change = self.provenance.source_of(obj), self.effects.peek(namespace)
        if source is not None and not (change is not None and change.decided(name)):
            self.provenance.guard(GuardKind.HAS_NOT, self.sources.namespace(source), name)
        # CPython words the missing name differently for each kind of object.
        _write_directly(
            types.ModuleType if isinstance(obj, types.ModuleType) else object, obj, name
        )


def _write_directly(base: Any, obj: Any, name: str, value: Any = ABSENT) -> None:
    """Sets or deletes (ABSENT) an attribute by the C function of a base class."""
    if value is ABSENT:
        base.__delattr__(obj, name)
    else:
        base.__setattr__(obj, name, value)


#: Methods of C types that store attributes as object's do; some releases inherit object's.
_GENERIC = {
    Entries.static(kind, name)
    for kind in (object, BaseException, functools.partial, types.SimpleNamespace, types.ModuleType,
                 types.MethodType, struct.Struct, ast.AST)
    for name in ("__setattr__", "__delattr__")
}  # fmt: skip


def _is_writable(cls: type) -> bool:
    return bool(cls.__flags__ & HEAP_TYPE) and not cls.__flags__ & IMMUTABLE_TYPE


def _given(value: Any) -> tuple[Any, ...]:
    return () if value is ABSENT else (value,)


def _done(value: Any) -> str:
    return "deleted" if value is ABSENT else "set"

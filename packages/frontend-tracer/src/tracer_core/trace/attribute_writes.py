"""Traces attribute assignment and deletion: CPython's descriptor protocol, with guards.

An object that existed before the trace is saved before it is changed. User code that the write runs
(properties, `__setattr__`, `__set__`, ...) is interpreted.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.provenance import is_constant
from tracer_core.fx_capture.side_effects import MISSING
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import class_creation, gradients
from tracer_core.trace.attributes import ABSENT, LOCAL_SET, has_python, kind_is_slot
from tracer_core.trace.dict_entries import Entries


class AttributeWrites:
    """setattr and delattr in a trace."""

    def __init__(self, tracer: Tracing, entries: Entries) -> None:
        self.tracer, self.entries = tracer, entries
        self.provenance, self.effects, self.recorder = (
            tracer.provenance,
            tracer.effects,
            tracer.recorder,
        )

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        setter = self.entries.special(type(obj), "__setattr__")
        if setter is LOCAL_SET:
            self.tracer.break_graph(
                "unknown_native", "attributes of a threading.local belong to a thread"
            )
        if isinstance(obj, torch.Tensor):
            self._set_tensor_attribute(obj, name, value)
        elif has_python(setter):
            self.tracer.calls.call_value(setter, [obj, name, value], {})
        elif isinstance(obj, type):
            self.set_class_attribute(obj, name, value)
        else:
            self.generic_setattr(obj, name, value)

    def _set_tensor_attribute(self, tensor: torch.Tensor, name: str, value: Any) -> None:
        if name == "requires_grad" and value is True and self.may_require_grad(tensor):
            self.recorder.require_grad(tensor)
            return
        if name == "grad":
            gradients.write(self.tracer, tensor, value)
            return
        if self.entries.static(torch.Tensor, name) is not ABSENT:
            self.tracer.break_graph(
                "tensor_metadata_mutation", f"attribute {name!r} of a tensor is set"
            )
        if torch_private.is_fake(tensor):
            self.tracer.attributes.tensor_attributes.setdefault(id(tensor), {})[name] = value
            return
        self.tracer.side_effects.before_store(tensor.__dict__, name, tensor)
        tensor.__dict__[name] = value

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
                if value is ABSENT:
                    self.delete_descriptor(raw, cls, name)
                else:
                    self._set_descriptor(raw, cls, name, value)
                return
        if self.entries.made_class(cls):
            class_creation.set_class_attribute(self.tracer, cls, name, value)
            return
        library = cls.__module__.partition(".")[0]
        before_and_now = (cls.__dict__.get(name, ()), value)
        plain = all(
            is_constant(one) or id(one) in self.tracer.scalars.numbers for one in before_and_now
        )
        plain = plain and not name.startswith("__")
        own = library in ("torch", "tracer_core") and not plain
        if name in type.__dict__ or own or not cls.__flags__ & HEAP_TYPE:
            # Entries that the tracer itself relies on, or CPython's own error.
            self.tracer.break_graph(
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
        if value is ABSENT:
            type.__delattr__(cls, name)
        else:
            type.__setattr__(cls, name, value)
        self.entries.forget_entries()  # special methods of the class may have changed

    def generic_setattr(self, obj: Any, name: str, value: Any) -> None:
        """Traces object.__setattr__."""
        owner, raw = self.entries.class_entry(type(obj), name)
        if owner is not None and self.entries.is_data_descriptor(raw):
            self._set_descriptor(raw, obj, name, value)
            return
        namespace = self.entries.instance_dict(obj)
        if namespace is None:
            if type(obj).__dictoffset__ == 0 or self.provenance.is_fresh(obj):
                object.__setattr__(obj, name, value)  # raises CPython's own error
                return
            self.tracer.break_graph(
                "unsupported_mutation", f"attribute {name!r} of a {type(obj).__name__} is set"
            )
        self.tracer.side_effects.before_store(namespace, name, obj)
        namespace[name] = value

    def _set_descriptor(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        if isinstance(raw, property):
            if raw.fset is None:
                raise AttributeError(
                    f"property '{name}' of '{type(obj).__qualname__}' object has no setter"
                )
            self.tracer.calls.call_value(raw.fset, [obj, value], {})
            return
        setter = self.entries.static(type(raw), "__set__")
        if has_python(setter):
            self.tracer.calls.call_value(setter, [raw, obj, value], {})
            return
        if setter is ABSENT:
            raise AttributeError("__set__")
        self._set_slot(raw, obj, name, value)

    def _set_slot(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        """Stores a value through a C descriptor; value: ABSENT deletes it."""
        self.tracer.side_effects.mutations += 1
        if not self.provenance.is_fresh(obj) and not kind_is_slot(raw):
            self.tracer.break_graph(
                "unsupported_mutation", f"slot {name!r} of a {type(obj).__name__} is set"
            )
        known = self.effects.attribute(obj, raw)
        change = self.tracer.side_effects.before_attribute(obj, raw)
        if change is not None and known is None and value is ABSENT:
            kind = GuardKind.UNSET if change.before is MISSING else GuardKind.IS_SET
            self.provenance.guard(kind, self.provenance.source_of(obj), raw)  # type: ignore[arg-type]
        try:
            raw.__delete__(obj) if value is ABSENT else raw.__set__(obj, value)
        except BaseException:
            if change is not None and known is None:
                self.effects.drop(change)
            raise

    def delattr(self, obj: Any, name: str) -> None:
        deleter = self.entries.special(type(obj), "__delattr__")
        if isinstance(obj, torch.Tensor):
            self._delete_tensor_attribute(obj, name)
        elif has_python(deleter):
            self.tracer.calls.call_value(deleter, [obj, name], {})
        elif isinstance(obj, type):
            self.set_class_attribute(obj, name, ABSENT)
        else:
            self.generic_delattr(obj, name)

    def _delete_tensor_attribute(self, tensor: torch.Tensor, name: str) -> None:
        if name == "grad":
            gradients.write(self.tracer, tensor, None)
            return
        if self.entries.static(torch.Tensor, name) is not ABSENT:
            self.tracer.break_graph(
                "tensor_metadata_mutation", f"attribute {name!r} of a tensor is deleted"
            )
        if not torch_private.is_fake(tensor):
            self._delete_entry(tensor, tensor.__dict__, name)
        elif self.tracer.attributes.attributes_of(tensor).pop(name, ABSENT) is ABSENT:
            raise AttributeError(name)

    def generic_delattr(self, obj: Any, name: str) -> None:
        """Traces object.__delattr__."""
        owner, raw = self.entries.class_entry(type(obj), name)
        if owner is not None and self.entries.is_data_descriptor(raw):
            self.delete_descriptor(raw, obj, name)
            return
        namespace = self.entries.instance_dict(obj)
        if namespace is None:
            if type(obj).__dictoffset__ == 0 or self.provenance.is_fresh(obj):
                object.__delattr__(obj, name)  # raises CPython's own error
                return
            self.tracer.break_graph(
                "unsupported_mutation", f"attribute {name!r} of a {type(obj).__name__} is deleted"
            )
        self._delete_entry(obj, namespace, name)

    def delete_descriptor(self, raw: Any, obj: Any, name: str) -> None:
        if isinstance(raw, property):
            if raw.fdel is None:
                raise AttributeError(
                    f"property '{name}' of '{type(obj).__qualname__}' object has no deleter"
                )
            self.tracer.calls.call_value(raw.fdel, [obj], {})
            return
        deleter = self.entries.static(type(raw), "__delete__")
        if has_python(deleter):
            self.tracer.calls.call_value(deleter, [raw, obj], {})
        elif deleter is ABSENT:
            raise AttributeError("__delete__")
        else:
            self._set_slot(raw, obj, name, ABSENT)

    def _delete_entry(self, obj: Any, namespace: dict[str, Any], name: str) -> None:
        """Deletes an entry of an object's own dictionary."""
        if self._instance_presence(obj, namespace, name):
            self.tracer.side_effects.before_remove(namespace, name, obj)
            del namespace[name]
            return
        # CPython words the missing name differently for each kind of object.
        if isinstance(obj, types.ModuleType):
            types.ModuleType.__delattr__(obj, name)
        object.__delattr__(obj, name)

    def _instance_presence(self, obj: Any, namespace: dict[str, Any], name: str) -> bool:
        """Returns whether the object's dictionary has the name. Guards the absence of the name; its
        presence is guarded by the code that deletes it."""
        source, change = self.provenance.source_of(obj), self.effects.peek(namespace)
        if (
            name not in namespace
            and source is not None
            and not (change is not None and change.decided(name))
        ):
            self.provenance.guard(
                GuardKind.HAS_NOT, self.provenance.sources.make(source, "dict"), name
            )
        return name in namespace

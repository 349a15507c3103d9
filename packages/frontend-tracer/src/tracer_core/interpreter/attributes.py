"""What an attribute access means in a trace: CPython's descriptor protocol, with guards.

In: an object and a name. Out: the value, with the dictionary entries that decided it guarded when the
object (or its class) existed before the trace. What always holds: user code that the access runs
(properties, `__getattr__`, `__set__`, ...) is interpreted, never run natively.
"""

from __future__ import annotations

import collections
import gc
import threading
import types
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.effects import MISSING
from tracer_core.guards.guard import GuardKind
from tracer_core.interpreter.state import TraceState
from tracer_core.numpy_types import ARRAY
from tracer_core.provenance import is_constant
from tracer_core.source import Source

_ABSENT: Any = object()
_NATIVE_GETTERS = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip
_MODULE_GETATTR = torch.nn.Module.__getattr__
_HEAP_TYPE = 1 << 9
_LOCAL_GET, _LOCAL_SET = (vars(threading.local)[f"__{name}__"] for name in ("getattribute", "setattr"))
_ARRAY_VIEWS = frozenset({"T", "mT", "real", "imag", "flat", "base", "data"})
#: Attributes that type computes from the class's own entries.
_CLASS_ENTRIES = frozenset({"__doc__", "__module__", "__annotations__"})
#: Attributes of tensors that change from call to call, or say how autograd made the tensor.
_AUTOGRAD_STATE = frozenset(
    {"grad_fn", "is_leaf", "_version", "_base", "_grad", "_grad_fn", "_backward_hooks", "output_nr", "retains_grad",
     "_post_accumulate_grad_hooks"}
)  # fmt: skip


def has_python(function: Any) -> bool:
    """Whether a slot of a type is user code."""
    return isinstance(function, types.FunctionType)


#: Values that functions keep outside their dictionary, and that nothing else is derived from.
_SETTABLE = frozenset(types.FunctionType.__dict__[name] for name in ("__name__", "__qualname__"))


def kind_is_slot(raw: Any) -> bool:
    """Whether a C descriptor does nothing but store a value (``__slots__``, a field of a C struct)."""
    return isinstance(raw, types.MemberDescriptorType) or raw in _SETTABLE


class Attributes(TraceState):
    """getattr, setattr, delattr and super() of the tracer."""

    #: (class, name) -> what `class_entry` found; emptied when the program changes a class.
    _specials: dict[tuple[type, str], tuple[type | None, Any]]
    _lineages: set[type]
    #: id of an intermediate tensor -> what the program set on it.
    tensor_attributes: dict[int, dict[str, Any]]

    def class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        """(class that defines it, raw value) along the MRO, guarded for classes that can change."""
        handle = cls, name
        found = self._specials.get(handle)
        if found is None:
            found = self._specials[handle] = self._find_class_entry(cls, name)
        return found

    def _find_class_entry(self, cls: type, name: str) -> tuple[type | None, Any]:
        self.guard_lineage(cls)
        for owner in cls.__mro__:
            namespace = owner.__dict__
            guarded = owner.__flags__ & _HEAP_TYPE and self.effects.attribute(owner, name) is None
            guarded = guarded and not self.made_class(owner)
            if name in namespace:
                value = namespace[name]
                if guarded:
                    source = self.provenance.sources.make(self._namespace(owner), "key", name)
                    self._read_class_entry(value, source)
                return owner, value
            if guarded:
                self.provenance.guard(GuardKind.HAS_NOT, self._namespace(owner), name)
        return None, _ABSENT

    def guard_lineage(self, cls: type) -> None:
        """Guards which classes a class inherits from: `__bases__` can be assigned."""
        if cls not in self._lineages:
            self._lineages.add(cls)
            for owner in cls.__mro__ if self.made_class(cls) else (cls,):
                if owner.__flags__ & _HEAP_TYPE and not self.made_class(owner):
                    self.provenance.guard(GuardKind.MRO, self.provenance.constant(owner), owner.__mro__)

    def _read_class_entry(self, value: Any, source: Source) -> None:
        """Guards a value found on a class. What it holds is guarded where it is read, as for any object."""
        if isinstance(value, (tuple, torch.Tensor)):
            self.provenance.read(value, source)
            return
        self.provenance.guard(GuardKind.EQ if is_constant(value) else GuardKind.IS, source, value)
        if type(value).__flags__ & _HEAP_TYPE and not is_constant(value):
            self.provenance.guard(GuardKind.TYPE, source, type(value))  # whether it is a descriptor
        if not is_constant(value) and self.provenance.source_of(value) is None:
            self.provenance.adopt(value, source)

    def special(self, cls: type, name: str) -> Any:
        """What a class says about a special method, which CPython looks up on the class alone; guarded, its
        absence too. _ABSENT if no class of the MRO has it."""
        return self.class_entry(cls, name)[1]

    def guard_operator(self, name: str) -> None:
        for method in (f"__{name}__", f"__r{name}__"):
            self.special(torch.Tensor, method)

    def _namespace(self, cls: type) -> Source:
        return self.provenance.sources.make(self.provenance.constant(cls), "dict")

    # -- reading --

    def getattr(self, obj: Any, name: str) -> Any:
        if id(obj) in self._numbers:
            obj = self.concrete(obj)
        if isinstance(obj, torch.Tensor):
            return self._tensor_attribute(obj, name)
        if isinstance(obj, types.ModuleType):
            return self._module_attribute(obj, name)
        if isinstance(obj, type):
            return self._class_attribute(obj, name)
        if isinstance(obj, super):
            parts: Any = obj
            return self.super_attribute(parts.__thisclass__, parts.__self__, name)
        if name == "__traceback__" and isinstance(obj, BaseException):
            return self.traceback_of(obj)
        cls = type(obj)
        if not cls.__flags__ & _HEAP_TYPE:
            return self._builtin_attribute(obj, name)
        getter = self.special(cls, "__getattribute__")
        if getter is _LOCAL_GET:
            self.break_graph("unknown_native", "attributes of a threading.local belong to a thread")
        try:
            if has_python(getter):
                return self.call_value(getter, [obj, name], {})
            return self.generic_getattr(obj, name)
        except AttributeError:
            fallback = self.special(cls, "__getattr__")
            if fallback is _ABSENT:
                raise
        return self._fallback(obj, name, fallback)

    @staticmethod
    def _static(cls: type, name: str) -> Any:
        for owner in cls.__mro__:
            if name in owner.__dict__:
                return owner.__dict__[name]
        return _ABSENT

    def generic_getattr(self, obj: Any, name: str) -> Any:
        """object.__getattribute__ for an instance of a Python class."""
        cls = type(obj)
        owner, raw = self.class_entry(cls, name)
        if owner is not None and self._is_data_descriptor(raw) and hasattr(type(raw), "__get__"):
            return self._get_descriptor(raw, obj, cls, name)
        value = self._instance_entry(obj, name)
        if value is not _ABSENT:
            return value
        if owner is not None:
            return self._get_descriptor(raw, obj, cls, name)
        raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'", name=name, obj=obj)

    def _is_data_descriptor(self, raw: Any) -> bool:
        return any(self._type_has(raw, name) is not _ABSENT for name in ("__set__", "__delete__"))

    def _type_has(self, raw: Any, name: str) -> Any:
        """What the type of a class's value says about a method of descriptors; guarded where it can change."""
        kind = type(raw)
        return self.special(kind, name) if kind.__flags__ & _HEAP_TYPE else self._static(kind, name)

    def _instance_entry(self, obj: Any, name: str) -> Any:
        """The value in the object's own dictionary, or _ABSENT; guarded either way."""
        namespace = self.instance_dict(obj)
        if namespace is None:
            return _ABSENT
        source = self.provenance.source_of(obj)
        change = self.effects.peek(namespace)
        decided = source is None or (change is not None and change.decided(name))
        if name in namespace:
            value = namespace[name]
            if decided or source is None:
                return value
            return self.provenance.read_varying(value, self.provenance.sources.attribute(source, name))
        if not decided and source is not None:
            self.provenance.guard(GuardKind.HAS_NOT, self.provenance.sources.make(source, "dict"), name)
        return _ABSENT

    @staticmethod
    def instance_dict(obj: Any) -> dict[str, Any] | None:
        try:
            found = object.__getattribute__(obj, "__dict__")
        except AttributeError:
            return None
        return found if isinstance(found, dict) else None

    def _get_descriptor(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        kind = type(raw)
        if kind is types.FunctionType:
            return types.MethodType(raw, obj)
        if kind is property:
            if raw.fget is None:
                raise AttributeError(f"property '{name}' of '{cls.__qualname__}' object has no getter")
            return self.call_value(raw.fget, [obj], {})
        if kind is staticmethod:
            return self._wrapped(raw)
        if kind is classmethod:
            return types.MethodType(self._wrapped(raw), cls)
        if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
            return self._slot(raw, obj, cls, name)
        if isinstance(raw, _NATIVE_GETTERS):
            return raw.__get__(obj, cls)  # type: ignore[union-attr]
        getter = self._type_has(raw, "__get__")
        if getter is _ABSENT:
            return self._class_value(raw)
        if has_python(getter):
            return self.call_value(getter, [raw, obj, cls], {})
        return self.native_descriptor_get(raw, obj, cls, name)

    def native_descriptor_get(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        """A descriptor written in C that is not one of Python's own."""
        if isinstance(raw, collections._tuplegetter) and isinstance(obj, tuple):  # type: ignore[attr-defined]
            return self.list_item(obj, raw.__reduce__()[1][0])
        if type(raw).__name__ in ("partialmethod", "cached_property", "_lru_cache_wrapper") or callable(raw):
            return raw.__get__(obj, cls)
        self.break_graph("unknown_native", f"descriptor {type(raw).__name__} for attribute {name!r}")

    def _slot(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        if name == "__dict__":
            return self._dict_of(obj)
        if name == "__class__":
            return cls
        source = self.provenance.source_of(obj)
        unguarded = source is None or self.effects.attribute(obj, raw) is not None
        try:
            value = raw.__get__(obj, cls)
        except AttributeError:
            if not unguarded and kind_is_slot(raw):
                self.provenance.guard(GuardKind.UNSET, source, raw)  # type: ignore[arg-type]
            raise
        if unguarded:
            return value
        return self.provenance.read_varying(value, self.provenance.sources.make(source, "slot", name))

    def _dict_of(self, obj: Any) -> dict[str, Any]:
        namespace = self.instance_dict(obj)
        if namespace is None:
            raise AttributeError(f"'{type(obj).__name__}' object has no attribute '__dict__'")
        source = self.provenance.source_of(obj)
        if source is not None and self.provenance.source_of(namespace) is None:
            self.provenance.register(namespace, self.provenance.sources.make(source, "dict"))
        return namespace

    def _class_value(self, raw: Any) -> Any:
        """A plain value found on a class: its identity is guarded; what it holds may be read."""
        if self.provenance.source_of(raw) is None and not self.is_fresh(raw):
            self.provenance.constant(raw)
        return raw

    def _wrapped(self, raw: Any) -> Any:
        """The function in a staticmethod or classmethod of a class."""
        source = self.provenance.source_of(raw)
        if source is None:
            return raw.__func__
        return self.provenance.read(raw.__func__, self.provenance.sources.make(source, "slot", "__func__"))

    def _fallback(self, obj: Any, name: str, fallback: Any) -> Any:
        if fallback is _MODULE_GETATTR:
            return self._module_member(obj, name)
        if has_python(fallback):
            return self.call_value(fallback, [obj, name], {})
        self.break_graph("unknown_native", f"{type(obj).__name__}.__getattr__")

    def _module_member(self, obj: torch.nn.Module, name: str) -> Any:
        """nn.Module.__getattr__ without interpreting it: parameters, buffers, submodules."""
        for table in ("_parameters", "_buffers", "_modules"):
            members = self._instance_entry(obj, table)
            if members is _ABSENT:
                continue
            value = self.dict_get(members, name, _ABSENT)
            if value is not _ABSENT:
                return value
        raise AttributeError(f"'{type(obj).__name__}' object has no attribute '{name}'", name=name, obj=obj)

    # -- tensors, modules, classes, builtins --

    def _tensor_attribute(self, tensor: torch.Tensor, name: str) -> Any:
        if name == "__class__":
            return torch.Tensor if torch_private.is_fake(tensor) else type(tensor)
        if name == "__dict__":
            self.break_graph("unsupported_value", "__dict__ of a tensor")
        if name in _AUTOGRAD_STATE:
            return self._autograd_state(tensor, name)
        if name == "grad":
            return self._grad(tensor)
        raw = self.special(torch.Tensor, name)
        if not self._is_data_descriptor(raw):
            fake = torch_private.is_fake(tensor)
            found = (
                self.attributes_of(tensor).get(name, _ABSENT) if fake else self._instance_entry(tensor, name)
            )
            if found is not _ABSENT:
                return found
        if raw is _ABSENT:
            kind = "Tensor" if torch_private.is_fake(tensor) else type(tensor).__name__
            raise AttributeError(f"'{kind}' object has no attribute '{name}'", name=name, obj=tensor)
        if isinstance(raw, types.FunctionType):
            self.provenance.constant(raw)
            return types.MethodType(raw, tensor)
        if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return raw.__get__(tensor, type(tensor))
        if isinstance(raw, (types.GetSetDescriptorType, property)):
            return self.recorder.call(raw.__get__, (tensor,), {})
        return getattr(tensor, name)

    def _autograd_state(self, tensor: torch.Tensor, name: str) -> Any:
        """Whether an input is a leaf is guarded; everything else changes from call to call."""
        source = self.provenance.source_of(tensor)
        steady = name == "is_leaf" or (name == "grad_fn" and tensor.grad_fn is None)
        if source is None or not steady or self.recorder.fakes.real_was_written(tensor):
            self.break_graph("autograd_in_graph", f"attribute {name!r} of a tensor is read")
        return self.provenance.read(getattr(tensor, name), self.provenance.sources.make(source, "slot", name))

    def _grad(self, tensor: torch.Tensor) -> Any:
        source = self.provenance.source_of(tensor)
        if source is None:
            self.break_graph("autograd_in_graph", "the gradient of an intermediate tensor is read")
        return self.provenance.read(tensor.grad, self.provenance.sources.make(source, "slot", "grad"))

    def _module_attribute(self, module: types.ModuleType, name: str) -> Any:
        namespace = module.__dict__
        source = self.provenance.source_of(module) or self.provenance.constant(module)
        cls = type(module)
        if cls is not types.ModuleType:  # torch.backends.cudnn: its flags are properties of its class
            owner, raw = self.class_entry(cls, name)
            if owner is not None and owner.__flags__ & _HEAP_TYPE and self._is_data_descriptor(raw):
                return self._get_descriptor(raw, module, cls, name)
        if name in namespace:
            change = self.effects.peek(namespace)
            value = namespace[name]
            if change is not None and change.decided(name):
                return value
            return self.provenance.read(value, self.provenance.sources.attribute(source, name))
        if name == "__dict__":
            return self._dict_of(module)
        # A module's __getattr__ (lazy imports) caches what it finds or computes it from its name.
        try:
            value = getattr(module, name)
        except AttributeError:
            self.provenance.guard(GuardKind.HAS_NOT, self.provenance.sources.make(source, "dict"), name)
            raise
        if name in namespace:
            return self.provenance.read(value, self.provenance.sources.attribute(source, name))
        return self._class_value(value)

    def _class_attribute(self, cls: type, name: str) -> Any:
        meta = type(cls)
        if meta is type:
            return self.plain_class_attribute(cls, name)
        getter = self.special(meta, "__getattribute__")
        try:
            if has_python(getter):
                return self.call_value(getter, [cls, name], {})
            return self.plain_class_attribute(cls, name)
        except AttributeError:
            fallback = self.special(meta, "__getattr__")
            if not has_python(fallback):
                raise
        return self.call_value(fallback, [cls, name], {})

    def plain_class_attribute(self, cls: type, name: str) -> Any:
        """type.__getattribute__"""
        meta = type(cls)
        meta_owner, meta_raw = self.class_entry(meta, name)
        if meta_owner is not None and self._is_data_descriptor(meta_raw):
            if meta_owner not in (type, object):
                return self._get_descriptor(meta_raw, cls, meta, name)
            if name == "__dict__":
                return self._class_dict(cls)
            if name not in _CLASS_ENTRIES:
                value = meta_raw.__get__(cls, meta)
                return value if is_constant(value) or isinstance(value, type) else self._class_value(value)
        owner, raw = self.class_entry(cls, name)
        if owner is not None:
            return self._class_get(raw, cls, name)
        if meta_owner is not None:
            if meta_owner in (type, object):
                return getattr(cls, name)
            return self._get_descriptor(meta_raw, cls, meta, name)
        return type.__getattribute__(cls, name)  # raises Python's own error

    def _class_dict(self, cls: type) -> Any:
        """The read-only view of a class's entries; what is read through it is guarded."""
        proxy = cls.__dict__
        (entries,) = (found for found in gc.get_referents(proxy) if isinstance(found, dict))
        if not self.made_class(cls) and self.provenance.source_of(entries) is None:
            self.provenance.register(entries, self._namespace(cls))
        return proxy

    def unproxied(self, container: Any) -> Any:
        """The dictionary behind a read-only view that the trace made; anything else as it is."""
        if type(container) is not types.MappingProxyType:
            return container
        (entries,) = gc.get_referents(container)
        if not self.is_fresh(container) or not isinstance(entries, dict):
            self.break_graph("unknown_native", "a mappingproxy from before this segment is read")
        return entries

    def _class_get(self, raw: Any, cls: type, name: str) -> Any:
        kind = type(raw)
        if kind is types.FunctionType:
            return raw
        if kind is staticmethod:
            return self._wrapped(raw)
        if kind is classmethod:
            return types.MethodType(self._wrapped(raw), cls)
        if kind is property:
            return raw
        getter = self._type_has(raw, "__get__")
        if getter is _ABSENT:
            return self._class_value(raw)
        if has_python(getter):
            return self.call_value(getter, [raw, None, cls], {})
        return self._class_value(raw.__get__(None, cls))

    def _builtin_attribute(self, obj: Any, name: str) -> Any:
        """Instances of types written in C."""
        raw = self._static(type(obj), name)
        if raw is _ABSENT:
            value = self._instance_entry(obj, name)
            if value is not _ABSENT:
                return value
        if isinstance(obj, ARRAY) and self.is_fresh(obj) and name in _ARRAY_VIEWS:
            self.break_graph("unknown_native", f"a view of an array: .{name}")
        value = getattr(obj, name)
        source = self.provenance.source_of(obj)
        if source is None or self.effects.attribute(obj, raw) is not None:
            return value
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            if name == "__dict__":
                return self._dict_of(obj)
            return self.provenance.read(value, self.provenance.sources.make(source, "slot", name))
        return value

    # -- super() --

    def super_attribute(self, owner: Any, obj: Any, name: str) -> Any:
        cls = obj if isinstance(obj, type) and issubclass(obj, owner) else type(obj)
        if issubclass(cls, torch.Tensor):
            self.break_graph("tensor_subclass", "super() in a tensor subclass")
        mro = cls.__mro__
        for base in mro[mro.index(owner) + 1 :]:
            if name in base.__dict__:
                raw = base.__dict__[name]
                if base.__flags__ & _HEAP_TYPE and not self.made_class(base):
                    source = self.provenance.sources.make(self._namespace(base), "key", name)
                    self._read_class_entry(raw, source)
                if cls is obj:
                    return (
                        self._wrapped(raw)
                        if isinstance(raw, staticmethod)
                        else self._class_get(raw, cls, name)
                    )
                return self._get_descriptor(raw, obj, cls, name)
        if name == "__class__":
            return super
        raise AttributeError(f"'super' object has no attribute '{name}'")

    # -- writing --

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        setter = self.special(type(obj), "__setattr__")
        if setter is _LOCAL_SET:
            self.break_graph("unknown_native", "attributes of a threading.local belong to a thread")
        if isinstance(obj, torch.Tensor):
            self._set_tensor_attribute(obj, name, value)
        elif has_python(setter):
            self.call_value(setter, [obj, name, value], {})
        elif isinstance(obj, type):
            self.set_class_attribute(obj, name, value)
        else:
            self.generic_setattr(obj, name, value)

    def _set_tensor_attribute(self, tensor: torch.Tensor, name: str, value: Any) -> None:
        if name == "requires_grad" and value is True and self.may_require_grad(tensor):
            self.recorder.require_grad(tensor)
            return
        if self._static(torch.Tensor, name) is not _ABSENT:
            self.break_graph("tensor_metadata_mutation", f"attribute {name!r} of a tensor is set")
        if torch_private.is_fake(tensor):
            self.tensor_attributes.setdefault(id(tensor), {})[name] = value
            return
        self.before_store(tensor.__dict__, name, tensor)
        tensor.__dict__[name] = value

    def attributes_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """What the program set on an intermediate tensor."""
        return self.tensor_attributes.get(id(tensor), {})

    @staticmethod
    def may_require_grad(tensor: torch.Tensor) -> bool:
        """Whether a tensor is an intermediate that becomes a leaf of autograd's graph, which is being recorded."""
        return (
            torch_private.is_fake(tensor)
            and torch.is_grad_enabled()
            and tensor.is_leaf
            and not tensor.requires_grad
            and tensor.is_floating_point()
        )

    def set_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """type.__setattr__; value: ABSENT deletes."""
        if type(cls) is not type:
            owner, raw = self.class_entry(type(cls), name)
            if owner is not None and owner is not type and self._is_data_descriptor(raw):
                if value is _ABSENT:
                    self._delete_descriptor(raw, cls, name)
                else:
                    self._set_descriptor(raw, cls, name, value)
                return
        if self.made_class(cls):
            self.set_made_class_attribute(cls, name, value)
            return
        library = cls.__module__.partition(".")[0]
        plain = is_constant(value) and is_constant(cls.__dict__.get(name, ())) and not name.startswith("__")
        own = library in ("torch", "tracer_core") and not plain
        if name in type.__dict__ or own or not cls.__flags__ & _HEAP_TYPE:
            # What the tracer itself relies on, or CPython's own error.
            self.break_graph("unsupported_mutation", f"attribute {name!r} of class {cls.__name__} is set")
        if value is _ABSENT:
            known = self.effects.attribute(cls, name) is not None
            if name not in cls.__dict__:
                if not known:
                    self.provenance.guard(GuardKind.HAS_NOT, self._namespace(cls), name)
                type.__delattr__(cls, name)  # raises CPython's own error
            if not known:
                self.provenance.guard(GuardKind.HAS, self._namespace(cls), name)
        self.before_attribute(cls, name)
        if value is _ABSENT:
            type.__delattr__(cls, name)
        else:
            type.__setattr__(cls, name, value)
        self._specials.clear()  # what a class says about special methods may be another now

    def generic_setattr(self, obj: Any, name: str, value: Any) -> None:
        """object.__setattr__"""
        owner, raw = self.class_entry(type(obj), name)
        if owner is not None and self._is_data_descriptor(raw):
            self._set_descriptor(raw, obj, name, value)
            return
        namespace = self.instance_dict(obj)
        if namespace is None:
            if type(obj).__dictoffset__ == 0 or self.is_fresh(obj):
                object.__setattr__(obj, name, value)  # raises CPython's own error
                return
            self.break_graph("unsupported_mutation", f"attribute {name!r} of a {type(obj).__name__} is set")
        self.before_store(namespace, name, obj)
        namespace[name] = value

    def set_made_class_attribute(self, cls: type, name: str, value: Any) -> None:
        """`set_class_attribute` for a class that the trace made."""
        raise NotImplementedError

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        """getattr with a default."""
        try:
            return self.getattr(obj, name)
        except AttributeError:
            return default

    def _set_descriptor(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        if isinstance(raw, property):
            if raw.fset is None:
                raise AttributeError(f"property '{name}' of '{type(obj).__qualname__}' object has no setter")
            self.call_value(raw.fset, [obj, value], {})
            return
        setter = self._static(type(raw), "__set__")
        if has_python(setter):
            self.call_value(setter, [raw, obj, value], {})
            return
        if setter is _ABSENT:
            raise AttributeError("__set__")
        self._set_slot(raw, obj, name, value)

    def _set_slot(self, raw: Any, obj: Any, name: str, value: Any) -> None:
        """A value that a C descriptor stores; value: ABSENT deletes it."""
        self.mutations += 1
        if not self.is_fresh(obj) and not kind_is_slot(raw):
            self.break_graph("unsupported_mutation", f"slot {name!r} of a {type(obj).__name__} is set")
        known = self.effects.attribute(obj, raw)
        change = self.before_attribute(obj, raw)
        if change is not None and known is None and value is _ABSENT:
            kind = GuardKind.UNSET if change.before is MISSING else GuardKind.IS_SET
            self.provenance.guard(kind, self.provenance.source_of(obj), raw)  # type: ignore[arg-type]
        try:
            raw.__delete__(obj) if value is _ABSENT else raw.__set__(obj, value)
        except BaseException:
            if change is not None and known is None:
                self.effects.drop(change)
            raise

    def delattr(self, obj: Any, name: str) -> None:
        deleter = self.special(type(obj), "__delattr__")
        if isinstance(obj, torch.Tensor):
            self._delete_tensor_attribute(obj, name)
        elif has_python(deleter):
            self.call_value(deleter, [obj, name], {})
        elif isinstance(obj, type):
            self.set_class_attribute(obj, name, _ABSENT)
        else:
            self.generic_delattr(obj, name)

    def _delete_tensor_attribute(self, tensor: torch.Tensor, name: str) -> None:
        if self._static(torch.Tensor, name) is not _ABSENT:
            self.break_graph("tensor_metadata_mutation", f"attribute {name!r} of a tensor is deleted")
        if not torch_private.is_fake(tensor):
            self._delete_entry(tensor, tensor.__dict__, name)
        elif self.attributes_of(tensor).pop(name, _ABSENT) is _ABSENT:
            raise AttributeError(name)

    def generic_delattr(self, obj: Any, name: str) -> None:
        """object.__delattr__"""
        owner, raw = self.class_entry(type(obj), name)
        if owner is not None and self._is_data_descriptor(raw):
            self._delete_descriptor(raw, obj, name)
            return
        namespace = self.instance_dict(obj)
        if namespace is None:
            if type(obj).__dictoffset__ == 0 or self.is_fresh(obj):
                object.__delattr__(obj, name)  # raises CPython's own error
                return
            self.break_graph(
                "unsupported_mutation", f"attribute {name!r} of a {type(obj).__name__} is deleted"
            )
        self._delete_entry(obj, namespace, name)

    def _delete_descriptor(self, raw: Any, obj: Any, name: str) -> None:
        if isinstance(raw, property):
            if raw.fdel is None:
                raise AttributeError(f"property '{name}' of '{type(obj).__qualname__}' object has no deleter")
            self.call_value(raw.fdel, [obj], {})
            return
        deleter = self._static(type(raw), "__delete__")
        if has_python(deleter):
            self.call_value(deleter, [raw, obj], {})
        elif deleter is _ABSENT:
            raise AttributeError("__delete__")
        else:
            self._set_slot(raw, obj, name, _ABSENT)

    def _delete_entry(self, obj: Any, namespace: dict[str, Any], name: str) -> None:
        """Deletes from an object's own dictionary."""
        if self._instance_presence(obj, namespace, name):
            self.before_remove(namespace, name, obj)
            del namespace[name]
            return
        # CPython names what is missing in the way that it does for this very object.
        if isinstance(obj, types.ModuleType):
            types.ModuleType.__delattr__(obj, name)
        object.__delattr__(obj, name)

    def _instance_presence(self, obj: Any, namespace: dict[str, Any], name: str) -> bool:
        """Whether the object's dictionary has the name; its absence is guarded (its presence by who deletes it)."""
        source, change = self.provenance.source_of(obj), self.effects.peek(namespace)
        if name not in namespace and source is not None and not (change is not None and change.decided(name)):
            self.provenance.guard(GuardKind.HAS_NOT, self.provenance.sources.make(source, "dict"), name)
        return name in namespace


ABSENT = _ABSENT

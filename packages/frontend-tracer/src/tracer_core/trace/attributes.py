"""Traces attribute reads: CPython's descriptor protocol, with guards.

The dictionary entries that decide the value are guarded if the object (or its class) existed before
the trace. User code that the access runs (properties, `__getattr__`, ...) is interpreted, never run
eagerly.
"""

from __future__ import annotations

import collections
import contextvars
import decimal
import dis
import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.annotations import DEFERRED
from tracer_core.bytecode.annotations import are_deferred as annotations_are_deferred
from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.template_strings import TEMPLATE
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.numpy_types import ARRAY
from tracer_core.guards.object_layout import HEAP_TYPE, flags
from tracer_core.guards.value_kinds import is_constant
from tracer_core.torch_private.needed import TensorBase
from tracer_core.trace import cpython_warnings, gradients, library_calls, traced_arrays
from tracer_core.trace.attribute_lookup import (
    ABSENT,
    Entries,
    class_namespace,
    has_python,
    is_slot,
    is_subtype,
)
from tracer_core.trace.component import Component
from tracer_core.trace.generators import ANSWERS, TracedGenerator
from tracer_core.trace.guarded_calls import applied
from tracer_core.trace.symbolic_scalars import NUMBERS, SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_NATIVE_GETTERS = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
#: Attributes of ``super(...)`` itself.
_OF_SUPER = frozenset({"__class__", "__thisclass__", "__self__", "__self_class__"})
#: Attributes of generators that `TracedGenerator` has as a generator has them.
_GENERATOR_METHODS = frozenset({"send", "throw", "close", "__iter__", "__next__"})
_MODULE_GETATTR = torch.nn.Module.__getattr__
_LOCAL_GET, *LOCAL_WRITES = (
    vars(threading.local)[f"__{name}__"] for name in ("getattribute", "setattr", "delattr")
)
#: Look-ups of C types that find more than object's does; a library loaded twice has others.
_OWN_LOOKUPS = [
    vars(kind)["__getattribute__"]
    for kind in (decimal.Context, weakref.ProxyType, weakref.CallableProxyType)
]
_ARRAY_VIEWS = frozenset({"T", "mT", "real", "imag", "flat", "base", "data"})
#: Attributes that `type` computes from the class's own entries.
_CLASS_ENTRIES = frozenset({"__doc__", "__module__", "__annotations__", "__type_params__"})
#: Attributes of tensors that change from call to call, or say how autograd made the tensor.
_AUTOGRAD_STATE = frozenset(
    {
        "grad_fn", "is_leaf", "_version", "_base", "_grad", "_grad_fn", "_backward_hooks",
        "output_nr", "retains_grad", "_post_accumulate_grad_hooks",
    }
)  # fmt: skip


def _is_of_a_library(getter: Any) -> bool:
    """Returns whether a ``__getattribute__`` is the C code of a class that a library makes."""
    return is_slot(getter, "__getattribute__") and bool(flags(getter.__objclass__) & HEAP_TYPE)


def _bind_partial() -> object:
    """Reads a partial as a method does, of which Python 3.13 warns."""
    partial: Any = functools.partial(len)
    return partial.__get__(object(), object) if hasattr(partial, "__get__") else partial


class Unset:
    """The class that stands for no value."""


@functools.cache
def _local_value(name: str) -> Callable[[Any], Any]:
    """Returns a function that gives an attribute of a threading.local in the thread that calls it,
    or `Unset`."""

    def value(local: Any) -> Any:
        return getattr(local, name, Unset)

    value.__qualname__ = name
    return value


@functools.cache
def _local_has(name: str) -> Callable[[Any], bool]:
    """Returns a function that tells whether a threading.local itself has an attribute in the thread
    that calls it."""

    def has(local: Any) -> bool:
        return name in vars(local)

    has.__qualname__ = name
    return has


def _entries_of_thread(local: Any) -> Any:
    return vars(local)


#: What an ``__init__`` may name that only fills its object.
_FILLING = frozenset({"dict", "float", "int", "list", "set", "str", "super", "tuple", "bool"})


@functools.cache
def _only_fills(code: types.CodeType) -> bool:
    """Returns whether the code of an ``__init__`` sets attributes of its object to new values and
    does no more."""
    if set(code.co_freevars) - {"__class__"} or code.co_argcount + code.co_kwonlyargcount > 1:
        return False
    for item in dis.get_instructions(code):
        if item.opname.startswith(("IMPORT", "YIELD", "STORE_GLOBAL", "MAKE_FUNCTION")):
            return False
        if item.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")) and item.argval not in _FILLING:
            return False
        if item.opname in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR") and (
            item.argval != "__init__"
        ):
            return False
    return True


#: Values that functions store outside their dictionary and derive nothing else from.
_SETTABLE = frozenset(types.FunctionType.__dict__[name] for name in ("__name__", "__qualname__"))


def kind_is_slot(raw: Any) -> bool:
    """Returns whether a C descriptor only stores a value (``__slots__``, a field of a C struct)."""
    return isinstance(raw, types.MemberDescriptorType) or raw in _SETTABLE


#: Attributes of a traceback; during a trace they would show the interpreter's frames.
_OF_TRACEBACKS = frozenset({"tb_frame", "tb_lineno", "tb_lasti", "tb_next"})


#: The classes that tensor subclasses inherit torch's attributes from.
_TENSOR_BASES = (*torch_private.BASE_TENSOR_TYPES, TensorBase, object)


class Attributes(Component):
    """getattr and super() in a trace. Mutable."""

    def __init__(self, tracer: Tracer, entries: Entries) -> None:
        super().__init__(tracer)
        self.entries = entries
        #: id of an intermediate tensor -> attributes that the program set on it.
        self.tensor_attributes: dict[int, dict[str, Any]] = {}

    # -- reading --

    def getattr(self, obj: Any, name: str) -> Any:
        try:
            return self._getattr(obj, name)
        except AttributeError as error:
            if error.name is None and error.obj is None:  # as PyObject_GetAttr does
                error.name, error.obj = name, obj
            raise

    def _getattr(self, obj: Any, name: str) -> Any:
        if type(obj) in SYMBOLS and (
            id(obj) in self.tracer.scalars.numbers or hasattr(float, name) or hasattr(int, name)
        ):
            obj = self.tracer.scalars.concrete(obj)  # a method of numbers: as Python's own has it
        if isinstance(obj, torch.Tensor):
            return self._tensor_attribute(obj, name)
        if type(obj) is traced_arrays.TracedArray:
            return traced_arrays.attribute(self.tracer, obj, name)
        if isinstance(obj, types.ModuleType):
            return self._module_attribute(obj, name)
        if isinstance(obj, type):
            return self._class_attribute(obj, name)
        if isinstance(obj, super):
            parts: Any = obj
            if type(obj) is not super:
                raise Break("native_python", "an attribute of a subclass of super")
            if name in _OF_SUPER:
                return object.__getattribute__(obj, name)
            return self.super_attribute(parts.__thisclass__, parts.__self__, name)
        if name == "__traceback__" and isinstance(obj, BaseException):
            return self.tracer.exceptions.traceback_of(obj)
        cls = type(obj)
        if cls is TracedGenerator and name not in _GENERATOR_METHODS:
            return self._generator_attribute(obj, name)
        if not cls.__flags__ & HEAP_TYPE:
            return self._builtin_attribute(obj, name)
        getter = self.entries.special(cls, "__getattribute__")
        if getter is _LOCAL_GET:
            return self._local_attribute(obj, name)
        if getter in _OWN_LOOKUPS:
            raise Break("unknown_native", f"{cls.__name__} has a way of its own to look up {name}")
        try:
            if is_slot(getter, "__getattribute__"):
                return self.generic_getattr(obj, name)
            return self.call_special(getter, obj, "__getattribute__", name)
        except AttributeError:
            fallback = self.entries.special(cls, "__getattr__")
            if fallback is ABSENT:
                if _is_of_a_library(getter):
                    why = f"{cls.__name__} may have a way of its own to look up {name}"
                    raise Break("unknown_native", why) from None
                raise
        if fallback is _MODULE_GETATTR:
            return self._module_member(obj, name)
        return self.call_special(fallback, obj, "__getattr__", name)

    def call_special(self, raw: Any, obj: Any, hook: str, *args: Any) -> Any:
        """Calls a special method that the object's class has under the name `hook`."""
        if has_python(raw):
            return self.tracer.calls.call_value(raw, [obj, *args], {})
        bound = self.get_descriptor(raw, obj, type(obj), hook)
        return self.tracer.calls.call_value(bound, [*args], {})

    def _local_attribute(self, obj: Any, name: str) -> Any:
        """Reads an attribute of a threading.local, which each call asks for in its own thread."""
        self.require_local(obj)
        if self.provenance.is_fresh(obj):
            return getattr(obj, name)
        if name == "__dict__":
            return self._local_entries(obj)
        owner, raw = self.entries.class_entry(type(obj), name)
        if owner is not None and hasattr(type(raw), "__get__"):
            if self.entries.is_data_descriptor(raw) or not applied(
                self.tracer, _local_has(name), obj
            ):
                return self.get_descriptor(raw, obj, type(obj), name)
        if self.effects.attribute(obj, name) is not None:
            return getattr(obj, name)
        value = applied(self.tracer, _local_value(name), obj, varies=True)
        if value is Unset:
            getattr(obj, name)  # raises Python's own error
        return value

    def _local_entries(self, obj: Any) -> Any:
        """Returns the attributes of a threading.local in this thread, as a dictionary that the trace
        only reads, or is the only one to change."""
        if any(change.obj is obj for change in self.effects.changes.values()):
            raise Break("unknown_native", "attributes of a threading.local were set before")
        return applied(self.tracer, _entries_of_thread, obj)

    def require_local(self, obj: Any) -> None:
        """Breaks where a thread that first uses a threading.local runs code of the program that may
        do more than fill it."""
        method = self.entries.python_method(obj, "__init__")
        if method is not None and not _only_fills(method.__code__):
            raise Break("unknown_native", "a threading.local is initialized in each thread")

    def _generator_attribute(self, generator: TracedGenerator, name: str) -> Any:
        if name in ANSWERS:
            return ANSWERS[name](generator)
        if name == "gi_frame" and generator.finished:
            return None
        if hasattr(types.GeneratorType, name):
            raise Restart(
                generator.allocation_step, "native_python", f"a generator's {name} is read"
            )
        raise AttributeError(f"'generator' object has no attribute '{name}'")

    def generic_getattr(self, obj: Any, name: str) -> Any:
        """Traces object.__getattribute__ for an instance of a Python class."""
        cls = type(obj)
        owner, raw = self.entries.read_entry(cls, name)
        if type(raw) in NUMBERS:
            value = self.entries.instance_entry(obj, name)
            return raw if value is ABSENT else value
        if (
            owner is not None
            and self.entries.is_data_descriptor(raw)
            and hasattr(type(raw), "__get__")
        ):
            return self.get_descriptor(raw, obj, cls, name)
        value = self.entries.instance_entry(obj, name)
        if value is not ABSENT:
            return value
        if owner is not None:
            return self.get_descriptor(raw, obj, cls, name)
        if self.entries.static(cls, name) is ABSENT:
            # Raises Python's own error: "'collections.deque' object ...".
            object.__getattribute__(obj, name)
        raise AttributeError(
            f"'{cls.__name__}' object has no attribute '{name}'", name=name, obj=obj
        )

    def get_descriptor(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        kind = type(raw)
        if kind is types.FunctionType:
            return types.MethodType(raw, obj)
        if kind is property:
            constant = cls in torch_private.DEVICE_PROPERTIES or torch_private.is_placement(cls)
            if raw.fget is None or constant:  # or Python's own error
                return raw.__get__(obj)
            return self.tracer.calls.call_value(raw.fget, [obj], {})
        if kind is staticmethod:
            return self._wrapped(raw)
        if kind is classmethod:
            return self._bound_to_class(raw, cls)
        if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
            return self._slot(raw, obj, cls, name)
        if isinstance(raw, _NATIVE_GETTERS) and hasattr(kind, "__get__"):
            return raw.__get__(obj, cls)
        getter = self.entries.type_has(raw, "__get__")
        if getter is ABSENT:
            return self.entries.class_value(raw)
        if not is_slot(getter, "__get__"):
            return self.tracer.calls.call_value(getter, [raw, obj, cls], {})
        if isinstance(raw, property) and raw.fget is not None:  # of a subclass
            return self.tracer.calls.call_value(raw.fget, [obj], {})
        return self.native_descriptor_get(raw, obj, cls, name)

    def _bound_to_class(self, raw: Any, cls: type) -> Any:
        """Returns what a classmethod gives: before Python 3.13, a descriptor in it is asked."""
        function = self._wrapped(raw)
        if sys.version_info < (3, 13) and hasattr(type(function), "__get__"):
            return self.get_descriptor(function, cls, cls, getattr(function, "__name__", ""))
        if not callable(function):  # a method that raises when it is called
            raise Break("unknown_native", f"a classmethod of a {type(function).__name__}")
        return types.MethodType(function, cls)

    def native_descriptor_get(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        """Reads a C descriptor that is not one of Python's own."""
        if isinstance(raw, collections._tuplegetter) and isinstance(obj, tuple):  # type: ignore[attr-defined]
            return self.tracer.reads.list_item(obj, raw.__reduce__()[1][0], varies=True)
        if isinstance(raw, functools.partial) and obj is not None:
            cpython_warnings.warn_as(self.tracer, _bind_partial)
            if sys.version_info < (3, 14):  # which binds it
                return raw
        if type(raw).__name__ in (
            "partialmethod",
            "cached_property",
            "_lru_cache_wrapper",
        ) or callable(raw):
            return raw.__get__(obj, cls)
        raise Break("unknown_native", f"descriptor {type(raw).__name__} for attribute {name!r}")

    def _slot(self, raw: Any, obj: Any, cls: type, name: str) -> Any:
        if name == "__dict__":
            return self._class_dict(obj) if isinstance(obj, type) else self.entries.dict_of(obj)
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
        if unguarded or source is None:
            return value
        return self.provenance.read_varying(value, self.sources.slot(source, name))

    def interpolations(self, template: Any) -> list[Any]:
        """Returns the interpolations of a template string."""
        return self.tracer.containers.spread(self.getattr(template, "interpolations"))

    def template_parts(self, template: Any) -> list[Any]:
        """Returns what a loop over a template string gives: strings that are not empty, and
        interpolations."""
        texts = self.tracer.containers.spread(self.getattr(template, "strings"))
        parts = itertools.zip_longest(texts, self.interpolations(template), fillvalue="")
        flat = itertools.chain.from_iterable(parts)
        return [part for part in flat if type(part) is not str or part]

    def _wrapped(self, raw: Any) -> Any:
        """Returns the function in a staticmethod or classmethod of a class."""
        source = self.provenance.source_of(raw)
        if source is None:
            return raw.__func__
        return self.provenance.read(raw.__func__, self.sources.slot(source, "__func__"))

    def _module_member(self, obj: torch.nn.Module, name: str) -> Any:
        """Does the lookup of nn.Module.__getattr__: parameters, buffers, submodules."""
        for table in ("_parameters", "_buffers", "_modules"):
            members = self.entries.instance_entry(obj, table)
            if members is ABSENT:
                continue
            value = self.tracer.reads.dict_get(members, name, ABSENT)
            if value is not ABSENT:
                return value
        raise AttributeError(
            f"'{type(obj).__name__}' object has no attribute '{name}'", name=name, obj=obj
        )

    def special(self, obj: Any, name: str, default: Any) -> Any:
        raw = self.entries.special(type(obj), name)
        return default if raw is ABSENT else self.get_descriptor(raw, obj, type(obj), name)

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        """Traces getattr with a default."""
        try:
            return self.getattr(obj, name)
        except AttributeError:
            return default

    def has_attribute(self, obj: Any, name: str) -> bool:
        return self.getattr_or(obj, name, ABSENT) is not ABSENT

    # -- tensors, modules, classes, builtins --

    def _tensor_attribute(self, tensor: torch.Tensor, name: str) -> Any:
        if torch_private.is_subclass(tensor):
            owner, raw = self.entries.class_entry(type(tensor), name)
            if name == "__dict__":
                return self.entries.dict_of(tensor)
            if owner is not None and owner not in _TENSOR_BASES:
                return self.generic_getattr(tensor, name)
        if name == "__class__":
            return torch.Tensor if torch_private.is_fake(tensor) else type(tensor)
        if name == "__dict__":
            raise Break("unsupported_value", "__dict__ of a tensor")
        if self.recorder.program_modes and (name in _AUTOGRAD_STATE or name == "grad"):
            raise Break("torch_mode", f"{name!r} of a tensor is read inside a mode of the program")
        if name in _AUTOGRAD_STATE:
            return self._autograd_state(tensor, name)
        if name == "grad":
            return gradients.read(self.tracer, tensor)
        raw = self.entries.special(torch.Tensor, name)
        if not self.entries.is_data_descriptor(raw):
            if torch_private.is_fake(tensor):
                attribute = self.attributes_of(tensor).get(name, ABSENT)
            else:
                attribute = self.entries.instance_entry(tensor, name)
            if attribute is not ABSENT:
                return attribute
        if raw is ABSENT:
            kind = "Tensor" if torch_private.is_fake(tensor) else type(tensor).__name__
            raise AttributeError(
                f"'{kind}' object has no attribute '{name}'", name=name, obj=tensor
            )
        if isinstance(raw, types.FunctionType):
            self.provenance.constant(raw)
            return types.MethodType(raw, tensor)
        if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return raw.__get__(tensor, type(tensor))
        if type(raw) is property and isinstance(raw.fget, types.FunctionType):
            package = raw.fget.__globals__.get("__name__", "").partition(".")[0]
            if package != "torch":  # a property that the program has added
                return self.get_descriptor(raw, tensor, torch.Tensor, name)
        if isinstance(raw, (types.GetSetDescriptorType, property)):
            return self.recorder.call(raw.__get__, (tensor,), {})
        return getattr(tensor, name)

    def attributes_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Returns the attributes that the program set on an intermediate tensor."""
        return self.tensor_attributes.get(id(tensor), {})

    def _autograd_state(self, tensor: torch.Tensor, name: str) -> Any:
        """Reads autograd state. is_leaf of an input is guarded; other values change from call to
        call."""
        source = self.provenance.source_of(tensor)
        steady = name == "is_leaf" or (name == "grad_fn" and tensor.grad_fn is None)
        if source is None or self.recorder.fakes.real_was_written(tensor):
            fake = self.recorder.as_fake(tensor)  # its autograd graph equals the real one's
            if name == "is_leaf":
                return fake.is_leaf
            if name == "grad_fn" and fake.grad_fn is None:
                return None
        if source is None or not steady or self.recorder.fakes.real_was_written(tensor):
            raise Break("autograd_in_graph", f"attribute {name!r} of a tensor is read")
        return self.provenance.read(getattr(tensor, name), self.sources.slot(source, name))

    def _module_attribute(self, module: types.ModuleType, name: str) -> Any:
        namespace = module.__dict__
        source = self.provenance.source_of(module) or self.provenance.constant(module)
        cls = type(module)
        if cls is not types.ModuleType:  # torch.backends.cudnn: its flags are class properties
            owner, raw = self.entries.class_entry(cls, name)
            if (
                owner is not None
                and owner.__flags__ & HEAP_TYPE
                and self.entries.is_data_descriptor(raw)
            ):
                return self.get_descriptor(raw, module, cls, name)
        if name in namespace:
            change = self.effects.peek(namespace)
            value = namespace[name]
            if change is not None and change.decided(name):
                return value
            return self.provenance.read_varying(value, self.sources.attribute(source, name))
        if name == "__dict__":
            return self.entries.dict_of(module)
        if DEFERRED and name in ("__annotations__", "__annotate__"):
            raise Break("native_python", "annotations of a module are made")
        known = library_calls.is_known(module.__name__)
        fallback = namespace.get("__getattr__")
        if (
            type(fallback) is types.FunctionType
            and not known
            and not hasattr(types.ModuleType, name)
            and not _imports(fallback)
        ):
            self.provenance.guard(GuardKind.HAS_NOT, self.sources.namespace(source), name)
            self.provenance.read(fallback, self.sources.attribute(source, "__getattr__"))
            return self.tracer.calls.call_value(fallback, [name], {})
        # One that imports caches the value or computes it from the name.
        try:
            value = getattr(module, name)
        except AttributeError:
            for absent in (name, *(("__getattr__",) if fallback is None else ())):
                inside = self.sources.namespace(source)
                self.provenance.guard(GuardKind.HAS_NOT, inside, absent)
            raise
        if name in namespace:
            return self.provenance.read(value, self.sources.attribute(source, name))
        if not known:
            reason = f"{module.__name__}.{name} is what a function of the program returns"
            self.tracer.unguarded[reason] = None
        return self.entries.class_value(value)

    def _class_attribute(self, cls: type, name: str) -> Any:
        meta = type(cls)
        if meta is type:
            return self.static_class_attribute(cls, name)
        getter = self.entries.special(meta, "__getattribute__")
        try:
            if is_slot(getter, "__getattribute__"):
                return self.static_class_attribute(cls, name)
            return self.call_special(getter, cls, "__getattribute__", name)
        except AttributeError:
            fallback = self.entries.special(meta, "__getattr__")
            if fallback is ABSENT:
                raise
        return self.call_special(fallback, cls, "__getattr__", name)

    def static_class_attribute(self, cls: type, name: str) -> Any:
        """Traces type.__getattribute__."""
        meta = type(cls)
        meta_owner, meta_raw = self.entries.class_entry(meta, name)
        if (
            meta_owner is not None
            and self.entries.is_data_descriptor(meta_raw)
            and hasattr(type(meta_raw), "__get__")
        ):
            if meta_owner not in (type, object):
                return self.get_descriptor(meta_raw, cls, meta, name)
            if name == "__dict__":
                return self._class_dict(cls)
            if name == "__annotations__" and name not in cls.__dict__:
                raise Break("native_python", "annotations of a class without any are made")
            # The entry that `type` itself has is the descriptor.
            if name not in _CLASS_ENTRIES or name not in cls.__dict__ or cls is type:
                value = meta_raw.__get__(cls, meta)
                if is_constant(value) or isinstance(value, type):
                    return value
                return self.entries.class_value(value)
        owner, raw = self.entries.read_entry(cls, name)
        if owner is not None:
            return raw if type(raw) in NUMBERS else self._class_get(raw, cls)
        if meta_owner is not None:
            if meta_owner in (type, object):
                return getattr(cls, name)
            return self.get_descriptor(meta_raw, cls, meta, name)
        return type.__getattribute__(cls, name)  # raises Python's own error

    def _class_dict(self, cls: type) -> Any:
        """Returns the read-only view of a class's entries; reads through it are guarded."""
        proxy = cls.__dict__
        entries = class_namespace(cls)
        if not self.entries.made_class(cls) and self.provenance.source_of(entries) is None:
            self.provenance.register(entries, self.entries.namespace_of(cls))
        return proxy

    def unproxied(self, container: Any) -> Any:
        """Returns the mapping behind a read-only view; other values unchanged."""
        if type(container) is not types.MappingProxyType:
            return container
        return self.tracer.reads.viewed(container)

    def _class_get(self, raw: Any, cls: type) -> Any:
        kind = type(raw)
        if kind is types.FunctionType or kind is property:
            return raw
        if kind is staticmethod:
            return self._wrapped(raw)
        if kind is classmethod:
            return self._bound_to_class(raw, cls)
        getter = self.entries.type_has(raw, "__get__")
        if getter is ABSENT:
            return self.entries.class_value(raw)
        if not is_slot(getter, "__get__"):
            return self.tracer.calls.call_value(getter, [raw, None, cls], {})
        return self.entries.class_value(raw.__get__(None, cls))

    def _builtin_attribute(self, obj: Any, name: str) -> Any:
        """Reads an attribute of an instance of a C type."""
        if isinstance(obj, types.TracebackType) and name in _OF_TRACEBACKS:
            # in a trace it would show the interpreter's frames, not the program's
            if self.provenance.source_of(obj) is None:
                self.tracer.exceptions.look_into_traceback()
            raise Break("native_python", f"a traceback is looked into: .{name}")
        raw = self.entries.static(type(obj), name)
        if raw is ABSENT:
            value = self.entries.instance_entry(obj, name)
            if value is not ABSENT:
                return value
        if isinstance(obj, ARRAY) and name in _ARRAY_VIEWS:
            if self.provenance.is_fresh(obj):
                raise Break("unknown_native", f"a view of an array: .{name}")
            return traced_arrays.attribute(self.tracer, obj, name)
        if name == "cell_contents" and isinstance(obj, types.CellType):
            value = self.tracer.names.cell_contents(obj)
            if value is NULL:
                raise ValueError("Cell is empty")
            return value
        if (
            name == "__annotations__"
            and isinstance(obj, types.FunctionType)
            and self.provenance.is_fresh(obj)
            and annotations_are_deferred(obj)
        ):
            raise Break("native_python", f"the annotations of {obj.__qualname__} are evaluated")
        if name == "__dict__" and isinstance(raw, types.GetSetDescriptorType):
            return self.entries.dict_of(obj)
        if type(obj) is contextvars.Token and name == "old_value":  # the variable's in this call
            raise Break("side_effect_native", "the value that a context variable had is read")
        if type(obj) is TEMPLATE and name == "values":  # C code would read the interpolations
            return tuple(self.getattr(item, "value") for item in self.interpolations(obj))
        of_type = isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType))
        if isinstance(obj, types.GenericAlias) and not of_type:
            origin = self.getattr(obj, "__origin__")  # which has the attributes that it lacks
            if raw is ABSENT:
                return self.getattr(origin, name)
        value = getattr(obj, name)
        source = self.provenance.source_of(obj)
        if source is None or self.effects.attribute(obj, raw) is not None:
            return value
        if of_type:
            return self.provenance.read(value, self.sources.slot(source, name))
        return value

    # -- super() --

    def super_attribute(self, owner: Any, obj: Any, name: str) -> Any:
        cls = obj if isinstance(obj, type) and is_subtype(obj, owner) else type(obj)
        mro = cls.__mro__
        if owner not in mro:
            raise Break("native_python", "super() of an object that names another class as its own")
        for base in mro[mro.index(owner) + 1 :]:
            if name in base.__dict__:
                raw = base.__dict__[name]
                guarded = self.entries.is_guarded(base, name)
                if type(raw) in NUMBERS:
                    source = self.entries.entry_source(base, name)
                    return self.provenance.read_varying(raw, source) if guarded else raw
                if guarded:
                    self.entries.read_class_entry(raw, self.entries.entry_source(base, name), base)
                if cls is not obj:
                    return self.get_descriptor(raw, obj, cls, name)
                if isinstance(raw, staticmethod):
                    return self._wrapped(raw)
                return self._class_get(raw, cls)
        if name == "__class__":
            return super
        raise AttributeError(f"'super' object has no attribute '{name}'")


def _imports(function: types.FunctionType) -> bool:
    """Returns whether a module's __getattr__ imports what it is asked for."""
    code = function.__code__
    return not _IMPORTERS.isdisjoint(code.co_names) or any(
        instruction.opname == "IMPORT_NAME" for instruction in dis.get_instructions(code)
    )


_IMPORTERS = frozenset({"import_module", "__import__"})

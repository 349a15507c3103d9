"""Emits the Python that reconstructs a trace's values in a later call.

In: objects as they stood at the end of a trace (fakes among them). Out: lines of Python and, for
each object, an expression. An object that existed before the trace is fetched, never copied; two
references to one object stay two references to one object; cycles work. Objects of the user's
classes are made from their parts, so that none of their methods (`__init__`, `__reduce__`,
`__setstate__`, `append`, ...) runs.

Mutable objects are made empty first and filled when the expression that needed them is complete,
which allows cycles, and long chains without deep recursion.
"""

from __future__ import annotations

import _thread
import array
import collections
import enum
import functools
import gc
import random
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.annotations import DEFERRED, evaluated
from tracer_core.bytecode.frame import NULL, LazyValue
from tracer_core.bytecode.template_strings import FIELDS, INTERPOLATION, TEMPLATE
from tracer_core.bytecode.type_parameters import type_parameter
from tracer_core.fx_capture.object_mutations import Content
from tracer_core.graph_breaks import Restart, RunEagerly
from tracer_core.guards.numpy_types import ARRAY
from tracer_core.guards.source import is_identifier
from tracer_core.guards.value_kinds import IDENTITY_TYPES, is_constant
from tracer_core.native_effects import polyfills
from tracer_core.reconstruct.containers import VIEWS, dictionary_of
from tracer_core.reconstruct.emitter import CannotRebuild
from tracer_core.reconstruct.objects import ObjectRebuilder, base_of
from tracer_core.reconstruct.runtime import (
    DICT_ITERATORS,
    alias_of,
    bound_in_c,
    called,
    has_default,
    is_module_global,
    proxy_of,
    type_variable,
    union_maker,
    view_of,
)
from tracer_core.trace.attribute_lookup import Entries
from tracer_core.trace.generator_continuations import (
    can_be_data,
    frame_parts,
    new_continuation,
    set_frame,
)
from tracer_core.trace.generators import HOST_ITERATORS, LazyIterator, TracedGenerator
from tracer_core.trace.gradients import HookHandle
from tracer_core.trace.live_generators import is_stepped
from tracer_core.trace.python_rng import GAUSS_NEXT, with_state
from tracer_core.trace.special_methods import has_own_hash


class Rebuilder(ObjectRebuilder):
    """Reconstructs values. Mutable. suspends: the trace ends at a graph break, across which
    generators are live."""

    suspends = False
    #: Nesting of C objects being described; the trace does not see their parts.
    _in_native = 0

    def _value(self, obj: Any) -> str:
        if type(obj) is LazyValue:
            return self._unread(obj)
        if obj is NULL:
            return self.constant(NULL)
        if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._output(obj)
        if id(obj) in self._memo:
            return self._memo[id(obj)]
        source = self._source_of(obj)
        if source is not None:
            return self._fetch(source)
        if is_constant(obj):
            source = self.tracer.provenance.source_of_constant(obj)
            return self._identical(obj) if source is None else self._fetch(source)
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        maker = _MAKERS.get(type(obj))
        if maker is not None:
            return maker(self, obj)
        if id(obj) in self._classes:
            return self._class(self._classes[id(obj)])
        if isinstance(obj, enum.Enum) and id(type(obj)) in self._classes:
            return self._new(obj, f"{self._value(type(obj))}({self._value(obj._value_)})")
        if isinstance(obj, types.GenericAlias):
            parts = obj.__origin__, obj.__args__, obj.__unpacked__
            return self._call(obj, alias_of, type(obj), *parts)
        if isinstance(obj, IDENTITY_TYPES) or isinstance(obj, _IMMUTABLE):
            return self.constant(obj)
        if isinstance(obj, HOST_ITERATORS):
            if (
                self.suspends
                and type(obj) is TracedGenerator
                and not self._in_native
                and can_be_data(obj, is_stepped)
            ):
                return self._generator(obj)
            if type(obj) is TracedGenerator and not self.suspends and obj.is_call():
                return self._call(obj, called, obj.frame.function, *obj.arguments())
            if type(obj) is LazyIterator and obj.rest:
                return self._call(obj, *obj.rest)
            raise Restart(
                obj.allocation_step,
                "unsupported_value",
                f"the iterator {obj.code_name} outlives the segment",
            )
        if isinstance(obj, BaseException):
            return self._exception(obj)
        if is_module_global(obj):
            return self.constant(obj)
        if isinstance(obj, _ALIAS) and self._is_cached(obj):
            subscript, operands = obj.__reduce__()
            text = self._items(operands)
            self._fill_pending()  # typing looks the operands up in a cache
            known = self._made_meanwhile(obj)
            return known or self._new(obj, f"{self.constant(subscript)}({text})")
        base = None if _is_polyfill(obj) else base_of(type(obj))
        return self._reduced(obj) if base is None else self._instance(obj, base)

    def _generator(self, obj: TracedGenerator) -> str:
        """Emits a generator that is live across a graph break, with its frame as data."""
        code = obj.frame.code.raw
        has_own_names = obj.name == code.co_name and obj.code_name == code.co_qualname
        names = () if has_own_names else (obj.name, obj.code_name)
        name = self._call(obj, new_continuation, code, *names)
        self._pending.append(lambda: self.lines.append(self.frame_text(name, obj)))
        return name

    def frame_text(self, name: str, obj: TracedGenerator) -> str:
        """Returns a line that sets where a generator stands."""
        layout, values = frame_parts(obj)
        parts = "".join(f"{self._value(value)}, " for value in values)
        where = "None" if layout is None else self.constant(layout)
        return (
            f"{self.constant(set_frame)}({name}, {where}, ({parts}), {obj.started}, {obj.finished})"
        )

    def rewritten(self, name: str, obj: TracedGenerator) -> str:
        """Returns `frame_text` for a generator from before the trace; adds lines it needs."""
        return self._complete(self.frame_text, name, obj)

    def _of_subclass(self, obj: torch.Tensor, recipe: tuple[Any, ...]) -> str:
        """Emits a tensor of a subclass as it was made in the trace: of data, or of sizes alone."""
        kind = self._value(type(obj))
        if len(recipe) == 1:
            simple = self._value(recipe[0])
            name = self._new(obj, f"as_class({simple}, {kind})")
        else:
            args, kwargs = recipe
            parts = [kind, *map(self._value, args)]
            parts += [f"{key}={self._value(value)}" for key, value in kwargs.items()]
            result = self.constant(torch_private.MAKE_WRAPPER)
            name = self._new(obj, f"{result}({', '.join(parts)})")
        self._pending.append(lambda: self._set_parts(name, obj))
        return name

    def _tensor(self, obj: torch.Tensor) -> str:
        recipe = self.tracer.subclasses.recipe(obj)
        if recipe is not None:
            return self._of_subclass(obj, recipe)
        self._refuse_other_flag(obj)
        text = self._output(obj)
        attributes = self.tracer.attributes.attributes_of(obj)
        if not attributes:
            return self._remember(obj, text)
        name = self._new(obj, text)
        self._pending.append(lambda: self._set_tensor_attributes(name, attributes))
        return name

    def _refuse_other_flag(self, obj: torch.Tensor) -> None:
        """Restarts where a view leaves the graph of an input whose ``requires_grad`` the program has
        changed: the graph is given the old one."""
        changed = self.tracer.recorder.flags_changed
        if not changed or obj.layout is not torch.strided:
            return
        set_as_data = any(
            change.kind is Content and change.where.value is obj
            for change in self.tracer.effects.changes.values()
        )
        if not set_as_data:
            place = torch_private.storage_id(obj)
            for real, step in changed.items():
                fake = self.tracer.fakes.known(real)
                if fake is not None and torch_private.storage_id(fake) == place:
                    reason = "requires_grad of a tensor has changed that a result is a view of"
                    raise Restart(step, "tensor_metadata_mutation", reason)

    def _set_tensor_attributes(self, name: str, attributes: dict[str, Any]) -> None:
        if "grad" in attributes:
            self.lines.append(f"{name}.grad = {self._value(attributes['grad'])}")
        self._set_attributes(
            name, {key: value for key, value in attributes.items() if key != "grad"}
        )

    def _traceback(self, obj: types.TracebackType) -> str:
        owner = self.tracer.exceptions.owner_of_traceback(obj)
        if owner is None:
            raise RunEagerly("a traceback leaves the function without its exception")
        text = self._value(owner)
        self._fill_pending()
        return f"{text}.__traceback__"

    # -- code --

    def _function(self, obj: types.FunctionType) -> str:
        if not self.tracer.names.made_here(obj):
            return self.constant(obj)
        closure, code = obj.__closure__, obj.__code__
        cells = self._value(closure) if closure else "None"
        name = self._new(
            obj,
            f"{self.constant(types.FunctionType)}({self.constant(code)},"
            f" {self._constant_namespace(obj)}, {obj.__name__!r}, {self._value(obj.__defaults__)},"
            f" {cells})",
        )
        function = types.FunctionType(code, obj.__globals__, code.co_name, None, closure)
        for field in _FUNCTION_FIELDS:
            is_shared = _references(obj, field) > _references(function, field)
            value = getattr(obj, field, None)
            if value != getattr(function, field, None) or (type(value) is dict and is_shared):
                self._pending.append(functools.partial(self._set_field, name, field, value))
        if DEFERRED:
            self._pending.append(lambda: self._set_annotations(name, obj))
        if obj.__dict__:
            self._pending.append(lambda: self._set_attributes(name, obj.__dict__))
        return name

    def _set_annotations(self, name: str, obj: Any) -> None:
        """Gives a function the annotations that have been evaluated, or the code that does it:
        CPython drops the one where the other is set."""
        known = evaluated(obj)
        if known is not None:
            self._set_field(name, "__annotations__", known)
        elif obj.__annotate__ is not None:
            self._set_field(name, "__annotate__", obj.__annotate__)

    def _set_field(self, name: str, field: str, value: Any) -> None:
        self.lines.append(f"{name}.{field} = {self._value(value)}")

    def _constant_namespace(self, function: types.FunctionType) -> str:
        source = self._source_of(function.__globals__)
        return self._fetch(source) if source is not None else self.constant(function.__globals__)

    def _unread(self, obj: LazyValue) -> str:
        """Returns the text of a value that the trace did not read, or of a tuple and what it added."""
        if not obj.tail:
            return self._fetch(obj.source)
        if obj.is_read:
            return self._value(obj.value)
        if id(obj) in self._memo:
            return self._memo[id(obj)]
        return self._new(obj, f"{self._fetch(obj.source)} + {self._value(obj.tail)}")

    def _cell(self, obj: types.CellType) -> str:
        name = self._new(obj, f"{self.constant(types.CellType)}()")
        self._pending.append(lambda: self._fill_cell(name, obj))
        return name

    def _fill_cell(self, name: str, obj: types.CellType) -> None:
        try:
            contents = obj.cell_contents
        except ValueError:
            return
        self.lines.append(f"{name}.cell_contents = {self._value(contents)}")

    def _method(self, obj: types.MethodType) -> str:
        name = getattr(obj.__func__, "__name__", "")
        if isinstance(obj.__self__, HOST_ITERATORS):  # which replace Python's own
            if getattr(type(obj.__self__), name, None) is obj.__func__:
                return self._call(obj, getattr, obj.__self__, name)
        return self._call(obj, types.MethodType, obj.__func__, obj.__self__)

    def _bound_builtin(self, obj: Any) -> str:
        receiver = getattr(obj, "__self__", None)
        # A pybind11 function's receiver is an internal record, not an object of the program.
        described = type(receiver).__module__.startswith("pybind11")
        is_constant_receiver = isinstance(receiver, types.ModuleType) or (
            isinstance(receiver, type) and id(receiver) not in self._classes
        )
        if receiver is None or described or is_constant_receiver:
            return self.constant(obj)
        return self._call(
            obj, bound_in_c, receiver, getattr(obj, "__objclass__", None), obj.__name__
        )

    def _wrapper(self, obj: Any) -> str:
        """Emits a staticmethod or classmethod, which copies its function's name and text."""
        if is_module_global(obj, obj.__func__):
            return self.constant(obj)
        function = self._value(obj.__func__)
        known = self._made_meanwhile(obj)
        if known is not None:
            return known
        name = self._new(obj, f"{self.constant(type(obj))}({function})")
        copied = vars(type(obj)(obj.__func__))
        own = {key: value for key, value in vars(obj).items() if copied.get(key, NULL) is not value}
        self._pending.append(lambda: self._set_attributes(name, own))
        return name

    def _partial(self, obj: Any) -> str:
        parts = [self._value(obj.func), *map(self._value, obj.args)]
        keywords = self._value(obj.keywords)
        known = self._made_meanwhile(obj)  # partial() copies its keywords, which must be filled
        if known is not None:
            return known
        name = self._new(
            obj, f"{self.constant(functools.partial)}({', '.join(parts)}, **{keywords})"
        )
        if obj.__dict__:
            self._pending.append(lambda: self._set_attributes(name, obj.__dict__))
        return name

    def _hook(self, obj: HookHandle) -> str:
        """Emits a hook on a tensor from before the trace, and its handle."""
        name = self._call(obj, obj.register, obj.tensor, obj.hook)
        if obj.removed:
            self.lines.append(f"{name}.remove()")
        return name

    def _weakref(self, obj: Any) -> str:
        target = obj()
        if target is None:
            raise self._no_way(obj)
        callback = [] if obj.__callback__ is None else [obj.__callback__]
        return self._call(obj, weakref.ref, target, *callback)

    def _random(self, obj: random.Random) -> str:
        name = self._call(obj, with_state, obj.getstate())
        own = {key: value for key, value in vars(obj).items() if key != GAUSS_NEXT}
        self._pending.append(lambda: self._set_attributes(name, own))
        return name

    # -- everything else --

    def _type_parameter(self, obj: Any) -> str:
        """Emits a TypeVar, ParamSpec or TypeVarTuple, which are C types from 3.12 on. One that the
        trace did not make was reached through an alias that is a constant."""
        if self.tracer.native_calls.allocation_sites.get(id(obj), (0, None))[1] is not obj:
            return self.constant(obj)
        if sys.version_info < (3, 12):
            return self._instance(obj, object)
        defaults = {"default": obj.__default__} if has_default(obj) else {}
        simple = obj.__module__ == "typing" and is_identifier(obj.__name__)
        bracketed = getattr(obj, "__infer_variance__", True)  # typing itself calls TypeVar()
        if simple and bracketed and not defaults:  # made by def f[T]
            return self._call(obj, type_parameter, _STARS[type(obj)], obj.__name__)
        constraints, options = (), defaults
        if type(obj) is not typing.TypeVarTuple:
            options |= {
                name: value for name in _VARIANCES if (value := getattr(obj, f"__{name}__"))
            }
            options |= {} if obj.__bound__ is None else {"bound": obj.__bound__}
            constraints = getattr(obj, "__constraints__", ())
        self._items((constraints, options))
        known = self._made_meanwhile(obj)
        if known is not None:
            return known
        described = (obj.__name__, obj.__module__, constraints, options)
        return self._call(obj, type_variable, type(obj), *described)

    def _type_alias(self, obj: Any) -> str:
        """Emits what ``type A = B`` made, which no trace runs: it was reached through an alias that
        is a constant."""
        if self.tracer.native_calls.allocation_sites.get(id(obj), (0, None))[1] is obj:
            raise self._no_way(obj)
        return self.constant(obj)

    def _union(self, obj: Any) -> str:
        """Emits ``A | B``. Making one hashes its members, so that they must be filled."""
        hashes = (has_own_hash(self.tracer, value) for value in _hashed_with(obj.__args__))
        maker = None if any(hashes) else union_maker(obj)
        if maker is None:
            raise self._no_way(obj)
        self._items(obj.__args__)
        known = self._made_meanwhile(obj)
        return known or self._call(obj, maker, obj.__args__)

    def _is_cached(self, obj: Any) -> bool:
        """Returns whether a subscription gives this very alias, because typing keeps it in a cache,
        and runs no code of the program."""
        if type(obj).__module__ != "typing" or not vars(obj).keys() <= _ALIAS_PARTS:
            return False
        origin, args = obj.__reduce__()[1]
        if isinstance(origin, type) and origin is not _ANNOTATED:
            result = Entries.static(origin, "__class_getitem__")
            simple = result is typing.Generic.__dict__["__class_getitem__"]
            if not simple or self.tracer.entries.made_class(origin):
                return False
        try:
            return self._has_builtin_hash(args) and origin[args] is obj
        except TypeError:  # typing makes some aliases of what it refuses in a subscription
            return False

    def _has_builtin_hash(self, args: Any) -> bool:
        return all(
            type(value).__hash__ is not None and not has_own_hash(self.tracer, value)
            for value in _hashed_with(args)
        )

    def _refused(self, obj: Any) -> str:
        """Rejects an object that replaces one of Python's own only while a trace runs."""
        raise self._no_way(obj)

    def _reduced(self, obj: Any) -> str:
        """Emits an object of a C type from its pickle description (`__reduce_ex__`)."""
        kind = type(obj)
        if kind.__module__ not in _C_MODULES and not _is_polyfill(obj):
            raise self._no_way(obj)
        try:
            if isinstance(obj, ARRAY) and obj.base is not None:  # type: ignore[attr-defined]
                raise CannotRebuild("a view of an array", type(obj))
            described = obj.__reduce_ex__(4)
        except Exception as error:
            raise self._no_way(obj) from error
        if isinstance(described, str):
            return self.constant(obj)
        function, args, state, items = (*described, None, None)[:4]
        if items is not None or (state is not None and not hasattr(kind, "__setstate__")):
            raise self._no_way(obj)
        if not _is_polyfill(obj) and not _gives(function, args, kind):
            raise self._no_way(obj)
        self._alive.append(described)
        self._in_native += 1
        text = self._items(args)
        self._in_native -= 1
        known = self._made_meanwhile(obj)
        if known is not None:
            return known
        name = self._new(obj, f"{self.constant(function)}({text})")
        if state is not None:
            # An iterator's position is cut to the length of its list, which side effects may still
            # change.
            lines = self.late_lines if kind in _POSITIONED else self.lines
            lines.append(f"{name}.__setstate__({self._value(state)})")
        return name


def _gives(function: Any, args: tuple[Any, ...], kind: type) -> bool:
    """Returns whether a pickle description makes an object of the very type, not a substitute."""
    if function in (iter, reversed) and len(args) == 1:
        return type(function(args[0])) is kind
    return not isinstance(function, type) or function is kind or kind.__module__.startswith("numpy")


def _hashed_with(value: Any) -> Iterator[Any]:
    """Yields what is hashed when this argument of an alias is, but for typing's own objects."""
    if isinstance(value, tuple):
        for item in value:
            yield from _hashed_with(item)
    elif isinstance(value, _ALIAS):
        yield from _hashed_with((value.__args__, getattr(value, "__metadata__", ())))
    elif type(value).__module__ not in ("typing", "annotationlib"):
        yield value


def _is_polyfill(obj: Any) -> bool:
    """Returns whether an object is the tracer's own, describing one of torch's."""
    return type(obj).__module__.startswith("tracer_core.")


def _references(function: types.FunctionType, field: str) -> int:
    """Returns how many references there are to the value of a field; an empty dictionary, which
    Python makes when it is read, has that of the function alone."""
    return sys.getrefcount(getattr(function, field, None))


_FUNCTION_FIELDS = (
    "__qualname__",
    "__doc__",
    "__module__",
    "__kwdefaults__",
    *(() if DEFERRED else ("__annotations__",)),
    "__type_params__",
)
_ALIAS: Any = typing._GenericAlias  # type: ignore[attr-defined]
_ANNOTATED: Any = typing.Annotated
#: The attributes that typing gives an alias.
_ALIAS_PARTS = vars(typing.Annotated[int, 0]).keys() | {"__module__", "_paramspec_tvars"}
#: The type of what ``type A = B`` makes (3.12).
_ALIAS_STATEMENTS: tuple[type, ...] = (
    (typing.TypeAliasType,) if sys.version_info >= (3, 12) else ()  # type: ignore[attr-defined,unused-ignore]
)
_STARS = {typing.TypeVar: "", typing.ParamSpec: "**", typing.TypeVarTuple: "*"}
_VARIANCES = ("covariant", "contravariant", "infer_variance")
_POSITIONED: tuple[type, ...] = (type(iter([])), type(reversed([])))
#: Objects that are immutable and hold only immutable objects.
_IMMUTABLE = (
    re.Pattern, re.Match, torch.finfo, torch.iinfo,
    *torch_private.DEVICE_PROPERTIES,
)  # fmt: skip
#: Modules of C types whose pickle description is complete and made without user code.
_C_MODULES = frozenset(
    {"builtins", "itertools", "functools", "operator", "_operator", "collections", "datetime",
    "decimal", "types",
     "torch.return_types", "torch", "fractions", "zoneinfo", "uuid", "numpy", "numpy.dtypes"}
)  # fmt: skip
#: Objects that one call makes -> the function, and its arguments.
_CALLS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    slice: lambda obj: (slice, obj.start, obj.stop, obj.step),
    INTERPOLATION: lambda obj: (INTERPOLATION, *(getattr(obj, field) for field in FIELDS)),
    TEMPLATE: lambda obj: (TEMPLATE, *obj),
    super: lambda obj: (super, obj.__thisclass__, obj.__self__),
    property: lambda obj: (property, obj.fget, obj.fset, obj.fdel, obj.__doc__),
    types.MappingProxyType: lambda obj: (proxy_of, *gc.get_referents(obj)),
    type(_thread.allocate_lock()): lambda obj: (_thread.allocate_lock,),  # no trace ends inside one
    _thread.RLock: lambda obj: (_thread.RLock,),
    typing.ParamSpecArgs: lambda obj: (typing.ParamSpecArgs, obj.__origin__),
    typing.ParamSpecKwargs: lambda obj: (typing.ParamSpecKwargs, obj.__origin__),
    **dict.fromkeys(VIEWS, lambda obj: (view_of, VIEWS[type(obj)], dictionary_of(obj))),
}
_MAKERS: dict[type, Callable[[Rebuilder, Any], str]] = {
    list: Rebuilder._list,
    tuple: Rebuilder._tuple,
    torch.Size: Rebuilder._size,
    dict: Rebuilder._dict,
    collections.OrderedDict: Rebuilder._ordered,
    collections.defaultdict: Rebuilder._defaultdict,
    set: Rebuilder._set,
    frozenset: Rebuilder._frozenset,
    collections.deque: Rebuilder._deque,
    bytearray: Rebuilder._buffer,
    array.array: Rebuilder._buffer,
    types.FunctionType: Rebuilder._function,
    types.CellType: Rebuilder._cell,
    types.MethodType: Rebuilder._method,
    types.BuiltinFunctionType: Rebuilder._bound_builtin,
    types.MethodWrapperType: Rebuilder._bound_builtin,
    functools.partial: Rebuilder._partial,
    types.UnionType: Rebuilder._union,
    HookHandle: Rebuilder._hook,
    staticmethod: Rebuilder._wrapper,
    classmethod: Rebuilder._wrapper,
    random.Random: Rebuilder._random,
    weakref.ReferenceType: Rebuilder._weakref,
    types.TracebackType: Rebuilder._traceback,
    polyfills.GroupBy: Rebuilder._refused,
    polyfills.FinishedWork: Rebuilder._refused,
    type(iter(collections.deque())): Rebuilder._deque_iterator,
    type(reversed(collections.deque())): Rebuilder._deque_iterator,
    **dict.fromkeys(_CALLS, lambda r, obj: r._call(obj, *_CALLS[type(obj)](obj))),
    **dict.fromkeys(DICT_ITERATORS, Rebuilder._dict_iterator),
    type(iter(collections.OrderedDict())): Rebuilder._ordered_iterator,
    type(iter(set())): Rebuilder._set_iterator,
    **dict.fromkeys(_STARS, Rebuilder._type_parameter),
    **dict.fromkeys(_ALIAS_STATEMENTS, Rebuilder._type_alias),
}

"""Describes the objects that a cache entry refers to as JSON, for `find` in another
process.

Raises NotPortable with the reason, before anything is written, if an object could not be found
again, or if it is not known what its identity stands for.
"""

from __future__ import annotations

import ast
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch

from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.entry.resume import ResumeFunction
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.execution.store.code_identity import Unknown, digest_of, shown
from tracer_core.guards.cached_calls import WithRest
from tracer_core.guards.object_layout import HEAP_TYPE, flags, mro, namespace
from tracer_core.guards.own_reference import OwnReference, object_of
from tracer_core.guards.source import Source, SourceKind, SourceTrait
from tracer_core.limits import MAX_WRAPPERS
from tracer_core.torch_private import settings
from tracer_core.torch_private.modules import C_MODULES


class NotPortable(Exception):
    """A cache entry refers to something that another process cannot find."""


def _import_path(obj: Any) -> str | None:
    """Returns ``module:qualname`` if importing it gives this very object. Runs no user code."""
    if isinstance(obj, types.ModuleType):
        return f"{obj.__name__}:" if sys.modules.get(obj.__name__) is obj else None
    module, name = _names_of(obj)
    for candidate in [module] if module else ["torch", *C_MODULES, "builtins", "math"]:
        result = _at(sys.modules.get(candidate), name)
        for suffix, inner in _with_inner(result):
            if inner is obj and obj is not None:
                return f"{candidate}:{name}{suffix}"
    for other, named in vars(types).items() if isinstance(obj, type) else ():
        if named is obj:
            return f"types:{other}"
    short = name.rpartition(".")[2]
    for candidate in ("torch", "torch.nn.functional", *C_MODULES):
        if short and _at(sys.modules.get(candidate), short) is obj:
            return f"{candidate}:{short}"
    return None


def _class_of_module(cls: type) -> tuple[str, int] | None:
    """Returns a module that is an instance of a class of its own (torch.backends), and the class's
    place among that one's bases."""
    for name, module in list(sys.modules.items()):
        kind = type(module)
        if kind is not types.ModuleType and issubclass(kind, types.ModuleType):
            for place, base in enumerate(mro(kind)):
                if base is cls:
                    return name, place
    return None


def _with_inner(result: Any) -> Iterator[tuple[str, Any]]:
    """Yields an object and what its attributes lead to, with these attributes."""
    yield "", result
    for part in _INNER.get(type(result), ()):
        yield f".{part}", getattr(result, part)
    suffix = ""
    for _ in range(MAX_WRAPPERS):
        result, suffix = _part(result, "__wrapped__"), f"{suffix}.__wrapped__"
        if result is None:
            return
        yield suffix, result


#: What a class holds in place of a function -> the attributes that may be the object.
_INNER: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}


def _names_of(obj: Any) -> tuple[str | None, str]:
    """Returns the names of the module and of the object in it, as it says itself."""
    if isinstance(obj, type):
        described: Any = type.__dict__
        result = [described[part].__get__(obj) for part in ("__module__", "__qualname__")]
    elif flags(type(obj)) & HEAP_TYPE and _answers_any_name(type(obj)):
        return None, ""
    else:
        result = [getattr(obj, part, None) for part in ("__module__", "__qualname__")]
        if type(result[1]) is not str:
            result[1] = getattr(obj, "__name__", None)
    module, name = result
    return (module if type(module) is str else None), (name if type(name) is str else "")


def _answers_any_name(cls: type) -> bool:
    """Returns whether looking up an attribute of an instance runs the program's code."""
    return any(
        isinstance(namespace(base).get(hook), types.FunctionType)
        for base in mro(cls)
        for hook in ("__getattr__", "__getattribute__", "__module__", "__qualname__", "__name__")
    )


def _at(result: Any, path: str) -> Any:
    for part in path.split("."):
        result = _part(result, part)
    return result


def _part(result: Any, part: str) -> Any:
    """Returns an entry of a module, class or function, or a field of a descriptor; else None."""
    if isinstance(result, type):
        return namespace(result).get(part)
    if type(result) in _INNER:
        return getattr(result, part, None)
    if isinstance(result, (types.ModuleType, types.FunctionType, functools._lru_cache_wrapper)):
        return vars(result).get(part)
    return None


class Describer:
    """Describes the constants of one cache entry as JSON values. compiled: the function that it is
    an entry of, which another process has at hand."""

    def __init__(self, record: Captured, compiled: Any) -> None:
        self.record, self.compiled = record, compiled
        #: ids of the objects that are being described.
        self._open: set[int] = set()
        self._functions = {f.__code__: f for f in record.portable.functions}
        self._by_object = {
            id(_behind(record.constants[name])): source
            for name, source in record.portable.paths.items()
        }

    def constant(self, name: str, obj: Any) -> Any:
        try:
            return self._exact(obj) if name in self.record.portable.exact else self.describe(obj)
        except NotPortable as error:
            raise NotPortable(f"constant {name}: {error}") from None

    def _exact(self, obj: Any) -> Any:
        """Describes a number, text or tuple that must be this very object."""
        source = self._by_object.get(id(obj))
        if source is not None:
            return {"path": [self._steps(source), None]}
        for function in self.record.portable.functions:
            for position, constant in enumerate(function.__code__.co_consts):
                if constant is obj and self.known(function):
                    return {"constant_of": [self.describe(function), position]}
        raise NotPortable(f"{shown(obj)} is to be one object of several equal ones")

    def describe(self, obj: Any) -> Any:
        if obj is self.compiled:
            return {"compiled": _digest(obj)}
        if id(obj) in self._open:
            raise NotPortable(f"{shown(obj)} is found only through itself")
        self._open.add(id(obj))
        try:
            return self._described(obj)
        finally:
            self._open.discard(id(obj))

    def _described(self, obj: Any) -> Any:
        if type(obj) in (list, set) and id(obj) in self._by_object:  # the program's
            return {"path": [self._steps(self._by_object[id(obj)]), None]}
        for kind, how in _DESCRIBE.items():
            if isinstance(obj, kind):
                described = how(self, obj)
                if described is not None:
                    return described
        path = _import_path(obj)
        if path is not None:
            return {"import": [path, _digest(obj)]}
        source = self._by_object.get(id(obj))
        if source is not None:
            return {"path": [self._steps(source), _digest(obj)]}
        of_module = _class_of_module(obj) if isinstance(obj, type) else None
        if of_module is not None:
            return {"class_of": [*of_module, _digest(obj)]}
        if type(obj) is functools.partial:  # the tracer's own: a question that guards ask again
            parts = [obj.func, list(obj.args), list(obj.keywords), list(obj.keywords.values())]
            return {"partial": [self.describe(part) for part in parts]}
        if type(obj) is WithRest:
            parts = [obj.cached, list(obj.rest), list(obj.kwargs), list(obj.kwargs.values())]
            return {"with_rest": [self.describe(part) for part in parts]}
        raise NotPortable(f"{shown(obj)} has no import path")

    def _steps(self, source: Source) -> list[Any]:
        """Returns the path as a root and steps of (kind, key)."""
        if source.base is not None and source.kind.follow is None:
            raise NotPortable(f"{source.name} is no path of names and keys")
        has_tuple = SourceTrait.TUPLE_KEY in source.kind.traits
        if not has_tuple and not _is_json(source.key):
            raise NotPortable(f"{source.name} is found by a {type(source.key).__name__}")
        if source.base is None:
            if source.kind is SourceKind.MODULE:
                return [[source.kind.stored, source.key]]
            if source.kind is not SourceKind.CONST:
                raise NotPortable(f"{source.name} is reached through arguments alone")
            held = self.record.portable.path_constants[source.key[0]]
            return [["object", self.describe(object_of(held))]]
        return [*self._steps(source.base), [source.kind.stored, source.key]]

    def known(self, function: types.FunctionType) -> bool:
        """Returns whether the function exists before a call. A function that the program itself
        makes is part of the code that makes it."""
        return (
            function is self.compiled
            or _import_path(function) is not None
            or id(function) in self._by_object
        )

    def code(self, code: types.CodeType) -> Any:
        function = self._functions.get(code)
        if function is None:
            raise NotPortable(f"the code object {code.co_qualname} was made by the program")
        return {"code": self.describe(function)}

    def member(self, obj: enum.Enum) -> Any:
        members = type(obj).__members__
        if members.get(obj.name) is not obj:
            raise NotPortable(f"{shown(obj)} has no name in its enumeration")
        return {"enum": [self.describe(type(obj)), obj.name, _digest(obj)]}

    def namespace(self, space: dict[Any, Any]) -> Any:
        """Describes the globals of a module, or of a function with its own globals (namedtuple's
        __new__)."""
        module = sys.modules.get(space.get("__name__", ""))
        if module is not None and module.__dict__ is space:
            return {"globals": module.__name__}
        for function in self.record.portable.functions:
            if function.__globals__ is space:
                return {"globals_of": self.describe(function)}
        return None

    def layouts(self, layouts: tuple[FrameLayout, ...]) -> list[dict[str, Any]]:
        return [
            {item.name: getattr(f, item.name) for item in fields(f)} | {"code": self.code(f.code)}
            for f in layouts
        ]


def _is_json(key: Any) -> bool:
    """Returns whether JSON gives a key of a step back as it is."""
    return key is None or type(key) in (str, int, bool)


def _digest(obj: Any) -> str | None:
    try:
        return digest_of(obj)
    except Unknown as error:
        raise NotPortable(f"{shown(obj)}: {error}") from None


def _behind(constant: Any) -> Any:
    """Returns the object that a constant of generated code stands for."""
    return constant() if type(constant) is OwnReference else constant


def _collection(describer: Describer, obj: Any) -> Any:
    literal = _literal(describer, obj)
    if literal is not None:
        return literal
    if type(obj) not in (list, set, tuple):
        return None
    return {"members": [type(obj).__name__, [describer.describe(item) for item in obj]]}


def _literal(_: Any, obj: Any) -> Any:
    try:
        text = repr(obj)
        if ast.literal_eval(text) == obj:
            return {"literal": text}
    except (ValueError, SyntaxError):
        pass
    return None


_DESCRIBE: dict[Any, Callable[[Describer, Any], Any]] = {
    ResumeFunction: lambda d, obj: {
        "layouts": [d.layouts(obj.layouts), obj.raises, obj.follows_graph]
    },
    OwnReference: lambda d, obj: {"weak": d.describe(obj())},
    type(NULL): lambda d, obj: {"null": True},
    settings.Getter: lambda d, obj: {"setting": obj.name},
    torch.dtype: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.layout: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.memory_format: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.device: lambda d, obj: {"device": str(obj)},
    torch.Size: lambda d, obj: {"size": list(obj)},
    types.CodeType: lambda d, obj: d.code(obj),
    enum.Enum: lambda d, obj: d.member(obj),
    InputSnapshot: lambda d, obj: {"snapshot": sorted(obj.always)},
    (list, set, tuple): _collection,
    (frozenset, float, complex, range, str, int, bytes): _literal,
    dict: lambda d, obj: d.namespace(obj),
}

"""Describes the objects that a cache entry refers to as JSON, for `object_references` in another
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
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.frame_layout import FrameLayout
from tracer_core.execution.capture_result import Captured
from tracer_core.execution.code_identity import Unknown, digest_of
from tracer_core.execution.input_snapshot import InputSnapshot
from tracer_core.execution.resume import Transition
from tracer_core.guards.own_reference import OwnReference, object_of
from tracer_core.guards.source import Source
from tracer_core.torch_private import settings
from tracer_core.torch_private.modules import C_MODULES


class NotPortable(Exception):
    """A cache entry refers to something that another process cannot find."""


def _import_path(obj: Any) -> str | None:
    """Returns ``module:qualname`` if importing it gives this very object."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if isinstance(obj, types.ModuleType):
        return f"{obj.__name__}:" if sys.modules.get(obj.__name__) is obj else None
    candidates = [module] if module else ["torch", *C_MODULES, "builtins", "math"]
    for candidate in candidates:
        found: Any = sys.modules.get(candidate)
        try:
            for part in (name or "").split("."):
                found = found.__dict__[part] if isinstance(found, type) else getattr(found, part)
        except (AttributeError, KeyError):
            continue
        for suffix in ("", "fget", "fset", "fdel", "__func__", "__wrapped__"):
            if (getattr(found, suffix, None) if suffix else found) is obj:
                return f"{candidate}:{name}" + (f".{suffix}" if suffix else "")
    for name, named in vars(types).items() if isinstance(obj, type) else ():
        if named is obj:
            return f"types:{name}"
    for candidate in ("torch", "torch.nn.functional", *C_MODULES):
        short = getattr(obj, "__name__", "")
        if short and getattr(sys.modules.get(candidate), short, None) is obj:
            return f"{candidate}:{short}"
    return None


class Describer:
    """Describes the constants of one cache entry as JSON values. compiled: the function that it is
    an entry of, which another process has at hand."""

    def __init__(self, record: Captured, compiled: Any) -> None:
        self.record, self.compiled = record, compiled
        self._functions = {f.__code__: f for f in record.portable.functions}
        self._by_object = {
            id(_behind(record.constants[name])): source
            for name, source in record.portable.paths.items()
        }

    def constant(self, name: str, obj: Any) -> Any:
        try:
            return self.describe(obj)
        except NotPortable as error:
            raise NotPortable(f"constant {name}: {error}") from None

    def describe(self, obj: Any) -> Any:
        if obj is self.compiled:
            return {"compiled": _digest(obj)}
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
        if type(obj) is functools.partial:  # the tracer's own: a question that guards ask again
            parts = [obj.func, list(obj.args), list(obj.keywords), list(obj.keywords.values())]
            return {"partial": [self.describe(part) for part in parts]}
        raise NotPortable(
            f"{type(obj).__module__}.{type(obj).__qualname__} {obj!r:.80} has no import path"
        )

    def _steps(self, source: Source) -> list[Any]:
        """Returns the path as a root and steps of (kind, key)."""
        if not _is_json(source.key) and source.kind not in _WITH_TUPLES:
            raise NotPortable(f"{source.name} is found by a {type(source.key).__name__}")
        if source.base is None:
            if source.kind == "module":
                return [["module", source.key]]
            held = self.record.portable.path_constants[source.key[0]]
            return [["object", self.describe(object_of(held))]]
        return [*self._steps(source.base), [source.kind, source.key]]

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

    def namespace(self, namespace: dict[Any, Any]) -> Any:
        """Describes the globals of a module, or of a function with its own globals (namedtuple's
        __new__)."""
        module = sys.modules.get(namespace.get("__name__", ""))
        if module is not None and module.__dict__ is namespace:
            return {"globals": module.__name__}
        for function in self.record.portable.functions:
            if function.__globals__ is namespace:
                return {"globals_of": self.describe(function)}
        return None

    def layouts(self, layouts: tuple[FrameLayout, ...]) -> list[dict[str, Any]]:
        return [
            {one.name: getattr(f, one.name) for one in fields(f)} | {"code": self.code(f.code)}
            for f in layouts
        ]


#: Steps whose key is a tuple of plain values.
_WITH_TUPLES = frozenset({"cell", "own_item", "const"})


def _is_json(key: Any) -> bool:
    """Returns whether JSON gives a key of a step back as it is."""
    return key is None or type(key) in (str, int, bool)


def _digest(obj: Any) -> str | None:
    try:
        return digest_of(obj)
    except Unknown as error:
        raise NotPortable(f"{obj!r:.80}: {error}") from None


def _behind(constant: Any) -> Any:
    """Returns the object that a constant of generated code stands for."""
    return constant() if type(constant) is OwnReference else constant


def _collection(describer: Describer, obj: Any) -> Any:
    literal = _literal(describer, obj)
    if literal is not None:
        return literal
    if type(obj) not in (list, set, tuple):
        return None
    return {"members": [type(obj).__name__, [describer.describe(one) for one in obj]]}


def _literal(_: Any, obj: Any) -> Any:
    text = repr(obj)
    try:
        if ast.literal_eval(text) == obj:
            return {"literal": text}
    except (ValueError, SyntaxError):
        pass
    return None


_DESCRIBE: dict[Any, Callable[[Describer, Any], Any]] = {
    Transition: lambda d, obj: {"layouts": [d.layouts(obj.layouts), obj.raises]},
    OwnReference: lambda d, obj: {"weak": d.describe(obj())},
    type(NULL): lambda d, obj: {"null": True},
    settings.Getter: lambda d, obj: {"setting": obj.name},
    torch.dtype: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.layout: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.memory_format: lambda d, obj: {"torch": str(obj).removeprefix("torch.")},
    torch.device: lambda d, obj: {"device": str(obj)},
    torch.Size: lambda d, obj: {"size": list(obj)},
    types.CodeType: lambda d, obj: d.code(obj),
    enum.Enum: lambda d, obj: {"enum": [d.describe(type(obj)), obj.name, _digest(obj)]},
    InputSnapshot: lambda d, obj: {"snapshot": sorted(obj.always)},
    (list, set, tuple): _collection,
    (frozenset, float, complex, range, str, int, bytes): _literal,
    dict: lambda d, obj: d.namespace(obj),
}

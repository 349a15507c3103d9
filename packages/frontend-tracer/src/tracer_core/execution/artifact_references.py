"""Describes the objects that a stored cache entry refers to as JSON, and finds them again in
another process.

An object is found by import, by a path from an imported object, or is made from its text; nothing
is unpickled. What is found must be what it was: its digest (`code_identity.digest_of`) is compared.
Describing raises NotPortable with the reason, before anything is written, if an object could not be
found again; finding raises StoredError.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.frame_layout import FrameLayout
from tracer_core.errors import TracerError
from tracer_core.execution.capture_result import Captured
from tracer_core.execution.code_identity import Unknown, digest_of
from tracer_core.execution.resume import Transition
from tracer_core.guards.own_reference import OwnReference, object_of
from tracer_core.guards.source import Source
from tracer_core.torch_private import settings
from tracer_core.torch_private.modules import C_MODULES


class StoredError(TracerError):
    """A file of stored cache entries cannot be used. The text says why and what to do."""


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
    (list, set): _collection,
    (frozenset, float, complex, range, str, int, bytes): _literal,
    dict: lambda d, obj: d.namespace(obj),
}


class Finder:
    """Finds described objects in this process. path: of the file, for messages. compiled: the
    function that the entries are for."""

    def __init__(self, path: str, compiled: Any) -> None:
        self.path, self.compiled = path, compiled
        #: id -> (an object that was found, its digest).
        self._digests: dict[int, tuple[Any, str | None]] = {}

    def same(self, obj: Any, digest: str | None) -> Any:
        """Returns an object that was found; raises StoredError if it is not what it was."""
        known = self._digests.get(id(obj))
        if known is None:
            try:
                known = self._digests[id(obj)] = obj, digest_of(obj)
            except Unknown as error:
                raise StoredError(f"{self.path}: {obj!r:.80}: {error}") from error
        if known[1] != digest:
            name = getattr(obj, "__qualname__", None) or f"{obj!r:.80}"
            raise StoredError(f"{self.path}: {name} has changed since; store the entries again")
        return obj

    def find(self, described: dict[str, Any]) -> Any:
        ((kind, value),) = described.items()
        try:
            return _FIND[kind](self, value)
        except (ImportError, AttributeError, KeyError, IndexError, TypeError) as error:
            raise StoredError(
                f"{self.path}: cannot find {described}: {error}; store the entries again"
            ) from error

    def layouts(self, described: list[Any]) -> tuple[FrameLayout, ...]:
        def value(name: str, stored: Any) -> Any:
            if name == "code":
                return self.find(stored)
            return tuple(stored) if isinstance(stored, list) else stored

        return tuple(
            FrameLayout(**{name: value(name, one) for name, one in row.items()})
            for row in described
        )


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        is_entry = isinstance(found, type) and part in found.__dict__
        found = found.__dict__[part] if is_entry else getattr(found, part)
    return found


_STEPS: dict[str, Callable[[Finder, Any, Any], Any]] = {
    "object": lambda f, base, key: f.find(key),
    "module": lambda f, base, key: importlib.import_module(key),
    "dict": lambda f, base, key: base.__dict__,
    "key": lambda f, base, key: base[key],
    "item": lambda f, base, key: base[key],
    "own_key": lambda f, base, key: dict.__getitem__(base, key),
    "own_item": lambda f, base, key: (list if key[0] == "list" else tuple).__getitem__(
        base, key[1]
    ),
    "slot": lambda f, base, key: getattr(base, key),
    "grad": lambda f, base, key: base.grad,
    "number": lambda f, base, key: base.item(),
    "cell": lambda f, base, key: base.__closure__[key[0]],
    "contents": lambda f, base, key: base.cell_contents,
    "type": lambda f, base, key: type(base),
    "called": lambda f, base, key: base(),
}


def _partial(finder: Finder, parts: list[Any]) -> Any:
    function, args, names, values = map(finder.find, parts)
    return functools.partial(function, *args, **dict(zip(names, values, strict=True)))


def _walk(finder: Finder, steps: list[Any]) -> Any:
    found: Any = None
    for kind, key in steps:
        found = _STEPS[kind](finder, found, key)
    return found


_FIND: dict[str, Callable[[Finder, Any], Any]] = {
    "compiled": lambda f, value: f.same(f.compiled, value),
    "import": lambda f, value: f.same(_import(value[0]), value[1]),
    "path": lambda f, value: f.same(_walk(f, value[0]), value[1]),
    "partial": _partial,
    "layouts": lambda f, value: Transition(f.layouts(value[0]), value[1]),
    "weak": lambda f, value: OwnReference(f.find(value)),
    "null": lambda f, value: NULL,
    "setting": lambda f, value: settings.SETTINGS[value].get,
    "torch": lambda f, value: getattr(torch, value),
    "device": lambda f, value: torch.device(value),
    "size": lambda f, value: torch.Size(value),
    "code": lambda f, value: f.find(value).__code__,
    "enum": lambda f, value: f.same(f.find(value[0])[value[1]], value[2]),
    "literal": lambda f, value: ast.literal_eval(value),
    "members": lambda f, value: {"list": list, "set": set}[value[0]](map(f.find, value[1])),
    "globals": lambda f, value: importlib.import_module(value).__dict__,
    "globals_of": lambda f, value: f.find(value).__globals__,
}

"""Finds the objects that a stored cache entry refers to.

An object is found by import, by a path from an imported object, or is made from its text; nothing
is unpickled. What is found must be what it was: its digest (`code_identity.digest_of`) is compared.
`describe` writes the references.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.errors import StoredError
from tracer_core.execution.entry.resume import ResumeFunction
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.execution.store.code_identity import Unknown, digest_of, shown
from tracer_core.guards.cached_calls import WithRest
from tracer_core.guards.object_layout import mro
from tracer_core.guards.own_reference import OwnReference
from tracer_core.guards.source import SourceKind
from tracer_core.torch_private import settings


class OtherSettings(StoredError):
    """An entry was captured under settings of torch, or with distributions, that are others now."""


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
                raise StoredError(f"{self.path}: {shown(obj)}: {error}") from error
        if known[1] != digest:
            raise StoredError(
                f"{self.path}: {shown(obj)} has changed since; store the entries again"
            )
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
            FrameLayout(**{name: value(name, item) for name, item in row.items()})
            for row in described
        )


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    attribute: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        is_entry = isinstance(attribute, type) and part in attribute.__dict__
        attribute = attribute.__dict__[part] if is_entry else getattr(attribute, part)
    return attribute


def _call(kind: Any, finder: Finder, parts: list[Any]) -> Any:
    function, args, names, values = map(finder.find, parts)
    return kind(function, *args, **dict(zip(names, values, strict=True)))


def _walk(finder: Finder, steps: list[Any]) -> Any:
    result: Any = None
    for kind, key in steps:
        if kind == "object":  # the root of a path, where it is no module
            result = finder.find(key)
            continue
        follow = SourceKind[kind.upper()].follow
        assert follow is not None
        result = follow(result, key)
    return result


_FIND: dict[str, Callable[[Finder, Any], Any]] = {
    "compiled": lambda f, value: f.same(f.compiled, value),
    "import": lambda f, value: f.same(_import(value[0]), value[1]),
    "path": lambda f, value: f.same(_walk(f, value[0]), value[1]),
    "class_of": lambda f, value: f.same(
        mro(type(importlib.import_module(value[0])))[value[1]], value[2]
    ),
    "constant_of": lambda f, value: f.find(value[0]).__code__.co_consts[value[1]],
    "partial": functools.partial(_call, functools.partial),
    "with_rest": functools.partial(_call, WithRest),
    "layouts": lambda f, value: ResumeFunction(
        f.layouts(value[0]), value[1], value[2], stored=True
    ),
    "weak": lambda f, value: OwnReference(f.find(value)),
    # one that was not used yet
    "snapshot": lambda f, value: InputSnapshot(frozenset(value), True),
    "null": lambda f, value: NULL,
    "setting": lambda f, value: settings.SETTINGS[value].get,
    "torch": lambda f, value: getattr(torch, value),
    "device": lambda f, value: torch.device(value),
    "size": lambda f, value: torch.Size(value),
    "code": lambda f, value: f.find(value).__code__,
    "enum": lambda f, value: f.same(f.find(value[0])[value[1]], value[2]),
    "literal": lambda f, value: ast.literal_eval(value),
    "members": lambda f, value: {"list": list, "set": set, "tuple": tuple}[value[0]](
        map(f.find, value[1])
    ),
    "globals": lambda f, value: importlib.import_module(value).__dict__,
    "globals_of": lambda f, value: f.find(value).__globals__,
}

"""Describes the objects that a cache entry refers to as JSON, and finds them in another process.

Constants and containers are `values`'; here is what only a cache entry refers to: objects that are
found by import or by a path from an imported object, and the tracer's own. Nothing is unpickled. What
is found must be what it was: its digest (`code_identity.digest_of`) is compared.

Raises NotPortable with the reason, before anything is written, if an object could not be found
again, or if it is not known what its identity stands for.
"""

from __future__ import annotations

import enum
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.resume_points import FrameLayout, GeneratorPosition
from tracer_core.errors import StoredError
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.entry.resume_function import ResumeFunction
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.execution.store.code_identity import (
    Unknown,
    code_hash,
    digest_of,
    shown,
    source_text,
)
from tracer_core.execution.store.values import (
    Describer,
    Node,
    NotPortable,
    constant,
    contents,
    kind_of,
    restore,
)
from tracer_core.guards.cached_calls import WithRest
from tracer_core.guards.object_layout import HEAP_TYPE, flags, mro, namespace
from tracer_core.guards.own_reference import OwnReference, object_of
from tracer_core.guards.source import Source, SourceKind, SourceTrait
from tracer_core.limits import MAX_WRAPPERS
from tracer_core.torch_private import settings
from tracer_core.torch_private.modules import C_MODULES


class OtherSettings(StoredError):
    """An entry was captured under settings of torch, or with distributions, that are others now."""


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


class EntryDescriber(Describer):
    """Describes the constants of one cache entry.

    Args:
        record: The entry.
        compiled: The function that it is an entry of, which another process has at hand.
    """

    def __init__(self, record: Captured, compiled: Any) -> None:
        super().__init__(self._object)
        self.record, self.compiled = record, compiled
        self._functions = {f.__code__: f for f in record.portable.functions}
        self._by_object = {
            id(_behind(record.constants[name])): source
            for name, source in record.portable.paths.items()
        }

    def constant(self, name: str, obj: Any) -> Node:
        """Returns the description of a constant of the entry's code."""
        try:
            return self._exact(obj) if name in self.record.portable.exact else self.refer(obj)
        except NotPortable as error:
            raise NotPortable(f"constant {name}: {error}") from None

    def refer(self, obj: Any) -> Node:
        return self.describe(obj, shown(obj))

    def _exact(self, obj: Any) -> Any:
        """Describes a number, text or tuple that must be this very object."""
        source = self._by_object.get(id(obj))
        if source is not None:
            return {"path": [self._steps(source), None]}
        for function in self.record.portable.functions:
            for position, item in enumerate(function.__code__.co_consts):
                if item is obj and self.known(function):
                    return {"constant_of": [self.refer(function), position]}
        for holder in self._holders_of_names():
            for name in _NAMES:
                if _name_of(holder, name) is obj:
                    return {"name_of": [self.refer(holder), name, constant(obj)]}
        return self.refer(obj)  # the trace made it: eager mode makes another one in each call

    def _holders_of_names(self) -> Iterator[type | types.FunctionType]:
        """Yields the classes, with their bases, and the functions among the entry's constants."""
        for item in map(_behind, self.record.constants.values()):
            if isinstance(item, type):
                yield from mro(item)
            elif isinstance(item, types.FunctionType):
                yield item

    def _object(self, obj: Any, where: str) -> Node | None:
        """Describes what is neither a constant nor a container."""
        if obj is self.compiled:
            return {"compiled": _digest(obj)}
        source = self._by_object.get(id(obj))
        if source is not None and type(obj) in _MAY_BE_OURS:
            return {"path": [self._steps(source), None]}
        for kind, row in _KINDS.items():
            if isinstance(obj, row.types):
                facts = row.write(self, obj)
                if facts is not None:
                    return {kind: facts}
        if type(obj) in (list, tuple) or constant(obj) is not None:
            return None
        path = _import_path(obj)
        if path is not None:
            return {"import": [path, _digest(obj)]}
        if source is not None:
            return {"path": [self._steps(source), _digest(obj)]}
        of_module = _class_of_module(obj) if isinstance(obj, type) else None
        if of_module is not None:
            return {"class_of": [*of_module, _digest(obj)]}
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
            return [["object", self.describe(object_of(held), source.name)]]
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
        """Describes a code object as a function and places in the constants of its code. Of code that
        was not followed, the program may have read where it stands."""
        function = self._functions.get(code)
        if function is not None and self.known(function):
            return [self.refer(function), [], None]
        for outer in _functions_around(code):
            places = _places_in(outer.__code__, code)
            if places is not None:
                return [self.refer(outer), places, _all_of(outer, code)]
        raise NotPortable(f"the code object {code.co_qualname} was made by the program")

    def member(self, obj: enum.Enum) -> Any:
        members = type(obj).__members__
        if members.get(obj.name) is not obj:
            raise NotPortable(f"{shown(obj)} has no name in its enumeration")
        return [self.refer(type(obj)), obj.name, _digest(obj)]

    def namespace(self, space: dict[Any, Any]) -> Any:
        """Describes the globals of a module."""
        module = sys.modules.get(space.get("__name__", ""))
        return module.__name__ if module is not None and module.__dict__ is space else None

    def owner(self, space: dict[Any, Any]) -> Any:
        """Describes the globals of a function that has its own (namedtuple's __new__)."""
        for function in self.record.portable.functions:
            if function.__globals__ is space:
                return self.refer(function)
        return None

    def call(self, function: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> list[Node]:
        parts = function, list(args), list(kwargs), list(kwargs.values())
        return [self.refer(part) for part in parts]

    def members(self, obj: Any) -> Any:
        if type(obj) not in _SETS.values():
            return None
        return [type(obj).__name__, sorted(map(self.refer, obj), key=repr)]

    def describe_own(self, value: Any) -> Node:
        """Describes a dataclass of the tracer's own, or a tuple of some."""

        def leaf(part: Any, where: str) -> Node | None:
            return None if contents(part) is not None else self.refer(part)

        return Describer(leaf).describe(value, "")


#: Attributes of classes and functions that are one string for as long as these live.
_NAMES = ("__doc__", "__name__", "__qualname__", "__module__")


def _name_of(holder: type | types.FunctionType, name: str) -> Any:
    return namespace(holder).get(name) if isinstance(holder, type) else getattr(holder, name)


def _is_json(key: Any) -> bool:
    """Returns whether JSON gives a key of a step back as it is."""
    return key is None or type(key) in (str, int, bool)


def _functions_around(code: types.CodeType) -> Iterator[types.FunctionType]:
    """Yields the functions of a module that have the name which code was compiled under, or that
    of the function around it."""
    name = code.co_qualname.partition(".<locals>")[0]
    for module in list(sys.modules.values()):
        if type(module) is not types.ModuleType:
            continue
        # a script has no __file__ any more once it has ended
        if vars(module).get("__file__", code.co_filename) == code.co_filename:
            for _, inner in _with_inner(_at(module, name)):
                if isinstance(inner, types.FunctionType):
                    yield inner


def _all_of(outer: types.FunctionType, code: types.CodeType) -> list[str]:
    """Returns digests of what a program may read of code, and of the signature around it."""
    return [code_hash(code, positions=True), source_text(outer.__annotations__)]


def _places_in(outer: types.CodeType, code: types.CodeType) -> list[int] | None:
    """Returns the places in the constants of a code object, and of those code objects, that lead
    to another one; None where none do."""
    if outer is code:
        return []
    for place, inner in enumerate(outer.co_consts):
        if isinstance(inner, types.CodeType):
            places = _places_in(inner, code)
            if places is not None:
                return [place, *places]
    return None


def _digest(obj: Any) -> str | None:
    try:
        return digest_of(obj)
    except Unknown as error:
        raise NotPortable(f"{shown(obj)}: {error}") from None


def _behind(constant: Any) -> Any:
    """Returns the object that a constant of generated code stands for."""
    return constant() if type(constant) is OwnReference else constant


# -- finding them again


class Finder:
    """Finds described objects in this process.

    Args:
        path: The file, for messages.
        compiled: The function that the entries are for.
    """

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

    def find(self, described: Node) -> Any:
        """Returns the object of a description. Raises StoredError."""
        try:
            return restore(described, self._leaf)
        except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoredError(
                f"{self.path}: cannot find {described}: {error}; store the entries again"
            ) from error

    def _leaf(self, described: Node) -> Any:
        kind, facts = kind_of(described)
        return _KINDS[kind].read(self, facts)


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


def _read_name(finder: Finder, facts: Any) -> Any:
    holder, name, described = facts
    result = _name_of(finder.find(holder), name)
    if constant(result) != described:
        raise StoredError(f"{finder.path}: {name} of {holder} has changed since")
    return result


def _code(finder: Finder, facts: Any) -> types.CodeType:
    function, places, expected = facts
    result: types.CodeType = finder.find(function).__code__
    for place in places:
        result = result.co_consts[place]
    if expected is not None and _all_of(finder.find(function), result) != expected:
        raise StoredError(f"{finder.path}: {result.co_qualname} has changed since")
    return result


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


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """How objects of some types are described, and found again."""

    #: Returns the object of facts.
    read: Callable[[Finder, Any], Any]
    #: The types of the objects; none where `EntryDescriber` decides by something else.
    types: Any = ()
    #: Returns the facts of an object; None for one of another kind.
    write: Callable[[EntryDescriber, Any], Any] = lambda describer, obj: None


_SETS = {"set": set, "frozenset": frozenset}
#: Objects of these types are the program's where a path leads to them, else the tracer's own.
_MAY_BE_OURS = (list, *_SETS.values(), functools.partial, WithRest)

_KINDS = {
    "compiled": ObjectKind(lambda f, digest: f.same(f.compiled, digest)),
    "import": ObjectKind(lambda f, facts: f.same(_import(facts[0]), facts[1])),
    "path": ObjectKind(lambda f, facts: f.same(_walk(f, facts[0]), facts[1])),
    "class_of": ObjectKind(
        lambda f, facts: f.same(mro(type(importlib.import_module(facts[0])))[facts[1]], facts[2])
    ),
    "constant_of": ObjectKind(lambda f, facts: f.find(facts[0]).__code__.co_consts[facts[1]]),
    "layouts": ObjectKind(
        lambda f, facts: ResumeFunction(f.find(facts[0]), facts[1], facts[2], stored=True),
        ResumeFunction,
        lambda d, obj: [d.describe_own(obj.layouts), obj.raises, obj.follows_graph],
    ),
    "weak": ObjectKind(
        lambda f, node: OwnReference(f.find(node)), OwnReference, lambda d, obj: d.refer(obj())
    ),
    "null": ObjectKind(lambda f, facts: NULL, type(NULL), lambda d, obj: True),
    "setting": ObjectKind(
        lambda f, name: settings.SETTINGS[name].get, settings.Getter, lambda d, obj: obj.name
    ),
    "name_of": ObjectKind(_read_name),
    "code": ObjectKind(_code, types.CodeType, lambda d, obj: d.code(obj)),
    "frame": ObjectKind(
        lambda f, node: f.find(node), FrameLayout, lambda d, obj: d.describe_own(obj)
    ),
    "position": ObjectKind(
        lambda f, node: f.find(node).interned(),
        GeneratorPosition,
        lambda d, obj: d.describe_own(obj),
    ),
    "enum": ObjectKind(
        lambda f, facts: f.same(f.find(facts[0])[facts[1]], facts[2]),
        enum.Enum,
        lambda d, obj: d.member(obj),
    ),
    # one that was not used yet
    "snapshot": ObjectKind(
        lambda f, always: InputSnapshot(frozenset(always), True),
        InputSnapshot,
        lambda d, obj: sorted(obj.always),
    ),
    "members": ObjectKind(
        lambda f, facts: _SETS[facts[0]](map(f.find, facts[1])),
        (set, frozenset),
        lambda d, obj: d.members(obj),
    ),
    "globals": ObjectKind(
        lambda f, name: importlib.import_module(name).__dict__,
        dict,
        lambda d, obj: d.namespace(obj),
    ),
    "globals_of": ObjectKind(
        lambda f, node: f.find(node).__globals__, dict, lambda d, obj: d.owner(obj)
    ),
    "partial": ObjectKind(
        functools.partial(_call, functools.partial),
        functools.partial,
        lambda d, obj: d.call(obj.func, obj.args, obj.keywords),
    ),
    "with_rest": ObjectKind(
        functools.partial(_call, WithRest),
        WithRest,
        lambda d, obj: d.call(obj.cached, obj.rest, obj.kwargs),
    ),
}

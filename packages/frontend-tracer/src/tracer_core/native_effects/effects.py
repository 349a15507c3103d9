"""The native effects table: one row per callable that interpreted code may call eagerly.

The modules of `native_functions` declare the rows. A callable without a row breaks the graph; it is
never assumed to be pure.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tracer_core.torch_private.names import names


class EffectKind(enum.Enum):
    """PURE: reads its arguments at every depth and changes nothing; objects with user-code methods
    break the graph. MOVES: reads its container arguments, but calls nothing on their items.
    MUTATES: like MOVES, but mutates its first argument. SHALLOW: reads identities and types only.
    SPECIAL: has a handler. BREAKS: breaks the graph.
    """

    PURE = "pure"
    MOVES = "moves"
    MUTATES = "mutates"
    SHALLOW = "shallow"
    SPECIAL = "special"
    BREAKS = "breaks"


@dataclass(frozen=True, slots=True)
class Effect:
    """kind; for SPECIAL, handler(tracer, *bound, *args, **kwargs); for BREAKS, break_kind and
    reason. atomic: a graph break inside the handler becomes one before the call, so that the graph
    contains no part of the call."""

    kind: EffectKind
    handler: Callable[..., Any] | None = None
    bound: tuple[Any, ...] = ()
    atomic: bool = False
    break_kind: str = ""
    reason: str = ""


EFFECTS: dict[Any, Effect] = {}
METHODS_IN_C = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
CALLABLES_IN_C = (types.BuiltinFunctionType, types.MethodWrapperType, *METHODS_IN_C)
_Handler = TypeVar("_Handler", bound=Callable[..., Any])

PURE = Effect(EffectKind.PURE)
MOVES = Effect(EffectKind.MOVES)
MUTATES = Effect(EffectKind.MUTATES)
SHALLOW = Effect(EffectKind.SHALLOW)


#: Rows of callables that no file has a row of their own for: added when all files are imported.
_REST: list[tuple[Effect, list[Any]]] = []


def declare(effect: Effect, callables: Iterable[Any], rest: bool = False) -> None:
    """Adds rows. rest: only for callables that no file declares otherwise. Raises an error for a
    second, different row of a callable."""
    if rest:
        _REST.append((effect, list(callables)))
        return
    for function in callables:
        if EFFECTS.get(function, effect) != effect:
            raise ValueError(f"two effect rows for {function!r}")
        EFFECTS[function] = effect


def add_rest() -> None:
    """Adds the rows declared with `rest`."""
    for effect, callables in _REST:
        for function in callables:
            EFFECTS.setdefault(function, effect)
    _REST.clear()


def methods_of(cls: type, names_of: str) -> list[Any]:
    """Returns the methods that a class itself defines among those named."""
    return [vars(cls)[method] for method in names_of.split() if method in vars(cls)]


def methods_in_c(cls: type, without: Collection[str]) -> list[Any]:
    """Returns the methods that a class itself defines in C."""
    return [
        raw
        for key, raw in vars(cls).items()
        if isinstance(raw, METHODS_IN_C) and key not in without
    ]


def functions_in_c(module: Any) -> list[Any]:
    """Returns the C functions of a module."""
    return [raw for raw in vars(module).values() if isinstance(raw, types.BuiltinFunctionType)]


def special_rows(
    rows: Mapping[Any, tuple[Any, ...]], atomic: bool = False
) -> Callable[[_Handler], _Handler]:
    """Registers ``handler(tracer, *bound, *args, **kwargs) -> value``. rows: callable -> bound."""

    def register(handler: _Handler) -> _Handler:
        for function, bound in rows.items():
            declare(Effect(EffectKind.SPECIAL, handler, bound, atomic), [function])
        return handler

    return register


def special(*callables: Any, atomic: bool = False) -> Callable[[_Handler], _Handler]:
    """Registers ``handler(tracer, *args, **kwargs) -> value`` for callables."""
    return special_rows(dict.fromkeys(callables, ()), atomic)


def special_each(*callables: Any) -> Callable[[_Handler], _Handler]:
    """Registers ``handler(tracer, function, *args, **kwargs) -> value``. function: the row's."""
    return special_rows({function: (function,) for function in callables})


def interpreted_as(polyfill: Any, *callables: Any) -> None:
    """Interprets a polyfill, with the call's own arguments, in place of callables."""

    @special(*callables)
    def interpret(tracer: Any, /, *args: Any, **kwargs: Any) -> Any:
        return tracer.calls.prepare(polyfill, [*args], kwargs)


#: Module -> names of its callables -> handler: rows that are added when the module is imported.
_LATER: dict[str, dict[str, Callable[..., Any]]] = {}


def special_each_of(module: str, *paths: str) -> Callable[[_Handler], _Handler]:
    """Like `special_each`, for callables of a module that is too heavy to be imported."""

    def register(handler: _Handler) -> _Handler:
        _LATER.setdefault(module, {}).update(dict.fromkeys(paths, handler))
        return handler

    return register


def add_rows_of_imported() -> None:
    """Adds the rows of modules that were imported since."""
    for module in [item for item in _LATER if item in sys.modules]:
        for path, handler in _LATER.pop(module).items():
            special_each(*names(f"{module.removeprefix('torch.')}.{path}"))(handler)


#: type of a callable object, or code of a Python function -> handler(tracer, callable, args,
#: kwargs).
CALLED_TYPES: dict[type, Callable[..., Any]] = {}
CALLED_CODES: dict[types.CodeType, Callable[..., Any]] = {}
#: package -> handler(tracer, function, args, kwargs) of its Python functions.
CALLED_PACKAGES: dict[str, Callable[..., Any]] = {}


def breaks(kind: str, reason: str, callables: Iterable[Any], rest: bool = False) -> None:
    declare(Effect(EffectKind.BREAKS, break_kind=kind, reason=reason), callables, rest)


def effect_of(function: Any) -> Effect | None:
    """Returns the row of a callable; for a bound method of a C type, the row of the type's method."""
    try:
        return EFFECTS.get(function)
    except TypeError:
        return None


def unbound(function: Any) -> Any:
    """Returns the type's method behind a bound C method, or None (module-level functions)."""
    owner = getattr(function, "__self__", None)
    definer = getattr(function, "__objclass__", None)
    if definer is not None:
        return definer.__dict__.get(function.__name__)
    if owner is None or isinstance(owner, types.ModuleType):
        return None
    if isinstance(owner, type):
        for cls in owner.__mro__:
            raw = cls.__dict__.get(function.__name__)
            if isinstance(raw, classmethod) and isinstance(raw.__func__, types.FunctionType):
                continue  # a Python override was passed over by super()
            if isinstance(raw, (classmethod, staticmethod)) or (
                type(raw) is types.ClassMethodDescriptorType
                and raw.__get__(None, owner) == function
            ):
                return raw
        raw = type.__dict__.get(function.__name__)  # a method of the class as an object: mro()
        return raw if isinstance(raw, types.MethodDescriptorType) else None
    for cls in type(owner).__mro__:
        raw = cls.__dict__.get(function.__name__)
        if type(raw) is types.MethodDescriptorType and raw.__get__(owner, type(owner)) != function:
            continue  # so was this one
        if raw is not None and not isinstance(raw, types.FunctionType):
            return raw  # a Python override was passed over by super()
    return None

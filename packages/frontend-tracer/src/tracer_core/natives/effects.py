"""The effect table: one row per callable that interpreted code may call natively.

The modules of `tables/` declare the rows. A callable without a row breaks the graph; it is never
assumed to be pure.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class EffectKind(enum.Enum):
    """PURE: reads its arguments at every depth and changes nothing; objects with user-code methods
    break the graph. MOVES: reads its container arguments, but calls nothing on their items.
    MUTATES: like MOVES, but mutates its first argument. SHALLOW: reads identities and types only.
    SPECIAL: has a handler. TORCH: a torch operator, seen by the recorder. BREAKS: breaks the graph.
    """

    PURE = "pure"
    MOVES = "moves"
    MUTATES = "mutates"
    SHALLOW = "shallow"
    SPECIAL = "special"
    TORCH = "torch"
    BREAKS = "breaks"


@dataclass(frozen=True, slots=True)
class Effect:
    """kind; handler(tracer, args, kwargs) for SPECIAL; break_kind and reason for BREAKS."""

    kind: EffectKind
    handler: Callable[..., Any] | None = None
    break_kind: str = ""
    reason: str = ""


EFFECTS: dict[Any, Effect] = {}

PURE = Effect(EffectKind.PURE)
MOVES = Effect(EffectKind.MOVES)
MUTATES = Effect(EffectKind.MUTATES)
SHALLOW = Effect(EffectKind.SHALLOW)
TORCH = Effect(EffectKind.TORCH)


def declare(effect: Effect, callables: Iterable[Any]) -> None:
    """Adds rows. Raises an error for a second, different row of a callable."""
    for one in callables:
        if EFFECTS.get(one, effect) != effect:
            raise ValueError(f"two effect rows for {one!r}")
        EFFECTS[one] = effect


def special(*callables: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers ``handler(tracer, args, kwargs) -> value`` for callables."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        declare(Effect(EffectKind.SPECIAL, handler), callables)
        return handler

    return register


#: type of a callable object, or code of a Python function -> handler(tracer, callable, args,
#: kwargs).
CALLED_TYPES: dict[type, Callable[..., Any]] = {}
CALLED_CODES: dict[types.CodeType, Callable[..., Any]] = {}
#: package -> handler(tracer, function, args, kwargs) of its Python functions.
CALLED_PACKAGES: dict[str, Callable[..., Any]] = {}


def breaks(kind: str, reason: str, callables: Iterable[Any]) -> None:
    for one in callables:
        declare(Effect(EffectKind.BREAKS, None, kind, reason), [one])


def effect_of(function: Any) -> Effect | None:
    """Returns the row of a callable; for a bound method of a C type, the row of the type's method."""
    try:
        row = EFFECTS.get(function)
    except TypeError:
        return None
    if row is not None and _counters:
        for counter in _counters:
            counter[row_name(function)] += 1
    return row


#: Counters of used rows, filled while `counting()` is active.
_counters: list[collections.Counter[str]] = []


@contextmanager
def counting() -> Iterator[collections.Counter[str]]:
    """Counts row look-ups of traces inside the context: name as in `rows()` -> count."""
    counter: collections.Counter[str] = collections.Counter()
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters[:] = [other for other in _counters if other is not counter]


def row_name(function: Any) -> str:
    """Returns the name of a callable with a row: ``math.sqrt``, ``builtins.list.append``,
    ``collections.deque``."""
    raw = function.__func__ if isinstance(function, staticmethod) else function
    qualified = getattr(raw, "__qualname__", None) or getattr(raw, "__name__", None) or repr(raw)
    module = getattr(raw, "__module__", None)
    if module is None:
        owner = getattr(raw, "__objclass__", None) or getattr(raw, "__self__", None)
        module = getattr(owner, "__module__", None) or "builtins"
    return f"{module}.{qualified}"


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
            if isinstance(raw, (classmethod, types.ClassMethodDescriptorType, staticmethod)):
                return raw
        return None
    for cls in type(owner).__mro__:
        raw = cls.__dict__.get(function.__name__)
        if raw is not None and not isinstance(raw, types.FunctionType):
            return raw  # a Python override was passed over by super()
    return None

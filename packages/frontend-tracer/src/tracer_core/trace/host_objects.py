"""Host objects that C code uses in place of the program's objects when it calls special methods.

They return what interpreting a special method gave, so that checks of results, error texts and
algorithms are CPython's own. C code that calls one of them re-enters the interpreter, never user
code.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.graph_breaks import Break
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.source import payload
from tracer_core.guards.value_kinds import is_constant
from tracer_core.trace import native_reads

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class HostValue:
    """Returns one value from every special method: ``len(HostValue(-1))`` raises as in CPython."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def _give(self, *_: Any) -> Any:
        return self.value

    __bool__ = __len__ = __index__ = __int__ = __float__ = __complex__ = __bytes__ = __hash__ = (
        _give
    )
    __str__ = __repr__ = __format__ = __iter__ = __dir__ = __length_hint__ = _give


#: Special methods by which C code converts an object to a number or bytes.
CONVERSIONS = ("__index__", "__int__", "__float__", "__complex__", "__bytes__")
#: Special methods by which C code gets the items of an object.
ITEMS = ("__len__", "__length_hint__", "__iter__", "__getitem__")


def host_object(tracer: Tracer, value: Any, hooks: tuple[str, ...] = CONVERSIONS) -> Any:
    """Returns what C code may see of an object: an object of the same C base, with the same name of
    its class, whose special methods in Python are interpreted when C code asks for one; the object
    itself, guarded, if it has none. hooks: the special methods that C code may call."""
    value = tracer.scalars.concrete(value)
    cls = type(value)
    methods: dict[str, Any] = {}
    if is_constant(value) or isinstance(value, (torch.Tensor, enum.Enum)):
        return tracer.scalars.payload(value)
    for name in hooks if cls.__flags__ & HEAP_TYPE else ():
        if tracer.entries.is_disabled(value, name):
            methods[name] = None
        elif (method := tracer.entries.python_method(value, name)) is not None:
            if name in ("__iter__", "__getitem__"):
                methods["__iter__"] = functools.partialmethod(_iterated, tracer, value)
            else:
                methods[name] = functools.partialmethod(_converted, tracer, method, value, name)
    base: Any = next((kind for kind in _HOLDERS if isinstance(value, kind)), object)
    inherits = not tracer.entries.lacks(value, *(set(hooks) - methods.keys()))
    if base is object and methods and inherits:
        raise Break("unknown_native", f"C code and Python code convert a {cls.__name__}")
    if base is object and not methods:
        if inherits:
            native_reads.read_values(tracer, value)
        return value
    tracer.scalars.payload(value)
    held = () if base is object else (payload(value),)
    return base.__new__(_like(cls, base, methods), *held)


def _like(cls: type, base: type, namespace: dict[str, Any]) -> Any:
    """Returns a class with the names of another one, which error messages give."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (base,), names | namespace)


def call_with_polyfills(
    tracer: Tracer,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    hooks: tuple[str, ...] = CONVERSIONS,
) -> Any:
    """Calls C code that converts its arguments."""
    return function(
        *(host_object(tracer, arg, hooks) for arg in args),
        **{name: host_object(tracer, value, hooks) for name, value in kwargs.items()},
    )


def _iterated(_: Any, tracer: Tracer, value: Any) -> Any:
    items = tracer.containers.stream(value)
    return (host_object(tracer, item) for item in items)


def _converted(_: Any, tracer: Tracer, method: Any, value: Any, name: str) -> Any:
    result = tracer.scalars.specialized(tracer.calls.call_value(method, [value], {}))
    if isinstance(result, torch.Tensor):
        raise Break("data_dependent_value", f"{name} of a {type(value).__name__} gives a tensor")
    return result


_HOLDERS = (int, float, complex, str, bytes)


class Hashed:
    """An element of a tuple or frozenset whose hash is known."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number


def without_hash(cls: type, error: Exception) -> Any:
    """Returns an object of a class with the names of `cls` whose ``__hash__`` raises an error."""

    def raise_error(self: Any) -> int:
        raise error

    return _like(cls, object, {"__hash__": raise_error})()


class SortKey:
    """A key of a sort: compares the program's objects."""

    __slots__ = ("tracer", "key")

    def __init__(self, tracer: Tracer, key: Any) -> None:
        self.tracer, self.key = tracer, key

    def __lt__(self, other: SortKey) -> bool:
        operators = self.tracer.operators
        return bool(operators.to_bool(operators.compare("<", self.key, other.key)))


class HostString:
    """An argument of a format string: reads strings, numbers, attributes and items of the program's
    object."""

    __slots__ = ("_tracer", "_value")

    def __init__(self, tracer: Tracer, value: Any) -> None:
        object.__setattr__(self, "_tracer", tracer)
        object.__setattr__(self, "_value", value)

    def __str__(self) -> str:
        return self._tracer.calls.call_value(str, [self._value], {})  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self._tracer.calls.call_value(repr, [self._value], {})  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return self._tracer.containers.format(self._value, spec)  # type: ignore[no-any-return]

    def __index__(self) -> Any:
        return self._tracer.operators.index(self._value)

    def __int__(self) -> Any:
        return self._tracer.calls.call_value(int, [self._value], {})

    def __float__(self) -> Any:
        return self._tracer.calls.call_value(float, [self._value], {})

    def __getattr__(self, name: str) -> Any:
        return text_part(self._tracer, self._tracer.attributes.getattr(self._value, name))

    def __getitem__(self, key: Any) -> Any:
        return text_part(self._tracer, self._tracer.containers.getitem(self._value, key))


def text_part(tracer: Tracer, value: Any) -> Any:
    """Returns `value` itself if C code may see it: strings and numbers of Python's own types."""
    value = tracer.scalars.concrete(value)
    simple = type(value) in (str, int, float, bool, complex, bytes, type(None))
    return value if simple else HostString(tracer, value)

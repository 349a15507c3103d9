"""Host objects that C code uses in place of the program's objects when it calls special methods.

They return what interpreting a special method gave, so that checks of results, error texts and
algorithms are CPython's own. C code that calls one of them re-enters the interpreter, never user
code.
"""

from __future__ import annotations

from typing import Any

from tracer_core.natives.tracing import Tracing


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


class Hashed:
    """An element of a tuple or frozenset whose hash is known."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number


class SortKey:
    """A key of a sort: compares the program's objects."""

    __slots__ = ("tracer", "key")

    def __init__(self, tracer: Tracing, key: Any) -> None:
        self.tracer, self.key = tracer, key

    def __lt__(self, other: SortKey) -> bool:
        operators = self.tracer.operators
        return bool(operators.truth(operators.compare("<", self.key, other.key)))


class HostText:
    """An argument of a format string: reads text, numbers, attributes and items of the program's
    object."""

    __slots__ = ("_tracer", "_value")

    def __init__(self, tracer: Tracing, value: Any) -> None:
        object.__setattr__(self, "_tracer", tracer)
        object.__setattr__(self, "_value", value)

    def __str__(self) -> str:
        return str(self._tracer.calls.call_value(str, [self._value], {}))

    def __repr__(self) -> str:
        return str(self._tracer.calls.call_value(repr, [self._value], {}))

    def __format__(self, spec: str) -> str:
        return str(self._tracer.containers.format(self._value, spec))

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


def text_part(tracer: Tracing, value: Any) -> Any:
    """Returns `value` itself if C code may see it: text and numbers of Python's own types."""
    value = tracer.scalars.concrete(value)
    plain = type(value) in (str, int, float, bool, complex, bytes, type(None))
    return value if plain else HostText(tracer, value)

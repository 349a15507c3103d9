"""Semantics of instructions on values: one protocol per role.

`RealMachine` (trace/eager_interpreter.py) implements CPython's semantics, the tracer
(trace/tracer.py) those of a trace.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Protocol

from tracer_core.bytecode.frame import Frame, LazyValue


class ExceptionSemantics(Protocol):
    """Raising and propagation of exceptions."""

    def raises(self, error: BaseException) -> None:
        """Called before an instruction of the program raises; may break the graph."""

    def drop_host_context(self, error: BaseException) -> None:
        """Takes exceptions that the interpreter's own code handled out of the chain of contexts."""

    def passed(self, frame: Frame, error: BaseException) -> None:
        """Called for each frame that an exception propagates through, including the one that
        catches it."""

    def history(self, error: BaseException) -> Any:
        """Returns the path of an exception, which is equal for two parts of one group."""

    def type_name(self, value: Any, qualified: bool = False) -> str:
        """Returns the name of a value's type, for the message of an exception about to be raised."""
        ...

    def same_history(self, original: BaseException, part: BaseException) -> None:
        """Notes that `part` was split from a group."""

    def look_into(self, group: BaseException) -> None:
        """Called before the contents of an exception group decide something."""

    def report_unraisable(self, error: BaseException, obj: Any) -> None:
        """Reports an exception that cannot be raised where it happened, in an operation on `obj`."""


class AttributeSemantics(Protocol):
    """Reading attributes."""

    def getattr(self, obj: Any, name: str) -> Any: ...

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        """getattr with a default."""

    def special(self, obj: Any, name: str, default: Any) -> Any:
        """The special method that C code finds on the object's class, bound to the object."""

    def super_attribute(self, owner: Any, obj: Any, name: str) -> Any:
        """An attribute of ``super(owner, obj)``."""


class AttributeWriteSemantics(Protocol):
    """Setting and deleting attributes."""

    def setattr(self, obj: Any, name: str, value: Any) -> None: ...

    def delattr(self, obj: Any, name: str) -> None: ...


class OperatorSemantics(Protocol):
    """Operators, comparisons and truth."""

    def binary(self, symbol: str, left: Any, right: Any) -> Any: ...

    def unary(self, symbol: str, value: Any) -> Any: ...

    def compare(self, symbol: str, left: Any, right: Any) -> Any: ...

    def same(self, left: Any, right: Any) -> bool:
        """``left is right``"""
        ...

    def to_bool(self, value: Any) -> bool: ...


class ContainerSemantics(Protocol):
    """Membership, subscripts, iteration and displays."""

    def contains(self, item: Any, container: Any) -> bool: ...

    def getitem(self, container: Any, key: Any) -> Any: ...

    def setitem(self, container: Any, key: Any, value: Any) -> None: ...

    def delitem(self, container: Any, key: Any) -> None: ...

    def iterate(self, value: Any) -> Any:
        """iter(value)"""

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        """(True, item) or (False, StopIteration value)."""
        ...

    def spread(self, value: Any, varies: bool = False, limit: int | None = None) -> list[Any]:
        """Returns the items of any iterable, for unpacking and ``*args``. varies: a number may
        become a symbol. limit: the most items that are taken of an iterator."""
        ...

    def arguments(self, value: Any) -> Any:
        """Returns what ``*args`` of a call gives; C code may return the very tuple."""
        ...

    def mapping(self, value: Any) -> dict[Any, Any]:
        """Returns the items of a mapping, for ``**kwargs`` and ``{**d}``."""
        ...

    def entries_of(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the items of a mapping one by one; a key may come twice."""
        ...

    def formatted(self, value: Any, spec: str) -> Any:
        """Returns ``format(value, spec)``, or what `LazyValue` stands for it until it is read."""
        ...

    def joined(self, parts: list[Any]) -> LazyValue | None:
        """Returns the sum of strings of which one is such a text; None for other values."""
        ...

    def added(self, left: Any, right: Any) -> LazyValue | None:
        """Returns the sum of two such strings, or of an unread tuple and another one; None for
        other values."""
        ...

    def loop(self, value: Any) -> Any:
        """iter(value) for a ``for`` loop, whose iterator no other code sees."""

    def list_append(self, target: Any, value: Any) -> None:
        """In-place growth of a container made by the bytecode (comprehensions, displays)."""

    def list_extend(self, target: Any, values: list[Any]) -> None: ...

    def dict_update(self, target: Any, items: dict[Any, Any]) -> None: ...


class NameSemantics(Protocol):
    """Globals, cells, imports, and functions made by the bytecode."""

    def load_global(self, frame: Frame, name: str) -> Any: ...

    def store_global(self, frame: Frame, name: str, value: Any) -> None: ...

    def delete_global(self, frame: Frame, name: str) -> None: ...

    def store_name(self, namespace: Any, name: str, value: Any) -> None:
        """Stores a name of a class body."""

    def load_cell(self, cell: Any, name: str) -> Any: ...

    def store_cell(self, cell: Any, value: Any) -> None: ...

    def free_cells(self, frame: Frame) -> tuple[Any, ...]:
        """The closure of the frame's function."""
        ...

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any: ...

    def register(self, value: Any) -> Any:
        """Registers a value made by the bytecode itself (container display, function, slice)."""


class CallSemantics(Protocol):
    """Calls."""

    def call(self, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Calls and pushes the result on the frame's stack, now or when an inlined frame returns."""

    def call_value(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls and returns the result; Python callees run in a nested loop."""

    def resume_generator(self, frame: Frame, error: BaseException | None) -> Any:
        """Runs a generator's frame to its next ``yield`` or its end."""


class DefaultSemantics(Protocol):
    """Default values of parameters."""

    def default(self, function: types.FunctionType, slot: str, key: Any) -> Any:
        """Returns an entry of ``__defaults__`` or ``__kwdefaults__`` (slot)."""


class CallBinder(Protocol):
    """An object that binds the arguments of a call."""

    @property
    def names(self) -> DefaultSemantics: ...

    def open(self, unread: LazyValue) -> Any: ...

"""One activation of a Python function in the interpreter (mutable).

`ip` is the next instruction; `stack` holds real objects or `LazyValue` wrappers; an unbound local
is `NULL`.
"""

from __future__ import annotations

import types
from typing import Any

from tracer_core.bytecode.code import Code, decode
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.errors import Location

use_own_builtins(globals())


class _Null:
    """The NULL of CPython's stack and locals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL: Any = _Null()


def contents(cell: Any) -> Any:
    """Returns the contents of a cell, or NULL."""
    try:
        return cell.cell_contents
    except ValueError:
        return NULL


def unbound_free_variable(name: str) -> NameError:
    """Returns the error of a function that reads an empty cell."""
    text = f"cannot access free variable '{name}' where it is not associated with a value in"
    return NameError(f"{text} enclosing scope", name=name)


class LazyValue:
    """A value of the code region's initial state that the trace has not read, so that it has no
    guard. source: its place in the state. tail: what the trace added to such a tuple; the value has
    it, too. is_read: the trace has read the sum since."""

    __slots__ = ("value", "source", "tail", "is_read")

    def __init__(self, value: Any, source: Any, tail: tuple[Any, ...] = ()) -> None:
        self.value, self.source, self.tail, self.is_read = value, source, tail, False


class Frame:
    """function: the Python function being run. code: its decoded code. locals: localsplus.
    on_return: what the caller does with the result, None (push it) or ("instance", object).
    exceptions: the stack of exceptions being handled (PUSH_EXC_INFO). generator: whose frame it is,
    while that runs.
    namespace: the names of a class body, None for functions."""

    __slots__ = (
        "function", "code", "locals", "stack", "ip", "kw_names", "on_return", "exceptions",
        "saved", "generator", "last", "namespace",
    )  # fmt: skip

    def __init__(self, function: types.FunctionType, code: Code | None = None) -> None:
        self.function = function
        self.code = code or decode(function.__code__)
        self.locals: list[Any] = [NULL] * len(self.code.locals_names)
        self.stack: list[Any] = []
        self.ip = 0
        self.last = 0
        self.kw_names: tuple[str, ...] = ()
        self.on_return: Any = None
        self.exceptions: list[Any] = []
        self.saved: list[Any] = []
        self.generator: Any = None
        self.namespace: Any = None

    @property
    def globals(self) -> dict[str, Any]:
        return self.function.__globals__

    @property
    def where(self) -> Location:
        """``file:line in function`` of the current instruction."""
        raw = self.code.raw
        return Location.of(raw.co_filename, self.code.lines[self.last], raw.co_name)

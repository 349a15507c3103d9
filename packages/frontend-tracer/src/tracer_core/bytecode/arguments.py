"""Binds the arguments of a call to a frame's parameters as CPython does.

A lazy value stays lazy where it is bound to a plain parameter. Mismatched arguments raise CPython's
own TypeError.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, NoReturn

from tracer_core.bytecode.frame import NULL, Frame, LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.semantics import CallBinder
from tracer_core.graph_breaks import Break

use_own_builtins(globals())


def bind(machine: CallBinder, frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Fills ``frame.locals``. machine: reads defaults (with guards) and realizes lazy values."""
    raw = frame.code.raw
    slots = frame.locals
    n_positional, n_keyword = raw.co_argcount, raw.co_kwonlyargcount
    names = raw.co_varnames
    smallest = min(len(args), n_positional)
    slots[:smallest] = args[:smallest]
    extra_slot = n_positional + n_keyword
    if raw.co_flags & inspect.CO_VARARGS:
        slots[extra_slot] = tuple(_open(machine, value) for value in args[n_positional:])
        extra_slot += 1
    elif len(args) > n_positional:
        _mismatch(machine, frame, args, kwargs)
    accepted = {
        name: i
        for i, name in enumerate(names[: n_positional + n_keyword])
        if i >= raw.co_posonlyargcount
    }
    rest: dict[str, Any] = {}
    for name, value in kwargs.items():
        # CPython compares a keyword with each parameter, and takes no hash of it.
        if type(name).__eq__ is not str.__eq__:
            raise Break("native_python", f"a {type(name).__name__} is a keyword")
        index = accepted.get(str.__str__(name))
        if index is None:
            rest[name] = _open(machine, value)
        elif slots[index] is not NULL:
            _mismatch(machine, frame, args, kwargs)
        else:
            slots[index] = value
    if raw.co_flags & inspect.CO_VARKEYWORDS:
        slots[extra_slot] = rest
    elif rest:
        _mismatch(machine, frame, args, kwargs)
    if not _defaults(machine, frame, n_positional, n_keyword):
        _mismatch(machine, frame, args, kwargs)


def _defaults(machine: CallBinder, frame: Frame, n_positional: int, n_keyword: int) -> bool:
    """Fills missing arguments with defaults; returns False if a parameter has none."""
    slots, names = frame.locals, frame.code.raw.co_varnames
    missing = [i for i in range(n_positional + n_keyword) if slots[i] is NULL]
    if not missing:
        return True
    function = frame.function
    first = n_positional - len(function.__defaults__ or ())
    for i in missing:
        if first <= i < n_positional:
            slots[i] = machine.names.default(function, "__defaults__", i - first)
        elif i >= n_positional and names[i] in (function.__kwdefaults__ or {}):
            slots[i] = machine.names.default(function, "__kwdefaults__", names[i])
        else:
            return False
    return True


def _open(machine: CallBinder, value: Any) -> Any:
    return machine.open(value) if type(value) is LazyValue else value


def _mismatch(
    machine: CallBinder, frame: Frame, args: list[Any], kwargs: dict[str, Any]
) -> NoReturn:
    """Raises CPython's own error: calls an empty function of the same signature."""
    raw = frame.code.raw
    code = _nothing.__code__.replace(
        co_argcount=raw.co_argcount, co_posonlyargcount=raw.co_posonlyargcount,
        co_kwonlyargcount=raw.co_kwonlyargcount,
        co_varnames=raw.co_varnames, co_nlocals=raw.co_nlocals, co_name=raw.co_name,
        co_qualname=raw.co_qualname,
        co_flags=_nothing.__code__.co_flags | raw.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )  # fmt: skip
    alike = types.FunctionType(code, {}, frame.function.__name__, frame.function.__defaults__)
    alike.__qualname__ = frame.function.__qualname__
    alike.__kwdefaults__ = frame.function.__kwdefaults__
    alike(
        *(_open(machine, value) for value in args),
        **{name: _open(machine, v) for name, v in kwargs.items()},
    )
    raise Break("native_python", f"the arguments do not fit {frame.function.__qualname__}()")


def _nothing() -> None:
    pass

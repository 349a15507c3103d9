"""Arguments to parameters.

In: a fresh frame and the arguments of a call. Out: the frame's locals filled as CPython would; a value
that the trace has not looked at stays unread where it is bound to a plain parameter. Arguments that do
not fit end the graph: the real call then raises CPython's own message.
"""

from __future__ import annotations

import inspect
from typing import Any

from tracer_core.interpreter.frame import NULL, Frame, Unread


def bind(machine: Any, frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Fills ``frame.locals``. machine: reads defaults (with guards) and opens unread values."""
    raw = frame.code.raw
    slots = frame.locals
    n_positional, n_keyword = raw.co_argcount, raw.co_kwonlyargcount
    names = raw.co_varnames
    given = min(len(args), n_positional)
    slots[:given] = args[:given]
    extra_slot = n_positional + n_keyword
    if raw.co_flags & inspect.CO_VARARGS:
        slots[extra_slot] = tuple(_open(machine, value) for value in args[n_positional:])
        extra_slot += 1
    elif len(args) > n_positional:
        _mismatch(machine, frame)
    accepted = {
        name: i for i, name in enumerate(names[: n_positional + n_keyword]) if i >= raw.co_posonlyargcount
    }
    rest: dict[str, Any] = {}
    for name, value in kwargs.items():
        index = accepted.get(name)
        if index is None:
            rest[name] = _open(machine, value)
        elif slots[index] is not NULL:
            _mismatch(machine, frame)
        else:
            slots[index] = value
    if raw.co_flags & inspect.CO_VARKEYWORDS:
        slots[extra_slot] = rest
    elif rest:
        _mismatch(machine, frame)
    _defaults(machine, frame, n_positional, n_keyword)


def _defaults(machine: Any, frame: Frame, n_positional: int, n_keyword: int) -> None:
    slots, names = frame.locals, frame.code.raw.co_varnames
    missing = [i for i in range(n_positional + n_keyword) if slots[i] is NULL]
    if not missing:
        return
    defaults, kw_defaults = machine.defaults_of(frame.function)
    first = n_positional - len(defaults)
    for i in missing:
        if first <= i < n_positional:
            slots[i] = machine.default_item(frame.function, defaults, i - first)
        elif i >= n_positional and names[i] in kw_defaults:
            slots[i] = machine.keyword_default(frame.function, kw_defaults, names[i])
        else:
            _mismatch(machine, frame)


def _open(machine: Any, value: Any) -> Any:
    return machine.open(value) if type(value) is Unread else value


def _mismatch(machine: Any, frame: Frame) -> None:
    machine.break_graph("native_python", f"the arguments do not fit {frame.function.__qualname__}()")

"""Calls, function objects."""

from __future__ import annotations

import types

from tracer_core.bytecode.annotations import RENAMED
from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame, LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine
from tracer_core.bytecode.opcodes.containers import function_source, may_iterate

use_own_builtins(globals())


@opcode("KW_NAMES")
def kw_names(m: Machine, f: Frame, arg: tuple[str, ...]) -> None:
    f.kw_names = arg


@opcode("CALL")
def call(m: Machine, f: Frame, arg: int) -> None:
    names = f.kw_names
    # This may break the graph before the call, which then still needs its kw_names.
    values = m.pop_n(f, arg)
    second, first = f.stack.pop(), f.stack.pop()
    f.kw_names = ()
    n = len(names)
    try:
        function = m.called(second if first is NULL else first)
        if first is not NULL and second is not NULL:
            values.insert(0, m.open(second) if type(second) is LazyValue else second)
        if n:
            m.calls.call(f, function, values[:-n], dict(zip(names, values[-n:], strict=True)))
        else:
            m.calls.call(f, function, values, {})
    except BaseException:
        f.kw_names = names
        raise


@opcode("CALL_FUNCTION_EX")
def call_function_ex(m: Machine, f: Frame, arg: int | None) -> None:
    # Since 3.14 there is no argument: NULL stands for no keywords.
    named = m.pop(f) if arg is None or arg & 1 else NULL
    positional = m.pop(f)
    upper, lower = f.stack.pop(), f.stack.pop()
    function = m.called(lower if upper is NULL else upper)
    kwargs = {} if named is NULL else m.containers.mapping(named)
    if not may_iterate(positional):
        kind = m.exceptions.type_name(positional)
        raise TypeError(
            f"{function_source(function)} argument after * must be an iterable, not {kind}"
        )
    args = m.containers.arguments(positional)
    for name in kwargs:
        if not isinstance(name, str):
            raise TypeError("keywords must be strings")
    m.calls.call(f, function, args, dict(kwargs))


@opcode("MAKE_FUNCTION")
def make_function(m: Machine, f: Frame, arg: int) -> None:
    code = m.pop(f)
    closure = m.pop(f) if arg & 8 else None
    annotate = m.pop(f) if arg & 16 else None
    annotations = m.pop(f) if arg & 4 else None
    kw_defaults = m.pop(f) if arg & 2 else None
    defaults = m.pop(f) if arg & 1 else None
    function = types.FunctionType(code, f.globals, code.co_name, defaults, closure)
    function.__kwdefaults__ = kw_defaults
    if annotations:
        function.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True))
    if annotate is not None:
        function.__annotate__ = annotate  # type: ignore[attr-defined]
        if RENAMED:
            annotate.__qualname__ = f"{function.__qualname__}.__annotate__"
    f.stack.append(m.names.register(function))

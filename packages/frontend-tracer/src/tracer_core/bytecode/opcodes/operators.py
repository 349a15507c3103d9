"""Arithmetic, comparison, containment and identity."""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable
from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine, handlers

use_own_builtins(globals())

#: BINARY_OP's argument -> symbol (``+``, ``+=``).
SYMBOLS: tuple[str, ...] = tuple(symbol for _, symbol in dis._nb_ops)  # type: ignore[attr-defined]
_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
#: Symbol -> (name without underscores, function).
BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    symbol: (name, getattr(operator, f"__{name}__")) for symbol, name in _NAMES.items()
}
#: Symbol without "=" -> function.
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    symbol: getattr(operator, f"__i{name}__") for symbol, name in _NAMES.items()
}
#: Symbol -> (method, reflected method, function).
COMPARE: dict[str, tuple[str, str, Callable[[Any, Any], Any]]] = {
    "<": ("__lt__", "__gt__", operator.lt), "<=": ("__le__", "__ge__", operator.le),
    "==": ("__eq__", "__eq__", operator.eq), "!=": ("__ne__", "__ne__", operator.ne),
    ">": ("__gt__", "__lt__", operator.gt), ">=": ("__ge__", "__le__", operator.ge),
}  # fmt: skip
#: Symbol -> (method, function).
UNARY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "-": ("__neg__", operator.neg), "+": ("__pos__", operator.pos),
    "~": ("__invert__", operator.invert),
}  # fmt: skip


@opcode("BINARY_OP")
def binary_op(m: Machine, f: Frame, arg: int) -> None:
    if SYMBOLS[arg] in ("+", "+="):
        unread = m.containers.added(*f.stack[-2:])
        if unread is not None:
            f.stack[-2:] = [unread]
            return
    left, right = m.pop_n(f, 2)
    f.stack.append(m.operators.binary(SYMBOLS[arg], left, right))


handlers({
    "UNARY_NEGATIVE": lambda m, f, arg: f.stack.append(m.operators.unary("-", m.pop(f))),
    "UNARY_POSITIVE": lambda m, f, arg: f.stack.append(m.operators.unary("+", m.pop(f))),
    "UNARY_INVERT": lambda m, f, arg: f.stack.append(m.operators.unary("~", m.pop(f))),
    "TO_BOOL": lambda m, f, arg: f.stack.append(m.operators.to_bool(m.pop(f))),
    "UNARY_NOT": lambda m, f, arg: f.stack.append(not m.operators.to_bool(m.pop(f))),
})  # fmt: skip


@opcode("COMPARE_OP")
def compare_op(m: Machine, f: Frame, arg: str) -> None:
    left, right = m.pop_n(f, 2)
    f.stack.append(m.operators.compare(arg, left, right))


@opcode("IS_OP")
def is_op(m: Machine, f: Frame, arg: int) -> None:
    left, right = m.pop_n(f, 2)
    f.stack.append(m.operators.same(left, right) != bool(arg))


@opcode("CONTAINS_OP")
def contains_op(m: Machine, f: Frame, arg: int) -> None:
    item, container = m.pop_n(f, 2)
    f.stack.append(m.containers.contains(item, container) != bool(arg))


@opcode("BINARY_SUBSCR")
def binary_subscr(m: Machine, f: Frame, arg: Any) -> None:
    container, key = m.pop_n(f, 2)
    f.stack.append(m.containers.getitem(container, key))


@opcode("STORE_SUBSCR")
def store_subscr(m: Machine, f: Frame, arg: Any) -> None:
    value, container, key = m.pop_n(f, 3)
    m.containers.setitem(container, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(m: Machine, f: Frame, arg: Any) -> None:
    container, key = m.pop_n(f, 2)
    m.containers.delitem(container, key)


@opcode("BINARY_SLICE")
def binary_slice(m: Machine, f: Frame, arg: Any) -> None:
    container, start, stop = m.pop_n(f, 3)
    f.stack.append(m.containers.getitem(container, slice(start, stop)))


@opcode("STORE_SLICE")
def store_slice(m: Machine, f: Frame, arg: Any) -> None:
    value, container, start, stop = m.pop_n(f, 4)
    m.containers.setitem(container, slice(start, stop), value)

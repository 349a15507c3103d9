"""Numbers of the program that differ from call to call: symbols in the graph, real numbers to Python.

In: an int or float that was read where an earlier variant saw another one. Out: a SymInt or SymFloat, an input of the
graph. What always holds: arithmetic between such numbers and constants is done by Python itself, at run time too
(its source is a `computed` expression), so no result differs in its last bit from eager's; a comparison is
guarded by its outcome; wherever else the number itself is needed, it is guarded by its value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.guard import GuardKind
from tracer_core.interpreter.machine import Machine
from tracer_core.provenance import Provenance
from tracer_core.recorder.record import Recorder
from tracer_core.source import Source

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: operator -> its text.
_TEXTS: dict[Callable[..., Any], str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.lt: "<", operator.le: "<=", operator.eq: "==",
    operator.ne: "!=", operator.gt: ">", operator.ge: ">=", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>",
}  # fmt: skip
_UNARY_TEXTS: dict[Callable[..., Any], str] = {
    operator.neg: "-", operator.pos: "+", operator.invert: "~",
}  # fmt: skip
_LARGEST = 2**31  # beyond, an int is no size and no index, and a graph's arithmetic on it may overflow


class Numbers(Machine):
    """The part of a trace that knows its changing numbers. Mutable."""

    provenance: Provenance
    recorder: Recorder
    #: id of a symbol -> (symbol, its value now, its source).
    _numbers: dict[int, tuple[Any, Any, Source]]

    def number(self, value: Any, source: Source, name: str) -> Any:
        """The symbol for a number read at `source`; the number itself if it must not vary."""
        env = self.recorder.fakes.shape_env
        if env is None or not _may_vary(value):
            return value
        symbol = torch_private.new_number(env, value, name)
        self.provenance.guard(GuardKind.TYPE, source, type(value))
        self._numbers[id(symbol)] = symbol, value, source
        self.recorder.numbers[symbol.node.expr] = source, value, symbol
        return symbol

    def concrete(self, value: Any) -> Any:
        """The number behind a symbol, guarded by its value; anything else as it is."""
        if type(value) not in SYMBOLS:
            return value
        known = self._numbers.get(id(value))
        if known is not None:
            self.provenance.guard(GuardKind.EQ, known[2], known[1])
            return known[1]
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(value)

    def beside(self, value: Any, other: Any) -> Any:
        """One operand of two: a symbol only if the other is a number or a tensor."""
        if id(value) not in self._numbers or isinstance(other, (int, float, torch.Tensor, *SYMBOLS)):
            return value
        return self.concrete(value)

    def settled(self, value: Any, depth: int = 6) -> Any:
        """A value without symbols of the program's numbers in it, for code that is not interpreted."""
        if id(value) in self._numbers:
            return self.concrete(value)
        kind = type(value)
        if depth == 0 or kind not in (list, tuple, dict):
            return value
        if kind is tuple:
            parts = [self.settled(one, depth - 1) for one in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else tuple(parts)
        for key, one in list(value.items() if kind is dict else enumerate(value)):
            number = self.settled(one, depth - 1)
            if number is not one:
                value[key] = number
        return value

    def operate(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """An operator on numbers of which at least one is a symbol."""
        if not any(id(operand) in self._numbers for operand in operands):
            result = function(*operands)  # sizes: exact, and related to one another by the shape environment
            return self.concrete(result) if type(result) is torch.SymFloat else result
        if any(type(o) in SYMBOLS and id(o) not in self._numbers for o in operands):
            return self._with_size(function, operands)
        texts, values, base = [], [], None
        for operand in operands:
            known = self._numbers.get(id(operand))
            if known is None:
                texts.append(f"({operand!r})")
                values.append(operand)
            elif base is None or known[2] is base:
                base = known[2]
                texts.append("{b}")
                values.append(known[1])
            elif _is_of_state(known[2]):
                texts.append(known[2].expression)
                values.append(known[1])
            else:
                values.append(self.concrete(operand))
                texts.append(f"({values[-1]!r})")
        template = self._template(function, texts)
        if base is None or template is None or not all(map(_is_number, values)):
            return function(*map(self.concrete, operands))
        try:
            result = function(*values)
        except ArithmeticError:
            for operand in operands:  # that it raises is a matter of these very values
                self.concrete(operand)
            raise
        return self.provenance.read_varying(
            result, self.provenance.sources.make(base, "computed", template), always=True
        )

    def _with_size(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """A changing number meets a size: one symbolic expression for ints, values for floats."""
        if any(isinstance(o, (float, torch.SymFloat)) for o in operands):
            return function(*map(self.concrete, operands))
        result = function(*operands)
        return self.concrete(result) if type(result) is torch.SymFloat else result

    @staticmethod
    def _template(function: Callable[..., Any], texts: list[str]) -> str | None:
        if len(texts) == 1 and function in _UNARY_TEXTS:
            return f"({_UNARY_TEXTS[function]}{texts[0]})"
        if len(texts) == 2 and function in _TEXTS:
            return f"({texts[0]} {_TEXTS[function]} {texts[1]})"
        return None


def _is_of_state(source: Source) -> bool:
    """Whether a source is computed from an item of the segment's state alone."""
    while source.kind == "computed" and source.base is not None:
        source = source.base
    return source.kind == "state"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _may_vary(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < _LARGEST
    return type(value) is float and math.isfinite(value)

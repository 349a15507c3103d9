"""Symbolic scalars: numbers of the program that differ from call to call.

An int or float that was read where an earlier cache entry saw another one becomes a SymInt or
SymFloat, an input of the graph, like tensor sizes that are symbols. Arithmetic between sizes that
gives an int stays an expression in the shape environment. Python itself does all other arithmetic
between numbers and constants, at run time too (its source is a `computed` expression), so every
result equals eager's to the last bit. A comparison is guarded by its outcome; any other use of the
number guards its value.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.opcodes.operators import BINARY, COMPARE, UNARY
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.size_nodes import VaryingNumber
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import Source, SourceKind, SourceTrait, payload
from tracer_core.limits import MAX_GRAPH_NUMBERS, MAX_SCALAR_OPERATIONS, MAX_SYMBOLIC_INT
from tracer_core.native_effects import inline_policy
from tracer_core.native_effects.symbolic_arguments import COMPUTED_CALLS, keeps_symbols
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: Types of varying numbers, as symbols or as plain numbers.
NUMBERS = frozenset({int, float, *SYMBOLS})
_NUMBERS = NUMBERS | {bool}
_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
#: operator -> its source.
_TEXTS = {function: symbol for symbol, (*_, function) in (*BINARY.items(), *COMPARE.items())}
_UNARY_TEXTS = {function: symbol for symbol, (_, function) in UNARY.items()}
#: Functions on ints that the shape environment computes as Python does.
_OF_SIZES: frozenset[Callable[..., Any]] = frozenset(
    {
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg,
        operator.pos, operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge,
    }
)  # fmt: skip
_HOLDERS = (int, float, complex, str, bytes)


class UnreadNode:
    """The node of a SymInt that stands for an integer which the program has not looked at."""

    def __getattr__(self, name: str) -> Any:
        raise Break("unsupported_value", "native code looks at a large integer that was copied")


class SymbolicScalars(Component):
    """The symbolic scalars of a trace. Mutable. symbolic: whether sizes may be symbols in this
    trace."""

    def __init__(self, tracer: Tracer, symbolic: bool) -> None:
        super().__init__(tracer)
        self.symbolic = symbolic
        #: id of a symbol -> (symbol, its value now, its source).
        self.numbers: dict[int, tuple[Any, Any, Source]] = {}
        #: id of a symbol that `opaque_number` returned -> that symbol.
        self.opaque: dict[int, Any] = {}
        #: computed source -> number of operations in its expression.
        self._sizes: dict[Source, int] = {}
        #: Source of a text -> the symbols whose text it is.
        self._texts: dict[Source, tuple[Any, ...]] = {}
        #: What makes numbers alike -> their sources: the first is an input of the graph, and the
        #: entry guards that the others equal it.
        self.alike: dict[Any, list[Source]] = {}

    def number(self, value: Any, source: Source, name: str) -> Any:
        """Returns the symbol for a number read at `source`, or the number if it must not vary."""
        env = self.recorder.fakes.shape_env
        if env is None or not _may_vary(value):
            if env is not None and type(value) is int:
                crossed("MAX_SYMBOLIC_INT", reached=value)
            return value
        sources = self._alike(value, source)
        sources.append(source)
        if len(sources) > 1:
            return self.provenance.symbols[sources[0]]
        if source.kind is SourceKind.COMPUTED:  # whose source holds those of its operands
            name = f"computed number {len(self.numbers)}"
        symbol = torch_private.new_number(env, value, name)
        self.provenance.guard(GuardKind.TYPE, source, type(value))
        self.numbers[id(symbol)] = symbol, value, source
        self.recorder.sizes.numbers[symbol.node.expr] = VaryingNumber(source, value, symbol)
        return symbol

    def opaque_number(self, value: int, source: Source) -> Any:
        """Returns what stands for an integer that the program copies and may never look at. What
        takes part in an operation is guarded by its value (`concrete`)."""
        symbol: Any = torch.SymInt(UnreadNode())
        self.provenance.note_read(value, source)
        self.provenance.guard(GuardKind.TYPE, source, int)
        self.numbers[id(symbol)] = symbol, value, source
        self.provenance.symbols[source] = self.opaque[id(symbol)] = symbol
        self.symbolic = True
        return symbol

    def _alike(self, value: int | float, source: Source) -> list[Source]:
        """Returns the sources of the numbers that equal this one, and did in each earlier cache
        entry; a list of its own for a number that was not read before.

        The step counters of an optimizer count as alike from the start: there is one for each
        parameter. Those of other names (ASGD's ``mu``, which is 1 until its first average) do not.
        """
        if SourceTrait.SHARED_NUMBER not in source.kind.traits:
            return []
        before = self.tracer.shapes.history(source)
        if not before and source.kind is not SourceKind.NUMBER:
            return []
        base = source.base if source.kind is SourceKind.NUMBER else None
        name = None if base is None else repr(base.key)
        return self.alike.setdefault((name, *map(repr, (*before, value))), [])

    def concrete(self, value: Any) -> Any:
        """Returns the number behind a symbol, guarded by its value; a tuple (sizes of a tensor, a
        key) with numbers in place of symbols; any other value unchanged."""
        kind = type(value)
        if kind in SYMBOLS:
            known = self.numbers.get(id(value))
            if known is not None:
                self.tracer.python_rng.require_unused(known[2])
                self.provenance.guard(GuardKind.EQ, known[2], known[1])
                return known[1]
            return _KINDS[kind](value)
        if self.symbolic and kind in (tuple, torch.Size):
            parts = [self.concrete(item) for item in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else kind(parts)
        return value

    def payload(self, value: Any) -> Any:
        """Returns the guarded value of an object of a subclass of a number or str, as C code sees
        it. Other values unchanged."""
        if not isinstance(value, _HOLDERS) or type(value) in _HOLDERS:
            return value
        if isinstance(value, (enum.Enum, bool)):
            return value
        source, simple = self.provenance.source_of(value), payload(value)
        if source is not None:
            self.provenance.guard(
                GuardKind.EQ, self.sources.make(source, SourceKind.PAYLOAD), simple
            )
        return simple

    def passes(self, function: Callable[..., Any]) -> bool:
        """Returns whether symbolic arguments of a function stay symbolic."""
        of_torch = bool(self.opaque) and inline_policy.is_torch_operator(function)
        return keeps_symbols(function) and not of_torch

    def beside(self, value: Any, other: Any) -> Any:
        """Returns an operand: a symbol only if the other operand is a number or a tensor; beside a
        number that is a symbol, a bool as the number that it is (sympy tells them apart)."""
        if type(value) is bool and type(other) in (torch.SymInt, torch.SymFloat):
            return int(value)
        if id(value) in self.opaque:
            return self.concrete(value)
        if id(value) not in self.numbers or isinstance(other, (int, float, torch.Tensor, *SYMBOLS)):
            return value
        return self.concrete(value)

    def specialized(self, value: Any, depth: int = 6) -> Any:
        """Returns a value with numbers in place of symbolic scalars, for code that is not
        interpreted."""
        if id(value) in self.numbers:
            return self.concrete(value)
        kind = type(value)
        if depth == 0 or kind not in (list, tuple, dict):
            return value
        if _MAY_HOLD.isdisjoint(map(type, value.values() if kind is dict else value)):
            return value
        if kind is tuple:
            parts = [self.specialized(item, depth - 1) for item in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else tuple(parts)
        for key, item in list(value.items() if kind is dict else enumerate(value)):
            number = self.specialized(item, depth - 1)
            if number is not item:
                value[key] = number
                change = self.effects.peek(value)
                if change is not None:  # it tells what the trace added from what threads added
                    change.added = [number if added is item else added for added in change.added]
        return value

    def operates(self, left: Any, right: Any) -> bool:
        """Returns whether both operands are numbers and at least one is a symbol."""
        return (type(left) in SYMBOLS and type(right) in _NUMBERS) or (
            type(right) in SYMBOLS and type(left) in _NUMBERS
        )

    def among_numbers(self, values: Sequence[Any]) -> bool:
        """Returns whether all are numbers and one is a symbolic scalar (not only a size)."""
        return (
            len(values) > 1
            and all(type(value) in _NUMBERS for value in values)
            and any(id(value) in self.numbers for value in values)
        )

    def operate(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Applies an operator, or a function of numbers, to numbers of which at least one is a
        symbol."""
        if any(id(operand) in self.opaque for operand in operands):
            return function(*map(self.concrete, operands))
        sizes = [
            item for item in operands if type(item) is torch.SymInt and id(item) not in self.numbers
        ]
        if sizes and self._stays_size(function, operands):
            return function(*operands)  # exact; the shape environment relates the results
        origins = [self.origin(operand) for operand in operands]
        template = _template(function, len(operands))
        values = [
            operand if origin is None else origin[0]
            for operand, origin in zip(operands, origins, strict=True)
        ]
        # A loop that keeps computing goes on by value.
        length = sum(self._sizes.get(origin[1], 1) for origin in origins if origin is not None)
        many = length > MAX_SCALAR_OPERATIONS or len(self.numbers) > MAX_GRAPH_NUMBERS
        if many:
            long = length > MAX_SCALAR_OPERATIONS
            crossed("MAX_SCALAR_OPERATIONS" if long else "MAX_GRAPH_NUMBERS")
        if template is None or many or not all(map(_is_number, values)):
            return function(*map(self.concrete, operands))
        try:
            result = function(*values)
        except (ArithmeticError, ValueError):
            for operand in operands:  # these very values decide that it raises
                self.concrete(operand)
            raise
        if not _is_number(result):
            return function(*map(self.concrete, operands))
        texts: list[str | Source] = [
            f"({operand!r})" if origin is None else origin[1]
            for operand, origin in zip(operands, origins, strict=True)
        ]
        return self.provenance.read_varying(result, self._computed(template, texts), always=True)

    def text(self, number: Any, spec: str) -> LazyValue | None:
        """Returns ``format(number, spec)`` of a symbol, which is guarded only where the program reads
        the text; None where it is read at once."""
        origin = self.origin(number) if type(number) in SYMBOLS else None
        # random numbers have no guards
        if origin is None or type(spec) is not str or self.tracer.python_rng.states:
            return None
        try:
            value = format(origin[0], spec)
        except ValueError:
            return None
        return self._text(value, "format({0}, {1})", [origin[1], _literal(spec)], (number,))

    def joined(self, parts: Sequence[Any]) -> LazyValue | None:
        """Returns the sum of strings of which one is such a text; None for other values."""
        texts = [part for part in parts if type(part) is LazyValue and part.source in self._texts]
        if not texts or len(texts) + sum(type(part) is str for part in parts) < len(parts):
            return None
        if sum(self._sizes[text.source] for text in texts) > MAX_SCALAR_OPERATIONS:
            crossed("MAX_SCALAR_OPERATIONS")
            return None
        value = "".join(part if type(part) is str else part.value for part in parts)
        sources = [_literal(part) if type(part) is str else part.source for part in parts]
        template = " + ".join(f"{{{i}}}" for i in range(len(parts)))
        symbols = [symbol for text in texts for symbol in self._texts[text.source]]
        return self._text(value, f"({template})", sources, tuple(symbols))

    def _text(
        self, value: str, template: str, parts: list[str | Source], symbols: tuple[Any, ...]
    ) -> LazyValue:
        source = self._computed(template, parts)
        self._texts[source] = symbols
        return LazyValue(value, source)

    def read(self, text: LazyValue) -> bool:
        """Returns whether a value is a text of symbols; guards these by their values if so."""
        symbols = self._texts.get(text.source, ())
        for symbol in symbols:
            self.concrete(symbol)
        return bool(symbols)

    def looked_up(self, table: Any, key: Any) -> Any:
        """Returns the number that a list or dictionary from before the call has at a symbol, as a
        symbol of its own; None where each key needs a graph of its own."""
        origin = self.origin(key) if type(key) is torch.SymInt else None
        source = self.provenance.source_of(table)
        if origin is None or source is None or self.effects.peek(table) is not None:
            return None
        if origin[0] not in (table if type(table) is dict else range(len(table))):
            return None
        number = table[origin[0]]
        if type(number) not in (int, float):
            return None
        place = self._computed("{0}[{1}]", [source, origin[1]])
        return self.provenance.read_varying(number, place, always=True)

    def origin(self, value: Any) -> tuple[Any, Source] | None:
        """Returns (value now, source) of a symbol; None for a plain number, and for a size that no
        input has."""
        known = self.numbers.get(id(value))
        if known is not None:
            return known[1], known[2]
        return self._origin_of_size(value) if type(value) in SYMBOLS else None

    def _origin_of_size(self, value: Any) -> tuple[Any, Source] | None:
        """Returns `origin` for an expression over sizes of inputs."""
        expr = value.node.expr
        symbols = sorted(expr.free_symbols, key=str)
        texts: list[str | Source] = []
        for symbol in symbols:
            number = self.recorder.sizes.numbers.get(symbol)
            source = self._size_source(symbol) if number is None else number.source
            if source is None:
                return None
            texts.append(source)
        if not symbols or value.node.hint is None:
            return None
        marks = {symbol: f"{{{i}}}" for i, symbol in enumerate(symbols)}
        template = f"({torch_private.python_source(expr, marks)})"
        single = len(symbols) == 1 and template == "({0})" and isinstance(texts[0], Source)
        source = texts[0] if single else self._computed(template, texts)  # type: ignore[assignment]
        assert source is not None
        now = _KINDS[type(value)](value.node.hint)
        return now, source

    def _size_source(self, symbol: Any) -> Source | None:
        """Returns the source of a symbol: a size of an input tensor."""
        for real, fake in self.recorder.fakes.inputs():
            for dim, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                    base = self.provenance.source_of(real)
                    if base is not None:
                        return self.sources.make(base, SourceKind.COMPUTED, f"{{b}}.shape[{dim}]")
        return None

    def _computed(self, template: str, parts: list[str | Source]) -> Source:
        """Returns the source of an expression. parts: replace {0}, {1}, ... in the template."""
        bases = list(dict.fromkeys(part for part in parts if isinstance(part, Source)))
        names = {source: f"{{{i}}}" if i else "{b}" for i, source in enumerate(bases)}
        text = template.format(
            *(names[part] if isinstance(part, Source) else part for part in parts)
        )
        self.provenance.combines |= len(bases) > 1
        key = text if len(bases) == 1 else (text, tuple(bases[1:]))
        result = self.sources.make(bases[0], SourceKind.COMPUTED, key)
        repeated = (part for part in parts if isinstance(part, Source))
        self._sizes[result] = 1 + sum(self._sizes.get(part, 1) for part in repeated)
        return result

    def _stays_size(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
        if function is operator.pow and len(operands) == 2:
            return type(operands[1]) is int and operands[1] > 0
        return function in _OF_SIZES and all(
            type(operand) in (int, bool, torch.SymInt) for operand in operands
        )


#: Types of what may be a symbol, or hold one.
_MAY_HOLD = frozenset({*SYMBOLS, list, tuple, dict})


def _template(function: Callable[..., Any], n_operands: int) -> str | None:
    if n_operands == 1 and function in _UNARY_TEXTS:
        return f"({_UNARY_TEXTS[function]}{{0}})"
    if n_operands == 2 and function in _TEXTS:
        return f"({{0}} {_TEXTS[function]} {{1}})"
    name = COMPUTED_CALLS.get(function)
    return name and f"{name}({', '.join(f'{{{i}}}' for i in range(n_operands))})"


def _literal(text: str) -> str:
    """Returns a string's Python text, without the braces that mark a template's places."""
    return repr(text).replace("{", "\\x7b")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _may_vary(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < MAX_SYMBOLIC_INT
    return type(value) is float and math.isfinite(value)

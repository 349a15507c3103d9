"""Nodes that compute the symbolic sizes, strides and scalars of a trace from sympy expressions.

Each expression gets one node. A symbol is read from an input that has it as a size (else as a
stride), from the program's number that it stands for, or from the node that made it from data.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.graph_breaks import Break
from tracer_core.guards.source import Source, SourceKind, Sources

if TYPE_CHECKING:
    from tracer_core.fx_capture.fx_graph import WrittenGraph

#: A symbol in torch's messages.
_SYMBOL = re.compile(r"\b(?:s|u|zf|zuf)\d+\b")
#: Key in the `meta` of the placeholder of a number of the program.
IS_NUMBER = "is_number"
_SYMPY_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
    "CleanDiv": operator.floordiv,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": operator.not_,
}


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of the graph. value: the current tensor or number. node: its placeholder."""

    source: Source
    value: Any
    node: torch.fx.Node


@dataclass(frozen=True, slots=True)
class VaryingNumber:
    """A symbolic scalar of the program. value: its current value. symbolic: its SymInt or SymFloat."""

    source: Source
    value: int | float
    symbolic: Any


class SizeNodes:
    """The nodes of symbolic expressions. Mutable. numbers: symbol -> the program's number. read_by:
    symbol -> the node that reads an unbacked symbol, None for other symbols."""

    def __init__(self, written: WrittenGraph) -> None:
        self.numbers: dict[Any, VaryingNumber] = {}
        self.read_by: Callable[[Any], torch.fx.Node | None] = lambda symbol: None
        self._written = written
        self._known: dict[Any, Any] = {}

    def forget(self, gone: dict[torch.fx.Node, None]) -> None:
        """Drops nodes that have left the graph."""
        self._known = {
            expr: node
            for expr, node in self._known.items()
            if not isinstance(node, torch.fx.Node) or node not in gone
        }

    def node(self, expr: Any) -> Any:
        """Returns the node (or number) that computes a sympy expression over symbolic sizes."""
        if not expr.free_symbols:
            return bool(expr) if expr.is_Boolean else int(expr) if expr.is_integer else float(expr)
        result = self._known.get(expr)
        if result is not None:
            return result
        if expr.is_Symbol:
            read = self.read_by(expr)
            node = self._size_node(expr) if read is None else read
        elif expr.is_Pow and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            node = self._fold(operator.mul, [expr.args[0]] * int(expr.args[1]), expr)
        else:
            kind = type(expr).__name__
            function = _SYMPY_OPERATORS.get(kind)
            if function is None:
                raise Break("unsupported_value", f"a size computed by {kind}: {expr}")
            node = self._fold(function, list(expr.args), expr)
        self._known[expr] = node
        return node

    def _fold(self, function: Any, parts: list[Any], expr: Any) -> torch.fx.Node:
        values: list[Any] = [self.node(part) for part in parts]
        make = self._written.unchecked_node
        if len(values) == 1:
            return make("call_function", function, (values[0],), self._sized(expr))
        node: torch.fx.Node = values[0]
        for count, value in enumerate(values[1:], 2):
            known = expr if count == len(values) else expr.func(*parts[:count])
            node = make("call_function", function, (node, value), self._sized(known))
        return node

    def _sized(self, expr: Any) -> Any:
        """Returns the SymInt or SymBool of an expression."""
        env = self._written.fakes.shape_env
        if torch_private.is_bool_expr(expr):
            return env.create_symboolnode(expr)
        return env.create_symintnode(expr, hint=None)

    def _size_node(self, symbol: Any) -> torch.fx.Node:
        number = self.numbers.get(symbol)
        if number is not None:
            node = self._written.placeholder(number.source, number.value, number.symbolic)
            node.meta[IS_NUMBER] = True
            return node
        inputs = list(self._written.fakes.inputs())
        # A stride of a view into a larger tensor need not follow from the view's sizes.
        for question in ("size", "stride"):
            for _, fake in inputs:
                for dim, size in enumerate(getattr(fake, question)()):
                    if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                        real = self._written.fakes.real_of(fake)
                        assert real is not None
                        self._written.fake(real)
                        args = self._written.node_of(fake), dim
                        return self._written.unchecked_node("call_method", question, args, size)
        raise Break("unsupported_value", "a size, stride or offset that no input shows")

    def named(self, text: str) -> str:
        """Returns a message with the names of sizes (``x.shape[0]``) in place of their symbols, and
        their values in this call; of a symbol that depends on data, the operator that returns it."""
        symbols = dict.fromkeys(_SYMBOL.findall(text))
        known = {str(key): (n.source.name, n.value) for key, n in self.numbers.items()}
        for real, fake in self._written.fakes.inputs() if symbols else ():
            source = self._written.source_of(real)
            name = "a tensor" if source is None else source.name
            for dim, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    known[str(size.node.expr)] = f"{name}.shape[{dim}]", size.node.hint
        notes = [f"{known[name][0]} is {known[name][1]}" for name in symbols if name in known]
        result = _SYMBOL.sub(lambda match: known.get(match[0], (match[0],))[0], text)
        result += f" (in this call {', '.join(notes)})" if notes else ""
        return result + self.origins(text)

    def origins(self, text: str) -> str:
        """Returns the operators that return the symbols of a message, where they depend on data."""
        result, symbols = "", set(_SYMBOL.findall(text))
        for symbol, read in getattr(self._written.fakes.shape_env, "read_by", {}).items():
            if str(symbol) in symbols:
                producer = read.args[0] if read.target == "size" else read
                what = "the number that" if producer is read else "a size of what"
                result += f"; {symbol} is {what} {producer.name} returns"
        return result

    def take_undetermined(self, sources: Sources) -> None:
        """Makes graph inputs of the symbols that no size of an input is: numbers in sizes that are
        expressions (``76 - n`` behind ``x.shape[0] + n == 76``), and strides of views whose base has a
        symbolic size. A lowered graph cannot read strides off its inputs."""
        inputs = [
            value
            for value in self._written.inputs
            if not torch_private.is_wrapper(value.node.meta["val"])
        ]
        known = {
            size.node.expr
            for item in inputs
            for size in getattr(item.node.meta["val"], "shape", (item.node.meta["val"],))
            if isinstance(size, torch.SymInt)
        }
        for symbol in sorted(self._in_sizes(inputs) - known, key=str):
            if symbol in self.numbers:
                self.node(symbol)
        for item in inputs:
            if not isinstance(item.value, torch.Tensor):
                continue
            for dim, stride in enumerate(item.node.meta["val"].stride()):
                symbol = stride.node.expr if isinstance(stride, torch.SymInt) else None
                if symbol is not None and symbol.is_Symbol and symbol not in known:
                    known.add(symbol)
                    at = sources.make(item.source, SourceKind.COMPUTED, f"{{b}}.stride({dim})")
                    self._written.placeholder(at, item.value.stride(dim), stride)

    @staticmethod
    def _in_sizes(inputs: list[GraphInput]) -> set[Any]:
        """Returns the symbols in the sizes of inputs."""
        shapes = (getattr(item.node.meta["val"], "shape", ()) for item in inputs)
        sizes = (size for shape in shapes for size in shape if isinstance(size, torch.SymInt))
        return {symbol for size in sizes for symbol in size.node.expr.free_symbols}

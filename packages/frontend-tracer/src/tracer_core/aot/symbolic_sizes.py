"""Symbolic sizes: SymInts of a ShapeEnv as graph nodes, as `SizeSpec`s and as Python text.

Expressions of SymInts, SymFloats and SymBools are over symbols that occur alone as a dimension of a
graph input, or are an input themselves. An expression becomes one node per graph. A symbol that
cannot be read from an input raises LoweringUnsupported that names it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.specs import SizeSpec
from tracer_core.torch_private.names import name, names

if TYPE_CHECKING:
    import sympy

SYM_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def as_python_scalar(value: Any) -> Any:
    """Returns the number if a SymInt's expression is constant; returns anything else as it is."""
    if isinstance(value, torch.SymInt) and not torch_private.is_nested_int(value):
        expr = value.node.expr
        if expr.is_number:
            return int(expr)
    return value


def as_expression(value: Any) -> Any:
    """Returns the expression of a SymInt, which can be compared without a guard; anything else as it
    is."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


def free_symbols(value: Any) -> set[sympy.Symbol]:
    """Returns the symbols in a value's sizes, strides and offset (or in the number itself)."""
    if isinstance(value, torch.Tensor):
        parts: list[Any] = [*value.shape, *value.stride(), value.storage_offset()]
    else:
        parts = list(value) if isinstance(value, (tuple, list)) else [value]
        if any(isinstance(part, torch.Tensor) for part in parts):
            return set().union(*(free_symbols(part) for part in parts))
    return {
        symbol
        for part in parts
        if isinstance(part, SYM_TYPES) and not torch_private.is_nested_int(part)
        for symbol in part.node.expr.free_symbols
    }


def hint_of(value: Any) -> Any:
    """Returns the value that a size (or a number) had in the captured call."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        value = torch_private.hint_or_guess(value)
    return value if isinstance(value, float) else int(value)


@dataclass(frozen=True, slots=True)
class SizeOrigin:
    """Where a symbol is read: dimension `dim` of input `index`, or the input itself (dim None),
    which may be a float.
    """

    index: int
    dim: int | None
    hint: int | float
    symint: torch.SymInt | torch.SymFloat


def size_origins(inputs: Sequence[Any]) -> dict[sympy.Symbol, SizeOrigin]:
    """Returns where each symbol first occurs alone among the inputs, ints before tensors: reading
    them is cheaper.
    """
    result: dict[sympy.Symbol, SizeOrigin] = {}

    def visit(value: Any, index: int, dim: int | None) -> None:
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and value.node.expr.is_Symbol:
            result.setdefault(value.node.expr, SizeOrigin(index, dim, hint_of(value), value))

    for index, value in enumerate(inputs):
        visit(value, index, None)
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and not torch_private.is_wrapper(value):
            for dim, size in enumerate(value.shape):
                visit(size, index, dim)
    return result


def size_reader(origins: Iterable[SizeOrigin]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function that reads sizes from the inputs of a call."""
    reads = [(origin.index, origin.dim) for origin in origins]
    if not reads:
        return lambda inputs: ()
    return lambda inputs: tuple(
        [inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in reads]
    )


def size_specs(origins: dict[sympy.Symbol, SizeOrigin]) -> tuple[SizeSpec, ...]:
    """Returns one SizeSpec per int symbol, with its range from the ShapeEnv."""
    specs = []
    for symbol, origin in origins.items():
        if isinstance(origin.symint, torch.SymFloat):
            continue
        lower, upper = torch_private.symbol_range(origin.symint)
        place = origin.index, origin.dim
        specs.append(SizeSpec(str(symbol), *place, lower, upper, int(origin.hint)))
    return tuple(specs)


def _fold(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def build(call: Callable[..., Any], *args: Any) -> Any:
        result = args[0]
        for arg in args[1:]:
            result = call(function, result, arg)
        return result

    return build


def _single(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, *args: call(function, *args)


def _ceil_div(call: Callable[..., Any], a: Any, b: Any) -> Any:
    return call(operator.neg, call(operator.floordiv, call(operator.neg, a), b))


def _modular_indexing(call: Callable[..., Any], a: Any, divisor: Any, modulus: Any) -> Any:
    return call(operator.mod, call(operator.floordiv, a, divisor), modulus)


#: sympy function (by class name: torch's live in a private module) -> how it is built from
#: operators.
BUILDERS: dict[str, Callable[..., Any]] = {
    "Add": _fold(operator.add),
    "Mul": _fold(operator.mul),
    "Pow": _single(operator.pow),
    "PowByNatural": _single(operator.pow),
    "FloatPow": _single(operator.pow),
    "FloorDiv": _single(operator.floordiv),
    "CleanDiv": _single(operator.floordiv),
    "CeilDiv": _ceil_div,
    "Mod": _single(operator.mod),
    "PythonMod": _single(operator.mod),
    "ModularIndexing": _modular_indexing,
    "Max": _fold(name("sym_max")),
    "Min": _fold(name("sym_min")),
    "FloatTrueDiv": _single(operator.truediv),
    "IntTrueDiv": _single(operator.truediv),
    "ToFloat": _single(name("sym_float")),
    "TruncToInt": _single(name("sym_int")),
    "OpaqueUnaryFn_sqrt": _single(torch_private.sym_sqrt),
    "StrictLessThan": _single(operator.lt),
    "StrictGreaterThan": _single(operator.gt),
    "LessThan": _single(operator.le),
    "GreaterThan": _single(operator.ge),
    "Equality": _single(operator.eq),
    "Unequality": _single(operator.ne),
}


def _builder(expr: Any) -> Callable[..., Any]:
    """Returns the row of `BUILDERS` for an expression."""
    name = type(expr).__name__
    if name not in BUILDERS:
        raise LoweringUnsupported(f"a size is computed by {name}, which has no form yet")
    return BUILDERS[name]


def _not_an_input() -> LoweringUnsupported:
    return LoweringUnsupported("a symbolic size is not the size of any dimension of an input")


class SizeNodes:
    """Makes graph nodes for symbolic sizes. Mutable: caches them.

    graph: where nodes are added, at its insertion point. placeholders: the graph's inputs, in
    order.
    """

    def __init__(self, graph: torch.fx.Graph, placeholders: Sequence[torch.fx.Node]) -> None:
        self._graph, self._placeholders = graph, placeholders
        self._origins = size_origins([node.meta["val"] for node in placeholders])
        self._made: dict[sympy.Expr, torch.fx.Node] = {}

    def node(self, value: Any) -> Any:
        """Returns a number for a constant, else the node that computes `value`, a symbolic
        number.
        """
        return self._expr(value.node.expr)

    def _expr(self, expr: Any) -> Any:
        if expr.is_number:
            if expr.is_Integer:
                return int(expr)
            return bool(expr) if expr.is_Boolean else float(expr)
        if expr not in self._made:
            self._made[expr] = self._build(expr)
        return self._made[expr]

    def _build(self, expr: Any) -> torch.fx.Node:
        if expr.is_Symbol:
            return self._symbol(expr)
        node: torch.fx.Node = _builder(expr)(self._call, *map(self._expr, expr.args))
        return node

    def _symbol(self, symbol: sympy.Symbol) -> torch.fx.Node:
        origin = self._origins.get(symbol)
        if origin is None:
            raise _not_an_input()
        placeholder = self._placeholders[origin.index]
        if origin.dim is None:
            return placeholder
        node = self._graph.call_function(torch.ops.aten.sym_size.int, (placeholder, origin.dim))
        node.meta["val"] = origin.symint
        return node

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        node = self._graph.call_function(function, args)
        node.meta["val"] = function(*values)
        return node


def size_source(value: Any, names: dict[sympy.Symbol, str]) -> str:
    """Returns Python text that computes a size. names: the variable that holds each symbol."""
    if not isinstance(value, torch.SymInt):
        return repr(int(value))

    def call(function: Callable[..., Any], *args: str) -> str:
        template = TEXTS.get(function)
        if template is None:
            raise LoweringUnsupported(f"the size expression {value} has no text form yet")
        return template.format(*args)

    def visit(expr: Any) -> str:
        if expr.is_number:
            return f"({int(expr)})"
        if expr.is_Symbol:
            if expr not in names:
                raise _not_an_input()
            return names[expr]
        return str(_builder(expr)(call, *map(visit, expr.args)))

    return visit(value.node.expr)


TEXTS: dict[Callable[..., Any], str] = {
    operator.add: "({} + {})",
    operator.mul: "({} * {})",
    operator.pow: "({} ** {})",
    operator.neg: "(-{})",
    operator.floordiv: "({} // {})",
    operator.mod: "({} % {})",
    **dict.fromkeys(names("sym_max"), "max({}, {})"),
    **dict.fromkeys(names("sym_min"), "min({}, {})"),
}

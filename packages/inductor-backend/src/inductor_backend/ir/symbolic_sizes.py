"""Converts torch's SymInts to size expressions, and expressions to hints, bounds and static values.

No other module turns a symbolic expression into a number. A hint never decides what is computed:
where a static value is needed for that, `static` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.torch_private import is_known_to_be, upper_bound
from tracer_core.plugin_api import SizeSpec


def hint(size: Any) -> int:
    """Returns a fake tensor's size, or its value in the captured call: for heuristics only."""
    if isinstance(size, int):
        return size
    result = size.node.hint
    return int(result) if result is not None else 1


def same_tensors(values: Sequence[torch.Tensor]) -> bool:
    """Returns whether fake tensors have one dtype and, whatever the symbols are, the same sizes: their
    expressions are compared, since a comparison of SymInts would add a guard.
    """
    kinds = [(value.dtype, [SizeVars.expr(size) for size in value.shape]) for value in values]
    return all(kind == kinds[0] for kind in kinds)


class SizeVars:
    """The symbolic sizes of one graph. specs: symbol name -> its spec."""

    def __init__(self, sizes: Sequence[SizeSpec] = ()) -> None:
        self.specs = {spec.symbol: spec for spec in sizes}
        self._hints: dict[Any, int | None] = {}

    @staticmethod
    def expr(size: Any) -> Expr:
        """Converts an int, a SymInt or an expression to an expression; a size that guards make 1
        becomes 1.
        """
        if isinstance(size, torch.SymInt):
            expr = simplify(size.node.expr)
            return (
                1
                if not isinstance(expr, int) and size.node.hint == 1 and is_known_to_be(size, 1)
                else expr
            )
        return simplify(size) if hasattr(size, "free_symbols") else int(size)

    def exprs(self, sizes: Sequence[Any]) -> tuple[Expr, ...]:
        return tuple(self.expr(size) for size in sizes)

    def hint(self, expr: Expr, default: int = 64) -> int:
        """Returns the value in the captured call: for heuristics only, never for meaning."""
        if isinstance(expr, int):
            return expr
        if expr not in self._hints:
            values = {
                symbol: self.specs[symbol.name].hint
                for symbol in expr.free_symbols
                if symbol.name in self.specs
            }
            result = expr.subs(values)
            self._hints[expr] = int(result) if result.is_Integer else None
        number = self._hints[expr]
        return default if number is None else number

    def is_positive(self, expr: Expr) -> bool:
        """Tells whether an expression is provably at least 1 for every size in range."""
        if isinstance(expr, int):
            return expr > 0
        if expr.is_Symbol:
            spec = self.specs.get(expr.name)
            return spec is not None and spec.lower >= 1
        if expr.is_Number:
            return bool(expr >= 1)
        return expr.is_Mul and all(map(self.is_positive, expr.args))

    def upper(self, expr: Expr) -> int | None:
        """Returns an upper bound for every size in range, or None."""
        if isinstance(expr, int):
            return expr
        ranges = {}
        for symbol in expr.free_symbols:
            spec = self.specs.get(symbol.name)
            if spec is None:
                return None
            ranges[symbol] = spec.lower, spec.upper
        return upper_bound(expr, ranges)

    def nonnegative(self, expr: Expr) -> bool:
        """Tells whether an expression is provably nonnegative for every size in range."""
        if isinstance(expr, int):
            return expr >= 0
        import sympy

        smallest = sympy.expand(expr)
        if smallest.is_nonnegative:
            return True
        for symbol in expr.free_symbols:
            spec = self.specs.get(symbol.name)
            slope = sympy.diff(smallest, symbol)
            if spec is None or not slope.is_Integer:
                return False  # not provably monotonic
            bound = spec.lower if slope > 0 else spec.upper
            if bound is None:
                return False
            smallest = smallest.subs(symbol, bound)
        return bool(smallest.is_nonnegative)

    def static(self, expr: Expr, why: str) -> int:
        """Returns the value of a static size. Raises BackendError, which names `why`, for a
        symbolic one.
        """
        if isinstance(expr, int):
            return expr
        raise unsupported(
            "lower", f"{why} needs the symbolic size {expr} as a number; mark that dimension static"
        )

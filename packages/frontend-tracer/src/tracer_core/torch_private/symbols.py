"""Symbolic scalars: creation, ranges, conditions, and their Python text."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.limits import MAX_TRIED_SIZES


@functools.cache
def _input_source_class() -> Any:
    from torch._guards import GuardSource, Source

    class InputSource(Source):
        def __init__(self, name: str) -> None:
            self.__dict__["_text"] = name

        @property
        def _name_template(self) -> str:
            return str(self.__dict__["_text"])

        @property
        def guard_source(self) -> Any:
            return GuardSource.LOCAL

        def is_ephemeral(self) -> bool:
            return False

        def __hash__(self) -> int:
            return hash(self._name_template)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, InputSource) and other._name_template == self._name_template

    # A method in torch 2.11, a property since.
    is_method = inspect.isfunction(getattr(Source, "name", None))

    def text(self: Any) -> str:
        return str(self._name_template)

    InputSource.name = text if is_method else property(text)  # type: ignore[assignment]
    return InputSource


def input_source(name: str) -> Any:
    """Returns torch's source object for a tensor; only its name is ever used."""
    return _input_source_class()(name)


def new_number(env: Any, value: int | float, name: str) -> Any:
    """Returns a SymInt or SymFloat for a number of the program with current value `value`."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = input_source(name)
    symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    make = env.create_symintnode if isinstance(value, int) else env.create_symfloatnode
    return make(symbol, hint=value, source=source)


def sym_sqrt(value: Any) -> Any:
    """Returns the square root of a symbolic scalar."""
    return torch.sym_sqrt(value)


def holds(condition: Any) -> bool:
    """Returns whether a comparison of sizes is true, and guards it; False if it is data-dependent."""
    if not isinstance(condition, torch.SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def symbol_range(value: torch.SymInt) -> tuple[int, int | None]:
    """Returns the inclusive range of a SymInt in the ShapeEnv (None: no upper bound; the lower
    bound of a symbolic scalar that is no size is -2**63)."""
    import sympy

    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    finite = [
        isinstance(b, (int, sympy.Integer)) and abs(int(b)) < 2**62
        for b in (bounds.lower, bounds.upper)
    ]
    return int(bounds.lower) if finite[0] else -(2**63), int(bounds.upper) if finite[1] else None


#: Assumed value of an unbacked size where it affects only speed.
_GUESS = 1024


def hint_or_guess(value: torch.SymInt | torch.SymFloat) -> Any:
    """Returns the hint of a symbolic scalar; for an unbacked one a guess within its range."""
    if value.node.hint is not None:
        return value.node.hint
    lower, upper = symbol_range(value)  # type: ignore[arg-type]
    return max(lower, min(_GUESS, _GUESS if upper is None else upper))


def narrow(size: torch.SymInt, lowest: int, highest: int | None) -> None:
    """Constrains a size's symbol to a range from 1 or more; torch's default range begins at 2."""
    from torch.fx.experimental.symbolic_shapes import constrain_range
    from torch.utils._sympy.value_ranges import ValueRanges

    if lowest == 1:
        env, symbol = size.node.shape_env, size.node.expr
        env.var_to_range[symbol] = ValueRanges(1, env.var_to_range[symbol].upper)
        env._update_version_counter()
        env.from_one.add(symbol)
    constrain_range(size, min=lowest, max=highest)


def implied(expr: Any, symbol: Any, lowest: int, highest: int | None) -> bool | None:
    """Returns whether a condition on one symbol holds for every value of a range; None if it holds for
    MAX_TRIED_SIZES values of a longer one and is not proved."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    values = ValueRanges(lowest, int_oo if highest is None else highest)
    if bool(bound_sympy(expr, {symbol: values}).lower) or _grows(expr, symbol, lowest):
        return True
    if highest is None:
        return False
    holds = _on_numbers(expr, symbol)
    if highest - lowest < MAX_TRIED_SIZES:
        return all(map(holds, range(lowest, highest + 1)))
    step = -(-(highest - lowest) // (MAX_TRIED_SIZES // 2))
    near = range(lowest, min(lowest + MAX_TRIED_SIZES // 2, highest))
    tried = itertools.chain(near, range(lowest, highest + 1, step), (highest - 1, highest))
    return None if all(map(holds, tried)) else False


def _on_numbers(expr: Any, symbol: Any) -> Callable[[int], bool]:
    """Returns a function of a number in place of a condition on a symbol, a hundred times as fast as a
    substitution."""
    lookup: Callable[[int], bool] = eval(
        f"lambda size: bool({python_source(expr, {symbol: 'size'})})",
        {"math": math, "torch": torch},
    )
    return lookup


def _grows(expr: Any, symbol: Any, lowest: int) -> bool:
    """Returns whether an inequality of polynomials holds because no coefficient of their difference,
    counted from the lowest size, is negative (``s*s >= s``); intervals do not see this."""
    import sympy

    if isinstance(expr, (sympy.Le, sympy.Lt)):
        low, high = expr.args
    elif isinstance(expr, (sympy.Ge, sympy.Gt)):
        high, low = expr.args
    else:
        return False
    above = sympy.Dummy("above", integer=True, nonnegative=True)
    try:
        poly = sympy.Poly((high - low).subs(symbol, above + lowest), above)
    except sympy.PolynomialError:  # with floor divisions
        return False
    least = 1 if isinstance(expr, (sympy.Lt, sympy.Gt)) else 0
    coefficients = poly.all_coeffs()
    return all(item.is_number and item >= 0 for item in coefficients) and coefficients[-1] >= least


def finite_bounds(bounds: Any) -> tuple[int, int | None]:
    """Returns (lower, upper) of a ValueRanges, None for no upper bound."""
    try:
        upper = int(bounds.upper)
    except (TypeError, ValueError, OverflowError, AttributeError):  # AttributeError: int(sympy.oo)
        return int(bounds.lower), None
    return int(bounds.lower), upper if upper < 2**62 else None


def least(env: Any, size: torch.SymInt) -> int:
    """Returns the least value of a size of an input, whatever replaced its symbol since."""
    bounds = env.var_to_range.get(size.node._expr)
    return 0 if bounds is None else finite_bounds(bounds)[0]


def python_source(expr: Any, names: dict[Any, str]) -> str:
    """Returns a sympy expression over sizes as Python text. names: symbol -> text."""
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Symbol(self, symbol: Any) -> str:
            return names[symbol]

        def _print_Float(self, number: Any) -> str:
            return repr(float(number))  # sympy's own text has 15 digits

    return str(Printer().doprint(expr))

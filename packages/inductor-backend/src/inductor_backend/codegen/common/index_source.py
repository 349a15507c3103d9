"""Writes index expressions, in the syntax that C++ and Triton share.

Equal indices have equal texts (terms are sorted), so that equal kernels are found by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inductor_backend.ir.index_expr import Expr, FloorDiv, Index, Indirect, Var
from inductor_backend.ir.values import Value

SizeText = Callable[[Expr], str]


def index_source(
    index: Index,
    variable: Sequence[str] | Mapping[int, str],
    value: Callable[[Value], str],
    size: SizeText,
    floor: str,
) -> str:
    """Returns the expression. variable: text of each loop variable. value: returns the text of a
    body value. floor: the language's operator for floor division of nonnegative integers."""
    parts: list[str] = []
    for atom, coefficient in index.terms.items():
        if isinstance(atom, Var):
            text = variable[atom.position]
        elif isinstance(atom, Indirect):
            text = value(atom.value)
        else:
            sign = floor if isinstance(atom, FloorDiv) else "%"
            text = (
                f"(({index_source(atom.base, variable, value, size, floor)}) {sign}"
                f" {size(atom.divisor)})"
            )
        parts.append(text if coefficient == 1 else f"{size(coefficient)} * {text}")
    if not (isinstance(index.const, int) and index.const == 0) or not parts:
        parts.append(size(index.const))
    return " + ".join(sorted(parts))

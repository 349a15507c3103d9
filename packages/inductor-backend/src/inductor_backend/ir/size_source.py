"""Prints symbolic sizes as C++ or Python expressions."""

from __future__ import annotations

import functools
from typing import Any

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import CACHED_ANSWERS, Expr

ALIGNMENT = 64

_CONVERSIONS = {
    ("ToFloat", "cpp"): "(double)", ("ToFloat", "python"): "float", ("TruncToInt",
    "cpp"): "(int64_t)",
    ("TruncToInt", "python"): "int",
}  # fmt: skip
_SYMPY_INFIX = {"Add": " + ", "Mul": " * "}


def _quotient(numerator: Any, denominator: Any, language: str) -> str:
    """Prints a floor division."""
    a, b = size_expression(numerator, language), size_expression(denominator, language)
    if language != "cpp":
        return f"(({a}) // {b})"
    import sympy

    if sympy.sympify(numerator).is_nonnegative is True:
        return f"(({a}) / {b})"
    return f"(({a}) / {b} - ((({a}) % {b} != 0) & ((({a}) < 0) != ({b} < 0))))"


def size_expression(expr: Expr, language: str = "cpp") -> str:
    """Prints a symbolic size as an int expression over its symbols, in C++ or Python.

    Raises BackendError for an unsupported sympy function.
    """
    return str(expr) if isinstance(expr, int) else _printed(expr, language)


@functools.lru_cache(CACHED_ANSWERS)
def _printed(expr: Any, language: str) -> str:
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr)
    name = type(expr).__name__
    if name == "floor" or (
        expr.is_Mul and any(a.is_Rational and not a.is_Integer for a in expr.args)
    ):
        import sympy

        numerator, denominator = sympy.fraction(
            sympy.together(expr.args[0] if name == "floor" else expr)
        )
        return _quotient(numerator, denominator, language)
    if expr.is_Float:
        return repr(float(expr))
    args = [size_expression(a, language) for a in expr.args]
    if name in ("ToFloat", "TruncToInt"):
        return f"{_CONVERSIONS[name, language]}({args[0]})"
    if name in _SYMPY_INFIX:
        return "(" + _SYMPY_INFIX[name].join(args) + ")"
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return "(" + " * ".join([args[0]] * int(expr.exp)) + ")"
    if name in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
        return _quotient(expr.args[0], expr.args[1], language)
    if name == "AlignUp":
        division = "/" if language == "cpp" else "//"
        return f"(({args[0]} + {ALIGNMENT - 1}) {division} {ALIGNMENT} * {ALIGNMENT})"
    if name in ("Mod", "PythonMod"):
        if language == "cpp" and expr.args[0].is_nonnegative is not True:
            return (  # the remainder has the divisor's sign, as in Python
                f"(({args[0]} % {args[1]} + {args[1]}) % {args[1]})"
            )
        return f"({args[0]} % {args[1]})"
    if name in ("Max", "Min"):
        call = name.lower() if language != "cpp" else "tc_least" if name == "Min" else "tc_greatest"
        text = args[0]
        for other in args[1:]:
            text = f"{call}({text}, {other})"
        return text
    raise unsupported("codegen", f"size expression {expr} ({name}) has no {language} text")

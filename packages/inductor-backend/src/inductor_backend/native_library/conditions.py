"""Writes what a captured graph takes for granted of its symbolic sizes as conditions in C++."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.size_source import size_expression

#: sympy's relations and connectives: the operator in C++.
_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=",
    "StrictGreaterThan": ">", "GreaterThan": ">=",
}  # fmt: skip
_CONNECTIVES = {"And": " && ", "Or": " || "}


def conditions_of(gm: torch.fx.GraphModule, symbols: Collection[str]) -> list[str]:
    """Returns the guards of a trace beside the sizes' ranges. symbols: of the sizes that a caller gives.

    Raises BackendError for a guard on anything else."""
    env: Any = None
    result: dict[str, Any] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                env = size.node.shape_env
                result |= {symbol.name: symbol for symbol in size.node.expr.free_symbols}
    if env is None:
        return []
    texts: dict[str, None] = {}
    for name, symbol in result.items():
        replaced = env.replacements.get(symbol)
        if replaced is not None:
            texts[f"{name} == {_size(replaced, symbols)}"] = None
    for guard in env.guards:
        texts[_condition(env.simplify(guard.expr), symbols)] = None
    texts.pop("true", None)
    return [f"({text})" for text in texts]


def _size(expr: Any, symbols: Collection[str]) -> str:
    others = sorted({symbol.name for symbol in expr.free_symbols} - set(symbols))
    if others:
        raise unsupported("native library", f"the graph depends on {others[0]}, which is no size")
    return size_expression(expr)


def _condition(expr: Any, symbols: Collection[str]) -> str:
    kind = type(expr).__name__
    if kind in _RELATIONS:
        return f"{_size(expr.lhs, symbols)} {_RELATIONS[kind]} {_size(expr.rhs, symbols)}"
    if kind in _CONNECTIVES:
        parts = [f"({_condition(arg, symbols)})" for arg in expr.args]
        return _CONNECTIVES[kind].join(parts)
    if kind == "Not":
        return f"!({_condition(expr.args[0], symbols)})"
    if kind in ("BooleanTrue", "BooleanFalse"):
        return str(expr).lower()
    raise unsupported("native library", f"the guard {expr} ({kind}) has no text in C++")

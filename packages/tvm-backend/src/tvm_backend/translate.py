"""Translates a functional ATen graph to a Relax module.

In: an fx graph of ATen operators with values in ``meta["val"]``, placeholders for tensors and
sizes. Out: a module whose function ``main`` takes the placeholders in order and returns a tuple.
What always holds: each symbolic size is one TIR variable of the same name, which TVM reads from
the arguments' shapes; a size that is an input is passed as a shape of one dimension."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from tvm_backend import tvm_private
from tvm_backend.converters import CONVERTERS
from tvm_backend.dtypes import DTYPES


def relax_module(graph: torch.fx.Graph, frozen: Collection[str] = ()) -> Any:
    """Returns the Relax module. frozen: names of placeholders that will be constants. Raises
    what TVM's importer raises, and KeyError for a dtype that TVM lacks."""
    from tvm import relax, tirx

    placeholders = graph.find_nodes(op="placeholder")
    symbols: dict[Any, Any] = {expr: tirx.Var(str(expr), "int64") for expr in _bound(placeholders)}

    def size(value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return int(value)
        expr = value.node.expr
        # no argument binds all its symbols: it gets a variable of its own
        if not expr.free_symbols <= symbols.keys():
            return symbols.setdefault(expr, tirx.Var(f"d{len(symbols)}", "int64"))
        return _expression(expr, symbols, tirx)

    parameters: list[tuple[str, Any]] = []
    values: dict[str, Any] = {}
    for node in placeholders:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            shape = [size(dim) for dim in value.shape]
            parameters.append((node.name, relax.TensorType(shape, DTYPES[value.dtype])))
        else:
            values[node.name] = size(value)
            parameters.append((f"{node.name}_shape", relax.ShapeType([values[node.name]])))
    return tvm_private.translate(graph, parameters, values, CONVERTERS, frozen)


def _bound(placeholders: list[torch.fx.Node]) -> list[Any]:
    """Returns the symbols that TVM can read: those that are a dimension or an input by
    themselves."""
    result: dict[Any, None] = {}
    for node in placeholders:
        value = node.meta["val"]
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                result[size.node.expr] = None
    return list(result)


def _expression(expr: Any, symbols: dict[Any, Any], tirx: Any) -> Any:
    """Converts a sympy expression of sizes to TIR."""
    if expr in symbols:
        return symbols[expr]
    if expr.is_Integer:
        return tirx.IntImm("int64", int(expr))
    parts = [_expression(part, symbols, tirx) for part in expr.args]
    if expr.is_Add or expr.is_Mul:
        total = parts[0]
        for part in parts[1:]:
            total = total + part if expr.is_Add else total * part
        return total
    if type(expr).__name__ in ("FloorDiv", "CleanDiv"):
        return tirx.floordiv(*parts)
    raise NotImplementedError(f"sizes computed by {type(expr).__name__} are not translated yet")

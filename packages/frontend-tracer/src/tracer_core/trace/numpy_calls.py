"""NumPy's own functions as an operator, ``tracer_core::numpy``, for those of which torch has no version
with the same values and of which only the arguments' sizes decide the result's.

The arguments are a text: a literal in which ``("array", n)`` and ``("scalar", n)`` stand for tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.guards.numpy_types import numpy
from tracer_core.ops.definitions import declare, implement

CALL = declare(
    "numpy(str name, Tensor[] arrays, str arguments, SymInt[] sizes, ScalarType dtype) -> Tensor"
)

#: Functions of NumPy of which sizes alone decide the sizes of the result.
FUNCTIONS = frozenset(
    ["argsort", "percentile", "quantile", "median", "nanpercentile", "nanquantile", "nanmedian",
     "nanmean", "nansum", "nanprod", "nanmax", "nanmin", "nanstd", "nanvar", "interp", "searchsorted",
     "digitize", "partition", "argpartition", "lexsort", "convolve", "correlate", "trapezoid", "kron",
     "polyval", "unwrap", "ediff1d", "isin"]
)  # fmt: skip
METHODS = frozenset(["argsort", "searchsorted", "argpartition"])


def written(value: Any, tensors: list[torch.Tensor], array: type[Any]) -> str | None:
    """Returns the source of an argument, and appends its tensors; None if it has none. array: the
    class of arrays, with `tensor` and `scalar`."""
    if isinstance(value, array):
        tensors.append(value.tensor)
        return repr(("scalar" if value.scalar else "array", len(tensors) - 1))
    if type(value) is dict:
        texts = [(repr(name), written(item, tensors, array)) for name, item in value.items()]
        if any(text is None for _, text in texts):
            return None
        return "{" + ", ".join(f"{name}: {text}" for name, text in texts) + "}"
    if type(value) in (list, tuple):
        parts = [written(item, tensors, array) for item in value]
        inside = "".join(f"{part}, " for part in parts)
        if None in parts or (value and type(value[0]) is str):
            return None
        return f"[{inside}]" if type(value) is list else f"({inside})"
    simple = value is None or type(value) in (bool, int, str) or _finite(value)
    return repr(value) if simple else None


def _finite(value: Any) -> bool:
    return type(value) is float and abs(value) < float("inf")


def _read(value: Any, arrays: Sequence[Any]) -> Any:
    if type(value) is tuple and len(value) == 2 and value[0] in ("array", "scalar"):
        return arrays[value[1]] if value[0] == "array" else arrays[value[1]][()]
    if type(value) is dict:
        return {name: _read(item, arrays) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_read(item, arrays) for item in value)
    return value


def _call(
    name: str,
    arrays: Sequence[torch.Tensor],
    arguments: str,
    sizes: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    args, kwargs = _read(ast.literal_eval(arguments), [array.numpy() for array in arrays])
    results = getattr(numpy, name)(*args, **kwargs)
    result = torch.from_numpy(numpy.array(results, order="C", subok=False))
    if list(result.shape) != list(sizes) or result.dtype is not dtype:
        raise RuntimeError(f"numpy.{name}() gives {result.dtype} of sizes {tuple(result.shape)}")
    return result


def _fake(name: str, arrays: Any, arguments: str, sizes: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype)


implement(CALL, _call, _fake)

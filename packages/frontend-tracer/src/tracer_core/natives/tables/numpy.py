"""NumPy: scalars, arrays made of plain data in the trace, and arrays that become graph inputs.

An array from before the trace is never read while tracing, since its contents cannot be guarded: it
becomes a tensor input of the graph, or the graph breaks. Arrays made here hold plain data only.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.guards import numpy_types
from tracer_core.guards.numpy_types import ARRAY, SCALARS
from tracer_core.natives.effects import CALLED_PACKAGES, CALLED_TYPES, special, special_each
from tracer_core.natives.queries import applied
from tracer_core.torch_private.names import names
from tracer_core.trace.tracer import Tracer

_CONTAINERS = (list, tuple, dict)


def plain_data(tracer: Tracer, value: Any, depth: int = 6) -> bool:
    """Returns whether NumPy may read a value while tracing."""
    if is_constant(value) or isinstance(value, (type, *numpy_types.FUNCTIONS, *numpy_types.DTYPE)):
        return True
    held: Any = value
    if isinstance(value, ARRAY):
        return (
            type(value) is ARRAY[0]
            and bool(tracer.provenance.is_fresh(value))
            and held.dtype != object
        )
    if type(value) in _CONTAINERS and depth:
        items = [*value.keys(), *value.values()] if type(value) is dict else value
        return all(plain_data(tracer, item, depth - 1) for item in items)
    return False


def _run(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a NumPy function of plain data while tracing."""
    name = getattr(function, "__name__", type(function).__name__)
    concrete, settled = tracer.scalars.concrete, tracer.scalars.settled
    args = [concrete(settled(value)) for value in args]
    kwargs = {key: concrete(settled(value)) for key, value in kwargs.items()}
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            tracer.break_graph("data_dependent_value", f"numpy.{name}() of a tensor")
        if isinstance(value, ARRAY) and not tracer.provenance.is_fresh(value):
            tracer.break_graph(
                "unsupported_value", f"numpy.{name}() reads an array from before this segment"
            )
        if not plain_data(tracer, value):
            tracer.break_graph("unknown_native", f"numpy.{name}() of a {type(value).__name__}")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    if name in numpy_types.OUTSIDE:
        tracer.break_graph("side_effect_native", f"numpy.{name}()")
    try:
        with numpy_types.raising():
            return tracer.native_calls.born(function(*args, **kwargs))
    except FloatingPointError as error:
        tracer.break_graph("side_effect_native", f"numpy.{name}() warns: {error}")


def _python(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """NumPy's own Python code."""
    module = function.__globals__.get("__name__", "")
    if module.startswith(numpy_types.NOT_PURE):
        tracer.break_graph("native_python", f"{module}.{function.__qualname__} is not traced into")
    return _run(tracer, function, args, kwargs)


CALLED_PACKAGES["numpy"] = _python
CALLED_TYPES.update(dict.fromkeys(numpy_types.FUNCTIONS, _run))


@special_each(*numpy_types.MAKERS, *numpy_types.METHODS, *SCALARS, *numpy_types.DTYPE)
def run(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _run(tracer, function, [*args], kwargs)


# -- arrays that become tensors --


class _Shared:
    """Calls torch.from_numpy; each call of the program makes its own tensor."""

    __qualname__ = "torch.from_numpy"

    def __call__(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)


def _tensor_of(tracer: Tracer, array: Any) -> Any:
    """Returns a graph input that shares the array's memory."""
    handle = ("from_numpy", id(array), tracer.steps)
    question = tracer.native_calls.questions.setdefault(handle, _Shared())
    try:
        return applied(tracer, question, array)
    except TypeError as error:
        tracer.break_graph("unsupported_value", f"an array that no tensor can share: {error}")


def _is_input(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return (
        len(args) == 1
        and not kwargs
        and isinstance(args[0], ARRAY)
        and not tracer.provenance.is_fresh(args[0])
    )


@special_each(*names("from_numpy as_tensor asarray"))
def share(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_input(tracer, args, kwargs):
        return _tensor_of(tracer, args[0])
    return tracer.native_calls.call_torch(function, [*args], kwargs)


@special(*names("tensor"))
def tensor(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if _is_input(tracer, args, kwargs):
        return tracer.native_calls.native(torch.Tensor.clone, _tensor_of(tracer, args[0]))
    return tracer.native_calls.call_torch(torch.tensor, [*args], kwargs)

"""NumPy: scalars, arrays made of plain data in the trace, and arrays that become graph inputs.

An array from before the trace is never read while tracing, since its contents cannot be guarded: it
becomes a tensor input of the graph, as does what is computed with it (`trace.traced_arrays`).
Arrays made here hold plain data only.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from tracer_core.guards import numpy_types
from tracer_core.guards.numpy_types import ARRAY, SCALARS
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import (
    CALLED_CODES,
    CALLED_PACKAGES,
    CALLED_TYPES,
    special,
    special_each,
)
from tracer_core.torch_private.names import names
from tracer_core.trace import traced_arrays
from tracer_core.trace.tracer import Tracer

_CONTAINERS = (list, tuple, dict)
#: Functions that see a tensor as the array with its memory.
_OF_TENSORS = [
    getattr(numpy_types.numpy, name)
    for name in ("array", "asarray", "ascontiguousarray")
    if numpy_types.numpy is not None
]


def is_builtin_data(tracer: Tracer, value: Any, depth: int = 6) -> bool:
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
        return all(is_builtin_data(tracer, item, depth - 1) for item in items)
    return False


def _run(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs a NumPy function of plain data while tracing."""
    name = getattr(function, "__name__", type(function).__name__)
    if function in _OF_TENSORS and args and isinstance(args[0], torch.Tensor):
        args = [traced_arrays.of_tensor(tracer, args[0]), *args[1:]]
    if traced_arrays.has_array(tracer, (*args, *kwargs.values())):
        if isinstance(function, types.MethodDescriptorType):
            function = traced_arrays.ArrayMethod(args[0], name)
        return traced_arrays.call(tracer, function, args, kwargs)
    concrete, specialized = tracer.scalars.concrete, tracer.scalars.specialized
    args = [concrete(specialized(value)) for value in args]
    kwargs = {key: concrete(specialized(value)) for key, value in kwargs.items()}
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            tracer.break_graph("data_dependent_value", f"numpy.{name}() of a tensor")
        if not is_builtin_data(tracer, value):
            tracer.break_graph("unknown_native", f"numpy.{name}() of a {type(value).__name__}")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    if name in numpy_types.OUTSIDE:
        tracer.break_graph("side_effect_native", f"numpy.{name}()")
    try:
        with numpy_types.raising():
            return tracer.native_calls.note_allocation(function(*args, **kwargs))
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


# -- tensors as arrays, arrays as tensors --


@special(*names("Tensor.numpy"))
def numpy_of(tracer: Tracer, tensor: Any, *, force: Any = False) -> Any:
    if force is True:
        tensor = tracer.native_calls.native(torch.Tensor.detach, tensor)
    return traced_arrays.of_tensor(tracer, tensor)


@special(*names("Tensor.__array__"))
def array_of(tracer: Tracer, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs or not isinstance(tensor, torch.Tensor):
        tracer.break_graph(
            "data_dependent_value", "Tensor.__array__() with options, or of what is no tensor"
        )
    return traced_arrays.of_tensor(tracer, tensor)


def _read_by_native_code(tracer: Tracer, function: Any, args: list[Any], kwargs: Any) -> Any:
    tracer.break_graph("data_dependent_value", "native code reads the contents of an array")


CALLED_CODES[traced_arrays.TracedArray.__bool__.__code__] = _read_by_native_code
CALLED_TYPES[traced_arrays.ArrayMethod] = lambda tracer, method, args, kwargs: traced_arrays.call(
    tracer, method, [method.array, *args], kwargs
)


def _is_input(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) == 1 and not kwargs and traced_arrays.is_array(tracer, args[0])


@special_each(*names("from_numpy as_tensor asarray"))
def share(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_input(tracer, args, kwargs):
        return traced_arrays.to_tensor(tracer, args[0], function.__name__)
    return tracer.native_calls.call_torch(function, [*args], kwargs)


@special(*names("tensor"))
def tensor(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if _is_input(tracer, args, kwargs):
        shared = traced_arrays.to_tensor(tracer, args[0], "tensor")
        return tracer.native_calls.native(torch.Tensor.clone, shared)
    return tracer.native_calls.call_torch(torch.tensor, [*args], kwargs)

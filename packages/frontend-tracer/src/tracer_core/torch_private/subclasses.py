"""Tensor subclasses: which hooks of torch a class overrides, and tensors without their class.

Nothing here calls a hook of a subclass.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer_core.torch_private.dispatch import no_python_dispatch
from tracer_core.torch_private.dtensors import LOCAL_PART, dtensor_of, is_dtensor, is_spec, spec_of
from tracer_core.torch_private.fakes import fake_class, has_symbols
from tracer_core.torch_private.names import Missing

#: The classes that a graph takes as they are.
BASE_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def functions_off() -> Any:
    """Returns a context in which no ``__torch_function__`` of a tensor subclass is called."""
    return torch._C.DisableTorchFunctionSubclass()


def without_torch_functions() -> Any:
    """Returns a context in which no torch-function mode and no ``__torch_function__`` is called."""
    return torch._C.DisableTorchFunction()


def functions_are_on() -> bool:
    """Returns whether a ``__torch_function__`` of a tensor subclass would be called here."""
    return bool(torch._C._is_torch_function_enabled())


def is_subclass(value: Any) -> bool:
    """Returns whether a value is a tensor of a class of the program, or of a library."""
    kind = type(value)
    if kind in BASE_TENSOR_TYPES or not issubclass(kind, torch.Tensor):
        return False
    return not issubclass(kind, fake_class())


def has_function(kind: Any) -> bool:
    """Returns whether torch functions call ``__torch_function__`` of a class."""
    return kind.__torch_function__ is not torch._C._disabled_torch_function_impl


def has_dispatch(kind: Any) -> bool:
    """Returns whether ATen operators call ``__torch_dispatch__`` of a class."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def is_wrapper(value: Any) -> bool:
    """Returns whether a value is a tensor whose operators call ``__torch_dispatch__`` of a class of
    the program, or of a library."""
    return is_subclass(value) and has_dispatch(type(value))


def any_wrapper(kinds: Iterable[Any]) -> bool:
    """Returns whether a class of the program, or of a library, has ``__torch_dispatch__``; kinds: of
    the arguments of an operator."""
    return any(
        kind not in BASE_TENSOR_TYPES and not issubclass(kind, fake_class()) and has_dispatch(kind)
        for kind in kinds
    )


def refused_subclass(value: torch.Tensor) -> str:
    """Returns what keeps a tensor of a subclass out of graphs, or ""."""
    kind = type(value)
    package = kind.__module__
    if package.startswith("torch.distributed") and not is_dtensor(value):
        return f"a {kind.__name__}"
    if package.startswith(("torch._subclasses", "torch.export", "torch.fx")):
        return f"a {kind.__name__}, which compilers use"
    parameter = sys.modules["torch.nn.parameter"]
    if isinstance(value, (parameter.UninitializedParameter, parameter.UninitializedBuffer)):
        return "a parameter without a shape"
    with functions_off():
        if value.is_nested:
            return "a nested tensor"
        if value.layout is not torch.strided:
            return f"a {value.layout} tensor"
        return "a quantized tensor" if value.is_quantized else ""


def overloads(values: Iterable[Any], overrides: Callable[[Any], bool]) -> list[Any]:
    """Returns the classes that torch asks, in its order: left to right, a subclass before its
    bases."""
    result: list[Any] = []
    for value in values:
        kind = type(value)
        if kind not in result and overrides(kind):
            above = (i for i, other in enumerate(result) if issubclass(kind, other))
            result.insert(next(above, len(result)), kind)
    return result


def handled(operator: Any, args: Any, kwargs: Any) -> Any:
    """Calls ``__torch_dispatch__`` of the classes of an operator's arguments, as torch does."""
    values = torch.utils._pytree.arg_tree_leaves(*args, **kwargs)
    kinds = overloads(filter(is_wrapper, values), has_dispatch)
    for kind in kinds:
        result = kind.__torch_dispatch__(operator, tuple(kinds), args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"{operator}: no class implements it")


def without_class(value: torch.Tensor) -> torch.Tensor:
    """Returns the data of a tensor of a subclass as a plain tensor; gradients flow through it."""
    with functions_off():
        return value.as_subclass(torch.Tensor)


def as_class(value: torch.Tensor, kind: Any) -> torch.Tensor:
    """Returns the data of a plain tensor as one of a subclass; gradients flow through it."""
    with functions_off():
        tensor: torch.Tensor = value.as_subclass(kind)
        return tensor


def detached_without_class(value: torch.Tensor) -> torch.Tensor:
    """Returns the data of a tensor of a subclass as a plain leaf that requires grad as it does."""
    with functions_off(), torch.no_grad():
        tensor: torch.Tensor = value.detach().as_subclass(torch.Tensor)
        tensor.requires_grad_(value.requires_grad)
        return tensor


def with_class(kind: Any, like: torch.Tensor) -> Any:
    """Returns an instance of a subclass that holds no data, for a trace: with another tensor's sizes
    where they are no symbols."""
    sizes, strides = ((0,), (1,)) if has_symbols([like]) else (like.shape, like.stride())
    with functions_off(), no_python_dispatch(), torch.no_grad():
        data = torch.empty_strided(sizes, strides, dtype=like.dtype, device="meta")
        return torch.Tensor._make_subclass(kind, data)


def results_without_class() -> Any:
    """Returns the functions whose results ``Tensor.__torch_function__`` leaves as they are."""
    return torch.overrides.get_default_nowrap_functions()


def written_arguments(operator: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """Returns the arguments that an ATen operator writes to and returns; None where it changes
    sizes in place."""
    if torch.Tag.inplace_view in operator.tags:
        return None
    result = []
    for returned in operator._schema.returns:
        info = returned.alias_info
        if info is None or not info.is_write:
            continue
        for i, argument in enumerate(operator._schema.arguments):
            alias_info = argument.alias_info
            if alias_info is not None and alias_info.before_set == info.before_set:
                result.append(kwargs[argument.name] if argument.name in kwargs else args[i])
    return result


#: Modules whose decorators of constructors serve torch's own compiler alone.
_SHIELDS = frozenset({"torch._compile", "torch._export.wrappers"})


def behind_shields(function: Any) -> Any:
    """Returns a constructor of a class behind the decorators that serve torch's own compiler."""
    while type(function) is types.FunctionType and function.__globals__["__name__"] in _SHIELDS:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells.get("fn") or cells.get("constructor_subclass")
        if cell is None:
            return function
        function = cell.cell_contents
    return function


def without_shields(method: Any) -> Any:
    """Returns `behind_shields` of a bound method."""
    if type(method) is not types.MethodType:
        return method
    return types.MethodType(behind_shields(method.__func__), method.__self__)


def is_infrastructure(mode: Any) -> bool:
    """Returns whether a dispatch mode is one of torch's own that stand outside the stack."""
    return getattr(mode, "_mode_key", None) is not None


def _of_tensors(name: str) -> Any:
    return getattr(torch.Tensor, name, Missing(f"Tensor.{name}"))


#: Make tensors of subclasses: of sizes alone, of data; ``__torch_function__`` of plain tensors.
MAKE_WRAPPER: Any = _of_tensors("_make_wrapper_subclass")
MAKE_SUBCLASS: Any = _of_tensors("_make_subclass")
DEFAULT_FUNCTION: Any = getattr(torch.Tensor.__torch_function__, "__func__", Missing("Tensor"))


def versions_of(values: Iterable[torch.Tensor]) -> list[int | None]:
    """Returns the version counters of tensors of subclasses; None for inference tensors."""
    with functions_off():
        return [None if value.is_inference() else value._version for value in values]


def set_version(value: torch.Tensor, version: int) -> None:
    """Sets the version counter of a tensor."""
    torch._C._autograd._unsafe_set_version_counter((value,), (version,))


def count_write(value: torch.Tensor) -> None:
    """Bumps the version counter of a tensor of a subclass."""
    with functions_off():
        torch.autograd.graph.increment_version(value)


def storage_offset(value: torch.Tensor) -> Any:
    """Returns the storage offset of a tensor of any class."""
    with functions_off():
        return value.storage_offset()


def number_of(value: torch.Tensor) -> Any:
    """Returns the number in a tensor that C++ code has made of it."""
    with no_python_dispatch():
        return value.item()


def requires_grad_now(value: torch.Tensor) -> bool:
    """Returns whether a tensor of any class requires grad."""
    with functions_off():
        return value.requires_grad


def is_traceable(value: Any) -> bool:
    """Returns whether a tensor of a subclass tells its inner tensors."""
    kind = type(value)
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def flattened(value: Any) -> tuple[list[str], Any]:
    """Returns the names of the inner tensors, and the context, of a tensor of a subclass. The mesh
    of a DTensor, which is no tensor, is part of the context."""
    if is_dtensor(value):
        return [LOCAL_PART], spec_of(value)
    names, context = value.__tensor_flatten__()
    if type(context) is dict and "requires_grad" in context:
        context = {**context, "requires_grad": False}  # which the caller sees to
    return list(names), context


def unflattened(kind: Any, parts: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    """Returns a tensor of a subclass of its inner tensors."""
    if list(parts) == [LOCAL_PART] and is_spec(context):
        return dtensor_of(parts[LOCAL_PART], context)
    return kind.__tensor_unflatten__(parts, context, size, stride)


def layout_of(value: torch.Tensor) -> tuple[Any, Any]:
    """Returns the outer sizes and strides of a tensor of any class."""
    with functions_off():
        return value.size(), value.stride()


def leaf(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Makes a new tensor of a subclass require grad, or not."""
    with functions_off():
        return (
            value if value.requires_grad is requires_grad else value.requires_grad_(requires_grad)
        )

"""User-defined Triton kernels: a launch ``kernel[grid](...)`` is one node of the graph.

A launch that cannot be a node (hooks, a kernel whose source does not show its writes, tensors that
require gradients) breaks the graph and runs eagerly. This module never imports triton.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.guard import GuardKind
from tracer_core.native_effects import triton_launches
from tracer_core.native_effects.effects import CALLED_PACKAGES
from tracer_core.native_effects.triton_launches import Constant, LaunchLayout, Unclear
from tracer_core.trace.tracer import Tracer

#: Functions of Triton that only bind the launch grid.
_PROXIES = frozenset(
    f"{cls}.__getitem__{inner}"
    for cls in ("KernelInterface", "JITFunction")
    for inner in ("", ".<locals>.<lambda>")
)

#: Kernel classes whose launches can be nodes.
_KERNELS = frozenset({"JITFunction", "InterpretedFunction"})
_TUNER = "Autotuner"


def _python(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    module, name = function.__globals__.get("__name__", ""), function.__qualname__
    if not module.startswith("triton.runtime") or name in _PROXIES:
        return tracer.calls.frame_of(function, args, kwargs)
    kernel = args[0] if args else None
    if name == "ConstexprFunction.__call__":  # triton.cdiv etc., called on the host
        return tracer.calls.prepare(tracer.attributes.getattr(kernel, "fn"), args[1:], kwargs)
    if function.__name__ == "run" and type(kernel).__name__ in {*_KERNELS, _TUNER}:
        try:
            return _launch(tracer, kernel, args[1:], dict(kwargs))
        except Unclear as reason:
            tracer.break_graph("native_python", f"a launch of a Triton kernel: {reason}")
    tracer.break_graph("native_python", f"{module}.{name} is not traced into")


def _launch(tracer: Tracer, kernel: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", False)
    configs = _configs(kernel)
    if warmup or any(getattr(item, name, None) for item in (kernel, kernel.fn) for name in _HOOKS):
        raise Unclear("it has hooks, or is only compiled")
    source = tracer.provenance.source_of(kernel)
    if source is None:
        raise Unclear("the kernel was made inside the program")
    tracer.provenance.guard(GuardKind.IS, source, kernel)
    values = _bound(kernel, args, kwargs, {name for config in configs for name in config})
    sizes = [size for config in configs for size in _sizes(tracer, grid, {**values, **config})]
    parameters = tuple(_parameter(tracer, kernel, name, value) for name, value in values.items())
    options = tuple(
        sorted((name, _constant(value)) for name, value in kwargs.items() if name not in values)
    )
    operator, replaced = triton_launches.operator_for(
        kernel, LaunchLayout(parameters, options, tuple(_constants(config) for config in configs))
    )
    pairs = [
        value
        for value, (_, kind, _) in zip(values.values(), parameters, strict=True)
        if kind != "constant"
    ]
    arguments = [*sizes, *pairs]
    _demand_plain(tracer, arguments, replaced)
    created = tracer.native_calls.call_torch(operator, arguments, {})
    for place, result in zip(
        replaced, created if isinstance(created, tuple) else (created,), strict=True
    ):
        tracer.native_calls.call_torch(torch.Tensor.copy_, [arguments[place], result], {})


#: Attributes of a kernel or autotuner that run user code at each launch.
_HOOKS = ("pre_run_hooks", "launch_metadata", "user_defined_pre_hook", "user_defined_post_hook")


def _configs(kernel: Any) -> list[dict[str, Any]]:
    """Returns the parameters that each autotuner config adds to a launch; one empty config for a
    plain kernel."""
    if type(kernel).__name__ != _TUNER:
        return [{}]
    if type(kernel.fn).__name__ not in _KERNELS:
        raise Unclear(
            f"{type(kernel.fn).__name__} under a tuner chooses its parameters at each launch"
        )
    if any(config.pre_hook is not None for config in kernel.configs):
        raise Unclear("a config has a hook")
    return [
        dict(fromkey)
        for fromkey in dict.fromkeys(tuple(config.kwargs.items()) for config in kernel.configs)
    ]


def _constants(config: dict[str, Any]) -> tuple[tuple[str, Constant], ...]:
    return tuple((name, _constant(value)) for name, value in config.items())


def _sizes(tracer: Tracer, grid: Any, values: dict[str, Any]) -> list[Any]:
    """Returns the three grid sizes for these values."""
    if callable(grid):
        grid = tracer.calls.call_value(grid, [values], {})
    sizes = [*grid] if isinstance(grid, (tuple, list)) else [grid]
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, (int, torch.SymInt)) for n in sizes):
        raise Unclear(f"its grid is a {type(grid).__name__}")
    return [*sizes, *[1] * (3 - len(sizes))]


def _demand_plain(tracer: Tracer, arguments: list[Any], replaced: tuple[int, ...]) -> None:
    """Raises Unclear unless the kernel can reach only its arguments' elements by address, since an
    input may be a view of larger memory in another call."""
    tensors = {
        place: value for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)
    }
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
        raise Unclear("a tensor that requires gradients, of which autograd would not know")
    if not all(triton_launches.covers_its_storage(tensor) for tensor in tensors.values()):
        raise Unclear("a tensor that is a part of its memory, of which a kernel may reach the rest")
    owners = {place: torch_private.storage_id(tensor) for place, tensor in tensors.items()}
    inputs = [
        torch_private.storage_id(value)
        for each in tracer.recorder.inputs
        for value in (each.value, each.node.meta.get("val"), each.node.meta.get("example_value"))
        if isinstance(value, torch.Tensor)
    ]
    if any(
        owners[place] in inputs or not tracer.provenance.is_fresh(tensors[place])
        for place in replaced
    ):
        raise Unclear("it writes to a tensor from before this segment")
    if any(list(owners.values()).count(owners[place]) > 1 for place in replaced):
        raise Unclear("two of its tensors share the memory that it writes to")


def _bound(kernel: Any, args: list[Any], kwargs: dict[str, Any], later: set[str]) -> dict[str, Any]:
    """Returns every parameter's value, in order, without those that an autotuner sets."""
    signature = inspect.signature(triton_launches.function_of(kernel))
    names = {name: value for name, value in kwargs.items() if name in signature.parameters}
    try:
        bound = signature.bind_partial(*args, **names)
    except TypeError as error:
        raise Unclear(str(error)) from error
    bound.apply_defaults()
    result = {name: value for name, value in bound.arguments.items() if name not in later}
    missing = signature.parameters.keys() - result.keys() - later
    if missing or later & {*names, *list(signature.parameters)[: len(args)]}:
        raise Unclear(f"parameters without a value, or with two: {sorted(missing)}")
    return result


def _parameter(tracer: Tracer, kernel: Any, name: str, value: Any) -> tuple[str, str, Any]:
    annotation = triton_launches.function_of(kernel).__annotations__.get(name, "")
    if "constexpr" in (
        annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    ):
        return (
            name,
            "constant",
            _constant(tracer.scalars.concrete(tracer.scalars.specialized(value))),
        )
    if isinstance(value, torch.Tensor):
        return name, "Tensor", None
    for kind, schema in (
        (bool, "bool"),
        (int, "SymInt"),
        (torch.SymInt, "SymInt"),
        (float, "float"),
        (torch.SymFloat, "float"),
    ):
        if isinstance(value, kind):
            return name, schema, None
    return name, "constant", _constant(value)


def _constant(value: Any) -> Constant:
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, torch.dtype):
        return Constant(value, f"{type(value).__name__} {value!r}")
    if type(value).__module__ == "triton.language.core" and type(value).__name__ == "dtype":
        return Constant(value, str(value))
    raise Unclear(f"a parameter is a {type(value).__name__}")


CALLED_PACKAGES["triton"] = _python

"""torch.optim optimizers: their methods are interpreted like user code, through torch's wrappers.

An optimizer is told that it is not being compiled, so that its arithmetic is the same as in eager.
"""

from __future__ import annotations

import functools
import typing
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import CALLED_CODES, effect_of, special, special_each
from tracer_core.ops.higher_order.adafactor import _fused_adafactor_
from tracer_core.torch_private.modules import REFERENCES
from tracer_core.torch_private.names import code_inside, names
from tracer_core.trace.generators import TracedGenerator
from tracer_core.trace.optimizer_scalars import counter_in, number_in
from tracer_core.trace.tracer import Tracer


def _hidden_method(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Interprets optimizer methods that torch disables for its own tracer, and calls functions that
    have a row."""
    inner = _free(tracer, function, "fn")
    if effect_of(inner) is not None:
        return tracer.calls.prepare(inner, args, kwargs)
    if not inner.__module__.startswith(("torch.optim.", REFERENCES)):
        tracer.break_graph("disabled", f"torch hides {inner.__qualname__} from tracers")
    _require_base_parameters(tracer, args)
    return tracer.calls.prepare(inner, args, kwargs)


def _profiled_step(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Interprets Optimizer.step with its hooks and profiler label."""
    _require_base_parameters(tracer, args)
    return tracer.calls.frame_of(function, args, kwargs)


def _require_base_parameters(tracer: Tracer, args: list[Any]) -> None:
    if args and isinstance(args[0], torch.optim.Optimizer):
        groups = vars(args[0]).get("param_groups", ())
        _demand_plain(
            tracer, type(args[0]).__name__, [p for group in groups for p in group.get("params", ())]
        )


def _demand_plain(tracer: Tracer, what: str, parameters: Any) -> None:
    """Breaks the graph for tensor subclass parameters (fully_shard's DTensors): breaks for each
    parameter, in each line, would capture nothing."""
    kinds = {
        type(parameter)
        for parameter in parameters
        if isinstance(parameter, torch.Tensor) and not torch_private.is_fake(parameter)
    }
    for kind in kinds - {torch.Tensor, torch.nn.Parameter}:
        if not issubclass(kind, torch.nn.Parameter):
            tracer.break_graph("tensor_subclass", f"{what} over {kind.__name__}s")


@special_each(*names("clip_grad_norm_ clip_grad_value_", of="nn.utils.clip_grad"))
def clip_gradients(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    arg = args[0] if args else kwargs.get("parameters")
    _demand_plain(tracer, function.__name__, _parameters_in(arg))
    return tracer.calls.frame_of(function, [*args], kwargs)


def _parameters_in(value: Any) -> Any:
    """Returns the parameters in a list, a tensor, or ``module.parameters()``."""
    if isinstance(value, (list, tuple)):
        return value
    if type(value) is TracedGenerator and value.frame.function is torch.nn.Module.parameters:
        module = value.frame.locals[0]
        return list(module.parameters()) if isinstance(module, torch.nn.Module) else ()
    return (value,)


def _use_grad(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs Optimizer.step in the optimizer's grad mode, without torch's own graph breaks around it."""
    if not tracer.shapes.takes_numbers and type(args[0]) is not torch.optim.SGD:
        tracer.break_graph(
            "native_python",
            f"{type(args[0]).__name__}.step(), for a backend without numbers as inputs",
        )
    return tracer.calls.prepare(
        polyfills.use_grad_for_differentiable, [_free(tracer, function, "func"), args, kwargs], {}
    )


def _free(tracer: Tracer, function: Any, name: str) -> Any:
    """Returns a closure variable of a torch function by name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if name not in cells:
        tracer.break_graph(
            "missing_in_torch",
            f"{function.__qualname__} holds nothing called {name!r} in this torch",
        )
    return cells[name].cell_contents


special(typing.cast)(lambda tracer, typ, val: val)


@special(*names("Tensor.item"))
def item(tracer: Tracer, tensor: Any) -> Any:
    """Returns the symbolic value of an optimizer's step counter, known before the graph runs."""
    number = number_in(tracer, tensor)
    if number is not None:
        return number
    return tracer.native_calls.call_torch(torch.Tensor.item, [tensor], {})


def _fit(lists: list[Any]) -> bool:
    """Whether the first list holds tensors alone, and each other one as many of them or None, or
    nothing."""
    if not lists or not lists[0] or not all(isinstance(item, torch.Tensor) for item in lists[0]):
        return False
    kinds = (torch.Tensor, type(None))
    return all(
        len(items) in (0, len(lists[0])) and all(isinstance(part, kinds) for part in items)
        for items in lists[1:]
    )


@special(polyfills.known_number)
def known_number(tracer: Tracer, tensor: Any) -> Any:
    number = counter_in(tracer, tensor)
    if number is None:
        tracer.break_graph("data_dependent_value", "a step counter that is no number")
    return number


@special(_fused_adafactor_)
def fused_adafactor(tracer: Tracer, *args: Any, **kwargs: Any) -> None:
    tracer.native_calls.call_torch_node(_fused_adafactor_, [*args], kwargs)


def _adafactor(
    in_lists: bool, tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Interprets Adafactor's loop with one operator a parameter. With a tensor as learning rate, or
    parameters of several dtypes (whose `eps1` depends on their order), it runs as it is."""
    params, counters = args[0], args[5]
    kinds = {(param.dtype, param.device) for param in params}
    known = all(counter_in(tracer, counter) is not None for counter in counters)
    if isinstance(kwargs.get("lr"), torch.Tensor) or len(kinds) != 1 or not known:
        return tracer.calls.frame_of(function, args, kwargs)
    return tracer.calls.prepare(polyfills.adafactor, [in_lists, *args], kwargs)


@special(*names("_C._group_tensors_by_device_and_dtype"))
def group_tensors(tracer: Tracer, tensorlistlist: Any, with_indices: Any = None) -> Any:
    lists: list[Any] = []
    if isinstance(tensorlistlist, (list, tuple)):
        lists = [
            tracer.containers.spread(item) for item in tracer.containers.spread(tensorlistlist)
        ]
    if type(with_indices) is not bool or not _fit(lists):
        tracer.break_graph(
            "native_python", "the arguments do not fit _group_tensors_by_device_and_dtype()"
        )
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        key = first.device, first.dtype
        parts, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for part, items in zip(parts, lists, strict=True):
            if items:
                part.append(items[index])
        if with_indices:
            indices.append(index)
    return groups


CALLED_CODES |= dict.fromkeys(names("optim.Optimizer.zero_grad.__code__"), _hidden_method)
CALLED_CODES |= dict.fromkeys(code_inside("optim.Optimizer.profile_hook_step"), _profiled_step)
for _name, _in_lists in (("_single_tensor_adafactor", False), ("_multi_tensor_adafactor", True)):
    CALLED_CODES |= dict.fromkeys(
        names(f"optim._adafactor.{_name}.__code__"), functools.partial(_adafactor, _in_lists)
    )
CALLED_CODES |= dict.fromkeys(
    code_inside("optim.optimizer._use_grad_for_differentiable"), _use_grad
)

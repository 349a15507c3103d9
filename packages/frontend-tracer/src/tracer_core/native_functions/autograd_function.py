"""``autograd.Function.apply`` becomes one node; its forward is interpreted for what it reads."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.fx_capture.backward_effects import Reads, is_library
from tracer_core.fx_capture.fx_graph import SIMPLE_TYPES
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.higher_order_calls import Anew, FunctionCall
from tracer_core.native_effects.effects import special
from tracer_core.native_functions.higher_order import region_of, require_unchanged
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree, set_grad_mode
from tracer_core.trace.guarded_calls import identity, query
from tracer_core.trace.operators import CONTAINERS
from tracer_core.trace.specialization_constants import CODE, maker
from tracer_core.trace.symbolic_scalars import SYMBOLS
from tracer_core.trace.tracer import Tracer


class _Fakes(TorchFunctionMode):
    """Replaces tensors that a forward reads from outside by their fakes, when it runs on fakes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, value: torch.Tensor) -> Any:
        """Returns the fake of a plain tensor; wrappers made inside hold fakes."""
        return value if torch_private.is_wrapper(value) else self.recorder.as_fake(value)


class _Context(torch.autograd.function.FunctionCtx):
    """The ctx of a forward that is interpreted only for its guards."""


@special(*names("autograd.Function.apply"), atomic=True)
def apply_function(tracer: Tracer, cls: Any, /, *rest: Any, **kwargs: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        tracer.break_graph("higher_order", "apply() of what is no autograd.Function")
    what = f"{cls.__name__}.apply"
    region = region_of(tracer, what)
    context: Any = _Context()
    context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in rest)
    grad, created = torch.is_grad_enabled(), tracer.subclasses.n_wrappers
    recorder, outer = tracer.recorder, tracer.recorder.function_answers
    if recorder.open_regions == 1:
        recorder.function_answers = []
    n_before = len(recorder.function_answers or ())
    set_grad_mode(False)
    try:
        setup = tracer.attributes.getattr(cls, "setup_context")
        separate = setup is not torch.autograd.Function.setup_context
        forward = tracer.attributes.getattr(cls, "forward")
        inputs = [*rest] if separate else [context, *rest]
        result = tracer.calls.call_value(forward, inputs, kwargs)
        if separate:
            tracer.calls.call_value(setup, [context, rest, result], {})
    finally:
        set_grad_mode(grad)
        answers, recorder.function_answers = recorder.function_answers or (), outer
    require_unchanged(tracer, region)
    wrapped = tracer.subclasses.n_wrappers > created or any(map(torch_private.is_subclass, rest))
    if wrapped and not grad and not any(result is item for item in rest):
        region.keep()
        return result  # without gradients the function is its forward
    inside = region.drop()
    tracer.native_calls.native_reads(*rest, *kwargs.values())
    fixed = {i: value for i, value in enumerate(rest) if _is_fixed(tracer, value)}
    fixed |= _made_anew(tracer, {i: value for i, value in enumerate(rest) if i not in fixed})
    others = tuple(value for i, value in enumerate(rest) if i not in fixed)
    _guard_backward(tracer, cls, fixed)
    call = FunctionCall(cls, inside, fixed, tuple(answers[n_before:]))
    with _Fakes(tracer.recorder):
        if wrapped:
            return tracer.subclasses.node(call, others, kwargs)
        return tracer.recorder.call(call, others, kwargs)


def _guard_backward(tracer: Tracer, cls: Any, fixed: dict[int, Any]) -> None:
    """Guards the values that a backward reads, which no interpreter follows."""
    held = [value for value in fixed.values() if type(value) is not Anew]
    reads = Reads(cls.backward, cls.vjp, cls, *held)
    if reads.any and not is_library(cls):
        query(tracer, reads)


def _made_anew(tracer: Tracer, arguments: dict[int, Any]) -> dict[int, Anew]:
    """Returns those arguments that are functions, classes or new objects without tensors, alike in
    every call."""
    result = {}
    for position, value in arguments.items():
        kind = type(value)
        simple = kind in SIMPLE_TYPES or isinstance(value, (torch.Tensor, *CONTAINERS))
        known = tracer.provenance.is_fresh(value) or isinstance(value, CODE)
        if known and not simple and kind not in SYMBOLS:
            make = maker(tracer, value)
            if make is not None:
                result[position] = Anew(make)
    return result


def _is_fixed(tracer: Tracer, value: Any) -> bool:
    """Returns whether an argument is an object that is the same in all calls of the entry."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    known = isinstance(value, torch.nn.Module) or frozen
    if known and not tracer.provenance.is_fresh(value):
        identity(tracer, value)
        return True
    if isinstance(value, tuple) and type(value) is not tuple:  # a graph would take a plain tuple
        return not any(map(_varies, pytree.tree_leaves(value)))
    return isinstance(value, enum.Enum) and not isinstance(value, (int, str, float))


def _varies(value: Any) -> bool:
    """Returns whether a part of an argument may be another one in each call of the entry."""
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))

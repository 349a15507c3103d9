"""Traces ``__torch_function__`` of objects that are not tensors but act as such in torch functions,
and of torch-function modes.

torch decides which handler is called, and with what; the handler itself is interpreted. For that,
torch is called with proxies whose handler calls back into the tracer.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.graph_breaks import Break
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.value_kinds import instances_have
from tracer_core.torch_private.needed import pytree

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


def acts_as_tensor(value: Any) -> bool:
    cls = type(value)
    return bool(
        cls.__flags__ & HEAP_TYPE
        and not issubclass(cls, (torch.Tensor, type, torch.nn.Module))
        and instances_have(cls, "__torch_function__")
    )


def any_acts_as_tensor(values: Any) -> bool:
    """Returns whether torch would look for a handler on one of these arguments, or on the elements
    of list arguments."""
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            if any(acts_as_tensor(item) for item in value):
                return True
        elif kind.__flags__ & HEAP_TYPE and acts_as_tensor(value):
            return True
    return False


class _Polyfill:
    """The proxy of one object for torch. real: the object. tracer: interprets its handler."""

    def __init__(self, tracer: Tracer, real: Any) -> None:
        self.tracer, self.real = tracer, real


class _Handlers:
    """The proxy classes of one call; they inherit from each other as the real classes do."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.proxy_classes: dict[type, Any] = {}

    def class_for(self, cls: type) -> Any:
        if cls not in self.proxy_classes:
            above = [base for base in cls.__bases__ if instances_have(base, "__torch_function__")]
            bases = tuple(self.class_for(base) for base in above) or (_Polyfill,)
            self.proxy_classes[cls] = type(
                cls.__name__, bases, {"__torch_function__": classmethod(self._handler(cls))}
            )
        return self.proxy_classes[cls]

    def _handler(self, cls: type) -> Any:
        def handler(_: Any, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            back = {proxy: real for real, proxy in self.proxy_classes.items()}
            real_kinds = tuple(back.get(kind, kind) for kind in kinds)
            own = self.tracer.attributes.getattr(cls, "__torch_function__")
            return self.tracer.calls.call_value(
                own, [function, real_kinds, self.real(args), self.real(kwargs or {})], {}
            )

        return handler

    def proxy(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(self.proxy, value))
        return self.class_for(type(value))(self.tracer, value) if acts_as_tensor(value) else value

    def real(self, value: Any) -> Any:
        """Returns a structure with the real objects in place of proxies."""
        if isinstance(value, _Polyfill):
            return value.real
        if type(value) in (list, tuple):
            return type(value)(map(self.real, value))
        return (
            {key: self.real(item) for key, item in value.items()} if type(value) is dict else value
        )


def call(tracer: Tracer, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a torch function outside the recorder: torch calls a handler before anything else."""
    handlers = _Handlers(tracer)
    simple = {name: handlers.proxy(value) for name, value in kwargs.items()}
    return handlers.real(function(*map(handlers.proxy, args), **simple))


def by_mode(tracer: Tracer, function: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
    """Interprets the handler of the innermost torch-function mode of the program, outside that
    mode."""
    recorder = tracer.recorder
    modes = recorder.program_modes
    # Fakes stand for plain tensors, and torch's Python functions leave the class of fakes out.
    kinds = tuple(torch.Tensor if issubclass(kind, torch.Tensor) else kind for kind in kinds)
    if type(function) is types.FunctionType and not kinds:
        if any(map(torch_private.is_fake, pytree.arg_tree_leaves(*args, **(kwargs or {})))):
            kinds = (torch.Tensor,)
    inputs = [function, kinds, args] + ([] if kwargs is None else [kwargs])
    recorder.program_modes = modes[:-1]
    try:
        handler = tracer.attributes.getattr(modes[-1][0], "__torch_function__")
        result = tracer.calls.call_value(handler, inputs, {})
        if len(recorder.program_modes) != len(modes) - 1:
            raise Break("torch_mode", "a handler of a mode enters or leaves another")
    finally:
        recorder.program_modes = modes
    if result is NotImplemented:
        raise Break("torch_mode", "a mode returns NotImplemented")
    return result

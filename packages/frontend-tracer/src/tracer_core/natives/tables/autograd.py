"""Differentiation: ``.backward()`` and ``torch.autograd.grad`` become nodes of the graph.

Where a backward cannot be captured, the graph breaks before the call and contains no part of it
(see trace/gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.graph_breaks import Break, Restart
from tracer_core.natives.effects import special
from tracer_core.natives.tracing import Tracing
from tracer_core.torch_private.names import names
from tracer_core.trace import gradients


def _whole(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a handler for functions. A break inside restarts the trace with a break before the
    call, so that the graph contains no part of it."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
            try:
                return handler(tracer, *args, **kwargs)
            except Break as error:
                raise Restart(tracer.outer_step, error.kind, error.reason) from None

        special(*functions)(call)
        return handler

    return register


@_whole(*names("Tensor.backward"))
def tensor_backward(
    tracer: Tracing,
    tensor: Any,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    autograd_backward(tracer, tensor, gradient, retain_graph, create_graph, None, inputs)


@_whole(*names("autograd.backward"))
def autograd_backward(
    tracer: Tracing,
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    if grad_variables is not None:
        tracer.break_graph("autograd_in_graph", "backward(grad_variables=)")
    outputs = [tensors] if isinstance(tensors, torch.Tensor) else tracer.containers.spread(tensors)
    given: list[Any] = [None] * len(outputs)
    if grad_tensors is not None:
        given = (
            [grad_tensors]
            if isinstance(grad_tensors, torch.Tensor)
            else tracer.containers.spread(grad_tensors)
        )
    if inputs is not None:
        values = inputs.values() if type(inputs) is dict else inputs
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else tracer.containers.spread(values)
    tensors_given = all(isinstance(one, torch.Tensor) for one in outputs)
    if not (outputs and tensors_given and len(given) == len(outputs)) or inputs == []:
        tracer.break_graph("autograd_in_graph", "backward() of these arguments")
    if not all(type(option) in (bool, type(None)) for option in (retain_graph, create_graph)):
        tracer.break_graph("autograd_in_graph", "backward() with options that are no booleans")
    create = bool(create_graph)
    keep = create if retain_graph is None else retain_graph
    gradients.backward(tracer, outputs, given, keep, create, inputs)


@_whole(*names("autograd.grad"))
def autograd_grad(
    tracer: Tracing,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    only_inputs: Any = True,
    allow_unused: Any = None,
    is_grads_batched: Any = False,
    materialize_grads: Any = False,
) -> Any:
    if (
        torch_private.transforms_active()
        or only_inputs is not True
        or is_grads_batched is not False
    ):
        tracer.break_graph(
            "autograd_in_graph",
            "torch.autograd.grad() under a transform, or of batches of gradients",
        )
    options = {"retain_graph": retain_graph, "create_graph": create_graph,
    "allow_unused": allow_unused,
               "materialize_grads": materialize_grads}  # fmt: skip
    results, wanted = _listed(tracer, outputs), _listed(tracer, inputs)
    given = None if grad_outputs is None else _listed(tracer, grad_outputs)
    plain = all(type(option) in (bool, type(None)) for option in options.values())
    if not (
        plain
        and results
        and wanted
        and all(isinstance(one, torch.Tensor) for one in results + wanted)
    ):
        tracer.break_graph("autograd_in_graph", "torch.autograd.grad() of these arguments")
    gradients.require_inside(tracer, results, wanted)
    return tuple(
        one for one, _ in gradients.differentiate(tracer, results, wanted, given, **options)
    )


def _listed(tracer: Tracing, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        tracer.containers.spread(value)
        if isinstance(value, (list, tuple)) or not isinstance(value, dict)
        else []
    )

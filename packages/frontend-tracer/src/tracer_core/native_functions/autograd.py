"""Differentiation: ``.backward()`` and ``torch.autograd.grad`` become nodes of the graph.

Where a backward cannot be captured, the graph breaks before the call and contains no part of it
(see trace/gradients.py).
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.native_effects.effects import special
from tracer_core.torch_private.names import names
from tracer_core.trace import gradients
from tracer_core.trace.tracer import Tracer


@special(*names("Tensor.backward"), atomic=True)
def tensor_backward(
    tracer: Tracer,
    tensor: Any,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    autograd_backward(tracer, tensor, gradient, retain_graph, create_graph, None, inputs)


@special(*names("autograd.backward"), atomic=True)
def autograd_backward(
    tracer: Tracer,
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    if grad_variables is not None:
        tracer.break_graph("autograd_in_graph", "backward(grad_variables=)")
    outputs = _listed(tracer, tensors)
    arguments = [None] * len(outputs) if grad_tensors is None else _listed(tracer, grad_tensors)
    if inputs is not None:
        inputs = _listed(tracer, inputs.values() if type(inputs) is dict else inputs)
    if not (outputs and _are_tensors(outputs) and len(arguments) == len(outputs)) or inputs == []:
        tracer.break_graph("autograd_in_graph", "backward() of these arguments")
    if not _are_flags(retain_graph, create_graph):
        tracer.break_graph("autograd_in_graph", "backward() with options that are no booleans")
    create = bool(create_graph)
    keep = create if retain_graph is None else retain_graph
    gradients.backward(tracer, outputs, arguments, keep, create, inputs)


@special(*names("autograd.grad"), atomic=True)
def autograd_grad(
    tracer: Tracer,
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
    options = {
        "retain_graph": retain_graph,
        "create_graph": create_graph,
        "allow_unused": allow_unused,
        "materialize_grads": materialize_grads,
    }
    if isinstance(outputs, dict) or isinstance(inputs, dict) or isinstance(grad_outputs, dict):
        tracer.break_graph("autograd_in_graph", "torch.autograd.grad() of a dictionary")
    results, wanted = _listed(tracer, outputs), _listed(tracer, inputs)
    arguments = None if grad_outputs is None else _listed(tracer, grad_outputs)
    if not (
        _are_flags(*options.values()) and results and wanted and _are_tensors(results + wanted)
    ):
        tracer.break_graph("autograd_in_graph", "torch.autograd.grad() of these arguments")
    gradients.require_inside(tracer, results)
    return gradients.gradients_of(tracer, results, wanted, arguments, **options)


def _listed(tracer: Tracer, value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else tracer.containers.spread(value)


def _are_tensors(values: list[Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


def _are_flags(*options: Any) -> bool:
    return all(type(option) in (bool, type(None)) for option in options)

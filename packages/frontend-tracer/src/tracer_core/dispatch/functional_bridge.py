"""Adapts torch.compile-style backends that are correct only for functional graphs.

The resulting `Backend` has ``ir="aten"`` and passes a functional ATen graph, with real tensors as
examples, to the style's callable. Writes to inputs, results that are views or non-contiguous, and
results returned twice are handled outside of the engine. No result has memory that the engine may
write to again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.backend import Backend
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec
from tracer_core.engine_support.contiguous import contiguous_graph
from tracer_core.ops.traits import is_random
from tracer_core.options import CompileConfig
from tracer_core.registry.torch_style import TorchStyle


@dataclass(frozen=True, slots=True)
class Functional:
    """`Backend.compile` around a style. config: with the options that the style gets."""

    style: TorchStyle
    config: CompileConfig

    def __call__(self, graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
        built = contiguous_graph(graph)
        module = torch.fx.GraphModule(graph, built.graph)
        examples = [_example(node.meta["val"]) for node in built.graph.find_nodes(op="placeholder")]
        function = self.style.build(module, examples, self.config)
        forms, wanted = built.forms(spec), [index for index, _, _ in built.inputs]
        # a thread's results are overwritten by its next call unless they are copied
        lock = threading.Lock()

        def run(inputs: list[Any]) -> Sequence[Any]:
            arguments = [inputs[index] for index in wanted]
            with lock:
                results = [result.clone() for result in function(*arguments)]
            return built.finish(forms, results, inputs)

        return Runner(run)


def _example(value: Any) -> Any:
    """Returns a real tensor like a fake one, with arbitrary values."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _supports(node: torch.fx.Node) -> str | None:
    """Returns why PyTorch has to run an operator."""
    if is_random(node.target):
        return "it draws PyTorch's random numbers"
    if torch_private.communicates(node.target):
        return "it is a collective"
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if torch.bfloat16 in dtypes:
        return "bfloat16 comes back as float16"
    if any(dtype.is_complex for dtype in dtypes):
        return "complex numbers are not supported"
    are_integers = not any(dtype.is_floating_point for dtype in dtypes)
    if are_integers and node.kwargs.get("rounding_mode") == "floor":
        return "integers are divided towards zero"
    return None


def as_functional(config: CompileConfig, style: TorchStyle) -> Backend:
    """Returns the `Backend`; the backend of `config` is the style's."""
    compile = Functional(style, config)
    return replace(config.backend, compile=compile, ir="aten", shapes="static", supports=_supports)

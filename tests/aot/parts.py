"""Backward graphs of small programs, run whole and in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

import tracer_core
from tracer_core.aot.ddp_buckets import Part
from tracer_core.plugin_api import Phase
from tracer_core.registry.eager import ATEN_EAGER


def backward_of(
    function: Callable[..., torch.Tensor], *arguments: torch.Tensor, dynamic: bool = False
) -> tuple[torch.fx.Graph, list[Any], list[Any]]:
    """(backward graph, what a call gave it, what it returned then) of a compiled function."""
    seen: list[Any] = []

    def compile_seen(graph: torch.fx.GraphModule, spec: Any) -> Any:
        def run(inputs: list[Any]) -> Any:
            items = list(inputs)
            actual = graph.forward(*inputs)
            if spec.phase is Phase.BACKWARD:
                seen[:] = [graph.graph, items, [item.clone() for item in actual]]
            return actual

        return run

    backend = replace(ATEN_EAGER, name="seen", compile=compile_seen)
    tracer_core.compile(function, backend=backend, dynamic=dynamic)(
        *arguments
    ).square().sum().backward()
    graph, values, actual = seen
    return graph, values, actual


@torch.no_grad()
def run_in_parts(
    parts: Sequence[Part], inputs: Sequence[Any], count: int, check_memory: bool = False
) -> list[Any]:
    """What the parts give, each run after the one before. check_memory: nothing that a part returns
    lies in the memory of what it was given, or of something else that it returns."""
    values: list[Any] = list(inputs)
    actual: list[Any] = [None] * count
    for part in parts:
        arguments = [values[at] for at in part.takes]
        out = torch.fx.GraphModule({}, part.graph)(*arguments)
        if check_memory:
            places = [item.untyped_storage().data_ptr() for item in (*arguments, *out)]
            returned = places[len(arguments) :]
            assert len(set(returned)) == len(returned) and not set(returned) & set(
                places[: len(arguments)]
            )
        for index, item in zip(part.gives, out, strict=False):
            actual[index] = item.clone()
            item.fill_(float("nan"))  # a gradient is the program's: later parts must not read it
        values += out[len(part.gives) :]
        for at in part.done:
            values[at] = None
    return actual

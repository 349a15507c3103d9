"""Translates a lowered ATen graph to ONNX.

In: a functional ATen graph. Out: an `Exported`: the serialised model, which graph inputs it
reads under which names, and the graph whose results it writes. What always holds: results have
the form that `tracer_core.engine_support.contiguous` describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from onnxrt_backend.attention import forbidden_rows_are_zeros
from onnxrt_backend.clamp import single_bounds
from onnxrt_backend.mean_as_pooling import means_are_pools
from onnxrt_backend.torch_private.onnx_exporter import translate
from onnxrt_backend.value_checks import fault, total
from tracer_core.plugin_api import add_value_check, contiguous_graph, promote


@dataclass(frozen=True, slots=True)
class Exported:
    """model: serialised ONNX. graph: a `tracer_core.engine_support.contiguous.ContiguousGraph`
    with the model's inputs and results. check: the graph's value check
    (`tracer_core.engine_support.value_checks.ValueCheck`), or None."""

    model: bytes
    graph: Any
    check: Any


def export(graph: torch.fx.GraphModule, name: str) -> Exported:
    """Translates `graph`. Raises what the exporter raises for an operator that it cannot
    translate."""
    result = contiguous_graph(graph)
    forbidden_rows_are_zeros(result.graph)
    single_bounds(result.graph)
    check = add_value_check(result.graph, fault, graph, total)
    means_are_pools(result.graph)
    promote(result.graph)
    return Exported(translate(result.graph, name), result, check)

"""Builds and runs a graph of one operator in ONNX Runtime, for the op support check.

The session uses one thread and the optimisations of a whole graph, because an operator that
passes must not fail there (without optimisations, ONNX Runtime does not check axes of 0-d
tensors)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxrt_backend.attention import forbidden_rows_are_zeros
from onnxrt_backend.clamp import single_bounds
from onnxrt_backend.torch_private.onnx_exporter import translate
from onnxrt_backend.value_checks import fault, total
from tracer_core.plugin_api import add_value_check, promote


def build(graph: torch.fx.Graph) -> Callable[[list[Any]], Sequence[torch.Tensor]]:
    """Returns a function of the graph's inputs that runs it in ONNX Runtime. graph:
    placeholders, one operator (with those of its items that are read), output; changed in place.
    Raises what the exporter or ONNX Runtime raises."""
    import onnxruntime

    names = [node.name for node in graph.find_nodes(op="placeholder")]
    forbidden_rows_are_zeros(graph)
    single_bounds(graph)
    n_results = len(graph.output_node().args[0])  # type: ignore[arg-type]
    add_value_check(graph, fault, lambda: None, total)
    promote(graph)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = translate(graph, "one_node")
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    fed = {item.name for item in session.get_inputs()}

    def run(inputs: list[Any]) -> list[torch.Tensor]:
        pairs = zip(names, inputs, strict=True)
        feed = {name: torch.as_tensor(value).numpy() for name, value in pairs if name in fed}
        return [torch.from_numpy(_writable(item)) for item in session.run(None, feed)[:n_results]]

    return run


def _writable(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()
